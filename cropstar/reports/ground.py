"""What a map says about its ground: which way is up, a round length for the scale bar, a line under the title."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cropstar.geo.ground import metres_per_unit
from cropstar.reports.wording import length

if TYPE_CHECKING:
    from cropstar.geo.grid import Grid


def is_north_up(grid: Grid) -> bool:
    a, b, _, d, e, _ = grid.transform
    return a > 0 and b == 0 and d == 0 and e < 0


def round_length(longest: float) -> float:
    """The largest of 1, 2, 5, 10, 20, 50, ... that does not exceed `longest`."""
    power = 10.0 ** math.floor(math.log10(longest))
    # The tolerance keeps 5 a 5 where binary fractions make it 4.9999999.
    return power * next(step for step in (5, 2, 1) if step * power <= longest * (1 + 1e-9) or step == 1)


def describe(grid: Grid, resolution: float = 0.0) -> str:
    """The line under a map's title: how large it is, how fine, and in which coordinates.

    Without a coordinate system a pixel is `resolution` metres wide, if that is given.
    """
    parts = [f"{grid.width:,} \u00d7 {grid.height:,} pixels"]
    unit = metres_per_unit(grid)
    side = resolution if not grid.crs else None if unit is None else grid.resolution * unit
    if side:
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
