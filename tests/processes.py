"""Other processes: programs that tests run to their end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Answer = subprocess.CompletedProcess[str]


def run_process(
    *command: str | Path,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 240,
    check: bool = False,
    before: Callable[[], None] | None = None,
) -> Answer:
    """Run a command with one thread and what is in `env`; `before` is called in the new process."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        capture_output=True,
        text=True,
        errors="backslashreplace",
        timeout=timeout,
        check=check,
        preexec_fn=before,
    )


def run_python(code: str, *arguments: str | Path, **how: object) -> Answer:
    """Run code in a fresh interpreter; the options are those of `run_process`."""
    return run_process(sys.executable, "-c", code, *arguments, **how)  # type: ignore[arg-type]
