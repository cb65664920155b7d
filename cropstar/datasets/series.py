"""The samples of series tiles: one a parcel, each with dates of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.batch import Batch, collate
from cropstar.datasets.splits import Split
from cropstar.store.normalisation import Normalisation, measure
from cropstar.store.store import Store


class SeriesDataset:
    """The series of a store that belong to one part."""

    def __init__(self, store: Store, split: Split, part: str, normalisation: Normalisation, batch_size: int) -> None:
        self.part = part
        self.batch_size = batch_size
        self._store = store
        self._normalisation = normalisation
        self._running = {parcel: index for index, parcel in enumerate(sorted(split.part_of))}
        self._places = list(_places(store, split, part))

    def __len__(self) -> int:
        return len(self._places)

    def batch(self, indexes: list[int]) -> Batch:
        return collate([self._read(*self._places[index]) for index in indexes], size=None)

    def _read(self, tile: str, index: int) -> dict[str, NDArray[Any]]:
        reader = self._store.reader(tile)
        values, valid, days = reader.sample(index)
        number = int(reader.table.numbers[index])
        return {
            "x": self._normalisation.apply(values, reader.fingerprint.scale, reader.fingerprint.offset),
            "valid": valid,
            "days": days,
            "labels": np.array(reader.table.labels[index], dtype=np.int64),
            "parcels": np.array(self._running[reader.scene, number], dtype=np.int64),
        }


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
