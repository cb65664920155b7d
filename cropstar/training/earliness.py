"""How early each crop is known: what the model would have said by every tenth day of the season.

By a day counts what was said after the last date up to it. Before a sample's first valid date nothing is said, which is
wrong. Only one confusion matrix a day is kept, however many samples pass by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.calendar import Season

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

STEP = 10  # days
KNOWN = 0.9  # of the F1 at the end
MOST_DAYS = 400  # of the grid, whatever length a file claims for its season
EARLY = 30  # days that a series may begin before the season and still belong to it


@dataclass(frozen=True)
class Earliness:
    """Figures by day; days count from the season's first one. None where a figure is not defined."""

    start: int  # the season's first day, as day of the year
    days: tuple[int, ...]
    samples: int
    accuracy: tuple[float | None, ...]
    macro_f1: tuple[float | None, ...]
    class_f1: tuple[tuple[float | None, ...], ...]  # (K, days)
    support: tuple[int, ...]
    known: float  # share of the final F1
    known_from: tuple[int | None, ...]  # (K,) the first day from which the F1 stays at or above it
    accurate_from: int | None  # the same of the accuracy

    def to_json(self) -> dict[str, Any]:
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in vars(self).items()}
        return listed | {"class_f1": [list(row) for row in self.class_f1]}


class EarlinessTally:
    """Collects what was said by each day, batch by batch."""

    def __init__(self, season: Season, classes: int, step: int = STEP) -> None:
        self._season = season
        step = max(step, -(-season.length // MOST_DAYS))
        # The last day is the season's end: what is said then is what the model says in the end.
        self.days: Integers = np.append(np.arange(0, season.length, step, dtype=np.int64), season.length)
        # (days, truth, prediction); the last column is for nothing said
        self._counts: Integers = np.zeros((len(self.days), classes, classes + 1), dtype=np.int64)

    def add(self, scores: NDArray[Any], valid: NDArray[np.bool_], days: NDArray[Any], labels: NDArray[Any]) -> None:
        """Scores by date (N, T, K), or the classes said by date (N, T); valid and days (N, T) in order; labels (N,).

        Samples without any valid date do not count, as everywhere. Days are since 1970; dates after the season's end
        count on its last day.
        """
        said = scores.argmax(axis=2) if scores.ndim == 3 else scores
        seen = valid.any(axis=1)
        said, valid, labels = said[seen], valid[seen], labels[seen].astype(np.int64)
        offsets = season_days(days[seen], self._season)
        np.minimum(offsets, self._season.length, out=offsets)
        size = self._counts.shape[1]
        begun = valid.argmax(axis=1)  # the first valid date
        rows = np.arange(len(said))
        for place, day in enumerate(self.days):
            newest = (offsets <= day).sum(axis=1) - 1  # -1: no date yet
            by_then = np.where(newest >= begun, said[rows, newest], size)
            counts = np.bincount(labels * (size + 1) + by_then, minlength=size * (size + 1))
            self._counts[place] += counts.reshape(size, size + 1)

    def result(self) -> Earliness:
        hits = self._counts.diagonal(axis1=1, axis2=2).astype(np.float64)  # (days, K)
        truth, said = self._counts.sum(axis=2), self._counts.sum(axis=1)[:, :-1]
        accuracy = _divide(hits.sum(axis=1), truth.sum(axis=1))
        class_f1 = _divide(2 * hits, truth + said)
        macro = _divide(np.nan_to_num(class_f1).sum(axis=1), np.isfinite(class_f1).sum(axis=1))
        return Earliness(
            self._season.start,
            tuple(int(day) for day in self.days),
            int(truth[-1].sum()),
            _numbers(accuracy),
            _numbers(macro),
            tuple(_numbers(row) for row in class_f1.T),
            tuple(int(count) for count in truth[-1]),
            KNOWN,
            tuple(self._stays(row) for row in class_f1.T),
            self._stays(accuracy),
        )

    def _stays(self, values: Floats) -> int | None:
        """The first day from which values stay near the last one; none where there is nothing to come near to."""
        if not values[-1] > 0:  # not a number, too
            return None
        low = np.flatnonzero(~(values >= KNOWN * values[-1]))
        return int(self.days[low[-1] + 1 if len(low) else 0])


def season_days(days: NDArray[Any], season: Season) -> Integers:
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
    shifted: Integers = offset + (days - days[:, :1]).astype(np.int64)
    return shifted


def _divide(part: Floats, whole: Integers | Floats) -> Floats:
    quotient: Floats = np.full(part.shape, np.nan)
    np.divide(part, whole, out=quotient, where=whole != 0)
    return quotient


def _numbers(values: Floats) -> tuple[float | None, ...]:
    return tuple(float(value) if np.isfinite(value) else None for value in values)
