"""Square windows of images with the labels of one part of the split."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.batch import Batch, collate
from cropstar.datasets.parts import Split
from cropstar.datasets.places import Place
from cropstar.geo.windows import split
from cropstar.store import layout
from cropstar.store.classes import UNLABELLED
from cropstar.store.normalisation import Normalisation, measure
from cropstar.store.store import Store


class PatchDataset:
    """The patches of a store that hold pixels of one part; labels of other parts are hidden."""

    def __init__(
        self, store: Store, split_: Split, part: str, size: int, normalisation: Normalisation, batch_size: int = 1
    ) -> None:
        self.part = part
        self.batch_size = batch_size
        self._store = store
        self._split = split_
        self._size = size
        self._normalisation = normalisation
        self._running = split_.running_numbers()
        self.places = list(labelled_places(store, split_, part, size))

    def __len__(self) -> int:
        return len(self.places)

    def batch(self, indexes: list[int]) -> Batch:
        """Patches of possibly different numbers of dates; missing dates and pixels are not valid."""
        return collate([self._read(self.places[index]) for index in indexes], self._size)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        """(samples, classes): the labelled pixels of each class."""
        table = np.zeros((len(self), classes), dtype=np.int64)
        for row, place in enumerate(self.places):
            image, window = place.image(self._store), place.window
            inside = self._split.mask(image.scene, image.parcels(window), self.part, place)
            labels = image.labels(window)[inside]
            table[row] = np.bincount(labels[labels != UNLABELLED], minlength=classes)
        return table

    def open_to_teaching(self, indexes: list[int]) -> NDArray[np.bool_]:
        """(B, H, W): pixels of this part and such without any label, but none that another part is judged on."""
        found = np.zeros((len(indexes), self._size, self._size), dtype=bool)
        for row, place in enumerate(self.places[index] for index in indexes):
            image, window = place.image(self._store), place.window
            inside = self._split.mask(image.scene, image.parcels(window), self.part, place)
            free = inside | (image.labels(window) == UNLABELLED)
            found[row, : free.shape[0], : free.shape[1]] = free
        return found

    def _read(self, place: Place) -> dict[str, NDArray[Any]]:
        image, window = place.image(self._store), place.window
        fingerprint = image.fingerprint
        numbers = image.parcels(window)
        inside = self._split.mask(image.scene, numbers, self.part, place)
        running = np.full(numbers.shape, -1, dtype=np.int64)
        for number in np.unique(numbers[inside]):
            running[numbers == number] = self._running[image.scene, int(number)]
        return {
            "x": self._normalisation.apply(image.values(window), fingerprint.scale, fingerprint.offset),
            "valid": image.valid(window),
            "days": image.days,
            "labels": np.where(inside, image.labels(window), UNLABELLED).astype(np.int64),
            "parcels": running,
        }


def labelled_places(store: Store, split_: Split, part: str, size: int) -> Iterator[Place]:
    """The windows of a regular grid over each image that hold pixels of a part."""
    for entry, reader in store.readers():
        inside = split_.tile_mask(entry.name, reader, part)
        for number, image in enumerate(inside.reshape(-1, *inside.shape[-2:])):
            for window in split(image.shape, size):
                if image[window.slices].any():
                    yield Place(entry.name, number, window)


def measure_patches(store: Store, split_: Split) -> Normalisation:
    """Statistics of the training parcels alone: nothing of validation and test enters the model."""

    def observations() -> Iterator[NDArray[Any]]:
        for place in labelled_places(store, split_, "train", layout.PATCH):
            image, window = place.image(store), place.window
            inside = split_.mask(image.scene, image.parcels(window), "train", place)
            chosen = image.valid(window) & inside  # (T,H,W)
            yield np.moveaxis(image.values(window), 1, -1)[chosen]

    return measure(observations(), store.fingerprint.scale, store.fingerprint.offset)
