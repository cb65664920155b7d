"""The samples of series tiles: one a parcel, each with dates of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.datasets.batch import Batch
from cropstar.datasets.parts import Split
from cropstar.store.classes import UNLABELLED
from cropstar.store.normalisation import Normalisation, measure
from cropstar.store.reader import TileReader
from cropstar.store.store import Store


class SeriesDataset:
    """The series of a store that belong to one part, with one label each or, `dated`, with one a date."""

    def __init__(
        self,
        store: Store,
        split: Split,
        part: str,
        normalisation: Normalisation,
        batch_size: int,
        *,
        dated: bool = False,
        unlabelled: bool = False,
    ) -> None:
        """`unlabelled` adds the series that have no class at all, for a teacher to speak of."""
        self.part = part
        self.batch_size = batch_size
        self._store = store
        self._dated = dated
        self._names = [entry.name for entry in store.manifest.tiles]
        self._factor, self._shift = normalisation.factors(store.fingerprint.scale, store.fingerprint.offset)
        running = split.running_numbers()
        tiles = {name: number for number, name in enumerate(self._names)}
        samples = []
        for name, place in _places(store, split, part):
            reader = store.reader(name)
            parcel = reader.scene, int(reader.table.numbers[place])
            rows = reader.starts[place : place + 2]
            samples.append((tiles[name], *rows, split.label_of[parcel], running[parcel]))
        for name, place in _unlabelled_places(store) if unlabelled else ():
            samples.append((tiles[name], *store.reader(name).starts[place : place + 2], UNLABELLED, -1))
        columns = np.array(samples, dtype=np.int64).reshape(-1, 5).T
        self._tiles, self._starts, self._ends, self._labels, self._parcels = columns  # one entry a sample

    def __len__(self) -> int:
        return len(self._tiles)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """(samples, classes): one in the column of the sample's class, or its clear dates of each class."""
        table: NDArray[np.int64] = np.eye(classes, dtype=np.int64)[self._labels]
        table[self._labels == UNLABELLED] = 0
        if self._dated:
            for row in range(len(self)):
                labels = self._date_labels(row)
                clear = self._reader(row).series[1][self._starts[row] : self._ends[row]]
                table[row] = np.bincount(labels[clear & (labels != UNLABELLED)], minlength=classes)
        return table

    def batch(self, indexes: list[int]) -> Batch:
        """Filled up to the longest series; what is added is not valid, zero, and of the last date."""
        starts, ends = self._starts[indexes], self._ends[indexes]
        lengths = ends - starts
        longest = int(lengths.max())
        x = np.zeros((len(indexes), longest, len(self._factor)), dtype=np.float32)  # (B, T, C)
        valid = np.zeros((len(indexes), longest), dtype=bool)
        days = np.empty((len(indexes), longest), dtype=np.int32)
        places = zip(indexes, starts.tolist(), ends.tolist(), strict=True)
        for row, (index, start, end) in enumerate(places):
            values, clear, dates = self._reader(index).series
            count = end - start
            x[row, :count] = values[start:end]
            valid[row, :count] = clear[start:end]
            days[row, :count] = dates[start:end]
            days[row, count:] = dates[end - 1]
        x *= self._factor
        x += self._shift
        x[np.arange(longest) >= lengths[:, None]] = 0
        labels, parcels = self._labels[indexes], self._parcels[indexes]
        if not self._dated:
            return Batch(*map(torch.from_numpy, (x, valid, days, labels, parcels)))
        by_date = np.full((len(indexes), longest), UNLABELLED, dtype=np.int64)
        for row, index in enumerate(indexes):
            by_date[row, : lengths[row]] = self._date_labels(index)
        return Batch(*map(torch.from_numpy, (x, valid, days, by_date, parcels, by_date == labels[:, None])))

    def _reader(self, index: int) -> TileReader:
        return self._store.reader(self._names[self._tiles[index]])

    def _date_labels(self, index: int) -> NDArray[np.int16]:
        start, end = self._starts[index], self._ends[index]
        labels = self._reader(index).date_labels
        return np.full(end - start, UNLABELLED, dtype=np.int16) if labels is None else labels[start:end]


def measure_series(store: Store, split: Split) -> Normalisation:
    """Statistics of the training series alone."""

    def observations() -> Iterator[NDArray[Any]]:
        for tile, index in _places(store, split, "train"):
            values, valid, _ = store.reader(tile).sample(index)
            yield values[valid]

    return measure(observations(), store.fingerprint.scale, store.fingerprint.offset)


def _unlabelled_places(store: Store) -> Iterator[tuple[str, int]]:
    for entry, reader in store.readers():
        for index in np.flatnonzero(np.asarray(reader.table.labels) == UNLABELLED).tolist():
            yield entry.name, index


def _places(store: Store, split: Split, part: str) -> Iterator[tuple[str, int]]:
    for entry, reader in store.readers():
        for index, number in enumerate(reader.table.numbers):
            if split.part_of.get((reader.scene, int(number))) == part:
                yield entry.name, index
