"""What threads of a worker keep open: each its own, one at a time, closed when nobody uses it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count

import pytest

from cropstar.execution.threads import ThreadCache


class Opener:
    """Counts what it opens and closes."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self.closed: list[int] = []

    def __call__(self, stack: ExitStack) -> int:
        number = next(self._numbers)
        stack.callback(self.closed.append, number)
        return number


def test_tasks_of_one_job_share_what_is_open_and_another_job_replaces_it() -> None:
    cache, opener = ThreadCache[int](), Opener()
    for key, expected in [("a", 1), ("a", 1), ("b", 2), ("a", 3)]:
        with cache.opened(key, opener) as content:
            assert content == expected
    assert opener.closed == [1, 2]


def test_what_is_in_use_is_not_closed() -> None:
    cache, opener = ThreadCache[int](), Opener()
    with cache.opened("a", opener):
        cache.close_idle()
        assert opener.closed == []
    cache.close_idle()
    assert opener.closed == [1]
    with cache.opened("a", opener) as content:
        assert content == 2


def test_each_thread_has_its_own() -> None:
    cache, opener, both = ThreadCache[int](), Opener(), threading.Barrier(2)

    def use(_: int) -> int:
        both.wait(timeout=10)
        with cache.opened("a", opener) as content:
            both.wait(timeout=10)
            return content

    with ThreadPoolExecutor(2) as threads:
        assert set(threads.map(use, range(2))) == {1, 2}
    cache.close_idle()
    assert sorted(opener.closed) == [1, 2]


def test_what_cannot_be_opened_leaves_nothing() -> None:
    cache, opener = ThreadCache[int](), Opener()

    def fail(stack: ExitStack) -> int:
        opener(stack)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"), cache.opened("a", fail):
        pass
    assert opener.closed == [1]
    with cache.opened("a", opener) as content:
        assert content == 2
