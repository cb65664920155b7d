"""Some pixels of every parcel with their scores, drawn by chance while batches pass by, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SLACK = 50_000  # rows beyond twice what was kept before they are thinned again


class ScoreSample:
    """Keeps up to `most` pixels a parcel, each with the same chance: those that drew the lowest numbers."""

    def __init__(self, classes: int, most: int = 32, seed: int = 0) -> None:
        self._most = most
        self._generator = np.random.default_rng(seed)
        self._parts: list[tuple[NDArray[Any], ...]] = [
            (np.zeros((0, classes), np.float32), np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        ]
        self._kept = self._rows = 0

    def add(self, scores: NDArray[Any], labels: NDArray[Any], parcels: NDArray[Any]) -> None:
        """Scores (N, K), labels and parcels (N,) of a batch."""
        drawn = self._generator.random(len(labels))
        self._parts.append((scores.astype(np.float32), labels.astype(np.int64), parcels.astype(np.int64), drawn))
        self._rows += len(labels)
        if self._rows > 2 * self._kept + SLACK:
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
        self._kept = self._rows = len(chosen)
