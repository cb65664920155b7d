"""The synthetic scene: what the satellite sees on each date, and the files that a user would have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pyogrio
import rasterio
from numpy.typing import NDArray
from pyogrio.errors import DataSourceError
from rasterio.errors import RasterioIOError

from cropstar.errors import InputError, ResourceError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import checksum, reads_back
from cropstar.geo.sensors import SCALE
from cropstar.geo.windows import Window
from cropstar.sources.synthetic.landscape import BANDS, CROPS, SceneOptions, make_landscape
from cropstar.sources.synthetic.reflectance import Floats, Surface, coarsen, make_surface, reflectance_on, smooth_field
from cropstar.store.files import atomic_path


@dataclass(frozen=True)
class _Acquisition:
    """One date as it is delivered, and its true sky."""

    date: date
    counts: NDArray[np.uint16]  # (C, H, W)
    classification: NDArray[np.uint8]  # (H, W)
    sky: _Sky


@dataclass(frozen=True)
class SyntheticScene:
    """The whole season in memory, with the truth beside it."""

    options: SceneOptions
    grid: Grid
    dates: tuple[date, ...]
    bands: tuple[str, ...]
    values: NDArray[np.uint16]  # (T, C, H, W) reflectance * 10000, 0 where nothing was seen
    classification: NDArray[np.uint8]  # (T, H, W) Sentinel-2 scene classification
    parcels: gpd.GeoDataFrame  # parcel_id, crop, geometry
    parcel_ids: NDArray[np.int32]  # (H, W) 0 outside parcels
    classes: NDArray[np.uint8]  # (H, W) 0 without label, else 1 + position in `class_names`
    class_names: tuple[str, ...]


def make_scene(options: SceneOptions) -> SyntheticScene:
    landscape = make_landscape(options)
    surface = make_surface(options, landscape)
    acquired = list(acquisitions(options, surface))
    return SyntheticScene(
        options=options,
        grid=landscape.grid,
        dates=tuple(one.date for one in acquired),
        bands=BANDS,
        values=np.stack([one.counts for one in acquired]),
        classification=np.stack([one.classification for one in acquired]),
        parcels=landscape.parcels,
        parcel_ids=surface.parcel_ids,
        classes=surface.classes,
        class_names=tuple(crop.name for crop in CROPS),
    )


def acquisitions(options: SceneOptions, surface: Surface) -> Iterator[_Acquisition]:
    """One date at a time: a whole season of a large scene need not be in memory to be written."""
    first = date(options.start.year, 1, 1)
    for index, moment in enumerate(acquisition_dates(options)):
        day = float((moment - first).days + 1)
        sky = make_sky(options, index, day)
        ground = reflectance_on(surface, day, sky.wetness)
        counts, classification = _observe(options.random(9, index), ground, sky, surface.water)
        yield _Acquisition(moment, counts, classification, sky)


# --- Files: a stacked GeoTIFF and a GeoPackage of parcels

TILE, PARCELS = "tile.tif", "parcels.gpkg"
LAYER = "parcels"
CLASSIFICATION = "SCL"


def write_scene(folder: Path, options: SceneOptions) -> tuple[Path, Path]:
    """Write both files unless they are already there; equal options give equal bytes."""
    tile, parcels = folder / TILE, folder / PARCELS
    wanted = options.tags()
    tile_tags, parcel_tags = _tile_tags(tile), _parcel_tags(parcels)
    for path, tags in ((tile, tile_tags), (parcels, parcel_tags)):
        if path.exists() and tags.get("GENERATOR") != wanted["GENERATOR"]:
            raise InputError(
                "will not overwrite a file that is not a synthetic scene",
                path=path,
                remedy="choose another folder or move the file away",
            )
    if _matches(tile_tags, wanted) and _matches(parcel_tags, wanted):
        return tile, parcels
    landscape = make_landscape(options)
    if not _matches(parcel_tags, wanted):
        _write_parcels(parcels, landscape.parcels, wanted)
    if not _matches(tile_tags, wanted):
        _write_tile(tile, landscape.grid, make_surface(options, landscape), options)
    return tile, parcels


def _write_tile(path: Path, grid: Grid, surface: Surface, options: SceneOptions) -> None:
    """Date-major bands, each date's scene classification last."""
    profile = {
        "driver": "GTiff",
        "height": grid.height,
        "width": grid.width,
        "count": options.dates * (len(BANDS) + 1),
        "dtype": "uint16",
        "crs": grid.rasterio_crs,
        "transform": grid.affine,
        "nodata": 0,
        "tiled": True,
        "blockxsize": 256,
        "blockysize": 256,
        "interleave": "band",
        "compress": "deflate",
        "zlevel": 3,
        "predictor": 2,
        "num_threads": "ALL_CPUS",
        "bigtiff": "IF_SAFER",
    }
    with atomic_path(path) as partial:
        checksums = _write_bands(partial, profile, options, surface)
        whole = Window(0, 0, grid.height, grid.width)
        if not reads_back(partial, [(band, whole, wanted) for band, wanted in enumerate(checksums, start=1)]):
            why = "it could not be written completely"
            raise ResourceError("cannot write", path=path, why=why, remedy="free some disk space and run again")


def _write_bands(path: Path, profile: dict[str, Any], options: SceneOptions, surface: Surface) -> list[int]:
    """Write all bands; returns a checksum of each."""
    names = (*BANDS, CLASSIFICATION)
    stack = [(date.isoformat(), name) for date in acquisition_dates(options) for name in names]
    checksums: list[int] = []
    with rasterio.Env(), rasterio.open(path, "w", **profile) as tile:
        # All that goes into the header comes first: a header that grows later is written twice.
        tile.update_tags(**options.tags())
        for position, (date, name) in enumerate(stack, start=1):
            tile.set_band_description(position, f"{date} {name}")
            tile.update_tags(position, DATE=date, BAND=name)
        tile.scales = [1.0 if name == CLASSIFICATION else SCALE for _, name in stack]
        tile.offsets = [0.0] * len(stack)
        for acquisition in acquisitions(options, surface):
            for band in (*acquisition.counts, acquisition.classification.astype("uint16")):
                checksums.append(checksum(band))
                tile.write(band, len(checksums))
    return checksums


def _write_parcels(path: Path, parcels: gpd.GeoDataFrame, tags: dict[str, str]) -> None:
    package = BytesIO()
    # A GeoPackage notes when it was written; a fixed time keeps equal scenes equal.
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": f"{tags['START']}T00:00:00.000Z"})
    try:
        pyogrio.write_dataframe(parcels, package, layer=LAYER, driver="GPKG", layer_metadata=tags)
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})
    with atomic_path(path) as partial:
        partial.write_bytes(package.getvalue())


def _tile_tags(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        with rasterio.open(path) as tile:
            return dict(tile.tags())
    except RasterioIOError:
        return {}


def _parcel_tags(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        return dict(pyogrio.read_info(path, layer=LAYER)["layer_metadata"] or {})
    except (DataSourceError, pyogrio.errors.DataLayerError):
        return {}


def _matches(tags: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(tags.get(key) == value for key, value in wanted.items())


# --- Weather: dates, clouds and the edge of the swath

SEASON = 238  # days from the first of March to late October
CLOSEST = 3  # days between two dates
HAZIEST = 0.02
SUN_AZIMUTH = math.radians(152.0)  # half past ten in the morning
SWATH_TILT = math.tan(math.radians(13.0))  # the track of a sun-synchronous orbit against north
SHARE_WITH_EDGE = 0.22  # of the dates, seen from the neighbouring orbit


@dataclass(frozen=True)
class _Sky:
    """One date's view from above; all arrays are (H, W)."""

    cloud: Floats  # opacity, 0 clear to 1 opaque
    shadow: Floats  # opacity of the cloud between this pixel and the sun
    offset: tuple[int, int]  # rows and columns from a cloud to its shadow
    haze: Floats  # path reflectance in the blue
    seen: NDArray[np.bool_]  # false beyond the edge of the swath
    wetness: float  # of the soil, 0 to 1: it has rained or not


def acquisition_dates(options: SceneOptions) -> tuple[date, ...]:
    """Irregular dates over the season, three days apart at least and seldom more than twice the average."""
    random = options.random(4)
    weights = random.uniform(0.15, 1.0, options.dates) ** 1.5
    spare = SEASON - CLOSEST * options.dates
    days = np.floor(np.cumsum(CLOSEST + spare * weights / weights.sum())).astype(int)
    return tuple(options.start + timedelta(days=int(day)) for day in days)


def cloud_shares(options: SceneOptions) -> Floats:
    """The share of clouded sky by date: some clear days, many half clouded, few overcast; 26 % on average.

    The shares are fixed and only their order is drawn, so that no seed makes a season without a clear view.
    """
    random = options.random(5)
    shares = 0.84 * ((np.arange(options.dates) + 0.5) / options.dates) ** 2.2
    return np.asarray(random.permutation(np.where(shares < 0.012, 0.0, shares)))


def dates_with_edge(options: SceneOptions) -> frozenset[int]:
    """Positions of the dates on which the edge of the swath crosses the scene."""
    count = max(1, round(SHARE_WITH_EDGE * options.dates))
    return frozenset(int(index) for index in options.random(6).choice(options.dates, count, replace=False))


def make_sky(options: SceneOptions, index: int, day: float) -> _Sky:
    """The sky of the date at a position; each date has its own stream of chance, so clouds move between dates."""
    random = options.random(7, index)
    shape = (options.size, options.size)
    offset = _shadow_offset(random, options.size, day)
    cloud, shadow = _clouds(random, shape, float(cloud_shares(options)[index]), offset)
    haze = HAZIEST * random.beta(1.2, 3.0) * (1.0 + 0.25 * smooth_field(random, shape, 60.0, 4.0))
    seen = np.ones(shape, dtype=np.bool_)
    if index in dates_with_edge(options):
        seen = _swath(options, random)
    return _Sky(cloud, shadow, offset, haze.clip(0.0), seen, float(random.beta(1.1, 1.6)))


def _clouds(
    random: np.random.Generator, shape: tuple[int, int], share: float, offset: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Cloud opacity and the shadow it throws; drawn with a margin, for clouds outside the scene shade it too."""
    margin = max(abs(step) for step in offset)
    height, width = shape
    scale = min(random.uniform(9.0, 60.0), max(shape) / 4.0)  # fair-weather puffs or whole banks
    field = smooth_field(random, (height + 2 * margin, width + 2 * margin), scale, 2.6)
    depth = random.choice([1.3, 3.5, 6.0], p=[0.15, 0.35, 0.5])  # veil, ordinary, towering
    if share <= 0.0:
        return np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    above = field - np.quantile(_cut_out(field, margin, shape), 1.0 - share)
    opacity = 1.0 - np.exp(-depth * np.maximum(above, 0.0))
    rows, columns = offset
    return _cut_out(opacity, margin, shape), _cut_out(opacity, margin, shape, rows, columns)


def _cut_out(field: Floats, margin: int, shape: tuple[int, int], rows: int = 0, columns: int = 0) -> Floats:
    """The scene's part of a field with a margin, moved so that what was at (0, 0) comes to (rows, columns)."""
    top, left = margin - rows, margin - columns
    return field[top : top + shape[0], left : left + shape[1]]


def _shadow_offset(random: np.random.Generator, size: int, day: float) -> tuple[int, int]:
    """Away from the sun, the farther the lower the sun stands and the higher the clouds float."""
    zenith = math.radians(42.0 - 17.0 * math.cos(2.0 * math.pi * (day - 172.0) / 365.0) + 3.0)
    length = random.uniform(45.0, 95.0) * math.tan(zenith)  # cloud base in pixels times slope of the ray
    length = max(3.0, min(length, size / 5.0))
    return round(math.cos(SUN_AZIMUTH) * length), round(-math.sin(SUN_AZIMUTH) * length)


def _swath(options: SceneOptions, random: np.random.Generator) -> NDArray[np.bool_]:
    """The neighbouring orbit sees one side only; its edge lies nearly at the same place each time."""
    orbit = options.random(8)
    place, east = orbit.uniform(0.30, 0.45), bool(orbit.integers(2))
    size = options.size
    rows, columns = np.mgrid[0:size, 0:size]
    edge = (place + random.normal(0.0, 0.01)) * size + SWATH_TILT * (size / 2 - rows)
    lost = columns < edge if not east else columns > size - 1 - edge[::-1]
    return np.asarray(~lost)


# --- The sensor

COARSE_BANDS = tuple(BANDS.index(band) for band in ("B05", "B07", "B11", "B12"))  # 20 m in the original

# Codes of the Sentinel-2 scene classification.
NODATA, SHADOW, VEGETATION, BARE, WATER, UNCLASSIFIED, CLOUD_MEDIUM, CLOUD_HIGH, CIRRUS = 0, 3, 4, 5, 6, 7, 8, 9, 10

#                       B02   B03   B04   B05   B07   B08   B11   B12
CLOUD_TOP = np.array([0.62, 0.61, 0.62, 0.64, 0.67, 0.69, 0.50, 0.40], dtype=np.float32)
# Diffuse light from the sky, which is blue, still reaches the ground in a shadow.
SHADE = np.array([0.50, 0.57, 0.62, 0.65, 0.70, 0.71, 0.74, 0.75], dtype=np.float32)
PATH = np.array([1.00, 0.70, 0.48, 0.40, 0.28, 0.22, 0.06, 0.04], dtype=np.float32)


def _observe(
    random: np.random.Generator, ground: Floats, sky: _Sky, water: NDArray[np.bool_]
) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Counts (C, H, W) and scene classification (H, W) of one date."""
    light: Floats = ground * (1.0 - SHADE[:, None, None] * sky.shadow)
    light = light + PATH[:, None, None] * sky.haze
    tops = CLOUD_TOP[:, None, None] * (0.72 + 0.42 * sky.cloud)
    light = light * (1.0 - sky.cloud) + tops * sky.cloud
    light = _blur(np.asarray(light, dtype=np.float32))
    light[COARSE_BANDS, ...] = coarsen(light[COARSE_BANDS, ...])
    gain = 1.0 + random.normal(0.0, 0.015, (len(BANDS), 1, 1))  # viewing angle and atmospheric correction
    noise = random.standard_normal(light.shape, dtype=np.float32)
    light = light * gain + noise * (0.0025 + 0.012 * light)
    # A dark pixel that was seen is 1, never 0: zero is the mark of the unseen.
    counts = np.clip(np.rint(light / SCALE), 1, 20_000).astype(np.uint16)
    counts[:, ~sky.seen] = 0
    return counts, _classify(random, light, sky, water)


def _classify(random: np.random.Generator, light: Floats, sky: _Sky, water: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """A scene classification as good as the real one: right on thick cloud and deep shadow, wrong along thin edges."""
    red, infrared = coarsen(light[BANDS.index("B04")]), coarsen(light[BANDS.index("B08")])
    vegetation = (infrared - red) / np.maximum(infrared + red, 1e-3)
    codes = np.where(vegetation > 0.4, VEGETATION, BARE).astype(np.uint8)
    codes[water] = WATER
    doubt = coarsen(smooth_field(random, sky.cloud.shape, 5.0))
    shadow = coarsen(sky.shadow) + 0.07 * doubt
    cloud = coarsen(sky.cloud) + 0.05 * doubt
    cloudy = coarsen(sky.cloud) > 0.0  # doubt alone makes no clouds in a blue sky
    codes[(shadow > 0.28) & (coarsen(sky.shadow) > 0.0)] = SHADOW
    codes[cloudy & (cloud > 0.08)] = UNCLASSIFIED
    codes[cloudy & (cloud > 0.14)] = CIRRUS
    codes[cloudy & (cloud > 0.30)] = CLOUD_MEDIUM
    codes[cloudy & (cloud > 0.60)] = CLOUD_HIGH
    codes[~sky.seen] = NODATA
    return codes


def _blur(light: Floats) -> Floats:
    """The point spread function: every pixel gets a little of its neighbours' light, so field edges are mixed."""
    padded = np.pad(light, [(0, 0), (1, 1), (1, 1)], mode="edge")
    middle, side = np.float32(0.76), np.float32(0.12)
    rows = middle * padded[:, 1:-1] + side * (padded[:, :-2] + padded[:, 2:])
    return np.asarray(middle * rows[..., 1:-1] + side * (rows[..., :-2] + rows[..., 2:]))


# --- Radar: backscatter of an ascending orbit every twelve days, through the clouds, with speckle
#
# Wet soil scatters more than dry soil. Vegetation weakens the signal of the soil and adds its own: upright stems of
# cereals absorb much of VV, broad leaves scatter much into VH. So radar tells the two apart while they are green, which
# is what the optical bands find hardest.

RADAR_FOLDER = "radar"
RADAR_DAYS = 12  # between two passes
RATIO = 2  # pixels of 20 m
LOOKS = 18  # of a pixel of 20 m, after multilooking: speckle of about one decibel
STREAM = 20  # of random numbers: far from those of the optical scene
CEREALS = ("wheat", "barley", "rye", "cereal", "oat", "spelt", "triticale")


def write_radar(folder: Path, options: SceneOptions) -> Path:
    """One GeoTIFF a date with VV and VH in dB, unless it is already there; equal options give equal numbers."""
    place = folder / RADAR_FOLDER
    days = radar_dates(options)
    paths = [place / f"S1_ASC_{day:%Y%m%d}.tif" for day in days]
    wanted = options.tags()
    if all(_tile_tags(path).items() >= wanted.items() for path in paths):
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
    first = options.start + timedelta(days=int(options.random(STREAM).integers(RADAR_DAYS)))
    return tuple(first + timedelta(days=days) for days in range(0, SEASON, RADAR_DAYS))


def backscatter(options: SceneOptions, surface: Surface, number: int, day: date) -> NDArray[np.float32]:
    """VV and VH (2, h, w) in dB, at 20 m."""
    random = options.random(STREAM, number)
    wetness = float(random.beta(1.1, 1.6))
    ground = reflectance_on(surface, float((day - date(options.start.year, 1, 1)).days + 1), wetness)
    red, infrared = ground[BANDS.index("B04")], ground[BANDS.index("B08")]
    greenness = np.clip((infrared - red) / np.maximum(infrared + red, 1e-3), 0, 1)
    cereals = [place for place, crop in enumerate(CROPS, 1) if any(word in crop.name.lower() for word in CEREALS)]
    upright = np.isin(surface.classes, cereals)
    soil = 10 ** ((-12.0 + 4.0 * wetness) / 10)
    weakened = np.exp(-np.where(upright, 2.6, 1.4) * greenness)
    vv = soil * weakened + np.where(upright, 0.012, 0.045) * greenness
    vh = 0.11 * soil * weakened + np.where(upright, 0.007, 0.022) * greenness
    vv, vh = (np.where(surface.water, level, power) for power, level in ((vv, 0.006), (vh, 0.0012)))
    power = np.stack([_coarse(vv), _coarse(vh)])
    speckle = random.gamma(LOOKS, 1 / LOOKS, power.shape)
    return (10 * np.log10(power * speckle)).astype(np.float32)


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
