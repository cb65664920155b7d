"""When the images were taken: from the user's list, or assumed."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_CONFIG_BYTES
from cropstar.logs import logger

REMEDY = "write one date a line, such as 2019-01-03, in the order of the images"


def read_dates(path: Path, count: int) -> list[date]:
    """One date a line, ascending, one for each acquisition."""
    if not path.is_file():
        raise InputError("no list of dates", path=path, why="there is no such file", remedy="check the path")
    if path.stat().st_size > MAXIMUM_CONFIG_BYTES:
        raise InputError("not a list of dates", path=path, why=f"{path.stat().st_size} bytes", remedy=REMEDY)
    try:
        lines = path.read_text(encoding="utf-8-sig").split()
    except UnicodeDecodeError:
        raise InputError("not a list of dates", path=path, why="it is no text in UTF-8", remedy=REMEDY) from None
    dates: list[date] = []
    for place, line in enumerate(lines, start=1):
        try:
            day = date.fromisoformat(line)
        except ValueError:
            why = f"entry {place} is '{line[:40]}'"
            raise InputError("not a date", path=path, why=why, remedy=REMEDY) from None
        if dates and day <= dates[-1]:
            why = f"{day} follows {dates[-1]}"
            raise InputError("dates out of order", path=path, why=why, remedy=REMEDY)
        dates.append(day)
    if len(dates) != count:
        why = f"{len(dates)} for {count} acquisitions"
        raise InputError("a wrong number of dates", path=path, why=why, remedy=REMEDY)
    return dates


def spread_dates(count: int, year: int, path: Path) -> list[date]:
    """Evenly from the first day of the year to the last: two orbits of both satellites pass every few days."""
    first, last = date(year, 1, 1), date(year, 12, 31)
    days = (last - first).days
    if count > days + 1:
        why = f"{count} acquisitions are more than the days of {year}"
        raise InputError("no dates", path=path, why=why, remedy="list them in a file and give it with --dates")
    logger.warning(
        "%s has no dates: its %d acquisitions are taken as evenly spread over %d; --dates FILE gives the true ones",
        path.name,
        count,
        year,
    )
    if count == 1:
        return [first + timedelta(days=days // 2)]
    return [first + timedelta(days=place * days // (count - 1)) for place in range(count)]
