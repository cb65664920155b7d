"""What comes out of a split: the part of every parcel, and how it was found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.fields import ParcelId
from cropstar.datasets.places import Place
from cropstar.store.reader import TileReader

PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Split:
    """Which part each parcel belongs to."""

    part_of: dict[ParcelId, str]
    label_of: dict[ParcelId, int]  # of every parcel that is in a part
    about: dict[str, Any] = field(default_factory=dict)  # by what, from which seed, with which settings

    def mask(self, scene: str, parcels: NDArray[np.int32], part: str, place: Place | None = None) -> NDArray[np.bool_]:
        """True on the pixels of a parcel raster that belong to a part; the raster's place matters by pixel alone."""
        return among(parcels, lambda number: self.part_of.get((scene, number)) == part)

    def tile_mask(self, name: str, reader: TileReader, part: str) -> NDArray[np.bool_]:
        """The same of all images of a tile at once, in the shape of its parcels."""
        return self.mask(reader.scene, reader.parcels(), part)

    def running_numbers(self) -> dict[ParcelId, int]:
        return {parcel: index for index, parcel in enumerate(sorted(self.label_of))}

    def counts(self, classes: int) -> dict[str, list[int]]:
        """Parcels per class in each part."""
        table = {part: [0] * classes for part in PARTS}
        for parcel, part in self.part_of.items():
            table[part][self.label_of[parcel]] += 1
        return table

    def with_validation(self) -> Split:
        """The same with the validation parcels among those for training."""
        part_of = {parcel: "train" if part == "validation" else part for parcel, part in self.part_of.items()}
        return replace(self, part_of=part_of)

    def to_json(self) -> dict[str, Any]:
        """How the split was made and, scene by scene, what is in each part."""
        members: dict[str, dict[str, list[int]]] = {part: defaultdict(list) for part in PARTS}
        for (scene, number), part in sorted(self.part_of.items()):
            members[part][scene].append(number)
        return {**self.about, "parcels": members}


def among(parcels: NDArray[np.int32], wanted: Callable[[int], bool]) -> NDArray[np.bool_]:
    """True on the pixels whose parcel is wanted; each number is asked for once."""
    numbers, inverse = np.unique(parcels, return_inverse=True)
    chosen: NDArray[np.bool_] = np.array([wanted(int(number)) for number in numbers])[inverse].reshape(parcels.shape)
    return chosen
