"""Figures of confusion matrices, with bootstrap intervals over parcels, and for the coarser levels of a class table.

Rows of a confusion matrix are the truth, columns the prediction. Matrices are kept parcel by parcel: what is drawn
anew for an interval is a parcel, since pixels of one field are not independent samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.store.classes import ClassTable

# --- figures of one confusion matrix


Confusion = NDArray[np.int64]


def overall_accuracy(matrix: Confusion) -> float | None:
    return _ratio(matrix.trace(), matrix.sum())


def kappa(matrix: Confusion) -> float | None:
    """Cohen's kappa: agreement beyond chance."""
    total = matrix.sum()
    if total == 0:
        return None
    expected = float((matrix.sum(axis=0) / total) @ (matrix.sum(axis=1) / total))
    return _ratio(float(matrix.trace() / total) - expected, 1 - expected)


def macro_f1(matrix: Confusion) -> float | None:
    """The mean F1 of the classes that occur in truth or prediction."""
    scores = [score for score in class_f1(matrix) if score is not None]
    return float(np.mean(scores)) if scores else None


def weighted_f1(matrix: Confusion) -> float | None:
    support = matrix.sum(axis=1)
    pairs = [(score or 0.0, weight) for score, weight in zip(class_f1(matrix), support, strict=True)]
    return _ratio(sum(score * weight for score, weight in pairs), support.sum())


def class_f1(matrix: Confusion) -> list[float | None]:
    hits, truth, predicted = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    return [_ratio(2 * hit, own + other) for hit, own, other in zip(hits, truth, predicted, strict=True)]


def summary(matrix: Confusion) -> dict[str, Any]:
    """All figures of the metrics file and the report; None where a figure is not defined."""
    hits, truth, predicted = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    rows = [
        {
            "precision": _ratio(hit, seen),
            "recall": _ratio(hit, own),
            "f1": score,
            "iou": _ratio(hit, own + seen - hit),
            "support": int(own),
        }
        for hit, own, seen, score in zip(hits, truth, predicted, class_f1(matrix), strict=True)
    ]
    return {
        "judged_classes": int(np.count_nonzero(truth + predicted)),  # those that the macro-F1 is the mean of
        "overall_accuracy": overall_accuracy(matrix),
        "kappa": kappa(matrix),
        "macro_f1": macro_f1(matrix),
        "weighted_f1": weighted_f1(matrix),
        "confusion": matrix.tolist(),
        "classes": rows,
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


# --- bootstrap intervals over parcels
#
# Pixels of one field are nearly copies of each other: resampling pixels would give intervals far too narrow. Whole
# parcels are drawn instead, with replacement, and every figure is computed anew. All figures need only the hits, the
# true and the predicted pixels of each class, so a draw is one row of weights times one narrow table.


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

    @classmethod
    def merged(cls, parts: Sequence[ParcelCounts]) -> ParcelCounts:
        """Counts of different parcels, such as those of the folds, as one."""
        tally = ParcelTally(parts[0].classes)
        for part in parts:
            tally.add_counts(part)
        return tally.counts()

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
        self._add(*np.unique(parcels.astype(np.int64) * self._classes**2 + cells, return_counts=True))

    def add_counts(self, found: ParcelCounts) -> None:
        self._add(found.parcels[found.parcel] * self._classes**2 + found.cell, found.count)

    def _add(self, keys: Integers, counts: Integers) -> None:
        self._keys, places = np.unique(np.concatenate([self._keys, keys]), return_inverse=True)
        summed: Integers = np.zeros(len(self._keys), dtype=np.int64)
        np.add.at(summed, places, np.concatenate([self._counts, counts]))
        self._counts = summed

    def counts(self) -> ParcelCounts:
        numbers, cell = np.divmod(self._keys, self._classes**2)
        parcels, parcel = np.unique(numbers, return_inverse=True)
        return ParcelCounts(self._classes, parcels, parcel.astype(np.int64), cell, self._counts)


def count_parcels(parcels: NDArray[Any], truth: NDArray[Any], prediction: NDArray[Any], classes: int) -> ParcelCounts:
    """From arrays (N,) of pixels; at the level of parcels, from one entry per parcel."""
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
    figures = _draw_figures(sums[:, :size], sums[:, size : 2 * size], sums[:, 2 * size :])
    named = {name: _interval(values, level) for name, values in figures.items() if name != "class_f1"}
    by_class = tuple(_interval(values, level) for values in figures["class_f1"].T)
    return Intervals(level, draws, len(counts.parcels), **named, class_f1=by_class)


def draw_sums(counts: ParcelCounts, draws: int, seed: int) -> Floats:
    """Hits, true and predicted pixels of each class (D, 3K) in D bootstrap draws of the parcels."""
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


def _draw_figures(hits: Floats, truth: Floats, predicted: Floats) -> dict[str, Floats]:
    """The figures of `metrics` for all draws at once, each (D,) or (D, K); not a number where not defined."""
    total = truth.sum(axis=1)
    accuracy = divide(hits.sum(axis=1), total)
    expected = divide((truth * predicted).sum(axis=1), total**2)
    class_f1 = divide(2 * hits, truth + predicted)
    known = np.nan_to_num(class_f1)
    return {
        "overall_accuracy": accuracy,
        "kappa": divide(accuracy - expected, 1 - expected),
        "macro_f1": divide(known.sum(axis=1), np.isfinite(class_f1).sum(axis=1)),
        "weighted_f1": divide((known * truth).sum(axis=1), total),
        "class_f1": class_f1,
    }


def divide(part: Floats, whole: Floats | Integers) -> Floats:
    """The quotient, NaN where the divisor is zero."""
    quotient: Floats = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    np.divide(part, whole, out=quotient, where=np.broadcast_to(whole != 0, quotient.shape))
    return quotient


def _interval(values: Floats, level: float) -> Interval:
    defined = values[np.isfinite(values)]
    if not len(defined) or np.ptp(defined) < 1e-12:
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _listed(interval: Interval) -> list[float] | None:
    return None if interval is None else list(interval)


# --- coarser levels of a class table
#
# A level's answer is the coarse class of the highest probability, which is the sum over its classes. It may differ from
# the one that the likeliest class belongs to: three kinds of wheat at 0.2 each outweigh a maize of 0.4.


@dataclass(frozen=True)
class Level:
    name: str
    classes: tuple[str, ...]  # the coarse classes
    nodes: NDArray[np.int64]  # (K,) the coarse class of every class

    def answers(self, probabilities: NDArray[Any]) -> NDArray[np.int64]:
        """The likeliest coarse class (N,), from probabilities (N, K) or sums of them."""
        belongs = self.nodes[:, None] == np.arange(len(self.classes))
        chosen: NDArray[np.int64] = (probabilities @ belongs.astype(np.float64)).argmax(axis=1)
        return chosen


@dataclass(frozen=True)
class LevelCounts:
    """A level's confusion matrices, parcel by parcel, as an evaluation has them."""

    level: Level
    pixel_counts: ParcelCounts
    parcel_counts: ParcelCounts


class LevelTally:
    """Collects the confusion of one level batch by batch."""

    def __init__(self, level: Level) -> None:
        self._level = level
        self._tally = ParcelTally(len(level.classes))

    def add(self, parcels: NDArray[Any], labels: NDArray[Any], probabilities: NDArray[Any]) -> None:
        self._tally.add(parcels, self._level.nodes[labels], self._level.answers(probabilities))

    def counts(self, parcels: NDArray[Any], labels: NDArray[Any], sums: NDArray[Any]) -> LevelCounts:
        """With the parcels' numbers, classes (P,) and summed probabilities (P, K)."""
        level = self._level
        whole = count_parcels(parcels, level.nodes[labels], level.answers(sums), len(level.classes))
        return LevelCounts(level, self._tally.counts(), whole)


def levels_of(classes: ClassTable) -> tuple[Level, ...]:
    """The coarser levels, coarsest first; none of a flat table."""
    tree = classes.tree()
    nodes = np.array(tree.lineages, dtype=np.int64).reshape(len(classes), len(tree.names))
    return tuple(Level(f"level {place + 1}", names, nodes[:, place]) for place, names in enumerate(tree.names[:-1]))


# --- a sample of scores


SLACK = 50_000  # rows beyond twice what was kept before they are thinned again


class ScoreSample:
    """Keeps up to `most` pixels per parcel, each with the same chance: those that drew the lowest numbers."""

    def __init__(self, classes: int, most: int = 32, seed: int = 0) -> None:
        self._most = most
        self._generator = np.random.default_rng(seed)
        self._parts: list[tuple[NDArray[Any], ...]] = [
            (np.zeros((0, classes), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        ]
        self._kept = self.held = 0

    def add(self, scores: NDArray[Any], labels: NDArray[Any], parcels: NDArray[Any]) -> None:
        """Scores (N, K), labels and parcels (N,) of a batch."""
        drawn = self._generator.random(len(labels))
        self._parts.append((scores.astype(np.float32), labels.astype(np.int64), parcels.astype(np.int64), drawn))
        self.held += len(labels)
        if self.held > 2 * self._kept + SLACK:
            self._thin()

    def arrays(self) -> tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]:
        """Scores, labels and parcels of what was kept, parcel after parcel."""
        self._thin()
        scores, labels, parcels, _ = self._parts[0]
        return scores, labels, parcels

    def _thin(self) -> None:
        whole = [np.concatenate(columns) for columns in zip(*self._parts, strict=True)]
        parcels, drawn = whole[2], whole[3]
        order = np.lexsort((drawn, parcels))
        starts = np.flatnonzero(np.diff(parcels[order], prepend=parcels.min(initial=0) - 1))
        ranks = np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))
        chosen = order[ranks < self._most]
        self._parts = [tuple(column[chosen] for column in whole)]
        self._kept = self.held = len(chosen)
