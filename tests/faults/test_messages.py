"""Messages that nobody can read end no work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("way", ["2>/dev/full", "2>&-", "<&- 2>&-", "broken pipe"])
def test_work_is_done_where_stderr_cannot_be_written(way: str, small_store: Path) -> None:
    command = [sys.executable, "-m", "cropstar", "inspect", str(small_store), "--verify"]
    whole = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "tiles are intact" in whole.stderr
    if way == "broken pipe":
        reading, writing = os.pipe()
        os.close(reading)
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writing, text=True, timeout=60, check=False)
        os.close(writing)
    else:
        shell = ["sh", "-c", f'"$@" {way}', "sh", *command]
        done = subprocess.run(shell, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout == whole.stdout


def test_an_error_keeps_its_code_where_stderr_is_closed(tmp_path: Path) -> None:
    shell = ["sh", "-c", '"$@" 2>&-', "sh", sys.executable, "-m", "cropstar", "inspect", str(tmp_path / "absent")]
    assert subprocess.run(shell, timeout=60, check=False).returncode == 3
