"""A raster of class numbers turned into the pixels of a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, MismatchError
from cropstar.store.classes import ClassTable

if TYPE_CHECKING:
    from cropstar.geo.grid import Grid

NODATA = 255
NODATA_GROUND = "#f1f1ee"
NODATA_LINES = "#cfcfca"
THINNEST = 60  # a strip of one pixel must still be seen


def count_values(raster: NDArray[np.uint8], grid: Grid, classes: ClassTable) -> NDArray[np.int64]:
    """Pixels of each value, checked against grid and class table before anything is drawn."""
    if raster.shape != grid.shape:
        raise MismatchError("map and grid differ in shape", why=f"{raster.shape} is not {grid.shape}")
    if not raster.size:
        raise InputError("the map has no pixels")
    counts = np.zeros(256, dtype=np.int64)
    for row in range(0, len(raster), 512):  # bincount widens to int64: a few rows at a time, not a whole scene
        counts += np.bincount(raster[row : row + 512].ravel(), minlength=256)
    known = {entry.number for entry in classes} | {NODATA}
    strangers = [str(value) for value in np.flatnonzero(counts) if int(value) not in known]
    if strangers:
        raise MismatchError("the map has values that its class table lacks", why=", ".join(strangers))
    return counts


def drawn_size(grid: Grid, longest: int) -> tuple[int, int]:
    """Width and height in the picture; small maps grow by a whole factor so that their pixels stay square."""
    factor = longest / max(grid.width, grid.height)
    if factor >= 3:
        factor = float(int(factor))
    return max(round(grid.width * factor), THINNEST), max(round(grid.height * factor), THINNEST)


def is_true_to_scale(grid: Grid, width: int, height: int) -> bool:
    """Whether both sides grew alike, which they do unless the map is a mere strip."""
    across, down = width / grid.width, height / grid.height
    return max(across, down) < 1.1 * min(across, down)


def paint(raster: NDArray[np.uint8], classes: ClassTable, width: int, height: int) -> NDArray[np.uint8]:
    """The map as (height, width, 3): each pixel takes the class under its centre, never a mixture of two."""
    rows = ((np.arange(height) + 0.5) * raster.shape[0] / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * raster.shape[1] / width).astype(np.intp)
    values = raster[np.ix_(rows, columns)]  # (height, width)
    colours = np.zeros((256, 3), dtype=np.uint8)
    for entry in classes:
        colours[entry.number] = entry.rgb
    colours[NODATA] = _rgb(NODATA_GROUND)
    picture = colours[values]  # (height, width, 3)
    # Diagonal lines set missing data apart from any pale class.
    lines = (np.add.outer(np.arange(height), np.arange(width)) % 14 < 2) & (values == NODATA)
    picture[lines] = _rgb(NODATA_LINES)
    return picture


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
