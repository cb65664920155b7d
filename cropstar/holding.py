"""What each thread of a worker keeps open from one task of a job to the next: opening may take longer than the task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

Content = TypeVar("Content")


@dataclass
class _Held(Generic[Content]):
    key: str
    content: Content
    stack: ExitStack
    busy: bool = True


class Holder(Generic[Content]):
    """One thing for each thread, by the key of the job; another job's takes its place."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[int, _Held[Content]] = {}  # by thread

    @contextmanager
    def held(self, key: str, open_one: Callable[[ExitStack], Content]) -> Iterator[Content]:
        """The thread's own; if it has none of that key, what `open_one` opens and leaves to the stack to close."""
        thread = threading.get_ident()
        with self._guard:
            held = self._held.get(thread)
            if held is not None:
                held.busy = True
        if held is None or held.key != key:
            if held is not None:
                with self._guard:
                    del self._held[thread]
                held.stack.close()
            with ExitStack() as stack:
                held = _Held(key, open_one(stack), stack.pop_all())
            with self._guard:
                self._held[thread] = held
        try:
            yield held.content
        finally:
            with self._guard:
                held.busy = False

    def close_idle(self) -> None:
        """Close what no task uses: the files may be somebody else's tomorrow."""
        with self._guard:
            for thread, held in list(self._held.items()):
                if not held.busy:
                    del self._held[thread]
                    held.stack.close()
