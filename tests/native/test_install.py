"""The build hook, run by the real build backend on a copy of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cropstar.native import build
from tests.processes import run_python

REPOSITORY = Path(__file__).resolve().parents[2]
NEEDED = ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "configs", "cropstar")
UNBUILT = shutil.ignore_patterns("__pycache__", "kernels.so", "not-built.txt")


def build_wheel(folder: Path, **environment: str) -> tuple[Path, str]:
    """The wheel, and what was said."""
    pytest.importorskip("hatchling")
    for name in NEEDED:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=UNBUILT)
        else:
            shutil.copyfile(source, folder / name)
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "dist")],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "dist").iterdir()
    return wheel, done.stdout + done.stderr


def test_without_a_compiler_the_wheel_is_for_every_platform_and_says_why(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    wheel, said = build_wheel(tmp_path, PATH=str(empty), CXX="")
    assert "kernels were not built: no C++ compiler found" in said
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert "no C++ compiler" in archive.read("cropstar/native/not-built.txt").decode()
        assert "cropstar/native/kernels.so" not in archive.namelist()
        assert "cropstar/native/src/entry.cpp" in archive.namelist()  # to be built later
    assert not (tmp_path / "cropstar" / "native" / "not-built.txt").exists()  # sources stay as they are


@pytest.mark.slow
def test_with_a_compiler_the_wheel_has_the_kernels(tmp_path: Path) -> None:
    try:
        build.find_compiler()
    except build.BuildError as error:
        pytest.skip(str(error))
    wheel, said = build_wheel(tmp_path)
    assert "kernels were built" in said
    assert not (tmp_path / "cropstar" / "native" / "kernels.so").exists()
    assert "-py3-none-" in wheel.name
    assert not wheel.name.endswith("-any.whl")
    unpacked = tmp_path / "unpacked"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(unpacked)
    code = "import cropstar.native as native; print(native.__file__, native.available(), native.why_not())"
    environment = {"PYTHONPATH": str(unpacked), "CROPSTAR_NATIVE": "1", "CROPSTAR_NATIVE_SET": ""}
    done = run_python(code, cwd=unpacked, env=environment, timeout=60, check=True)
    assert done.stdout.split() == [str(unpacked / "cropstar/native/__init__.py"), "True"]
