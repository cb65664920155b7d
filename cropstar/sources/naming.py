"""Names and lists of them as all sources write them: of scenes, and in messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date

MOST_NAMES = 30  # in one message


def safe_name(text: str) -> str:
    """A text as a part of the name of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)


def with_years(*parts: object, dates: Sequence[date]) -> str:
    """Parts of a name and the years of a series: another season of a place is another scene of a store."""
    return "-".join(map(str, [*parts, *sorted({dates[0].year, dates[-1].year})]))


def short_list(names: Iterable[object], most: int = MOST_NAMES) -> str:
    """Some names, and how many more there are."""
    texts = [str(name) for name in names]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def left_out(empty: Iterable[date], kept: int) -> list[str]:
    """The note on dates without any data, if there are any."""
    names = [str(day) for day in sorted(empty)]
    if not names:
        return []
    return [f"{len(names)} of {len(names) + kept} dates left out, without any data: {', '.join(names)}"]
