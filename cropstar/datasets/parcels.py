"""Parcels of images as series: on each date the mean of a parcel's clear pixels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.batch import Batch, collate
from cropstar.datasets.splits import ParcelId, Split
from cropstar.geo.windows import split as split_windows
from cropstar.progress import track
from cropstar.store.images import Image
from cropstar.store.normalisation import Normalisation, measure
from cropstar.store.store import Store

BLOCK = 96  # pixels a side read at once: 70 dates of 13 bands are 17 MB
CLEAR_SHARE = 0.25  # of a parcel's pixels; fewer are mostly the edge of a cloud


@dataclass(frozen=True)
class PooledSeries:
    days: NDArray[np.int32]  # (T,)
    values: NDArray[np.float32]  # (T, C) means of stored values, zero where not valid
    valid: NDArray[np.bool_]  # (T,)


class ParcelDataset:
    """The parcels of one part, pooled once when it is opened: a series a parcel is little."""

    def __init__(
        self,
        pooled: dict[ParcelId, PooledSeries],
        store: Store,
        split: Split,
        part: str,
        normalisation: Normalisation,
        batch_size: int,
    ) -> None:
        self.part = part
        self.batch_size = batch_size
        self._pooled = pooled
        self._labels = split.label_of
        self._fingerprint = store.fingerprint
        self._normalisation = normalisation
        self._running = {parcel: index for index, parcel in enumerate(sorted(split.part_of))}
        self._parcels = [parcel for parcel in sorted(pooled) if split.part_of.get(parcel) == part]

    def __len__(self) -> int:
        return len(self._parcels)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """(samples, classes): one in the column of the parcel's class."""
        labels = [self._labels[parcel] for parcel in self._parcels]
        table: NDArray[np.int64] = np.eye(classes, dtype=np.int64)[labels]
        return table

    def batch(self, indexes: list[int]) -> Batch:
        return collate([self._sample(self._parcels[index]) for index in indexes], size=None)

    def _sample(self, parcel: ParcelId) -> dict[str, NDArray[Any]]:
        series = self._pooled[parcel]
        return {
            "x": self._normalisation.apply(series.values, self._fingerprint.scale, self._fingerprint.offset),
            "valid": series.valid,
            "days": series.days,
            "labels": np.array(self._labels[parcel], dtype=np.int64),
            "parcels": np.array(self._running[parcel], dtype=np.int64),
        }


def measure_pooled(pooled: dict[ParcelId, PooledSeries], store: Store, split: Split) -> Normalisation:
    """Statistics of the training parcels alone."""

    def observations() -> Iterator[NDArray[Any]]:
        for parcel in sorted(pooled):
            if split.part_of.get(parcel) == "train":
                yield pooled[parcel].values[pooled[parcel].valid]

    return measure(observations(), store.fingerprint.scale, store.fingerprint.offset)


def pool_parcels(store: Store, split: Split) -> dict[ParcelId, PooledSeries]:
    """Every parcel of the split, also where it lies in several tiles of its scene."""
    pools: dict[ParcelId, _Pool] = {}
    tiles = store.tiles
    for reader in track(tiles, len(tiles), "pool parcels", "tile"):
        for image in reader.images:
            for parcel, days, counts, sums, size in _pieces(image, split):
                pools.setdefault(parcel, _Pool()).add(days, counts, sums, size)
    return {parcel: pool.series() for parcel, pool in pools.items()}


class _Pool:
    """Sums over the pieces of a parcel."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._sums: dict[int, NDArray[np.float64]] = {}
        self._size = 0

    def add(self, days: NDArray[np.int32], counts: NDArray[np.int64], sums: NDArray[np.float64], size: int) -> None:
        """Days (T,), clear pixels (T,), sums over them (T, C), and how many pixels the piece has."""
        self._size += size
        for place, day in enumerate(days.tolist()):
            self._counts[day] = self._counts.get(day, 0) + int(counts[place])
            self._sums[day] = self._sums.get(day, np.zeros(sums.shape[1])) + sums[place]

    def series(self) -> PooledSeries:
        days = np.array(sorted(self._sums), dtype=np.int32)
        counts = np.array([self._counts[day] for day in days.tolist()])
        sums = np.stack([self._sums[day] for day in days.tolist()])  # (T, C)
        valid = (counts > 0) & (counts >= CLEAR_SHARE * self._size)
        values = np.where(valid[:, None], sums / np.maximum(counts, 1)[:, None], 0).astype(np.float32)
        return PooledSeries(days, values, valid)


def _pieces(
    image: Image, split: Split
) -> Iterator[tuple[ParcelId, NDArray[np.int32], NDArray[np.int64], NDArray[np.float64], int]]:
    """The clear pixels of each parcel in each block of an image, summed."""
    days = image.days
    for window in split_windows(image.grid.shape, BLOCK):
        parcels = image.parcels(window).ravel()
        numbers, starts_at = np.unique(parcels, return_inverse=True)
        wanted = np.array([(image.scene, int(number)) in split.part_of for number in numbers])
        if not wanted.any():
            continue
        chosen = np.flatnonzero(wanted[starts_at])
        order = chosen[np.argsort(starts_at[chosen], kind="stable")]
        found, starts, sizes = np.unique(starts_at[order], return_index=True, return_counts=True)
        valid = image.valid(window).reshape(len(days), -1)[:, order]  # (T, P)
        values = image.values(window)
        values = values.reshape(*values.shape[:2], -1)[:, :, order] * valid[:, None]  # (T, C, P)
        counts = np.add.reduceat(valid, starts, axis=1, dtype=np.int64)
        sums = np.add.reduceat(values, starts, axis=2, dtype=np.float64)
        for place, rank in enumerate(found):
            parcel = image.scene, int(numbers[rank])
            yield parcel, days, counts[:, place], sums[:, :, place], int(sizes[place])
