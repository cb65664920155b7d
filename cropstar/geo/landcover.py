"""Rasters of land cover on the grid of a scene: masks of maps, and the ground that is not a field.

These are known by their values:

    0 and 1            1 is cropland
    ESA WorldCover     10, 20, ... 100; 40 is cropland
    ESA WorldCereal    0 and 100, with 254 and 255 for no data; 100 is cropland

Of any other the values must be named. A raster on another grid is brought to that of the scene, each pixel by the
value under its centre. Where it ends, and on its nodata, nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import GDAL_ERRORS, open_raster, rasterio_window, warped_to
from cropstar.geo.resampling import grid_difference
from cropstar.geo.windows import Window

Flags = NDArray[np.bool_]

WORLDCOVER = {10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100}
CROPLAND, GRASSLAND = 40, 30
WORLDCEREAL, CEREAL_NODATA = {0, 100}, {254, 255}
LOOK = 2048  # pixels of the long side that are looked at to know a raster
MOST_NAMED = 12  # values in a message


@dataclass(frozen=True)
class LandCover:
    """An open raster of classes on the grid of a scene."""

    path: Path
    values: tuple[int, ...]  # that it has there
    remarks: str  # how it was brought to the grid, and how much of it is covered
    _warped: Any

    def read(self, window: Window) -> tuple[NDArray[Any], Flags]:
        """Values (h, w), and where there are any."""
        return _read(self._warped, self.path, window=rasterio_window(window))


@contextmanager
def open_land_cover(path: Path, grid: Grid) -> Iterator[LandCover]:
    """A raster of whole numbers that meets the grid."""
    with ExitStack() as hold:
        dataset = hold.enter_context(open_raster(path))
        if dataset.crs is None:
            raise InputError("the mask has no coordinate system", path=path, remedy="give one that has")
        if not np.issubdtype(np.dtype(dataset.dtypes[0]), np.integer):
            why = f"its values are {dataset.dtypes[0]}"
            raise InputError("a mask needs whole numbers", path=path, why=why, remedy="give a raster of classes")
        try:
            # Transparent where the raster ends, so that nothing beside it is taken for a value.
            warped = hold.enter_context(warped_to(dataset, grid, "nearest", add_alpha=dataset.nodata is None))
        except GDAL_ERRORS as failure:
            raise _elsewhere(path, str(failure)) from None
        factor = max(1.0, max(grid.shape) / LOOK)
        shape = tuple(max(1, round(side / factor)) for side in grid.shape)
        values, present = _read(warped, path, out_shape=shape)
        if not present.any():
            raise _elsewhere(path, "it lies elsewhere, or has nodata all over the scene")
        own, remarks = Grid.of(dataset), ""
        if own != grid and (difference := grid_difference(own, grid)):
            remarks += f"; brought to the grid of the scene by the nearest pixel ({difference})"
        if (covered := float(present.mean())) < 0.995:
            remarks += f"; it covers {covered:.0%} of the scene, the rest is left out"
        yield LandCover(path, tuple(int(value) for value in np.unique(values[present])), remarks, warped)


def mapped_values(
    found: tuple[int, ...], chosen: tuple[int, ...] | None, path: Path, option: str = "--mask-classes"
) -> tuple[tuple[int, ...], str]:
    """The values that are cropland, or that the user chose, and what that means."""
    named = ", ".join(map(str, found[:MOST_NAMED])) + (", ..." if len(found) > MOST_NAMED else "")
    values = set(found)
    if chosen is not None:
        if not values & set(chosen):
            why = f"{', '.join(map(str, chosen))} is not among its values there: {named}"
            raise UsageError("an unknown value", path=path, why=why, remedy=f"check {option}")
        return chosen, f"its values {', '.join(map(str, chosen))}"
    if values <= {0, 1}:
        return (1,), "1 is mapped, 0 is not"
    if values & WORLDCEREAL and values <= WORLDCEREAL | CEREAL_NODATA:
        return (100,), "as of ESA WorldCereal; 100, crops, is mapped"
    if values <= WORLDCOVER | {0}:
        return (CROPLAND,), "as of ESA WorldCover; 40, cropland, is mapped"
    why = f"its values there are {named}: neither 0 and 1, nor those of WorldCover or WorldCereal"
    raise UsageError("unknown codes of land cover", path=path, why=why, remedy=f"name those to take with {option}")


def background_values(found: tuple[int, ...], chosen: tuple[int, ...] | None, path: Path) -> tuple[int, ...]:
    """The values that are not a field; grassland may be one, so it is not among them."""
    if chosen is not None:
        return mapped_values(found, chosen, path, "--background-classes")[0]
    fields, _ = mapped_values(found, None, path, "--background-classes")
    others = set(found) - set(fields) - CEREAL_NODATA - ({GRASSLAND, 0} if fields == (CROPLAND,) else set())
    if not others:
        why = "all of it is cropland there"
        raise InputError("no land outside of fields", path=path, why=why, remedy="give a raster that has some")
    return tuple(sorted(others))


def _read(warped: Any, path: Path, **how: Any) -> tuple[NDArray[Any], Flags]:
    try:
        values: NDArray[Any] = warped.read(1, **how)
        return values, warped.read_masks(1, **how) > 0
    except GDAL_ERRORS as failure:
        raise InputError("unreadable mask", path=path, why=str(failure), remedy="give a GeoTIFF") from None


def _elsewhere(path: Path, why: str) -> InputError:
    return InputError("the mask does not cover the scene", path=path, why=why, remedy="give one that does")
