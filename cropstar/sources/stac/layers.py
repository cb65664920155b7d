"""Assets on the grid: exactly where their pixels fit it, by GDAL's warper where they do not."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.resampling import Alignment, NotAligned, RasterPart, interpolate, nearest
from cropstar.geo.windows import Window, split
from cropstar.sources.stac.files import AssetFiles
from cropstar.sources.stac.items import Asset

LOOK = 1024  # pixels a side that are looked at together


@dataclass(frozen=True)
class Layer:
    """One asset and how it lies on the grid; without an alignment it is warped."""

    asset: Asset
    alignment: Alignment | None


def lay(asset: Asset, own: Grid, grid: Grid) -> Layer:
    """The layer of an asset, which may cover any part of the grid or lie beyond it."""
    try:
        # Alignment wants a raster that covers its grid: the piece of the grid at the raster's corner.
        column = math.floor((own.transform[2] - grid.transform[2]) / grid.transform[0])
        row = math.floor((own.transform[5] - grid.transform[5]) / grid.transform[4])
        alignment = Alignment.of(own, grid.crop(Window(row, column, 1, 1)))
    except NotAligned:
        return Layer(asset, None)
    return Layer(asset, replace(alignment, top=alignment.top + row, left=alignment.left + column))


def containing(files: AssetFiles, layer: Layer, window: Window, grid: Grid) -> NDArray[Any]:
    """The asset's pixel that contains each pixel of the window, zero beyond the asset."""
    if layer.alignment is None:
        return files.read_warped(layer.asset, window, grid, "nearest")
    place = layer.alignment.source(window, margin=0)
    return nearest(RasterPart(files.read(layer.asset, place), place, layer.alignment), window)


def resampled(
    files: AssetFiles, layer: Layer, window: Window, grid: Grid, method: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Numbers (h, w) of the window, and where there are any: where the containing pixel has data."""
    if method == "nearest" or (layer.alignment is not None and layer.alignment.ratio == 1):
        numbers = containing(files, layer, window, grid)
        return numbers, numbers != 0
    if layer.alignment is None:
        numbers = files.read_warped(layer.asset, window, grid, method)
        return numbers, (containing(files, layer, window, grid) != 0) & (numbers != 0)
    place = layer.alignment.source(window)
    return interpolate(RasterPart(files.read(layer.asset, place), place, layer.alignment), window, method)


def has_data(files: AssetFiles, layer: Layer, grid: Grid) -> bool:
    """Whether any pixel on the grid is there; most answer at the first look."""
    return any(containing(files, layer, window, grid).any() for window in split(grid.shape, LOOK))
