"""Radar of the synthetic scene: backscatter of an ascending orbit every twelve days, through the clouds, with speckle.

Bare soil scatters more the wetter it is. Vegetation weakens the answer of the soil and adds its own: upright stems of
cereals swallow much of VV, broad leaves scatter much into VH. So radar tells the two apart while they are green, which
is what the optical bands find hardest; it knows nothing of colour.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.errors import RasterioIOError

from cropstar.geo.grid import Grid
from cropstar.sources.synthetic.landscape import BANDS, CROPS, SceneOptions, make_landscape
from cropstar.sources.synthetic.reflectance import Floats, Surface, make_surface, reflectance_on
from cropstar.sources.synthetic.scene import SEASON
from cropstar.store.files import atomic_path

FOLDER = "radar"
EVERY = 12  # days
RATIO = 2  # pixels of 20 m
LOOKS = 18  # of a pixel of 20 m, after multilooking: speckle of about one decibel
STREAM = 20  # of random numbers: far from those of the optical scene
CEREALS = ("wheat", "barley", "rye", "cereal", "oat", "spelt", "triticale")


def write_radar(folder: Path, options: SceneOptions) -> Path:
    """One GeoTIFF a date with VV and VH in dB, unless it is already there; equal options give equal numbers."""
    place = folder / FOLDER
    days = radar_dates(options)
    paths = [place / f"S1_ASC_{day:%Y%m%d}.tif" for day in days]
    wanted = options.tags()
    if all(_tags(path).items() >= wanted.items() for path in paths):
        return place
    place.mkdir(parents=True, exist_ok=True)
    landscape = make_landscape(options)
    surface = make_surface(options, landscape)
    grid = landscape.grid
    a, b, c, d, e, f = grid.transform
    coarse = Grid(grid.crs, (a * RATIO, b, c, d, e * RATIO, f), grid.height // RATIO, grid.width // RATIO)
    for number, (day, path) in enumerate(zip(days, paths, strict=True)):
        _write(path, coarse, backscatter(options, surface, number, day), wanted)
    return place


def radar_dates(options: SceneOptions) -> tuple[date, ...]:
    """The days of one orbit over the season, none of them chosen by the weather."""
    first = options.start + timedelta(days=int(options.random(STREAM).integers(EVERY)))
    return tuple(first + timedelta(days=days) for days in range(0, SEASON, EVERY))


def backscatter(options: SceneOptions, surface: Surface, number: int, day: date) -> NDArray[np.float32]:
    """VV and VH (2, h, w) in dB, at 20 m."""
    random = options.random(STREAM, number)
    wetness = float(random.beta(1.1, 1.6))
    ground = reflectance_on(surface, float((day - date(options.start.year, 1, 1)).days + 1), wetness)
    red, infrared = ground[BANDS.index("B04")], ground[BANDS.index("B08")]
    greenness = np.clip((infrared - red) / np.maximum(infrared + red, 1e-3), 0, 1)
    upright = np.isin(surface.classes, [place for place, crop in enumerate(CROPS, 1) if _is_cereal(crop.name)])
    soil = 10 ** ((-12.0 + 4.0 * wetness) / 10)
    weakened = np.exp(-np.where(upright, 2.6, 1.4) * greenness)
    vv = soil * weakened + np.where(upright, 0.012, 0.045) * greenness
    vh = 0.11 * soil * weakened + np.where(upright, 0.007, 0.022) * greenness
    vv, vh = (np.where(surface.water, level, power) for power, level in ((vv, 0.006), (vh, 0.0012)))
    power = np.stack([_coarse(vv), _coarse(vh)])
    speckle = random.gamma(LOOKS, 1 / LOOKS, power.shape)
    return (10 * np.log10(power * speckle)).astype(np.float32)


def _is_cereal(name: str) -> bool:
    return any(word in name.lower() for word in CEREALS)


def _coarse(power: Floats) -> Floats:
    """Means of power over the pixels of 20 m: decibels must not be averaged."""
    height, width = (side // RATIO for side in power.shape)
    cut = power[: height * RATIO, : width * RATIO].reshape(height, RATIO, width, RATIO)
    means: Floats = cut.mean(axis=(1, 3))
    return means


def _write(path: Path, grid: Grid, decibels: NDArray[np.float32], tags: dict[str, str]) -> None:
    profile = {"driver": "GTiff", "count": 2, "dtype": "float32", "compress": "deflate", "nodata": float("nan")}
    place = {"height": grid.height, "width": grid.width, "crs": grid.rasterio_crs, "transform": grid.affine}
    with atomic_path(path) as partial, rasterio.Env(), rasterio.open(partial, "w", **profile, **place) as dataset:
        dataset.update_tags(**tags)
        dataset.descriptions = ("VV", "VH")
        dataset.write(decibels)


def _tags(path: Path) -> dict[str, str]:
    try:
        with rasterio.open(path) as dataset:
            return dict(dataset.tags())
    except RasterioIOError:
        return {}
