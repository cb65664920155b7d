"""Square patches of raster tiles with the labels of one part of the split."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.datasets.splits import Split
from cropstar.geo.windows import Window, split
from cropstar.store.classes import UNLABELLED
from cropstar.store.normalisation import Normalisation, measure
from cropstar.store.store import Store


@dataclass(frozen=True)
class Batch:
    """x (B,T,C,H,W), valid (B,T,H,W), days (B,T), labels (B,H,W), parcels (B,H,W)."""

    x: Tensor
    valid: Tensor
    days: Tensor
    labels: Tensor
    parcels: Tensor  # running number of the parcel in the store, -1 where there is none

    def as_series(self) -> Batch:
        """The labelled pixels alone, as series: x (N,T,C), valid (N,T), days (N,T), labels (N,), parcels (N,)."""
        chosen = self.labels != UNLABELLED  # (B,H,W)
        counts = chosen.flatten(1).sum(dim=1)
        return Batch(
            self.x.permute(0, 3, 4, 1, 2)[chosen],
            self.valid.permute(0, 2, 3, 1)[chosen],
            self.days.repeat_interleave(counts, dim=0),
            self.labels[chosen],
            self.parcels[chosen],
        )


class PatchDataset:
    """The patches of a store that hold pixels of one part; labels of other parts are hidden."""

    def __init__(self, store: Store, split_: Split, part: str, size: int, normalisation: Normalisation) -> None:
        self.part = part
        self._store = store
        self._split = split_
        self._size = size
        self._normalisation = normalisation
        self._running = {parcel: index for index, parcel in enumerate(sorted(split_.part_of))}
        self.places = list(labelled_places(store, split_, part, size))

    def __len__(self) -> int:
        return len(self.places)

    def batch(self, indexes: list[int]) -> Batch:
        """Patches of possibly different numbers of dates; missing dates and pixels are not valid."""
        samples = [self._read(*self.places[index]) for index in indexes]
        length = max(len(sample["days"]) for sample in samples)
        return Batch(
            *(
                torch.from_numpy(np.stack([_pad(sample[name], length, self._size) for sample in samples]))
                for name in ("x", "valid", "days", "labels", "parcels")
            )
        )

    def _read(self, tile: str, window: Window) -> dict[str, NDArray[Any]]:
        reader = self._store.reader(tile)
        fingerprint = reader.fingerprint
        numbers = reader.parcels(window)
        inside = self._split.mask(reader.scene, numbers, self.part)
        running = np.full(numbers.shape, -1, dtype=np.int64)
        for number in np.unique(numbers[inside]):
            running[numbers == number] = self._running[reader.scene, int(number)]
        return {
            "x": self._normalisation.apply(reader.values(window), fingerprint.scale, fingerprint.offset),
            "valid": reader.valid(window),
            "days": reader.days,
            "labels": np.where(inside, reader.labels(window), UNLABELLED).astype(np.int64),
            "parcels": running,
        }


def labelled_places(store: Store, split_: Split, part: str, size: int) -> Iterator[tuple[str, Window]]:
    """The windows of a regular grid over each tile that hold pixels of a part."""
    for entry, reader in store.readers():
        inside = split_.mask(reader.scene, reader.parcels(), part)
        for window in split(inside.shape, size):
            if inside[window.slices].any():
                yield entry.name, window


def measure_normalisation(store: Store, split_: Split, size: int) -> Normalisation:
    """Statistics of the training parcels alone: nothing of validation and test enters the model."""

    def observations() -> Iterator[NDArray[Any]]:
        for tile, window in labelled_places(store, split_, "train", size):
            reader = store.reader(tile)
            inside = split_.mask(reader.scene, reader.parcels(window), "train")
            chosen = reader.valid(window) & inside  # (T,H,W)
            yield np.moveaxis(reader.values(window), 1, -1)[chosen]

    return measure(observations(), store.fingerprint.scale, store.fingerprint.offset)


def _pad(array: NDArray[Any], length: int, size: int) -> NDArray[Any]:
    """Fill up to `length` dates and `size` pixels; what is added is invalid and unlabelled."""
    if array.ndim == 1:  # days: the last one again, so that a date stays a date of the season
        return np.pad(array, (0, length - len(array)), mode="edge")
    target = (*array.shape[:-2], size, size) if array.ndim == 2 else (length, *array.shape[1:-2], size, size)
    if target == array.shape:
        return array
    padding = [(0, wanted - have) for wanted, have in zip(target, array.shape, strict=True)]
    return np.pad(array, padding, constant_values=UNLABELLED if array.ndim == 2 else 0)
