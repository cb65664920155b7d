"""Starting cropstar again and again and killing it at random moments, as a power cut would."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path


def start(arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cropstar", *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_to_the_end(arguments: list[str], cwd: Path) -> tuple[str, float]:
    """What it said on stderr, and how long it took."""
    started = time.monotonic()
    process = start(arguments, cwd)
    _, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    return said, time.monotonic() - started


def kill_repeatedly(
    arguments: list[str], cwd: Path, *, kills: int, seconds: float, seed: int, after_each: Callable[[], None]
) -> int:
    """Kill the command `kills` times within its working time; how many of them really hit a running process."""
    moments = random.Random(seed)
    hits = 0
    for _ in range(kills):
        process = start(arguments, cwd)
        try:
            process.wait(timeout=moments.uniform(0.15, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            hits += 1
        process.communicate(timeout=60)
        after_each()
    return hits
