"""What the user says of one file by hand, where its bands do not say it themselves: --dates and --bands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from cropstar.errors import InputError
from cropstar.geo.sensors import band_name
from cropstar.sources.base import Bands
from cropstar.sources.stack.bands import Entry, Table
from cropstar.sources.stack.hand_dates import Dates
from cropstar.sources.stack.names import bands_in, days_in
from cropstar.sources.stack.renaming import has_renaming


def table_by_hand(texts: Sequence[str], path: Path, dates: Dates, given: Bands | None, *, by_band: bool) -> Table:
    """Every band of every date of a file whose bands are described by `texts`.

    Where the bands have names, the first of a name is of the first date, the second of the second; where they have
    none, `given` are the names of the bands of a date, and the file has one date after the other, or one band after
    the other.
    """
    own = [_name_in(text) for text in texts]
    if given is None or has_renaming(given) or (all(own) and set(given) & set(own)):
        places = _by_names(texts, own, path, dates)
    else:
        _require_count(len(texts), dates, given, path)
        if by_band:
            places = [(day, band) for band in given for day in dates]
        else:
            places = [(day, band) for day in dates for band in given]
    table: Table = {}
    for index, ((day, band), text) in enumerate(zip(places, texts, strict=True), start=1):
        if (said := days_in(text)) and said != [day]:
            why = f"band {index} is described as '{text}', and --dates makes it one of {day}"
            remedy = "leave out --dates, or correct them"
            raise InputError("the file says other dates", path=path, why=why, remedy=remedy)
        table[day, band] = Entry(path, index, False)
    return table


def _by_names(texts: Sequence[str], own: Sequence[str | None], path: Path, dates: Dates) -> list[tuple[date, str]]:
    counts: Counter[str] = Counter()
    places = []
    for index, (band, text) in enumerate(zip(own, texts, strict=True), start=1):
        if not band:
            said = f"is described as '{text}'" if text else "has no description"
            why, remedy = f"band {index} of {len(own)} {said}", "name them in order with --bands B02,B03,B04,B08"
            raise InputError("unknown bands", path=path, why=why, remedy=remedy)
        places.append((dates[min(counts[band], len(dates) - 1)], band))
        counts[band] += 1
    for band, count in counts.items():
        if count != len(dates):
            why = f"{count} bands are called {band} and {len(dates)} dates are given"
            raise InputError("another number of dates", path=path, why=why, remedy="give each date of the file once")
    return places


def _require_count(there: int, dates: Dates, given: Bands, path: Path) -> None:
    if there == len(dates) * len(given):
        return
    why = (
        f"{there} bands are in the file, and {len(dates)} dates of {len(given)} bands "
        f"({', '.join(given)}) are {len(dates) * len(given)}"
    )
    remedy = "name all bands of a date with --bands, and all dates with --dates"
    if there % len(given) == 0:
        remedy = f"give {there // len(given)} dates with --dates, or name other bands with --bands"
    raise InputError("another number of bands", path=path, why=why, remedy=remedy)


def _name_in(text: str) -> str | None:
    """The band that a description names, with or without a date before it."""
    if len(bands := bands_in(text)) == 1:
        return bands[0]
    word = text.replace(":", " ").split()[-1:] if days_in(text) else [text.strip()]
    return band_name(word[0]) if word and word[0].isidentifier() else None
