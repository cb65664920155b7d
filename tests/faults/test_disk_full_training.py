"""A disk that fills up while a checkpoint is written: the checkpoints before it stay as they are, and training goes on.

The disk is a real one of a few megabytes: a tmpfs in a namespace of its own, made smaller when the run has begun.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cropstar.store.model_file import read_tensors
from cropstar.training.runs import Run

SCRIPT = """
set -e
mount -t tmpfs -o size=16m tmpfs runs
"$@" > first.log 2>&1
rm runs/*/result.json $(ls runs/*/checkpoints/*.safetensors | tail -n 1)
cp -r runs before
used=$(df --output=used -k runs | tail -n 1)
mount -o remount,size=$((used + 12))k runs
set +e
"$@" > full.log 2>&1
echo $? > code
cp -r runs after
mount -o remount,size=16m runs
"$@" > again.log 2>&1
echo $? > again
cp -r runs end
"""


@pytest.mark.slow
def test_a_full_disk_keeps_the_checkpoints(small_store: Path, tmp_path: Path) -> None:
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("no file system can be mounted here: unshare -rm is not allowed")
    (tmp_path / "runs").mkdir()
    command = [sys.executable, "-m", "cropstar", "train", "--store", str(small_store), "--layers", "1"]
    command += ["--hidden", "8", "--epochs", "3", "--runs", "runs", "--checkpoint-seconds", "0"]
    command += ["--set", "split.validation=0.3", "--set", "split.test=0.3"]
    subprocess.run(
        ["unshare", "-rm", "sh", "-c", SCRIPT, "sh", *command],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=290,
        check=True,
    )
    said = (tmp_path / "full.log").read_text()
    assert (tmp_path / "code").read_text().strip() == "6", said
    last = said.splitlines()[-1]
    assert last.startswith("error: cannot write in runs/convstar-1x8-001/checkpoints/step-")
    assert "No space left on device" in last
    assert "Traceback" not in said

    before, after = (Run(tmp_path / name / "convstar-1x8-001") for name in ("before", "after"))
    assert [path.name for path in after.checkpoints()] == [path.name for path in before.checkpoints()]
    for old, new in zip(before.checkpoints(), after.checkpoints(), strict=True):
        assert new.read_bytes() == old.read_bytes()
        read_tensors(new, "checkpoint")
    assert not list((tmp_path / "after").rglob("*.partial"))
    assert (tmp_path / "again").read_text().strip() == "0"
    assert "resuming from epoch" in (tmp_path / "again.log").read_text()
    assert Run(tmp_path / "end" / "convstar-1x8-001").finished
