"""Processes of this machine: what they log and raise comes out here, in one line."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from cropstar.errors import CropstarError
from cropstar.execution.local import LocalPool, default_workers
from cropstar.runtime import logger, progress_bar, usual_threads


@pytest.mark.usefixtures("eager_workers")
def test_warnings_of_workers_come_out_here(caplog: pytest.LogCaptureFixture) -> None:
    with LocalPool(2) as pool, caplog.at_level("INFO", logger="cropstar"):
        assert len(list(pool.run([Warn(), Warn()]))) == 2
    assert [record.getMessage() for record in caplog.records] == ["100 % of 3 words from elsewhere"] * 2
    assert [record.fields for record in caplog.records] == [{"words": 3}] * 2  # type: ignore[attr-defined]


class Warn:
    """A job that only says something."""

    def run(self, _: None) -> bool:
        logger.debug("not asked for")
        logger.warning("%d %% of %s", 100, "3 words from elsewhere", extra={"fields": {"words": 3}})
        return True


@pytest.mark.usefixtures("eager_workers")
def test_workers_draw_no_bars_and_compute_with_one_thread(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would draw over the others, on the terminal that they share."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    terminal, theirs = pty.openpty()
    kept = os.dup(2)
    os.dup2(theirs, 2)
    try:
        with LocalPool(2) as pool, caplog.at_level("INFO", logger="cropstar"):
            answers = [answer for _, answer in pool.run([Ask(), Ask()])]
    finally:
        os.dup2(kept, 2)
        for number in (terminal, theirs, kept):
            os.close(number)
    assert answers == [(True, True, 1)] * 2


class Ask:
    """A job that says where it is done: on a terminal, without bars, with so many threads."""

    def run(self, _: None) -> tuple[bool, bool, int]:
        with progress_bar(1, "here", "job") as bar:
            return sys.stderr.isatty(), bar.disable, usual_threads()


class Raise:
    """A job that fails."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def run(self, _: None) -> bool:
        if self.kind == "die":
            os._exit(7)
        raise {"memory": MemoryError(), "disk": OSError(28, "No space left", "f.h5"), "bug": KeyError("x")}[self.kind]


@pytest.mark.parametrize(
    ("kind", "code", "line"),
    [
        ("memory", 6, "out of memory; use --workers 1 or more memory"),
        ("disk", 6, "cannot write in f.h5: No space left; free some disk space and run again"),
        ("bug", 1, "internal error: KeyError: 'x'; run again with --debug and report the traceback"),
        ("die", 1, "a worker stopped unexpectedly: it ended with code 7; run again with --workers 1 to see why"),
    ],
)
@pytest.mark.usefixtures("eager_workers")
def test_every_failure_is_one_line_with_its_code(kind: str, code: int, line: str) -> None:
    with LocalPool(2) as pool, pytest.raises(CropstarError) as caught:
        list(pool.run([Raise(kind)]))
    assert (str(caught.value), caught.value.exit_code) == (line, code)


def test_workers_by_default_are_the_processors_allowed() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_workers() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert default_workers() == min(len(before), 8)
