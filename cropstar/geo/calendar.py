"""Dates as numbers, and the season that a model was trained on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

EPOCH = date(1970, 1, 1)
YEAR = 365.25
EARLY = 30  # days that a series may begin before the season and still belong to it
ISO_DAY = re.compile(r"(\d{4})([-/]?)(\d{2})\2(\d{2})(?:[T ].*)?", re.ASCII)


def to_days(dates: Sequence[date]) -> NDArray[np.int32]:
    """Days since 1970-01-01."""
    return np.array([(day - EPOCH).days for day in dates], dtype=np.int32)


def from_days(days: Sequence[int] | NDArray[np.int32]) -> tuple[date, ...]:
    return tuple(EPOCH + timedelta(days=int(day)) for day in days)


def parse_day(text: str) -> date | None:
    """The day of 2023-04-01, 2023/04/01 or 20230401, whatever time follows; None if it is written in another way."""
    match = ISO_DAY.fullmatch(text)
    return date(int(match[1]), int(match[3]), int(match[4])) if match else None


@dataclass(frozen=True)
class Season:
    """The stretch of the year that data cover: start as day of year, length in days."""

    start: int
    length: int

    @classmethod
    def of(cls, dates: Sequence[date]) -> Season:
        first, last = min(dates), max(dates)
        return cls(first.timetuple().tm_yday, (last - first).days)

    def covers(self, day: date, tolerance: int = 20) -> bool:
        """Whether a date of any year falls into the season, give or take some days."""
        if self.length + 2 * tolerance >= YEAR:
            return True
        since_start = (day.timetuple().tm_yday - self.start + tolerance) % YEAR
        return since_start <= self.length + 2 * tolerance

    def merge(self, other: Season) -> Season:
        """The shortest season that covers both."""
        candidates = []
        for first, second in ((self, other), (other, self)):
            gap = int((second.start - first.start) % YEAR)
            candidates.append(Season(first.start, max(first.length, gap + second.length)))
        return min(candidates, key=lambda season: season.length)

    def to_json(self) -> dict[str, Any]:
        return {"start": self.start, "length": self.length}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Season:
        return cls(int(data["start"]), int(data["length"]))


def season_days(days: NDArray[Any], season: Season) -> NDArray[np.int64]:
    """Days since 1970 (N, T) as days since the start of the season that each series begins in.

    A series that goes on into the next year goes on: only its first date decides which season it is.
    """
    first = days[:, :1].astype("datetime64[D]")
    year = first.astype("datetime64[Y]")
    day_of_year = (first - year.astype("datetime64[D]")).astype(np.int64) + 1
    year_before = (year.astype("datetime64[D]") - (year - 1).astype("datetime64[D]")).astype(np.int64)
    offset = day_of_year - season.start
    offset = np.where(offset < -EARLY, offset + year_before, offset)
    # Late in December may be just before a season that starts in January.
    offset = np.where((offset > season.length) & (offset > 365 - EARLY), offset - 365, offset)
    shifted: NDArray[np.int64] = offset + (days - days[:, :1]).astype(np.int64)
    return shifted
