"""Warmth: growing degree-days, added up from daily mean temperatures since a day of the year."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import UsageError
from cropstar.geo.calendar import from_days

THERMAL_BAND = "gdd"  # as models know it: see `model.day_encoding`
MONTH_DAY = re.compile(r"(\d{1,2})-(\d{1,2})", re.ASCII)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Warmth:
    """How much of a day's mean temperature counts (what is above `base`, in degrees Celsius), and since which day.

    The sum begins anew on the day `start` of every year, MM-DD, and has all days before a date, not the date itself.
    """

    base: float = 0.0
    start: str = "01-01"

    def __post_init__(self) -> None:
        match = MONTH_DAY.fullmatch(self.start.strip())
        try:
            if match is None:
                raise ValueError
            date(2001, int(match[1]), int(match[2]))
        except ValueError:
            why = f"'{self.start}' is not a day of the year"
            raise UsageError("wrong value of --warm-from", why=why, remedy="write month and day: 01-01") from None
        if not -50 <= self.base <= 50:
            raise UsageError("wrong value of --base-temperature", why=f"{self.base:g} degrees", remedy="give 0 to 10")

    def of_days(self, temperatures: Mapping[int, float]) -> dict[int, float]:
        """The sum on each day, of the mean temperature of every day; a day without one has that of the day before.

        Days count from 1970-01-01. The day after the last has a sum, too.
        """
        if not temperatures:
            raise ValueError("no temperatures")
        first, last = min(temperatures), max(temperatures)
        month, day_of_month = (int(part) for part in self.start.strip().split("-"))
        sums, total, current = {}, 0.0, temperatures[first]
        for day, when in zip(range(first, last + 2), from_days(list(range(first, last + 2))), strict=True):
            if (when.month, when.day) == (month, day_of_month):
                total = 0.0
            sums[day] = total
            current = temperatures.get(day, current)
            total += max(current - self.base, 0.0)
        return sums

    def of_rows(self, days: NDArray[np.int32], temperatures: Floats, starts: NDArray[np.int64]) -> Floats:
        """(rows,) of series laid end to end; a row's temperature is the mean of the days from it to the next row."""
        warmth = np.zeros(len(days))
        for first, end in pairwise(starts.tolist()):
            own, means = days[first:end].astype(np.int64), temperatures[first:end]
            if end - first < 2:
                continue
            every = np.arange(own[0], own[-1])
            gains = np.maximum(means[np.searchsorted(own, every, side="right") - 1] - self.base, 0.0)
            sums = np.concatenate([[0.0], np.cumsum(gains)])  # of the days before each, from the first row on
            begins = self._starts_before(own)  # the last start of a year's sum, perhaps before the first row
            warmth[first:end] = sums[own - own[0]] - sums[np.maximum(begins - own[0], 0)]
        return warmth

    def _starts_before(self, days: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last start day up to each day."""
        month, day_of_month = (int(part) for part in self.start.strip().split("-"))
        years = days.astype("datetime64[D]").astype("datetime64[Y]")
        # By months, not by the number of the day, which leap years move.
        of_year = (years.astype("datetime64[M]") + (month - 1)).astype("datetime64[D]") + (day_of_month - 1)
        before = ((years - 1).astype("datetime64[M]") + (month - 1)).astype("datetime64[D]") + (day_of_month - 1)
        chosen = np.where(of_year.astype(np.int64) <= days, of_year.astype(np.int64), before.astype(np.int64))
        return chosen.astype(np.int64)

    def to_json(self) -> dict[str, Any]:
        return {"base": self.base, "start": self.start}


def to_celsius(temperatures: NDArray[Any]) -> Floats:
    """Degrees Celsius of degrees, of kelvins, or of hundredths of kelvins as AgERA5 is often stored."""
    middle = float(np.median(temperatures))
    for scale, zero, low, high in ((1.0, 0.0, -60, 60), (1.0, 273.15, 200, 340), (0.01, 273.15, 20_000, 34_000)):
        if low <= middle <= high:
            return temperatures.astype(np.float64) * scale - zero
    raise ValueError(f"half of the values are below {middle:g}: neither degrees nor kelvins")
