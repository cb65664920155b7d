"""What a grid measures on the ground: metres and hectares."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cropstar.geo.grid import Grid

SQUARE_METRES_PER_HECTARE = 10_000.0


def metres_per_unit(grid: Grid) -> float | None:
    """Metres in one unit of a projected coordinate system; None where units are degrees or not known."""
    from rasterio.errors import CRSError

    try:
        crs = grid.rasterio_crs
        return float(crs.linear_units_factor[1]) if crs.is_projected else None
    except CRSError:
        return None


def hectares_per_pixel(grid: Grid, resolution: float = 0.0) -> float | None:
    """None where it is not known; without a coordinate system a pixel is `resolution` metres wide, if that is given."""
    if not grid.crs and resolution > 0:
        return resolution**2 / SQUARE_METRES_PER_HECTARE
    unit = metres_per_unit(grid)
    return None if unit is None else grid.pixel_area * unit**2 / SQUARE_METRES_PER_HECTARE
