"""Opening whatever holds a raster series, to be mapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cropstar.errors import UsageError
from cropstar.sources.sentinel2.products import looks_like_sentinel2
from cropstar.sources.series import Series
from cropstar.sources.stack import StackSeries


def open_raster_series(path: Path, bands: Sequence[str], reading: Mapping[str, Any]) -> Series:
    """A stacked GeoTIFF, or Sentinel-2 products of one tile.

    Products are read as those that the model was trained on: `bands` of them, with the resampling and the
    scene classes of `reading`.
    """
    if not looks_like_sentinel2(path):
        return StackSeries(path)
    from cropstar.sources.sentinel2 import Sentinel2Options, open_series
    from cropstar.sources.sentinel2.options import NATIVE_RESOLUTION

    chosen = tuple(bands) if set(bands) <= set(NATIVE_RESOLUTION) else None
    options = Sentinel2Options(
        chosen, **{name: value for name, value in reading.items() if name in ("resampling", "clear")}
    )
    opened = open_series(path, options)
    if len(opened) > 1:
        for series in opened:
            series.close()
        why = f"products of {', '.join(series.tile for series in opened)}"
        raise UsageError("more than one tile", path=path, why=why, remedy="give the products of one tile")
    return opened[0]
