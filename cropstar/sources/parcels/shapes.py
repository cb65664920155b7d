"""What is done to outlines: repaired, shrunk, tested for overlap and for pixels. Arrays of shapely geometries."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window

Shapes = NDArray[np.object_]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]

MAXIMUM_PAIRS = 100_000  # of neighbours whose overlap is measured: some seconds; of more a part stands for all
COLLECTION = 7  # shapely's number for a mixture of kinds
ARC = 32  # segments of a quarter circle: an eroded corner is then exact to 0.03 % of the distance


def meets(shapes: Shapes, bounds: tuple[float, float, float, float]) -> Flags:
    """Which bounding boxes touch an area; coordinates that a projection cannot reach are nowhere."""
    import shapely

    left, bottom, right, top = bounds
    boxes = shapely.bounds(shapes).reshape(-1, 4)
    near = (boxes[:, 0] <= right) & (boxes[:, 2] >= left) & (boxes[:, 1] <= top) & (boxes[:, 3] >= bottom)
    touching: Flags = near & np.isfinite(boxes).all(axis=1)
    return touching


def repair(shapes: Shapes) -> tuple[Shapes, int]:
    """Outlines that cross themselves made valid, and how many; what of a mixture is only a line or a point goes."""
    import shapely

    invalid = ~shapely.is_valid(shapes)
    mended = shapes.copy()
    for row in np.flatnonzero(invalid | (shapely.get_type_id(shapes) == COLLECTION)):
        try:
            parts = shapely.get_parts(shapely.get_parts(shapely.make_valid(shapes[row])))  # also of a part's parts
            mended[row] = shapely.union_all(parts[shapely.get_dimensions(parts) == 2])
        except shapely.errors.GEOSException:  # a coordinate that is no number
            mended[row] = shapely.Polygon()
    return mended, int((invalid & ~shapely.is_empty(mended)).sum())


def margin_on(grid: Grid, metres: float) -> float:
    """A distance in metres in the units of the grid."""
    if not 0 <= metres < math.inf:
        raise UsageError(f"--erode {metres:g}", why="not a distance in metres", remedy="give 0 or more")
    if metres == 0:
        return 0.0
    crs = grid.rasterio_crs
    if not crs.is_projected:
        why = "the scene's coordinates are degrees, not metres"
        raise UsageError(
            f"--erode {metres:g} is not possible here", why=why, remedy="leave it out or project the scene"
        )
    return metres / float(crs.linear_units_factor[1])


def erode(shapes: Shapes, margin: float) -> Shapes:
    """What lies farther than the margin from the outline; empty where nothing does."""
    import shapely

    eroded: Shapes = shapely.buffer(shapes, -margin, quad_segs=ARC)
    return eroded


def overlap_share(shapes: Shapes) -> float:
    """About how much of the parcels' area lies in another parcel too."""
    import shapely

    first, second = shapely.STRtree(shapes).query(shapes)
    once = first < second
    first, second = first[once], second[once]
    step = math.ceil(len(first) / MAXIMUM_PAIRS) or 1
    common = shapely.area(shapely.intersection(shapes[first[::step]], shapes[second[::step]])).sum() * step
    return min(float(common / shapely.area(shapes).sum()), 1.0)


def count_without_pixel(shapes: Shapes, grid: Grid) -> int:
    """How many shapes have no pixel's centre on the grid. Most show one near their middle; the others are burnt."""
    import shapely

    inside = shapely.point_on_surface(shapes)
    columns, rows = (np.floor(place) for place in _pixel(grid, shapely.get_x(inside), shapely.get_y(inside)))
    on_grid = (columns >= 0) & (columns < grid.width) & (rows >= 0) & (rows < grid.height)
    a, b, c, d, e, f = grid.transform
    columns, rows = columns + 0.5, rows + 0.5
    found = on_grid & shapely.contains_xy(shapes, a * columns + b * rows + c, d * columns + e * rows + f)
    return sum(not _has_pixel(shape, grid) for shape in shapes[~found])


def _has_pixel(shape: Any, grid: Grid) -> bool:
    from rasterio.features import rasterize

    left, bottom, right, top = shape.bounds
    columns, rows = _pixel(grid, np.array([left, left, right, right]), np.array([bottom, top, bottom, top]))
    column, row = max(math.floor(columns.min()), 0), max(math.floor(rows.min()), 0)
    width, height = min(math.ceil(columns.max()), grid.width) - column, min(math.ceil(rows.max()), grid.height) - row
    if width <= 0 or height <= 0:
        return False
    piece = grid.crop(Window(row, column, height, width))
    return bool(rasterize([shape], piece.shape, transform=piece.affine, dtype="uint8").any())


def _pixel(grid: Grid, x: Numbers, y: Numbers) -> tuple[Numbers, Numbers]:
    """Columns and rows, with fractions, of places."""
    a, b, c, d, e, f = tuple(~grid.affine)[:6]
    return a * x + b * y + c, d * x + e * y + f
