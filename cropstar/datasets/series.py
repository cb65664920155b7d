"""The samples of series tiles: one a parcel, each with dates of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.datasets.batch import Batch
from cropstar.datasets.parts import Split
from cropstar.store.normalisation import Normalisation, measure
from cropstar.store.store import Store


class SeriesDataset:
    """The series of a store that belong to one part."""

    def __init__(self, store: Store, split: Split, part: str, normalisation: Normalisation, batch_size: int) -> None:
        self.part = part
        self.batch_size = batch_size
        self._store = store
        self._names = [entry.name for entry in store.manifest.tiles]
        self._factor, self._shift = normalisation.factors(store.fingerprint.scale, store.fingerprint.offset)
        running = split.running_numbers()
        tiles = {name: number for number, name in enumerate(self._names)}
        samples = []
        for name, place in _places(store, split, part):
            reader = store.reader(name)
            parcel = reader.scene, int(reader.table.numbers[place])
            rows = reader.starts[place : place + 2]
            samples.append((tiles[name], *rows, reader.table.labels[place], running[parcel]))
        columns = np.array(samples, dtype=np.int64).reshape(-1, 5).T
        self._tiles, self._starts, self._ends, self._labels, self._parcels = columns  # one entry a sample

    def __len__(self) -> int:
        return len(self._tiles)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """(samples, classes): one in the column of the sample's class."""
        table: NDArray[np.int64] = np.eye(classes, dtype=np.int64)[self._labels]
        return table

    def batch(self, indexes: list[int]) -> Batch:
        """Filled up to the longest series; what is added is not valid, zero, and of the last date."""
        starts, ends = self._starts[indexes], self._ends[indexes]
        lengths = ends - starts
        longest = int(lengths.max())
        x = np.zeros((len(indexes), longest, len(self._factor)), dtype=np.float32)  # (B, T, C)
        valid = np.zeros((len(indexes), longest), dtype=bool)
        days = np.empty((len(indexes), longest), dtype=np.int32)
        places = zip(self._tiles[indexes].tolist(), starts.tolist(), ends.tolist(), strict=True)
        for row, (tile, start, end) in enumerate(places):
            values, clear, dates = self._store.reader(self._names[tile]).series
            count = end - start
            x[row, :count] = values[start:end]
            valid[row, :count] = clear[start:end]
            days[row, :count] = dates[start:end]
            days[row, count:] = dates[end - 1]
        x *= self._factor
        x += self._shift
        x[np.arange(longest) >= lengths[:, None]] = 0
        arrays = (x, valid, days, self._labels[indexes], self._parcels[indexes])
        return Batch(*(torch.from_numpy(array) for array in arrays))


def measure_series(store: Store, split: Split) -> Normalisation:
    """Statistics of the training series alone."""

    def observations() -> Iterator[NDArray[Any]]:
        for tile, index in _places(store, split, "train"):
            values, valid, _ = store.reader(tile).sample(index)
            yield values[valid]

    return measure(observations(), store.fingerprint.scale, store.fingerprint.offset)


def _places(store: Store, split: Split, part: str) -> Iterator[tuple[str, int]]:
    for entry, reader in store.readers():
        for index, number in enumerate(reader.table.numbers):
            if split.part_of.get((reader.scene, int(number))) == part:
                yield entry.name, index
