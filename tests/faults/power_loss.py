"""A disk that loses its power: which files may be there afterwards, by what POSIX promises and no more.

Of a logged run of a command, every call is a moment at which the power may fail. What was written to a file since its
last fsync may be there, missing, torn, or zeros. A name that was made, changed or removed since the last fsync of its
folder may be old or new, each by itself: no order is assumed, as file systems differ. A rename is whole or not at all.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

RANDOM = 4  # of states at each moment that are made by chance, beside the systematic ones
FOLDER = None  # in a table of names


@dataclass(frozen=True)
class Call:
    """A line of the log; paths are those below the watched folder."""

    kind: str
    inode: int
    offset: int  # or the size of a truncated file
    path: str
    second: str
    data: bytes


def read_log(log: Path, folder: Path) -> list[Call]:
    content, at, calls = log.read_bytes(), 0, []

    def take(end: bytes) -> str:
        nonlocal at
        stop = content.index(end, at)
        text, at = content[at:stop].decode("utf-8", "surrogateescape"), stop + 1
        return text

    while at < len(content):
        kind, inode, offset, length = take(b"\n").split()
        first, second = (path and os.path.relpath(path, folder) for path in (take(b"\0"), take(b"\0")))
        data = content[at : at + int(length)]
        at += len(data)
        calls.append(Call(kind, int(inode), int(offset), first, second, data))
    return calls


@dataclass(eq=False)
class Inode:
    """A file's content: what is on the disk for certain, and what was written since."""

    durable: bytes = b""
    pending: list[Call] = field(default_factory=list)

    def content(self, changes: Sequence[Call]) -> bytes:
        data = bytearray(self.durable)
        for change in changes:
            if change.kind == "truncate":
                data = data[: change.offset].ljust(change.offset, b"\0")
            elif change.kind == "allocate":
                data = data.ljust(change.offset, b"\0")
            else:
                end = change.offset + len(change.data)
                data = data.ljust(end, b"\0")
                data[change.offset : end] = change.data
        return bytes(data)

    def sync(self) -> None:
        self.durable, self.pending = self.content(self.pending), []

    def after_crash(self, how: str, dice: random.Random) -> bytes:
        if how == "none" or not self.pending:
            return self.durable
        if how == "all":
            return self.content(self.pending)
        if how == "zeros":  # its length reached the disk, and nothing else
            return self.durable.ljust(len(self.content(self.pending)), b"\0")
        chosen = self.pending[: dice.randrange(len(self.pending) + 1)]
        if how == "torn" and len(chosen) < len(self.pending):
            cut = self.pending[len(chosen)]
            part = Call(cut.kind, cut.inode, cut.offset, "", "", cut.data[: dice.randrange(len(cut.data) + 1)])
            return self.content([*chosen, part] if cut.kind == "write" else chosen)
        return self.content([change for change in self.pending if dice.random() < 0.7])


Names = dict[str, Inode | None]  # None for a folder


@dataclass(frozen=True, eq=False)
class NameChange:
    """Names that change together; those that vanish are in `gone`."""

    folder: str  # whose fsync makes it certain
    made: Names
    gone: tuple[str, ...] = ()

    def apply(self, names: Names) -> None:
        for path in self.gone:
            names.pop(path, None)
        names.update(self.made)


class Disk:
    """The disk while a command runs."""

    def __init__(self, folder: Path) -> None:
        """What lies in the folder has been there for long."""
        self.names: Names = {}  # that are certain
        self.pending: list[NameChange] = []
        self._inodes: dict[int, Inode] = {}
        for path in sorted(folder.rglob("*")):
            inode = Inode(path.read_bytes()) if path.is_file() else FOLDER
            self.names[str(path.relative_to(folder))] = inode
            if inode is not None:
                self._inodes[path.stat().st_ino] = inode

    def apply(self, call: Call) -> None:
        folder = os.path.dirname(call.path) or "."
        if call.kind == "create":
            self._inodes[call.inode] = Inode()
            self.pending.append(NameChange(folder, {call.path: self._inodes[call.inode]}))
        elif call.kind == "mkdir":
            self.pending.append(NameChange(folder, {call.path: FOLDER}))
        elif call.kind == "remove":
            self.pending.append(NameChange(folder, {}, (call.path,)))
        elif call.kind == "rename":
            moved: Names = {call.second: self._inodes[call.inode]}  # of a file: no command renames folders
            self.pending.append(NameChange(os.path.dirname(call.second) or ".", moved, (call.path,)))
        elif call.kind != "sync":
            self._inodes[call.inode].pending.append(call)
        elif call.inode in self._inodes and call.path not in self._folders():
            self._inodes[call.inode].sync()
        else:
            for change in self.pending:
                if change.folder == call.path:
                    change.apply(self.names)
            self.pending = [change for change in self.pending if change.folder != call.path]

    def _folders(self) -> set[str]:
        names = dict(self.names)
        for change in self.pending:
            change.apply(names)
        return {path for path, inode in names.items() if inode is FOLDER} | {"."}

    def crashes(self, dice: random.Random) -> Iterator[dict[str, bytes]]:
        """Files that may be there if the power fails now."""
        single = range(len(self.pending))
        choices = [set(), set(single), *({one} for one in single), *(set(single) - {one} for one in single)]
        for chosen in choices:
            for how in ("none", "zeros", "torn", "all"):
                yield self._after(chosen, [how], dice)
        for _ in range(RANDOM):
            chosen = {one for one in single if dice.random() < 0.5}
            yield self._after(chosen, ["none", "zeros", "torn", "some", "all"], dice)

    def _after(self, chosen: set[int], how: list[str], dice: random.Random) -> dict[str, bytes]:
        names = dict(self.names)
        for number, change in enumerate(self.pending):
            if number in chosen:
                change.apply(names)
        return {
            path: inode.after_crash(dice.choice(how), dice)
            for path, inode in names.items()
            if inode is not None and all(str(parent) in names for parent in list(Path(path).parents)[:-1])
        }


def crash_states(before: Disk, calls: Sequence[Call], seed: int = 0) -> Iterator[tuple[int, dict[str, bytes]]]:
    """All states of the disk, each once, with how many calls had been made. Before a name changes, between writes into
    a file that nobody knows yet, no two moments differ: those are passed over."""
    dice, seen = random.Random(seed), set()
    for number, call in enumerate(calls, 1):
        before.apply(call)
        last = number == len(calls)
        if call.kind == "write" and not last and dice.random() > 0.1:
            continue
        for files in before.crashes(dice):
            key = hash((last, frozenset(files.items())))
            if key not in seen:
                seen.add(key)
                yield number, files
