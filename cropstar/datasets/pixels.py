"""A split of single pixels, for those who want to see by how much it flatters."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.config import SplitConfig
from cropstar.datasets.fields import Fields, ParcelId, lot
from cropstar.datasets.parts import PARTS, Split, among
from cropstar.datasets.places import Place
from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.logs import logger
from cropstar.store.reader import TileReader
from cropstar.store.store import Store

WARNING = (
    "a split by pixel lies: pixels of one field stand in training and in test, and they are almost copies of each "
    "other; its figures tell how well known fields are found again, not how well new ones are: split.by=parcel does"
)
GOLDEN, FIRST, SECOND = (np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True)
class PixelSplit(Split):
    """Every pixel by itself; `part_of` is empty, for a parcel is in all parts."""

    seed: int = 0
    shares: tuple[float, float] = (0.15, 0.25)  # of validation and test; of validation among the rest, with folds
    folds: int | None = None
    fold: int = 1
    held: dict[str, set[ParcelId]] = field(default_factory=dict)  # the parcels that have pixels in a part

    def mask(self, scene: str, parcels: NDArray[np.int32], part: str, place: Place | None = None) -> NDArray[np.bool_]:
        assert place is not None
        labelled = among(parcels, lambda number: (scene, number) in self.label_of)
        chosen: NDArray[np.bool_] = labelled & (self._parts(place) == PARTS.index(part))
        return chosen

    def tile_mask(self, name: str, reader: TileReader, part: str) -> NDArray[np.bool_]:
        parcels = reader.parcels()
        images = parcels.reshape(-1, *parcels.shape[-2:])
        whole = Window(0, 0, *images.shape[-2:])
        labelled = among(images, lambda number: (reader.scene, number) in self.label_of)
        drawn = [self._parts(Place(name, number, whole)) == PARTS.index(part) for number in range(len(images))]
        chosen: NDArray[np.bool_] = (labelled & np.array(drawn).reshape(images.shape)).reshape(parcels.shape)
        return chosen

    def counts(self, classes: int) -> dict[str, list[int]]:
        """Parcels with a pixel in the part: most of them are in every one."""
        table = {part: [0] * classes for part in PARTS}
        for part, parcels in self.held.items():
            for parcel in parcels:
                table[part][self.label_of[parcel]] += 1
        return table

    def with_validation(self) -> PixelSplit:
        held = {**self.held, "train": self.held["train"] | self.held["validation"], "validation": set[ParcelId]()}
        return replace(self, shares=(0.0, self.shares[1]), held=held)

    def to_json(self) -> dict[str, Any]:
        """No list of members: they follow from the seed."""
        return dict(self.about)

    def _parts(self, place: Place) -> NDArray[np.int8]:
        """The part of every pixel of a window, whatever window of the image it is asked in."""
        first, second = (self._drawn(place, name) for name in ("part", "validation"))
        validation, test = self.shares
        if self.folds is None:
            return np.where(first < test, 2, np.where(first < test + validation, 1, 0)).astype(np.int8)
        fold = np.floor(first * self.folds).astype(np.int64) + 1
        return np.where(fold == self.fold, 2, np.where(second < validation, 1, 0)).astype(np.int8)

    def _drawn(self, place: Place, name: str) -> NDArray[np.float64]:
        """Numbers from 0 to 1 that depend on the seed, the image and the pixel's row and column."""
        start = np.uint64(int.from_bytes(lot(self.seed, name, place.tile, str(place.number)), "big"))
        rows, columns = (np.arange(part.start, part.stop, dtype=np.uint64) for part in place.window.slices)
        mixed = start + (rows[:, None] << np.uint64(32) | columns) * GOLDEN
        mixed = (mixed ^ mixed >> np.uint64(30)) * FIRST  # splitmix64's way of making neighbours unlike
        mixed = (mixed ^ mixed >> np.uint64(27)) * SECOND
        return ((mixed ^ mixed >> np.uint64(31)) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def split_pixels(store: Store, fields: Fields, config: SplitConfig, seed: int, about: dict[str, Any]) -> PixelSplit:
    """Deal out pixels, with a warning."""
    if any(entry.layout == "series" for entry in store.manifest.tiles):
        why = "the store holds series, each of a whole field"
        raise UsageError("no split by pixel", path=store.folder, why=why, remedy="take split.by=parcel")
    logger.warning(WARNING)
    assert isinstance(config.test, float)
    shares = config.validation_share, config.test
    split = PixelSplit(
        {}, fields.label_of, about, seed, shares, config.folds, config.fold, {part: set() for part in PARTS}
    )
    for entry, reader in store.readers():
        parcels = reader.parcels()
        for part in PARTS:
            numbers = np.unique(parcels[split.tile_mask(entry.name, reader, part)])
            split.held[part].update((reader.scene, int(number)) for number in numbers)
    return split
