"""Threads around the model: order, back-pressure, failures that come out, and nobody left behind."""

from __future__ import annotations

import threading
import time

import pytest

from cropstar.errors import InputError
from cropstar.execution.threads import AHEAD, WriteBehind, read_ahead
from cropstar.geo.windows import Window, split

WINDOWS = list(split((40, 40), 10))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name in ("reader", "writer")]


def test_windows_come_in_order_and_never_far_ahead() -> None:
    read: list[Window] = []

    def note(window: Window) -> int:
        read.append(window)
        return window.top

    with read_ahead(WINDOWS, note) as ready:
        for number, (window, found) in enumerate(ready):
            assert (window, found) == (WINDOWS[number], WINDOWS[number].top)
            time.sleep(0.01)  # the reader would run away if it could
            assert len(read) <= number + 1 + AHEAD + 1
    assert read == WINDOWS
    assert threads() == []


def test_a_failure_of_the_reader_comes_out_after_what_was_read() -> None:
    def read(window: Window) -> Window:
        if window == WINDOWS[5]:
            raise InputError("damaged raster")
        return window

    taken: list[Window] = []

    def take() -> None:
        with read_ahead(WINDOWS, read) as ready:
            for window, _ in ready:
                taken.append(window)

    with pytest.raises(InputError, match="damaged"):
        take()
    assert taken == WINDOWS[:5]
    assert threads() == []


def test_leaving_early_stops_the_reader() -> None:
    read: list[Window] = []

    def leave() -> None:
        with read_ahead(WINDOWS, read.append) as ready:
            next(ready)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert len(read) <= 1 + AHEAD + 1
    assert threads() == []


def test_what_was_put_is_written_whatever_happens() -> None:
    written: list[int] = []

    def slowly(number: int) -> None:
        time.sleep(0.02)
        written.append(number)

    def leave() -> None:
        with WriteBehind(slowly) as behind:
            for number in range(5):
                behind.put(number)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        leave()
    assert written == [0, 1, 2, 3, 4]
    assert threads() == []


def test_a_full_disk_comes_out_and_nobody_waits_for_ever() -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    def put(count: int) -> None:
        with WriteBehind(full) as behind:
            for number in range(count):
                behind.put(number)

    for count in (1000, 1):  # of the last one it is told when leaving
        with pytest.raises(OSError, match="No space"):
            put(count)
    assert threads() == []
