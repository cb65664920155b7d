"""Dates as numbers, and the season that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

EPOCH = date(1970, 1, 1)
YEAR = 365.25


def to_days(dates: Sequence[date]) -> NDArray[np.int32]:
    """Days since 1970-01-01."""
    return np.array([(day - EPOCH).days for day in dates], dtype=np.int32)


def from_days(days: Sequence[int] | NDArray[np.int32]) -> tuple[date, ...]:
    return tuple(EPOCH + timedelta(days=int(day)) for day in days)


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
