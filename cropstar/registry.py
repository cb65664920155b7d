"""A registry of named entries (models, sources) that suggests a name for an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from cropstar.errors import UsageError

Entry = TypeVar("Entry")

MOST_NAMES = 30  # in one message


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The suggestion part of an error message: the nearest known name, then all of them."""
    names = sorted(known)
    return f"{suggestion(name, names)}known: {', '.join(names)}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question with a blank behind it; empty where none is near."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'? " if near else ""


def short_list(names: Iterable[object], most: int = MOST_NAMES) -> str:
    """Some names, and how many more there are."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


class Registry(Generic[Entry]):
    """Names to entries, filled by a decorator beside each entry's definition."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def register(self, name: str) -> Callable[[Entry], Entry]:
        def keep(entry: Entry) -> Entry:
            if name in self._entries:
                raise ValueError(f"{self.kind} '{name}' is registered twice")
            self._entries[name] = entry
            return entry

        return keep

    def __getitem__(self, name: str) -> Entry:
        try:
            return self._entries[name]
        except KeyError:
            raise UsageError(f"unknown {self.kind} '{name}'", remedy=did_you_mean(name, self._entries)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)
