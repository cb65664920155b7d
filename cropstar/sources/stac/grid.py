"""One grid for all items: the area of the search, on pixels that the files themselves have."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from rasterio.crs import CRS
from rasterio.errors import CRSError
from rasterio.warp import transform_bounds

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.limits import MAXIMUM_RASTER_SIDE
from cropstar.sources.stac.options import Box, StacOptions

LONGITUDE_LATITUDE = CRS.from_epsg(4326)
ROUNDING = 1e-6  # of a pixel


def target_grid(finest: Sequence[Grid], options: StacOptions, where: str) -> Grid:
    """The area as far as the items cover it, given the grid of each item's finest band.

    Pixel edges are those of the first item in the grid's CRS, so that its files need no resampling.
    """
    crs = options.crs and CRS.from_user_input(options.crs).to_wkt()
    crs = crs or Counter(grid.crs for grid in finest).most_common(1)[0][0]
    native = next((grid for grid in finest if is_same_crs(grid.crs, crs)), None)
    size = options.resolution or (native or finest[0]).resolution
    anchor = (native.transform[2], native.transform[5]) if native else (0.0, 0.0)
    area = bounds_in(options.bbox, LONGITUDE_LATITUDE.to_wkt(), crs)
    boxes = [bounds_in(grid.bounds, grid.crs, crs) for grid in finest]
    covered = [box for box in boxes if overlaps(box, area)]
    if not covered:
        why = "their files lie outside of the area although the search found them"
        raise InputError("no items", path=where, why=why, remedy="check --bbox")
    left, bottom = (max(area[side], min(box[side] for box in covered)) for side in (0, 1))
    right, top = (min(area[side], max(box[side] for box in covered)) for side in (2, 3))
    first_column = math.floor((left - anchor[0]) / size + ROUNDING)
    last_column = math.ceil((right - anchor[0]) / size - ROUNDING)
    first_row = math.floor((anchor[1] - top) / size + ROUNDING)
    last_row = math.ceil((anchor[1] - bottom) / size - ROUNDING)
    height, width = last_row - first_row, last_column - first_column
    if max(height, width) > MAXIMUM_RASTER_SIDE:
        why = f"{width:,} x {height:,} pixels of {size:g} m"
        raise InputError("the area is too large", path=where, why=why, remedy="ask for a smaller one")
    corner = (anchor[0] + first_column * size, anchor[1] - first_row * size)
    return Grid(crs, (size, 0.0, corner[0], 0.0, -size, corner[1]), max(height, 1), max(width, 1))


def bounds_in(box: Box, own: str, other: str) -> Box:
    """A box of one coordinate system in another, a little too large where edges bend."""
    if is_same_crs(own, other):
        return box
    try:
        left, bottom, right, top = transform_bounds(CRS.from_wkt(own), CRS.from_wkt(other), *box)
    except CRSError as failure:
        raise InputError("the area cannot be projected", why=str(failure), remedy="choose another --crs") from None
    if not all(map(math.isfinite, (left, bottom, right, top))):
        raise InputError("the area cannot be projected", remedy="choose a smaller area or another --crs")
    return left, bottom, right, top


def is_same_crs(first: str, second: str) -> bool:
    return first == second or bool(CRS.from_wkt(first) == CRS.from_wkt(second))


def overlaps(first: Box, second: Box) -> bool:
    return max(first[0], second[0]) < min(first[2], second[2]) and max(first[1], second[1]) < min(first[3], second[3])
