"""The coarser levels of a class table with levels: judged beside the classes themselves.

A level's answer is the coarse class of the highest probability, which is the sum over its classes. It may be another
than the one that the likeliest class belongs to: three kinds of wheat at 0.2 each outweigh a maize of 0.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.store.classes import ClassTable
from cropstar.training.intervals import ParcelCounts, ParcelTally, count_parcels


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
