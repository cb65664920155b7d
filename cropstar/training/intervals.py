"""How far the figures of a test may be off by the luck of which parcels were drawn: a bootstrap by parcel.

Pixels of one field are nearly copies of each other, so that resampling pixels would give intervals far too narrow.
Whole parcels are drawn instead, with replacement, and every figure is computed anew from what was drawn. All figures
need only the hits, the true and the predicted pixels of each class, so a draw is one row of weights times one narrow
table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.training.metrics import Confusion

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Interval = tuple[float, float] | None  # None: the draws do not tell

PARCELS_AT_ONCE = 20_000  # of the dense table: 29 MB at 60 classes
WEIGHTS_AT_ONCE = 16_000_000  # of two bytes
DRAWS_AT_ONCE = 256


@dataclass(frozen=True)
class ParcelCounts:
    """The confusion matrix of every parcel, only where it is not empty: E entries, P parcels, K classes."""

    classes: int
    parcels: Integers  # (P,) their numbers, ascending
    parcel: Integers  # (E,) place in `parcels`, ascending
    cell: Integers  # (E,) truth x K + prediction
    count: Integers  # (E,)

    def matrix(self) -> Confusion:
        """All parcels together."""
        whole = np.zeros(self.classes**2, dtype=np.int64)
        np.add.at(whole, self.cell, self.count)
        return whole.reshape(self.classes, self.classes)


class ParcelTally:
    """Collects the confusion of every parcel batch by batch; memory grows with the parcels, not with the pixels."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._keys: Integers = np.zeros(0, dtype=np.int64)  # parcel x K² + cell
        self._counts: Integers = np.zeros(0, dtype=np.int64)

    def add(self, parcels: NDArray[Any], truth: NDArray[Any], prediction: NDArray[Any]) -> None:
        cells = truth.astype(np.int64) * self._classes + prediction
        keys, counts = np.unique(parcels.astype(np.int64) * self._classes**2 + cells, return_counts=True)
        self._keys, places = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        summed: Integers = np.zeros(len(self._keys), dtype=np.int64)
        np.add.at(summed, places, np.concatenate([self._counts, counts]))
        self._counts = summed

    def counts(self) -> ParcelCounts:
        numbers, cell = np.divmod(self._keys, self._classes**2)
        parcels, parcel = np.unique(numbers, return_inverse=True)
        return ParcelCounts(self._classes, parcels, parcel.astype(np.int64), cell, self._counts)


def count_parcels(parcels: NDArray[Any], truth: NDArray[Any], prediction: NDArray[Any], classes: int) -> ParcelCounts:
    """From arrays (N,) of pixels; at the level of parcels, from one entry a parcel."""
    tally = ParcelTally(classes)
    tally.add(parcels, truth, prediction)
    return tally.counts()


@dataclass(frozen=True)
class Intervals:
    """Percentile intervals. None where no draw defines a figure, or where all draws agree.

    Draws that all agree (a single parcel, or not one mistake) say nothing about what other parcels would have shown: an
    interval of no width would claim certainty.
    """

    level: float
    draws: int
    parcels: int
    overall_accuracy: Interval
    kappa: Interval
    macro_f1: Interval
    weighted_f1: Interval
    class_f1: tuple[Interval, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "draws": self.draws,
            "parcels": self.parcels,
            "overall_accuracy": _listed(self.overall_accuracy),
            "kappa": _listed(self.kappa),
            "macro_f1": _listed(self.macro_f1),
            "weighted_f1": _listed(self.weighted_f1),
            "class_f1": [_listed(interval) for interval in self.class_f1],
        }


def bootstrap(counts: ParcelCounts, *, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Intervals:
    """A class that a draw lacks in truth and prediction has no F1 there and does not count in that draw's macro-F1."""
    size = counts.classes
    sums = draw_sums(counts, draws, seed)
    figures = _figures(sums[:, :size], sums[:, size : 2 * size], sums[:, 2 * size :])
    named = {name: _interval(values, level) for name, values in figures.items() if name != "class_f1"}
    by_class = tuple(_interval(values, level) for values in figures["class_f1"].T)
    return Intervals(level, draws, len(counts.parcels), **named, class_f1=by_class)


def draw_sums(counts: ParcelCounts, draws: int, seed: int) -> Floats:
    """Hits, true and predicted pixels of each class (D, 3K) in so many draws of P parcels out of P."""
    parcels = len(counts.parcels)
    sums: Floats = np.zeros((draws, 3 * counts.classes))
    if not parcels:
        return sums
    generator = np.random.default_rng(seed)
    block = min(max(WEIGHTS_AT_ONCE // parcels, 1), DRAWS_AT_ONCE)
    for first in range(0, draws, block):
        drawn = min(block, draws - first)
        weights: NDArray[np.uint16] = np.empty((drawn, parcels), dtype=np.uint16)
        for row in weights:
            row[:] = np.bincount(generator.integers(0, parcels, parcels), minlength=parcels)
        for start in range(0, parcels, PARCELS_AT_ONCE):
            stop = min(start + PARCELS_AT_ONCE, parcels)
            sums[first : first + drawn] += weights[:, start:stop].astype(np.float64) @ _table(counts, start, stop)
    return sums


def _table(counts: ParcelCounts, start: int, stop: int) -> Floats:
    """Hits, true and predicted pixels of some parcels, class by class: (P, 3K)."""
    size = counts.classes
    entries = slice(*np.searchsorted(counts.parcel, [start, stop]))
    places, count = counts.parcel[entries] - start, counts.count[entries]
    truth, prediction = np.divmod(counts.cell[entries], size)
    table: Floats = np.zeros((stop - start, 3 * size))
    right = truth == prediction
    np.add.at(table, (places[right], truth[right]), count[right])
    np.add.at(table, (places, size + truth), count)
    np.add.at(table, (places, 2 * size + prediction), count)
    return table


def _figures(hits: Floats, truth: Floats, predicted: Floats) -> dict[str, Floats]:
    """The figures of `metrics` for all draws at once, each (D,) or (D, K); not a number where not defined."""
    total = truth.sum(axis=1)
    accuracy = _divide(hits.sum(axis=1), total)
    expected = _divide((truth * predicted).sum(axis=1), total**2)
    class_f1 = _divide(2 * hits, truth + predicted)
    known = np.nan_to_num(class_f1)
    return {
        "overall_accuracy": accuracy,
        "kappa": _divide(accuracy - expected, 1 - expected),
        "macro_f1": _divide(known.sum(axis=1), np.isfinite(class_f1).sum(axis=1)),
        "weighted_f1": _divide((known * truth).sum(axis=1), total),
        "class_f1": class_f1,
    }


def _divide(part: Floats, whole: Floats | Integers) -> Floats:
    quotient: Floats = np.full(part.shape, np.nan)
    np.divide(part, whole, out=quotient, where=whole != 0)
    return quotient


def _interval(values: Floats, level: float) -> Interval:
    defined = values[np.isfinite(values)]
    if not len(defined) or np.ptp(defined) < 1e-12:
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _listed(interval: Interval) -> list[float] | None:
    return None if interval is None else list(interval)
