"""Opening whatever holds a raster series, to be mapped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cropstar.errors import UsageError
from cropstar.sources.sentinel2.products import looks_like_sentinel2
from cropstar.sources.series import Series
from cropstar.sources.stack import StackOptions, open_stack

READING = ("resampling", "clear")  # what a model remembers of how its images were read


def open_raster_series(
    path: Path, bands: Sequence[str], reading: Mapping[str, Any], given: Mapping[str, Any] | None = None
) -> Series:
    """A stacked GeoTIFF, a folder of dated GeoTIFFs, or Sentinel-2 products of one tile.

    Images are read as those that the model was trained on: `bands` of them, with the resampling and the
    scene classes of `reading`. What the user has `given` (see the options of each source) comes before that.
    """
    chosen = {name: value for name, value in reading.items() if name in READING} | dict(given or {})
    opened: Sequence[Series]
    if looks_like_sentinel2(path):
        from cropstar.sources.sentinel2 import Sentinel2Options, open_series
        from cropstar.sources.sentinel2.options import NATIVE_RESOLUTION

        for name in chosen:
            if name not in (*READING, "bands"):
                option = name.replace("_", "-")
                raise UsageError(f"--{option} is not for Sentinel-2 products", path=path, remedy="leave it out")
        if set(bands) <= set(NATIVE_RESOLUTION):
            chosen = {"bands": tuple(bands), **chosen}
        opened = open_series(path, Sentinel2Options(**chosen))
    else:
        # Bands are picked by their names, never given to bands that have none: that would be a guess.
        opened = open_stack(path, StackOptions(**chosen), wanted=tuple(bands))
    if len(opened) > 1:
        for series in opened:
            series.close()
        why = f"images of {', '.join(series.name for series in opened)}"
        raise UsageError("more than one tile", path=path, why=why, remedy="give the images of one tile")
    return opened[0]
