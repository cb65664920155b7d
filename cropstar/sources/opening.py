"""Opening whatever holds a raster series, to be mapped."""

from __future__ import annotations

from pathlib import Path

from cropstar.errors import UsageError
from cropstar.sources.sentinel2.products import looks_like_sentinel2
from cropstar.sources.series import Series
from cropstar.sources.stack import StackSeries


def open_raster_series(path: Path) -> Series:
    """A stacked GeoTIFF, or Sentinel-2 products of one tile."""
    if not looks_like_sentinel2(path):
        return StackSeries(path)
    from cropstar.sources.sentinel2 import Sentinel2Options, open_series

    opened = open_series(path, Sentinel2Options())
    if len(opened) > 1:
        for series in opened:
            series.close()
        why = f"products of {', '.join(series.tile for series in opened)}"
        raise UsageError("more than one tile", path=path, why=why, remedy="give the products of one tile")
    return opened[0]
