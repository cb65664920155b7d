"""What a grid says about the ground: metres, hectares and the length of a scale bar."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cropstar.reports.wording import length

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


def hectares_per_pixel(grid: Grid) -> float | None:
    unit = metres_per_unit(grid)
    return None if unit is None else grid.pixel_area * unit**2 / SQUARE_METRES_PER_HECTARE


def is_north_up(grid: Grid) -> bool:
    a, b, _, d, e, _ = grid.transform
    return a > 0 and b == 0 and d == 0 and e < 0


def round_length(longest: float) -> float:
    """The largest of 1, 2, 5, 10, 20, 50, ... that does not exceed `longest`."""
    power = 10.0 ** math.floor(math.log10(longest))
    # The tolerance keeps 5 a 5 where binary fractions make it 4.9999999.
    return power * next(step for step in (5, 2, 1) if step * power <= longest * (1 + 1e-9) or step == 1)


def describe(grid: Grid) -> str:
    """The line under a map's title: how large it is, how fine, and in which coordinates."""
    parts = [f"{grid.width:,} \u00d7 {grid.height:,} pixels"]
    unit = metres_per_unit(grid)
    if unit is not None:
        side = grid.resolution * unit
        parts.append(f"{length(float(f'{side:.4g}'))} each")
    if grid.crs:
        from rasterio.errors import CRSError

        try:
            code = grid.rasterio_crs.to_epsg()
        except CRSError:
            code = None
        if code:
            parts.append(f"EPSG:{code}")
    return " \u00b7 ".join(parts)
