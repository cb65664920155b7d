"""Cubes: NetCDF files and Zarr stores with CF conventions, as openEO, WorldCereal and xarray write them.

A path is one file or Zarr store, or a folder of several of one place. Variables are bands, (t, y, x) in any order or
(t, band, y, x); `x` and `y` are the centres of pixels. Polarisations (VV, VH) are of a radar sensor, kept in decibels;
the scene classification SCL becomes the mask. Several resolutions become one scene on the finest grid, coarser bands by
georeference with the chosen resampling, radar and the scene classification by the containing pixel. A variable of whole
numbers without time is a raster of labels (see `label_rasters`), taken where no other labels are given.

What a cube has on one day of one sensor is put together, each pixel from the first acquisition in which it is valid.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError, one_line
from cropstar.geo.calendar import from_days
from cropstar.geo.grid import Grid, parse_crs
from cropstar.geo.raster import FARTHEST, GDAL_ERRORS, LARGEST_PIXEL
from cropstar.geo.resampling import Alignment, NotAligned, RasterPart, nearest, resample
from cropstar.geo.sensors import (
    BACKSCATTER_KINDS,
    CLEAR_SCENE_CLASSES,
    DECIBEL_OFFSET,
    DECIBEL_SCALE,
    LARGEST_SCALE,
    OPTICAL,
    RADAR_BANDS,
    SCALE,
    SCENE_CLASSIFICATION,
    backscatter_kind,
    band_name,
    clear_sky,
    decibel_counts,
    in_order,
    is_number,
    is_of_kind,
    radar_band,
    radar_name,
    sentinel2_band,
    to_decibels,
)
from cropstar.geo.windows import Window
from cropstar.inputs import MAXIMUM_RASTER_SIDE, reading, require_file_or_folder
from cropstar.registry import short_list
from cropstar.runtime import event, logger
from cropstar.sources.base import Bands, Observations, Series, empty_dates_note, to_values
from cropstar.sources.multisensor import SensorSeries
from cropstar.store.gate import open_hdf5

ENDINGS = (".nc", ".nc4", ".cdf")
ZARR = (".zarr",)
ZARR_DESCRIPTIONS = ("zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata")
MOST_DESCRIBED = 16_000_000  # bytes of one of them
HDF5, NETCDF3 = b"\x89HDF", b"CDF"
LOOKED_AT = 64  # pixels a side, of every date, that tell what numbers are
TIMES, ROWS, COLUMNS = ("t", "time", "timestamp", "date"), ("y", "lat", "latitude"), ("x", "lon", "longitude")
BAND_AXES = ("band", "bands", "variable")
WEATHER = re.compile(
    r"temperature|precipitation|radiation|humidity|dewpoint|vapour|wind|agera5|t2m|tmean", re.IGNORECASE
)
FORMATS_REMEDY = "give NetCDF-4 or Zarr as xarray writes them"


@dataclass(frozen=True)
class CubeOptions:
    """Bands to take (None: Sentinel-2's, or all), resampling of coarser ones, scene classes that count as clear."""

    bands: Bands | None = None
    resampling: str = "bilinear"
    clear: tuple[int, ...] = CLEAR_SCENE_CLASSES

    def to_json(self) -> dict[str, Any]:
        return {
            "bands": None if self.bands is None else list(self.bands),
            "resampling": self.resampling,
            "scene_classes": list(self.clear),
        }


def looks_like_cube(path: Path) -> bool:
    """Whether a path is a cube, or a folder that has some; by names alone."""
    return bool(cube_files(path))


def cube_files(path: Path) -> list[Path]:
    """The NetCDF files and Zarr stores at a path, or directly in its folder."""
    if path.suffix.lower() in (*ENDINGS, *ZARR):
        return [path]
    if not path.is_dir():
        return []
    return sorted(entry for entry in path.iterdir() if entry.suffix.lower() in (*ENDINGS, *ZARR))


def label_cube(path: Path) -> Path | None:
    """The cube of labels in a folder: the one whose variables are whole numbers without time."""
    labelled = []
    for file in cube_files(path) if path.is_dir() and path.suffix.lower() not in ZARR else []:
        cube = Cube(file)
        own = cube.variables()
        if own and all(each.times is None for each in own) and file.is_file():
            labelled += [file] if any(cube.dataset[each.name].dtype.kind in "ui" for each in own) else []
        cube.close()
    return labelled[0] if len(labelled) == 1 else None


def open_cubes(path: Path, options: CubeOptions | None = None) -> Series:
    """All sensors of the cubes at a path as one series, optical first: its grid is that of the scene."""
    options = options or CubeOptions()
    require_file_or_folder(path)
    files = cube_files(path)
    if not files:
        raise InputError("no cube", path=path, why="no file ends in .nc or .zarr", remedy=FORMATS_REMEDY)
    images: list[Variable] = []
    for file in files:
        cube = Cube(file)
        images += [each for each in cube.variables() if each.times is not None]
        if cube.has_weather and len(files) > 1:
            logger.info("%s has weather, which is not an image: --temperature takes degree-days from it", file.name)
    chosen = _by_sensor(_wanted(images, options, path))
    if not chosen:
        why = f"the variables are {short_list(dict.fromkeys(each.name for each in images)) or 'none with dates'}"
        raise InputError("no images", path=path, why=why, remedy="name the bands with --bands")
    name = path.resolve().stem if path.is_file() else path.resolve().name.removesuffix(".zarr")
    series = [CubeSeries(name, sensor, own, options) for sensor, own in chosen.items()]
    return series[0] if len(series) == 1 else SensorSeries(series)


# --- one file


class Cube:
    """A NetCDF file or Zarr store, opened by xarray without decoding numbers; times are decoded."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dataset = _open_dataset(path)

    @property
    def has_weather(self) -> bool:
        return any(WEATHER.search(str(name)) for name in self.dataset.data_vars)

    def variables(self) -> list[Variable]:
        """All variables on a grid; angles and other values per date are skipped."""
        listed = []
        dataset = self.dataset
        for name, array in dataset.data_vars.items():
            axes = axes_of(array.dims)
            if "y" not in axes or "x" not in axes or set(array.dims) - set(axes.values()) or WEATHER.search(str(name)):
                continue
            if array.dtype.kind not in "iuf":  # texts, complex numbers and the like
                continue
            grid, flips = self._grid(axes)
            times = self.times(axes) if "t" in axes else None
            labels: list[str | None] = [None]
            if "band" in axes:
                labels = [str(value) for value in dataset[axes["band"]].values] if axes["band"] in dataset else []
                if not all(labels) or not labels:
                    why = f"'{axes['band']}' has no coordinate, or an empty one"
                    raise InputError(f"bands without names in '{name}'", path=self.path, why=why, remedy=FORMATS_REMEDY)
            for place, label in enumerate(labels):
                listed.append(
                    Variable(
                        self.path, str(name), str(label or name), place if label else None, axes, grid, flips, times
                    )
                )
        return listed

    def _grid(self, axes: Mapping[str, str], crs: str | None = None) -> tuple[Grid, tuple[bool, bool]]:
        """The grid from north to south and west to east, and whether rows and columns must be turned for that."""
        steps, starts, sizes = [], [], []
        for axis in (axes["y"], axes["x"]):
            if axis not in self.dataset.coords:
                why = f"'{axis}' has no coordinates"
                raise InputError("no place", path=self.path, why=why, remedy="write x and y as centres of pixels")
            with reading("no usable grid", self.path, FORMATS_REMEDY):
                centres = np.asarray(self.dataset[axis].values, dtype=np.float64)
            if not 1 <= len(centres) <= MAXIMUM_RASTER_SIDE or not np.abs(centres).max() < FARTHEST:  # nor NaN
                why = f"'{axis}' has {len(centres):,} coordinates"
                raise InputError("no usable grid", path=self.path, why=why, remedy=FORMATS_REMEDY)
            step = self._step(axis, centres)
            steps.append(step)
            starts.append(centres[0] - step / 2 if (step > 0) == (axis == axes["x"]) else centres[-1] + step / 2)
            sizes.append(len(centres))
        flips = steps[0] > 0, steps[1] < 0
        transform = (abs(steps[1]), 0.0, starts[1], 0.0, -abs(steps[0]), starts[0])
        return Grid(crs or self._crs(), transform, sizes[0], sizes[1]), flips

    def _step(self, axis: str, centres: NDArray[np.float64]) -> float:
        if len(centres) == 1:
            size = _first_number(self.dataset.attrs.get("resolution"), 1.0)
            return size if 0 < abs(size) <= LARGEST_PIXEL else 1.0
        steps = np.diff(centres)
        step = float((centres[-1] - centres[0]) / (len(centres) - 1))
        if step == 0 or np.abs(steps - step).max() > 1e-3 * abs(step):
            why = f"steps of '{axis}' go from {steps.min():g} to {steps.max():g}"
            raise InputError("irregular coordinates", path=self.path, why=why, remedy="bring it to a regular grid")
        return step

    def _crs(self) -> str:
        from rasterio.errors import CRSError

        texts = []
        for name in ("spatial_ref", "crs", "grid_mapping"):
            if name in self.dataset.variables:
                own = self.dataset[name].attrs
                texts += [own.get(key) for key in ("crs_wkt", "spatial_ref", "epsg_code")]
        texts += [self.dataset.attrs.get(key) for key in ("crs_wkt", "spatial_ref", "crs", "epsg")]
        for text in (str(each) for each in texts if each is not None and str(each).strip()):
            try:
                return str(parse_crs(text).to_wkt())
            except (CRSError, ValueError):
                continue
        remedy = "write it as crs_wkt of a variable spatial_ref, as rioxarray does"
        raise InputError("no coordinate system", path=self.path, remedy=remedy)

    def times(self, axes: Mapping[str, str]) -> NDArray[np.int64]:
        """Days since 1970-01-01 of every step, in any order."""
        name = axes["t"]
        with reading("a damaged cube", self.path):
            times = self.dataset[name].values if name in self.dataset.coords else np.zeros(0)
        if not np.issubdtype(times.dtype, np.datetime64) or np.isnat(times).any():
            why = f"'{name}' has no dates" if name in self.dataset.coords else f"'{name}' has no coordinate"
            remedy = "write units such as 'days since 2018-01-01'"
            raise InputError("time without units", path=self.path, why=why, remedy=remedy)
        days: NDArray[np.int64] = times.astype("datetime64[D]").astype(np.int64)
        return days

    def nearest(self, axes: Mapping[str, str], grid: Grid) -> dict[str, int]:
        """The place of the pixel in which the middle of a grid lies, by axis."""
        if all(self.dataset.sizes[axes[axis]] == 1 for axis in "yx"):
            return {axes["y"]: 0, axes["x"]: 0}
        own, _ = self._grid(axes, "EPSG:4326" if axes["y"].lower().startswith("lat") else None)
        from rasterio.warp import transform

        (left, top), (right, bottom) = (grid.affine @ corner for corner in ((0, 0), (grid.width, grid.height)))
        try:
            middle = transform(grid.rasterio_crs, own.rasterio_crs, [(left + right) / 2], [(top + bottom) / 2])
        except GDAL_ERRORS as failure:
            remedy = "reproject it first"
            raise InputError("a cube of another place", path=self.path, why=one_line(failure), remedy=remedy) from None
        column, row = ~own.affine @ (middle[0][0], middle[1][0])
        if not (0 <= row < own.height and 0 <= column < own.width):
            why = f"the middle of the images, {middle[0][0]:.6g} {middle[1][0]:.6g}, lies outside of it"
            raise InputError("a cube of another place", path=self.path, why=why, remedy="give one of the images' place")
        places = {}
        for axis, size, place in (("y", own.height, int(row)), ("x", own.width, int(column))):
            centres = np.asarray(self.dataset[axes[axis]].values)
            turned = (centres[0] < centres[-1]) == (axis == "y")  # against the grid, which goes south and east
            places[axes[axis]] = size - 1 - place if turned else place
        return places

    def close(self) -> None:
        self.dataset.close()


def axes_of(dims: Sequence[Any]) -> dict[str, str]:
    """Which dimension is which: t, y, x and band."""
    names = {"t": TIMES, "y": ROWS, "x": COLUMNS, "band": BAND_AXES}
    return {axis: str(dim) for dim in dims for axis, known in names.items() if str(dim).lower() in known}


def _open_dataset(path: Path) -> Any:
    try:
        import xarray
    except ImportError:
        remedy = "install it with: pip install 'cropstar[cube]'"
        raise UsageError("cubes need xarray", path=path, remedy=remedy) from None
    try:
        if path.is_dir():
            _require_own_files(path)
            _require_whole_chunks()
        engine = "zarr" if path.is_dir() else _engine(path)
        return xarray.open_dataset(
            path,
            engine=engine,
            mask_and_scale=False,
            decode_times=True,
            decode_coords="coordinates",
            cache=False,
            chunks=None,
        )
    except InputError:
        raise
    except ImportError:
        raise UsageError(
            "this cube needs another library", path=path, remedy="install it with: pip install 'cropstar[cube]'"
        ) from None
    except Exception as failure:  # of xarray and its engines, in many kinds
        if "decode time" in str(failure) or "units" in str(failure):
            why = " ".join(str(failure).partition(". Try ")[0].split())[:120]
            remedy = "write units such as 'days since 2018-01-01'"
            raise InputError("time that cannot be read", path=path, why=why, remedy=remedy) from None
        why = " ".join(f"{type(failure).__name__}: {failure}".split())[:160]
        raise InputError("a cube that cannot be read", path=path, why=why, remedy=FORMATS_REMEDY) from None


def _require_own_files(folder: Path) -> None:
    """Refuse links, pipes and huge descriptions in a Zarr folder: all of its files are opened by name alone."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                why = f"'{path.relative_to(folder)}' is a link, pipe or device"
                raise InputError("a cube that leads elsewhere", path=folder, why=why, remedy="copy what belongs to it")
            if path.name in ZARR_DESCRIPTIONS and status.st_size > MOST_DESCRIBED:
                why = f"'{path.relative_to(folder)}' has {status.st_size:,} bytes"
                raise InputError("a cube that cannot be read", path=folder, why=why, remedy=FORMATS_REMEDY)


@cache
def _require_whole_chunks() -> None:
    """Refuse chunks that were cut off: Blosc takes their length from their first bytes and reads beyond the end."""
    try:
        from numcodecs.blosc import Blosc
    except ImportError:
        return
    decode = Blosc.decode

    def checked(self: Any, chunk: Any, out: Any = None) -> Any:
        start = memoryview(chunk).cast("B")[:16]
        claimed = int.from_bytes(start[12:], "little")
        if len(start) < 16 or claimed > memoryview(chunk).nbytes:
            raise ValueError(f"a chunk has {memoryview(chunk).nbytes:,} of {claimed:,} bytes")
        return decode(self, chunk, out)

    Blosc.decode = checked


def _engine(path: Path) -> str:
    with path.open("rb") as handle:
        start = handle.read(4)
    if start.startswith(HDF5):
        try:
            open_hdf5(path).close()  # refers to nothing but itself
        except (OSError, ValueError, RuntimeError, KeyError) as failure:
            raise InputError("a cube that cannot be read", path=path, why=str(failure), remedy=FORMATS_REMEDY) from None
        return "h5netcdf"
    if start.startswith(NETCDF3):
        return "scipy"
    raise InputError("not a NetCDF file", path=path, why="it does not begin like one", remedy=FORMATS_REMEDY)


# --- variables


@dataclass(frozen=True)
class Variable:
    """One band of a cube: its place in the file, its grid, and the days of its steps."""

    path: Path
    name: str  # of the variable
    label: str  # of the band
    place: int | None  # along the axis of bands, where it has one
    axes: Mapping[str, str]
    grid: Grid
    flips: tuple[bool, bool]  # rows, columns: as they lie in the file, against the grid
    times: NDArray[np.int64] | None

    def read(self, dataset: Any, window: Window | None = None) -> NDArray[Any]:
        """Stored numbers (t, h, w), or (h, w) without time, of a window of the variable's own grid."""
        array = dataset[self.name]
        if self.place is not None:
            array = array.isel({self.axes["band"]: self.place})
        order = [self.axes[axis] for axis in ("t", "y", "x") if axis in self.axes]
        array = array.transpose(*order)
        window = window or Window(0, 0, self.grid.height, self.grid.width)
        rows = _turned(slice(window.top, window.bottom), self.grid.height, self.flips[0])
        columns = _turned(slice(window.left, window.right), self.grid.width, self.flips[1])
        with reading("a damaged cube", self.path):
            numbers = np.asarray(array.isel({self.axes["y"]: rows, self.axes["x"]: columns}).values)
        shape = (*(() if self.times is None else (len(self.times),)), window.height, window.width)
        if numbers.shape != shape:  # a file whose arrays have other sizes than its dimensions
            why = f"'{self.name}' is an array of {numbers.shape} instead of {shape}"
            raise InputError("a damaged cube", path=self.path, why=why, remedy="get the file again")
        turned: NDArray[Any] = numbers[..., :: -1 if self.flips[0] else 1, :: -1 if self.flips[1] else 1]
        return turned

    def radiometry(self, dataset: Any) -> Radiometry:
        return Radiometry.of(dataset[self.name])


@dataclass(frozen=True)
class Radiometry:
    """The scale and offset of stored numbers: physical = number * scale + offset."""

    scale: float
    offset: float
    nodata: tuple[float, ...]
    kind: str  # of numpy: u, i or f

    @classmethod
    def of(cls, array: Any) -> Radiometry:
        """The radiometry in the attributes of a variable."""
        attributes = array.attrs
        fills = [attributes.get(key) for key in ("_FillValue", "missing_value", "nodata", "NoData")]
        fills += [array.encoding.get("_FillValue")]
        numbers = {float(value) for each in fills if each is not None for value in np.ravel(each) if _is_number(value)}
        scale, offset = (
            _first_number(attributes.get("scale_factor"), 1.0),
            _first_number(attributes.get("add_offset"), 0.0),
        )
        if not (1 / LARGEST_SCALE <= abs(scale) <= LARGEST_SCALE and abs(offset) <= LARGEST_SCALE):
            why = f"scale_factor {scale:g}, add_offset {offset:g} of '{array.name}'"
            raise InputError("no usable scale", why=why, remedy="write a scale_factor such as 0.0001")
        return cls(
            scale,
            offset,
            tuple(sorted(number for number in numbers if not np.isnan(number))),
            array.dtype.kind,
        )

    def present(self, numbers: NDArray[Any]) -> NDArray[np.bool_]:
        usable: NDArray[np.bool_] = is_number(numbers) if self.kind == "f" else np.ones(numbers.shape, dtype=bool)
        for nodata in self.nodata:
            usable &= numbers != nodata
        return usable

    def physical(self, numbers: NDArray[Any]) -> NDArray[np.float32]:
        values: NDArray[np.float32] = (numbers.astype(np.float64) * self.scale + self.offset).astype(np.float32)
        return values


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def _first_number(value: Any, default: float) -> float:
    """The number of an attribute, NaN of one that is something else; the default where there is none."""
    numbers = [] if value is None else np.ravel(value)[:1].tolist()
    return default if not numbers else float(numbers[0]) if _is_number(numbers[0]) else math.nan


def _turned(part: slice, size: int, flipped: bool) -> slice:
    """The slice of a file whose axis runs in the opposite direction of the grid."""
    return slice(size - part.stop, size - part.start) if flipped else part


def _wanted(variables: Sequence[Variable], options: CubeOptions, path: Path) -> list[Variable]:
    """The variables the user named; by default Sentinel-2's bands and radar, or all if there are none of these."""
    if options.bands is not None:
        names = {_band_of(band): band for band in options.bands}
        chosen = [each for each in variables if _band_of(each.label) in (*names, SCENE_CLASSIFICATION)]
        missing = [band for name, band in names.items() if name not in {_band_of(each.label) for each in chosen}]
        if missing:
            why = f"the variables are {short_list(dict.fromkeys(each.label for each in variables))}"
            raise UsageError(f"no band {', '.join(missing)}", path=path, why=why, remedy="correct --bands")
        return chosen
    known = [each for each in variables if sentinel2_band(each.label) or radar_band(each.label)]
    if not known:
        return list(variables)
    unknown = [each.label for each in variables if each not in known]
    if unknown:
        logger.warning("%s: no bands of a sensor, and left out: %s", path, short_list(dict.fromkeys(unknown)))
    return known


def _band_of(label: str) -> str:
    radar = radar_band(label)
    return radar[0] if radar else band_name(label)


def _by_sensor(variables: Sequence[Variable]) -> dict[str, list[Variable]]:
    """Variables by sensor: optical bands first, then radar by orbit, from the name of the band or file."""
    groups: dict[str, list[Variable]] = {}
    for each in variables:
        radar = radar_band(each.label)
        name = OPTICAL
        if radar is not None:
            name = radar[1] if radar[1] != "S1" else radar_name(f"{each.path.stem} {each.name}".replace("_", " "))
        groups.setdefault(name, []).append(each)
    if OPTICAL in groups and all(_band_of(each.label) == SCENE_CLASSIFICATION for each in groups[OPTICAL]):
        del groups[OPTICAL]  # a mask of nothing
    return {name: groups[name] for name in sorted(groups, key=lambda name: (name != OPTICAL, name))}


# --- one sensor as a series


@dataclass(frozen=True)
class CubeLayer:
    """One band in one file, on the grid of the series."""

    variable: Variable
    alignment: Alignment
    radiometry: Radiometry
    steps: dict[int, list[int]]  # of each day: the file's steps, in their order

    @property
    def key(self) -> tuple[Path, str, int | None]:
        return self.variable.path, self.variable.name, self.variable.place


class CubeSeries:
    """The bands of one sensor as a Series. For one thread; a copy in another process opens the files anew."""

    def __init__(self, name: str, sensor: str, variables: Sequence[Variable], options: CubeOptions) -> None:
        self.name, self.sensor_name, self._options = name, sensor, options
        self._open: dict[Path, Any] = {}
        self.radar = sensor != OPTICAL
        self.grid = min((each.grid for each in variables), key=lambda grid: grid.resolution)
        layers = [self._layer(each) for each in variables]
        own: dict[str, list[CubeLayer]] = {}
        for layer in layers:
            own.setdefault(_band_of(layer.variable.label), []).append(layer)
        self._mask = own.pop(SCENE_CLASSIFICATION, [])
        self.bands = _ordered(own, options.bands)
        self._layers = [own[band] for band in self.bands]
        self.files = sorted({path for each in variables for path in _files_of(each.path)})
        self._days = self._common_days()
        self.scale, self.offset = (DECIBEL_SCALE, DECIBEL_OFFSET) if self.radar else (SCALE, 0.0)
        optical = [] if self.radar else [layer for part in self._layers for layer in part]
        self._gain = {layer.key: self._reflectance(layer) for layer in optical}
        self._kind = self._backscatter() if self.radar else ""
        self._days = self._with_data()
        self.dates: tuple[date, ...] = from_days(self._days)
        self.provenance: dict[str, Any] = {
            "source": "cube",
            "files": [path.name for path in sorted({each.path for each in variables})],
            "resampling": options.resampling,
            "scene_classes": list(options.clear),
            **({"backscatter": self._kind} if self.radar else {}),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (window.height, window.width)
        count = max((len(steps) for part in self._layers for layer in part for steps in self._steps(layer)), default=0)
        values = np.zeros((len(self.dates), len(self.bands), *shape), dtype=np.uint16)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        read = [self._band(part, window) for part in self._layers]
        clear = self._clear(window) if self._mask else None
        for turn in range(count):  # the acquisitions of a day, one after the other
            for place, day in enumerate(self._days):
                bands = [band.get((day, turn)) for band in read]
                if any(each is None for each in bands):
                    continue
                seen = ~valid[place]
                for each in bands:
                    assert each is not None
                    seen &= each[1]
                if clear is not None:
                    seen &= clear.get((day, turn), np.zeros(shape, dtype=bool))
                for band, each in enumerate(bands):
                    assert each is not None
                    np.copyto(values[place, band], each[0], where=seen)
                valid[place] |= seen
        return Observations(values, valid)

    def close(self) -> None:
        for dataset in self._open.values():
            dataset.close()
        self._open.clear()

    def _dataset(self, path: Path) -> Any:
        if path not in self._open:
            self._open[path] = _open_dataset(path)
        return self._open[path]

    def _layer(self, variable: Variable) -> CubeLayer:
        try:
            alignment = Alignment.of(variable.grid, self.grid)
        except NotAligned as failure:
            remedy = "give cubes of one place, whose pixels divide each other's"
            raise InputError(
                "cubes of different places", path=variable.path, why=f"{variable.label}: {failure}", remedy=remedy
            ) from None
        assert variable.times is not None
        steps: dict[int, list[int]] = {}
        for step in np.argsort(variable.times, kind="stable").tolist():
            steps.setdefault(int(variable.times[step]), []).append(step)
        return CubeLayer(variable, alignment, variable.radiometry(self._dataset(variable.path)), steps)

    def _steps(self, layer: CubeLayer) -> list[list[int]]:
        return [layer.steps.get(day, []) for day in self._days]

    def _common_days(self) -> list[int]:
        """The days that all bands have; others are left out with a warning."""
        every = [
            {day for layer in part for day in layer.steps}
            for part in (*self._layers, *([self._mask] * bool(self._mask)))
        ]
        common = set.intersection(*every)
        if not common:
            why = f"{', '.join(self.bands)} have no day in common"
            raise InputError("no usable date", path=self.name, why=why, remedy="give cubes of the same dates")
        left = set.union(*every) - common
        if left:
            logger.warning("%s: %d of %d dates left out, not in all bands", self.name, len(left), len(left | common))
        return sorted(common)

    def _with_data(self) -> list[int]:
        """The days on which anything was seen of the first band, clouds aside."""
        first = self._layers[0]
        filled = set()
        for layer in first:
            numbers = layer.variable.read(self._dataset(layer.variable.path))
            present = layer.radiometry.present(numbers)
            filled |= {day for day, steps in layer.steps.items() if any(present[step].any() for step in steps)}
        empty = [day for day in self._days if day not in filled]
        kept = [day for day in self._days if day in filled]
        for note in empty_dates_note(from_days(empty), len(kept)):
            logger.warning("%s: %s", self.name, note)
        if not kept:
            why = f"none of {len(empty)} dates has any data"
            raise InputError("no usable date", path=self.name, why=why, remedy="get other images")
        return kept

    def _band(
        self, part: Sequence[CubeLayer], window: Window
    ) -> dict[tuple[int, int], tuple[NDArray[Any], NDArray[Any]]]:
        """Values and where there are any (h, w), by day and the acquisition's turn on it."""
        layers: dict[tuple[int, int], tuple[NDArray[Any], NDArray[Any]]] = {}
        turns: dict[int, int] = {}
        for layer in part:
            place = layer.alignment.source(window)
            numbers = layer.variable.read(self._dataset(layer.variable.path), place)
            there = layer.radiometry.present(numbers)
            stored = self._stored(layer, numbers)
            stored[~there] = 0
            for day in self._days:
                for step in layer.steps.get(day, []):
                    turn = turns.get(day, 0)
                    turns[day] = turn + 1
                    piece = RasterPart(stored[step], place, layer.alignment)
                    method = "nearest" if self.radar else self._options.resampling
                    values, present = resample(piece, window, method)
                    layers[day, turn] = to_values(values, darkest=0), present
        return layers

    def _stored(self, layer: CubeLayer, numbers: NDArray[Any]) -> NDArray[np.uint16]:
        if self.radar:
            decibels = to_decibels(layer.radiometry.physical(numbers), self._kind)
            counts = decibel_counts(decibels)
            counts[~np.isfinite(decibels)] = 0
            return counts
        gain, offset = self._gain[layer.key]
        return to_values(numbers, offset, gain).copy()

    def _clear(self, window: Window) -> dict[tuple[int, int], NDArray[np.bool_]]:
        clear: dict[tuple[int, int], NDArray[np.bool_]] = {}
        turns: dict[int, int] = {}
        for layer in self._mask:
            place = layer.alignment.source(window)
            numbers = layer.variable.read(self._dataset(layer.variable.path), place)
            for day in self._days:
                for step in layer.steps.get(day, []):
                    turn = turns.get(day, 0)
                    turns[day] = turn + 1
                    classes = nearest(RasterPart(np.ascontiguousarray(numbers[step]), place, layer.alignment), window)
                    clear[day, turn] = clear_sky(classes, self._options.clear)
        return clear

    def _look(self, layer: CubeLayer) -> list[NDArray[np.float32]]:
        """Some physical values of a band, from the middle of each date."""
        grid = layer.variable.grid
        height, width = min(grid.height, LOOKED_AT), min(grid.width, LOOKED_AT)
        middle = Window((grid.height - height) // 2, (grid.width - width) // 2, height, width)
        numbers = layer.variable.read(self._dataset(layer.variable.path), middle)
        return [layer.radiometry.physical(own[layer.radiometry.present(own)]) for own in numbers]

    def _reflectance(self, layer: CubeLayer) -> tuple[float, float]:
        """Gain, and an offset before it, that turn stored numbers into ten thousandths of reflectance."""
        own = layer.radiometry
        if own.scale != 1.0 or own.offset != 0.0:
            return own.scale / SCALE, own.offset / own.scale
        if own.kind in "ui":
            return 1.0, 0.0
        seen = np.concatenate(self._look(layer))
        typical = float(np.percentile(seen, 95)) if seen.size else 0.0
        if typical <= 1.5:
            return 1 / SCALE, 0.0
        if 200 <= typical <= 20_000:
            return 1.0, 0.0
        why = f"95 % of the values of {layer.variable.label} are below {typical:g}"
        remedy = "write reflectance, or a scale_factor with it"
        raise InputError("the scale is not clear", path=layer.variable.path, why=why, remedy=remedy)

    def _backscatter(self) -> str:
        """Decibels or linear power; all bands and files alike."""
        kinds: dict[str, str] = {}
        for part in self._layers:
            for layer in part:
                looks = [own[own != 0] for own in self._look(layer)]
                seen = np.concatenate(looks)
                path, remedy = layer.variable.path, "give all of it in dB, or all of it in linear power"
                if not seen.size:
                    continue
                what = f"unclear backscatter in '{layer.variable.label}'"
                try:
                    kind = kinds[f"{layer.variable.label} in {path.name}"] = backscatter_kind(seen)
                except ValueError as failure:
                    raise InputError(what, path=path, why=str(failure), remedy=remedy) from None
                if others := sum(not is_of_kind(own, kind) for own in looks):
                    why = f"{others} of {len(looks)} dates cannot be {BACKSCATTER_KINDS[kind]}, as the others are"
                    raise InputError(what, path=path, why=why, remedy=remedy)
        if len(set(kinds.values())) > 1:
            why = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
            raise InputError("decibels and linear power are mixed", path=path, why=why, remedy=remedy)
        kind = next(iter(kinds.values()), "dB")
        event(
            f"{self.name}: {self.sensor_name} {' '.join(self.bands)} taken for {BACKSCATTER_KINDS[kind]}, stored in dB"
        )
        return kind


def _ordered(bands: Collection[str], wanted: Bands | None) -> Bands:
    if wanted is not None:
        return tuple(name for band in wanted if (name := _band_of(band)) in bands)
    radar = tuple(band for band in RADAR_BANDS if band in bands)
    return radar or tuple(in_order(bands))


def _files_of(path: Path) -> list[Path]:
    """A file, or all files of a Zarr store."""
    return [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
