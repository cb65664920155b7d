"""Files that are kept open while they may be asked again, a bounded number of them: GDAL keeps what it decoded."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

# A season has some 70 dates of 11 files; systems allow 1,024 open files and others want some too.
MAXIMUM_OPEN = 800

Key = TypeVar("Key", bound=Hashable)


class OpenFiles(Generic[Key]):
    """Opens files when they are asked for and closes those that were asked for longest ago.

    One thread at a time; a copy in another process opens files of its own.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._open: OrderedDict[Key, tuple[Any, ExitStack]] = OrderedDict()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_open", "_process")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def most(self) -> int:
        """How many may be open at once."""
        return MAXIMUM_OPEN

    def kept(self, key: Key, open_one: Callable[[ExitStack], Any]) -> Any:
        """What is open under a key; else what `open_one` opens, closed later by what it leaves on the stack."""
        if self._process != os.getpid():  # after a fork the parent's file positions are shared: never use them
            self._forget()
        if key not in self._open:
            while len(self._open) >= self.most():
                self._open.popitem(last=False)[1][1].close()
            with ExitStack() as stack:
                self._open[key] = open_one(stack), stack.pop_all()
        self._open.move_to_end(key)
        return self._open[key][0]

    def release(self, key: Key) -> None:
        """Close a file that will not be asked again soon: GDAL forgets its blocks."""
        if key in self._open and self._process == os.getpid():
            self._open.pop(key)[1].close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][1].close()
