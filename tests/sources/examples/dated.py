"""Small dated GeoTIFFs as users have them, and what tests do with a folder of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

from cropstar.errors import CropstarError
from cropstar.geo.windows import Window
from cropstar.sources.base import Observations
from cropstar.sources.stack import DatedSeries, StackOptions, open_stack
from tests.examples import a_grid

HEIGHT, WIDTH = 24, 30
WHOLE = Window(0, 0, HEIGHT, WIDTH)
DAYS = ("2018-03-12", "2018-04-01")
Pixels = NDArray[Any]


def some_pixels(seed: int = 0, shape: tuple[int, ...] = (HEIGHT, WIDTH), kind: str = "int16") -> Pixels:
    return np.random.default_rng(seed).integers(1, 9000, shape).astype(kind)


def write_raster(
    path: Path,
    pixels: Pixels,
    *,
    ratio: int = 1,
    shift: tuple[float, float] = (0, 0),
    names: tuple[str, ...] = (),
    radiometry: tuple[float, float] | None = None,
    **profile: Any,
) -> Path:
    """Pixels (h, w) or (bands, h, w), each covering `ratio` pixels of the examples' grid, moved by `shift` metres."""
    pixels = pixels if pixels.ndim == 3 else pixels[None]
    grid = a_grid()
    corner = Affine.translation(grid.transform[2] + shift[0], grid.transform[5] + shift[1])
    usual = {
        "driver": "GTiff",
        "count": len(pixels),
        "height": pixels.shape[1],
        "width": pixels.shape[2],
        "dtype": pixels.dtype,
        "crs": grid.rasterio_crs,
        "transform": corner @ Affine.scale(10 * ratio, -10 * ratio),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(path, "w", **{**usual, **profile}) as dataset:
        dataset.write(pixels)
        for index, name in enumerate(names, start=1):
            dataset.set_band_description(index, name)
        if radiometry:
            dataset.scales, dataset.offsets = [[value] * len(pixels) for value in radiometry]
    return path


def write_season(
    folder: Path, bands: tuple[str, ...] = ("B04", "B08"), days: tuple[str, ...] = DAYS, **options: Any
) -> dict[tuple[str, str], Pixels]:
    """One int16 file a band and date; what was written, by date and band."""
    written = {}
    for number, (day, band) in enumerate((day, band) for day in days for band in bands):
        written[day, band] = some_pixels(number)
        path = folder / f"SENTINEL-2_MSI_T31TEJ_{band}_{day}.tif"
        write_raster(path, written[day, band], **{"nodata": -9999, **options})
    return written


def the_file(folder: Path, band: str = "B08", day: str = DAYS[1]) -> Path:
    return folder / f"SENTINEL-2_MSI_T31TEJ_{band}_{day}.tif"


def open_one(folder: Path, **options: Any) -> DatedSeries:
    (series,) = open_stack(folder, StackOptions(**options))
    assert isinstance(series, DatedSeries)
    return series


def read(folder: Path, **options: Any) -> tuple[DatedSeries, Observations]:
    series = open_one(folder, **options)
    observations = series.read(WHOLE)
    series.close()
    return series, observations


def refusal(folder: Path, kind: type[CropstarError], **options: Any) -> str:
    """The one line with which a folder is refused."""
    with pytest.raises(kind) as caught:
        open_stack(folder, StackOptions(**options))
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    return str(caught.value)
