"""Context of images: what every date has beside its bands, whichever sensor saw it.

rasters         such as elevation and slope, the same on all dates; brought to the grid of the scene by bilinear
                interpolation
temperature     a NetCDF file or Zarr store with the temperature of the place (AgERA5, ERA5), or a table with a date
                and a temperature; added up to growing degree-days, the band `gdd`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import from_days, to_days
from cropstar.geo.grid import Grid
from cropstar.geo.sensors import flat_bands, is_number
from cropstar.geo.weather import THERMAL_BAND, Warmth, to_celsius
from cropstar.geo.windows import Window
from cropstar.inputs import require_file_or_folder
from cropstar.registry import short_list
from cropstar.runtime import logger
from cropstar.sources.base import Observations, Series
from cropstar.sources.multisensor import sensor_numbers, sensors_of

CONTEXT_OPTIONS = ("context", "temperature", "base_temperature", "warm_from")
LOOK = 1024  # pixels of the long side that are looked at to know how much a raster covers
MEANS = ("temperature_mean", "temperature_air_2m_mean_24h", "tmean", "t2m", "tas", "temperature")
LONGEST_GAP = 7  # days from one temperature to the next, of which nothing is said
DATES = ("date", "day", "time", "timestamp")


@dataclass(frozen=True)
class ContextOptions:
    """Rasters by name, a file of temperatures, and how these are added up."""

    rasters: Mapping[str, Path] = field(default_factory=dict)
    temperature: Path | None = None
    warmth: Warmth = field(default_factory=Warmth)

    @classmethod
    def of(cls, given: Mapping[str, Any], warmth: Warmth | None = None) -> ContextOptions | None:
        """From the options of a command; None where there is no context."""
        rasters: dict[str, Path] = {}
        for text in given.get("context", ()):
            name, _, path = str(text).rpartition("=")
            name = name.strip() or Path(path).stem
            if not name.isprintable() or name in rasters:
                why = f"'{name}' is there twice" if name in rasters else "a name cannot be printed"
                raise UsageError("wrong value of --context", why=why, remedy="write elevation=dem.tif,slope=slope.tif")
            rasters[name] = Path(path.strip())
        temperature = given.get("temperature")
        for name in ("base_temperature", "warm_from"):
            if name in given and temperature is None:
                option = name.replace("_", "-")
                raise UsageError(f"--{option} without --temperature", remedy="give the temperatures too")
        if not rasters and temperature is None:
            return None
        own = Warmth(given.get("base_temperature", 0.0), given.get("warm_from", "01-01"))
        return cls(rasters, None if temperature is None else Path(temperature), warmth or own)

    def to_json(self) -> dict[str, Any]:
        """The options that are part of a scene's recipe."""
        warm = {"warmth": self.warmth.to_json()} if self.temperature is not None else {}
        return {"context": list(self.rasters), **warm}


class ImageContext:
    """The context of a scene; without open files, so that workers can have a copy."""

    def __init__(self, options: ContextOptions, grid: Grid) -> None:
        self.options, self._grid = options, grid
        self.dated_names = (THERMAL_BAND,) if options.temperature is not None else ()
        self.names = (*self.dated_names, *options.rasters)  # in the order of a tile
        self._sums = {} if options.temperature is None else warmth_of_days(options.temperature, options.warmth, grid)
        self._means = {name: _mean_on(path, grid) for name, path in options.rasters.items()}

    @property
    def files(self) -> list[Path]:
        own = list(self.options.rasters.values())
        if self.options.temperature is not None:
            place = self.options.temperature
            own += [place] if place.is_file() else sorted(each for each in place.rglob("*") if each.is_file())
        return own

    def dated(self, dates: Sequence[date]) -> NDArray[np.float32] | None:
        """(T, D): what a date has everywhere."""
        if self.options.temperature is None:
            return None
        days = [int(day) for day in to_days(dates)]
        if outside := [day for day in days if day not in self._sums]:
            first, last = from_days([min(self._sums), max(self._sums) - 1])
            why = f"it has {first} to {last}, and there is an image of {from_days([outside[0]])[0]}"
            remedy = "give temperatures of the whole season"
            raise InputError("dates without a temperature", path=self.options.temperature, why=why, remedy=remedy)
        return np.array([[self._sums[day]] for day in days], dtype=np.float32)

    def static(self, window: Window) -> NDArray[np.float32] | None:
        """(E, h, w): what a pixel has on all dates. Where a raster has no value, its mean on the scene."""
        if not self.options.rasters:
            return None
        layers = []
        for name, path in self.options.rasters.items():
            values, present = _read_raster(path, self._grid, window)
            layers.append(np.where(present, values, self._means[name]))
        return np.stack(layers).astype(np.float32)


class ContextSeries:
    """A series with the context of every date after its bands."""

    def __init__(self, series: Series, context: ImageContext) -> None:
        self._series, self._context = series, context
        self.name, self.grid, self.dates, self.provenance = series.name, series.grid, series.dates, series.provenance
        self.scale, self.offset = series.scale, series.offset
        self.sensors, self.owners = sensors_of(series), sensor_numbers(series)
        self.context = context.names
        self.bands = flat_bands(self.sensors, context.names)
        self._dated = context.dated(series.dates)

    @property
    def files(self) -> list[Path]:
        return [*self._series.files, *self._context.files]

    def read(self, window: Window) -> Observations:
        read = self._series.read(window)
        shape = (len(self.dates), len(self.bands), window.height, window.width)
        values: NDArray[Any] = np.zeros(shape, dtype=np.float32)
        own = len(self.bands) - len(self.context)
        values[:, :own] = read.values
        if self._dated is not None:
            values[:, own : own + self._dated.shape[1]] = self._dated[:, :, None, None]
            own += self._dated.shape[1]
        if (static := self._context.static(window)) is not None:
            values[:, own:] = static
        values *= read.valid[:, None]
        return Observations(values, read.valid)

    def close(self) -> None:
        self._series.close()


# --- rasters on the grid of a scene


def _read_raster(
    path: Path, grid: Grid, window: Window, shape: tuple[int, int] | None = None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Values (h, w) of the first band on the grid, and where there are any."""
    from cropstar.geo.raster import GDAL_ERRORS, open_raster, rasterio_window, warped_to

    require_file_or_folder(path)
    with open_raster(path) as dataset:
        if dataset.crs is None:
            raise InputError("context has no coordinate system", path=path, remedy="give a raster that has one")
        try:
            # Transparent where the raster ends.
            with warped_to(dataset, grid, "bilinear", dtype="float32", add_alpha=dataset.nodata is None) as warped:
                how: dict[str, Any] = {"window": rasterio_window(window), "out_shape": shape}
                values: NDArray[np.float32] = warped.read(1, **how)
                # GDAL's mask of decimal numbers does not look at the transparency that marks where the raster ends.
                cover = warped.read(2, **how) if dataset.nodata is None else warped.read_masks(1, **how)
                present = (cover > 0) & is_number(values)
        except GDAL_ERRORS as failure:
            raise _elsewhere(path, str(failure)) from None
    return values, present


def _require_one_band(path: Path) -> None:
    """Refuse a raster of several layers, of which the first would be taken."""
    from rasterio.enums import ColorInterp

    from cropstar.geo.raster import open_raster

    with open_raster(path) as dataset:
        bands = sum(meaning != ColorInterp.alpha for meaning in dataset.colorinterp)
    if bands > 1:
        remedy = "give a raster of one band, as gdal_translate -b 1 writes it"
        raise InputError("context of several bands", path=path, why=f"it has {bands}", remedy=remedy)


def _mean_on(path: Path, grid: Grid) -> float:
    """The mean of a raster over a scene, from an overview; warns if the raster does not cover the scene."""
    _require_one_band(path)
    factor = max(1.0, max(grid.shape) / LOOK)
    shape = (max(1, round(grid.height / factor)), max(1, round(grid.width / factor)))
    values, present = _read_raster(path, grid, Window(0, 0, grid.height, grid.width), shape)
    if not present.any():
        raise _elsewhere(path, "it has no value anywhere on the scene")
    if (covered := float(present.mean())) < 0.995:
        logger.warning("%s covers %.0f %% of the scene; the rest gets its mean", path, 100 * covered)
    return float(values[present].mean())


def _elsewhere(path: Path, why: str) -> InputError:
    return InputError("context of another place", path=path, why=why, remedy="give a raster that covers the images")


# --- temperatures


def warmth_of_days(path: Path, warmth: Warmth, grid: Grid) -> dict[int, float]:
    """Growing degree-days on each day (since 1970-01-01), of daily temperatures or such of hours."""
    require_file_or_folder(path)
    days, numbers = _of_cube(path, grid) if _is_cube(path) else _of_table(path)
    known = np.isfinite(numbers)
    if not known.any():
        raise InputError("no temperature", path=path, why="there is no value", remedy="give daily mean temperatures")
    try:
        celsius = to_celsius(numbers[known])
    except ValueError as failure:
        raise InputError("no temperature", path=path, why=str(failure), remedy="give degrees, or kelvins") from None
    own, places = np.unique(days[known], return_inverse=True)
    means = np.bincount(places, weights=celsius) / np.bincount(places)
    if (gap := int(np.diff(own, prepend=own[0]).max())) > LONGEST_GAP:
        logger.warning("%s has no temperature for up to %d days on end: the last one before is taken", path, gap - 1)
    sums = warmth.of_days(dict(zip(own.tolist(), means.tolist(), strict=True)))
    first = from_days([int(own[0])])[0]
    if f"{first:%m-%d}" != warmth.start:
        what = "%s begins on %s: growing degree-days before the next %s lack what came before"
        logger.warning(what, path, first, warmth.start)
    return sums


def _is_cube(path: Path) -> bool:
    from cropstar.sources.cube import looks_like_cube

    return looks_like_cube(path)


def _of_cube(path: Path, grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Days and temperatures of the pixel in which the middle of the scene lies."""
    from cropstar.sources.cube import Cube, Radiometry, axes_of

    if path.is_dir() and path.suffix.lower() != ".zarr":
        why, remedy = "it is a folder", "give one NetCDF file or Zarr store"
        raise UsageError("wrong value of --temperature", path=path, why=why, remedy=remedy)
    cube = Cube(path)
    try:
        named = {str(name): axes_of(array.dims) for name, array in cube.dataset.data_vars.items()}
        able = [name for name, axes in named.items() if "t" in axes and "band" not in axes]
        chosen = _mean_of(able, path)
        axes, array = named[chosen], cube.dataset[chosen]
        if "y" in axes and "x" in axes:
            array = array.isel(cube.nearest(axes, grid))
        if array.ndim != 1:
            why = f"'{chosen}' has {', '.join(map(str, array.dims))}"
            raise InputError("temperatures that cannot be read", path=path, why=why, remedy="give time, y and x alone")
        numbers = np.asarray(array.values)
        own = Radiometry.of(cube.dataset[chosen])
        physical = np.where(own.present(numbers), own.physical(numbers), np.nan).astype(np.float64)
        return cube.times(axes), physical
    finally:
        cube.close()


def _of_table(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Days and temperatures of a table, NaN where it has no value; nothing in it is guessed at."""
    from cropstar.sources.table import encode_days, numbers_of
    from cropstar.sources.table_files import open_file

    file = open_file(path)
    dated = next((name for name in file.columns if name.strip().lower() in DATES), None)
    if dated is None:
        why = f"its columns are {short_list(file.columns)}"
        raise InputError("temperatures without dates", path=path, why=why, remedy="name a column 'date'")
    chosen = _mean_of([name for name in file.columns if name != dated], path)
    frame = file.read([dated], [chosen])
    if frame.empty:
        raise InputError("no temperature", path=path, why="it has no rows", remedy="give daily mean temperatures")
    days, numbers = encode_days(frame[dated], path), numbers_of(frame[chosen], path)
    return days.astype(np.int64), np.where(np.isin(numbers, (-9999, 65535)), np.nan, numbers)


def _mean_of(names: Sequence[str], path: Path) -> str:
    """The name of the mean temperature of the air among several."""
    for wanted in MEANS:
        for name in names:
            if re.sub(r"[ .-]", "_", name.strip().lower()).removeprefix("agera5_") == wanted:
                return name
    likely = [name for name in names if re.search("temp|tmean|t2m", name, re.IGNORECASE)]
    mean = [name for name in likely if re.search("mean|avg", name, re.IGNORECASE)] or likely
    if len(mean) == 1:
        return mean[0]
    why = f"it has {short_list(names) or 'nothing with dates'}"
    raise InputError("no mean temperature", path=path, why=why, remedy="call it temperature_mean")
