"""Threads of one process: reading ahead, writing behind, and resources kept open per thread.

Reading, computing and writing go on at the same time: a window or a batch is decoded while the one before is computed.
The reader is one thread, ahead by a bounded number, so that memory stays what was planned; what was read is released as
soon as it is computed. Results are written by a thread of their own. Whatever goes wrong in a thread is raised where
the next result is asked for, and whoever leaves the loop early stops the reader, but what was computed by then is
written.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Place = TypeVar("Place")
Read = TypeVar("Read")
Item = TypeVar("Item")
Content = TypeVar("Content")

AHEAD = 1  # that wait, beside the one that is being read
PATIENCE = 0.2  # seconds between two checks whether the result is still needed


@contextmanager
def read_ahead(places: Iterable[Place], read: Callable[[Place], Read]) -> Iterator[Iterator[tuple[Place, Read]]]:
    """Places (windows, numbers of batches) and what was read of them, in their order.

    Leaving waits for the thread: nobody reads on from files that are closed.
    """
    waiting: queue.Queue[tuple[Place, Read] | BaseException | None] = queue.Queue(AHEAD)
    stopped = threading.Event()

    def offer(item: tuple[Place, Read] | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=PATIENCE)
            except queue.Full:
                continue
            return

    def run() -> None:
        try:
            for place in places:
                if stopped.is_set():
                    return
                offer((place, read(place)))
            offer(None)
        except BaseException as failure:  # raised again where the next one is asked for
            offer(failure)

    def taken() -> Iterator[tuple[Place, Read]]:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
            del item  # or it would live on while the next one is waited for

    thread = threading.Thread(target=run, name="reader", daemon=True)
    thread.start()
    try:
        yield taken()
    finally:
        stopped.set()
        thread.join()


class WriteBehind(Generic[Item]):
    """Hands items to a thread that writes them. `with WriteBehind(write) as behind: behind.put(item)`."""

    def __init__(self, write: Callable[[Item], None]) -> None:
        self._write = write
        self._waiting: queue.Queue[Item | None] = queue.Queue(AHEAD)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)

    def put(self, item: Item) -> None:
        self._raise()
        self._waiting.put(item)

    def __enter__(self) -> WriteBehind[Item]:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._waiting.put(None)
        self._thread.join()
        if kind is None:
            self._raise()

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if self._failure is None:  # after a failure items are only taken away, so that nobody waits for ever
                try:
                    self._write(item)
                except BaseException as failure:
                    self._failure = failure
            del item

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure


# --- What each thread keeps open from one task to the next: opening may take longer than the task


@dataclass
class _Open(Generic[Content]):
    key: str
    content: Content
    stack: ExitStack
    busy: bool = True


class ThreadCache(Generic[Content]):
    """One resource per thread, by the key of the job; that of another job replaces it."""

    def __init__(self) -> None:
        _caches.add(self)
        self._guard = threading.Lock()
        self._open: dict[int, _Open[Content]] = {}  # by thread

    @contextmanager
    def opened(self, key: str, open_one: Callable[[ExitStack], Content]) -> Iterator[Content]:
        """The thread's own; if it has none of that key, what `open_one` opens and leaves to the stack to close."""
        thread = threading.get_ident()
        with self._guard:
            entry = self._open.get(thread)
            if entry is not None:
                entry.busy = True
        if entry is None or entry.key != key:
            if entry is not None:
                with self._guard:
                    del self._open[thread]
                entry.stack.close()
            with ExitStack() as stack:
                entry = _Open(key, open_one(stack), stack.pop_all())
            with self._guard:
                self._open[thread] = entry
        try:
            yield entry.content
        finally:
            with self._guard:
                entry.busy = False

    def close_idle(self) -> None:
        """Close resources that no task uses."""
        with self._guard:
            for thread, entry in list(self._open.items()):
                if not entry.busy:
                    del self._open[thread]
                    entry.stack.close()


_caches: weakref.WeakSet[ThreadCache[Any]] = weakref.WeakSet()


def close_idle() -> None:
    """Close what no task of this process uses, in all caches."""
    for cache in list(_caches):
        cache.close_idle()
