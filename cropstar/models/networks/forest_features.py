"""What a random forest is told of a series: its values on regular days, and how far each is from a clear date.

Linear between clear dates, held before the first and after the last. One function of arrays, so that training and
prediction do the very same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cropstar.models.days import YEAR

EVERY = 10  # days
LONGEST = 36_525  # days of a season: what a file may claim


@dataclass(frozen=True)
class DayGrid:
    """Regular days over a season that starts on a day of the year."""

    start: int
    length: int
    every: int = EVERY

    @property
    def offsets(self) -> NDArray[np.int64]:
        """(G,) in days since the start of the season; the last is within it."""
        return np.arange(0, self.length + 1, self.every)

    def features(self, bands: int) -> int:
        return len(self.offsets) * (bands + 1)

    def problem(self) -> str | None:
        """Why a grid from a file cannot be used."""
        sound = 1 <= self.start <= 366 and 0 <= self.length <= LONGEST and 1 <= self.every <= 366
        return None if sound else f"a season of {self.length} days from day {self.start} on, every {self.every}"

    def starts(self, days: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first day (B,) of the season of the year that leaves the least of each sample's days (B,T) outside."""
        first, last = days.min(axis=1), days.max(axis=1)
        years = first.astype("datetime64[D]").astype("datetime64[Y]")[:, None]
        nearby = np.arange(1, -3 - int(self.length / YEAR), -1)  # the latest wins where several are as good
        starts = (years + nearby).astype("datetime64[D]").astype(np.int64) + self.start - 1  # (B, years)
        outside = np.maximum(starts - first[:, None], 0) + np.maximum(last[:, None] - starts - self.length, 0)
        chosen: NDArray[np.int64] = np.take_along_axis(starts, outside.argmin(axis=1)[:, None], axis=1)[:, 0]
        return chosen


def features_of(
    x: NDArray[np.float32],
    valid: NDArray[np.bool_],
    days: NDArray[np.int64],
    grid: DayGrid,
    means: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """x (B,T,C), valid (B,T) and days (B,T) as features (B, G*C + G): values day by day, then the days to a clear date.

    A series without any clear date has the `means` (G*C,) of the training, zeros where there are none yet, and the
    length of the season as distance.
    """
    since = np.where(valid, days - grid.starts(days)[:, None], np.iinfo(np.int32).max)  # hidden dates go to the end
    order = np.argsort(since, axis=1, kind="stable")
    since = np.take_along_axis(since, order, axis=1)
    clear = valid.sum(axis=1)  # (B,)
    last = np.maximum(clear - 1, 0)[:, None]
    offsets = grid.offsets
    passed = (since[:, :, None] <= offsets).sum(axis=1)  # (B,G): clear dates up to each day
    before, after = np.clip(passed - 1, 0, last), np.clip(passed, 0, last)
    left, right = (np.take_along_axis(since, side, axis=1) for side in (before, after))  # (B,G)
    weight = np.clip((offsets - left) / np.maximum(right - left, 1), 0, 1).astype(np.float32)[:, :, None]
    rows = np.arange(len(x))[:, None]
    low, high = (x[rows, np.take_along_axis(order, side, axis=1)] for side in (before, after))  # (B,G,C)
    values = (low + weight * (high - low)).reshape(len(x), -1)
    distance = np.minimum(np.abs(offsets - left), np.abs(offsets - right)).clip(max=grid.length)
    unseen = clear == 0
    values[unseen] = 0 if means is None else means
    distance[unseen] = grid.length
    return np.concatenate([values, distance], axis=1).astype(np.float32)
