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
        preexec_fn=usual_signals,
    )


def usual_signals() -> None:
    """As in a terminal: a background job or nohup ignores SIGINT, some callers block signals, and children inherit."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT, signal.SIGTERM])


def run_to_the_end(arguments: list[str], cwd: Path) -> tuple[str, float]:
    """What it said on stderr, and how long it took."""
    started = time.monotonic()
    process = start(arguments, cwd)
    _, said = process.communicate(timeout=280)
    assert process.returncode == 0, said
    return said, time.monotonic() - started


def kill_repeatedly(
    arguments: list[str],
    cwd: Path,
    *,
    kills: int,
    seconds: float,
    seed: int,
    after_each: Callable[[], None],
    start_over: Callable[[], None],
) -> None:
    """Hit the running command `kills` times at random moments of its working time.

    Each start goes on from what the last one left. One that came through unharmed is no kill: it is undone by
    `start_over`, and another start is hit instead.
    """
    moments = random.Random(seed)
    hits = misses = 0
    while hits < kills:
        process = start(arguments, cwd)
        try:
            process.wait(timeout=moments.uniform(0.15, 1.0) * seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            hits += 1
        _, said = process.communicate(timeout=60)
        after_each()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, said
            misses += 1
            seconds *= 0.7  # the machine has less else to do than when the time was taken
            assert misses <= 2 * kills + 4, "most starts came through before they were hit"
            start_over()
