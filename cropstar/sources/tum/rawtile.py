"""A tile as its files have it, and the image of one grid that is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import to_days
from cropstar.sources.base import PatchImage, Transform
from cropstar.sources.tum.regions import connected
from cropstar.store.classes import UNLABELLED

# As GDAL hands out Level-1C products, which is where the tiles come from: red first among the bands of 10 m.
BANDS = {
    10: ("B04", "B03", "B02", "B08"),
    20: ("B05", "B06", "B07", "B8A", "B11", "B12"),
    60: ("B01", "B09", "B10"),
}
ALL_BANDS = tuple(band for bands in BANDS.values() for band in bands)
LARGEST = np.iinfo(np.uint16).max
# Tiles have 24 or 48 pixels a side and about 30 dates.
MAXIMUM_SIDE, MAXIMUM_DATES = 1024, 1000


@dataclass(frozen=True)
class RawTile:
    """The dates in their order, each once; padding is gone."""

    path: Path
    dates: tuple[date, ...]
    bands: dict[int, NDArray[Any]]  # by resolution, (T, h, w, C)
    labels: NDArray[Any]  # (H, W) ids of the class file


def to_image(tile: RawTile, name: str, transform: Transform, numbers: dict[int, int]) -> PatchImage:
    """All bands on the pixels of 10 m, coarser ones by repeating the pixel that the centre lies in. A pixel is valid
    where every band of 10 m is above zero. Touching pixels of one class are a field: the tiles know no parcels."""
    height, width = tile.bands[10].shape[1:3]
    finest = tile.bands[10]
    valid: NDArray[np.bool_] = np.asarray((finest > 0).all(axis=-1))  # (T, H, W)
    values = np.zeros((len(tile.dates), len(ALL_BANDS), height, width), dtype=np.uint16)
    place = 0
    for array in tile.bands.values():
        if array.size and array.max() > LARGEST:
            why = f"a value of {int(array.max())} cannot be ten thousand times a reflectance"
            raise InputError("not a reflectance", path=tile.path, why=why, remedy="get the file again")
        on_grid = np.clip(array, 0, LARGEST)[:, _nearest(array.shape[1], height)][:, :, _nearest(array.shape[2], width)]
        values[:, place : place + array.shape[3]] = on_grid.transpose(0, 3, 1, 2)  # (T, C, H, W)
        place += array.shape[3]
    values *= valid[:, None]
    labels = _renumbered(tile, numbers)
    fields = np.where(labels == UNLABELLED, 0, connected(labels))
    return PatchImage(
        name=name,
        transform=transform,
        days=to_days(tile.dates),
        values=values,
        valid=valid,
        labels=labels,
        fields=fields,
        keys={int(number): name for number in np.unique(fields[fields > 0])},  # a lot keeps a tile's fields together
        group=name,
    )


def require_bands(shapes: dict[int, tuple[int, ...]], path: Path) -> None:
    """Whether shapes (T, h, w, C) by resolution are those of one tile."""
    dates, height, width, _ = shapes[10]
    for resolution, shape in shapes.items():
        name = f"x{resolution}"
        why = f"{name} has the shape {shape}"
        if shape[3] != len(BANDS[resolution]):
            remedy = f"bands of {resolution} m are {' '.join(BANDS[resolution])}"
            raise InputError("wrong number of bands", path=path, why=why, remedy=remedy)
        if not (shape[0] == dates and 1 <= shape[1] <= height and 1 <= shape[2] <= width):
            raise InputError("shapes that do not fit", path=path, why=f"{why}, x10 {shapes[10]}", remedy="check it")
    if max(height, width) > MAXIMUM_SIDE or dates > MAXIMUM_DATES:
        why = f"x10 has the shape {shapes[10]}"
        raise InputError("too large a tile", path=path, why=why, remedy="check the file")


def _nearest(count: int, wanted: int) -> NDArray[np.int64]:
    """For each of the wanted pixels the coarse one that its centre lies in."""
    places: NDArray[np.int64] = (2 * np.arange(wanted) + 1) * count // (2 * wanted)
    return places


def _renumbered(tile: RawTile, numbers: dict[int, int]) -> NDArray[np.int16]:
    found, places = np.unique(tile.labels, return_inverse=True)
    new = np.full(len(found), UNLABELLED, dtype=np.int16)
    for rank, label in enumerate(found):
        if label != 0:
            if int(label) not in numbers:
                why = f"the id {int(label)} is not among {', '.join(map(str, sorted(numbers)))}"
                raise InputError("an unknown class", path=tile.path, why=why, remedy="add it to classes.txt")
            new[rank] = numbers[int(label)]
    renumbered: NDArray[np.int16] = new[places].reshape(tile.labels.shape)
    return renumbered
