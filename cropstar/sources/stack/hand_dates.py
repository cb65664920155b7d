"""Dates that the user gives by hand: --dates 2023-04-01,2023-05-11, or a file that lists them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path

from cropstar.errors import InputError, UsageError
from cropstar.geo.paths import require_file
from cropstar.limits import MAXIMUM_CONFIG_BYTES

Dates = tuple[date, ...]
LIST_FILE = "@"  # before the name of a file that lists the dates
EXAMPLE = "such as --dates 2023-04-01,2023-05-11, or --dates @dates.txt with one date a line"


def parse_dates(given: str | Path | Sequence[date]) -> Dates:
    """Dates of the command line: separated by commas, or in a file that is named, with or without @ before it."""
    if not isinstance(given, (str, Path)):
        return _require_once(tuple(given), None)
    text = str(given).strip()
    if text.startswith(LIST_FILE) or ("," not in text and Path(text).is_file()):
        path = Path(text.removeprefix(LIST_FILE))
        return _require_once(tuple(_day(word, path) for word in _words_of(path)), path)
    return _require_once(tuple(_day(word.strip(), None) for word in text.split(",")), None)


def _words_of(path: Path) -> list[str]:
    require_file(path)
    if path.stat().st_size > MAXIMUM_CONFIG_BYTES:
        raise InputError("not a list of dates", path=path, why=f"{path.stat().st_size} bytes", remedy=EXAMPLE)
    try:
        return path.read_text(encoding="utf-8-sig").replace(",", " ").split()
    except UnicodeDecodeError:
        raise InputError("not a list of dates", path=path, why="it is no text in UTF-8", remedy=EXAMPLE) from None


def _day(word: str, path: Path | None) -> date:
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise _wrong("not a date", f"'{word[:40]}'", path) from None


def _require_once(dates: Dates, path: Path | None) -> Dates:
    if not dates:
        raise _wrong("no dates", "the list is empty", path)
    for place, day in enumerate(dates):
        if day in dates[:place]:
            raise _wrong("a date stands twice", str(day), path)
    return dates


def _wrong(what: str, why: str, path: Path | None) -> InputError | UsageError:
    """A file that is wrong, or the option itself."""
    if path is not None:
        return InputError(what, path=path, why=why, remedy=EXAMPLE)
    return UsageError(f"{what} in --dates", why=why, remedy=EXAMPLE)
