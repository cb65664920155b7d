"""A full disk: one line, the documented exit code, and nothing that was good before is lost."""

from __future__ import annotations

import resource
import subprocess
from pathlib import Path

import pytest

from tests.processes import run_python


def run_limited(arguments: list[str], cwd: Path, largest: int) -> subprocess.CompletedProcess[str]:
    """cropstar where no file may grow beyond a size: writing fails as it does on a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))

    code = "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); from cropstar.cli.main import main; main()"
    return run_python(code, *arguments, cwd=cwd, before=limit)


@pytest.mark.parametrize("largest", [2_000, 40_000])
def test_ingest_on_a_full_disk(largest: int, small_scene: Path, tmp_path: Path) -> None:
    answer = run_limited(["ingest", str(small_scene / "tile.tif"), "-o", "store"], tmp_path, largest)
    assert answer.returncode == 6, answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: cannot write")
    assert "Traceback" not in answer.stderr
    assert not list(tmp_path.rglob("*.h5"))
    assert not list(tmp_path.rglob("*.partial"))


def test_training_on_a_full_disk(small_store: Path, tmp_path: Path) -> None:
    command = ["train", "--store", str(small_store), "--layers", "1", "--hidden", "8", "--epochs", "1"]
    answer = run_limited([*command, "--set", "split.validation=0.3"], tmp_path, 3_000)
    assert answer.returncode == 6, answer.stderr
    assert answer.stderr.splitlines()[-1].startswith("error: cannot write")
    assert not list(tmp_path.rglob("*.partial"))
