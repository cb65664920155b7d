"""GeoTIFFs of a stack: open files, headers, dates on the grid, and which of them hold nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import GDAL_ERRORS, open_raster, rasterio_window
from cropstar.geo.resampling import Alignment, NotAligned, RasterPart, grid_difference, resample
from cropstar.geo.sensors import LANDSAT_RADIOMETRY, LARGEST_SCALE, SCALE, is_number
from cropstar.geo.windows import Window
from cropstar.runtime import event, logger
from cropstar.sources.base import HandleCache, empty_dates_note
from cropstar.sources.stack.names import is_landsat, quality_kind

LEAST_PIXELS, MOST_PIXELS = 2**16, 2**24  # of a look for data: thin strips are read together, as are bands


@dataclass(frozen=True)
class BandEntry:
    """One band of a file; `index` counts from 1, as GDAL does."""

    path: Path
    index: int
    lone: bool  # the file's name says the band: it must be the only one


@dataclass(frozen=True)
class BandLayer:
    """One band of a file on the grid."""

    path: Path
    index: int
    alignment: Alignment
    nodata: float | None
    size: tuple[int, int]
    block: tuple[int, int]
    quality: str | None = None  # of a mask: a band of bits, see `geo.sensors.clear_bits`
    raw: bool = False  # its numbers are classes, never reflectance

    @classmethod
    def of(cls, entry: BandEntry, header: Header, alignment: Alignment, *, raw: bool = False) -> BandLayer:
        nodata = header.nodata[entry.index - 1]
        if header.gain is not None and not raw:
            nodata = NO_COUNT
        quality = quality_kind(entry.path) if raw else None
        return cls(entry.path, entry.index, alignment, nodata, header.grid.shape, header.block, quality, raw)


@dataclass(frozen=True)
class Day:
    """One date on the grid."""

    layers: tuple[BandLayer, ...]  # in the order of the bands
    scene_classes: BandLayer | None
    mask: BandLayer | None = None

    @property
    def paths(self) -> set[Path]:
        return {layer.path for layer in (*self.layers, self.scene_classes, self.mask) if layer}


Days = dict[date, Day]


def split_empty_days(days: Days, files: OpenRasters, where: Path) -> tuple[Days, Days]:
    """The dates with data, of which there must be one, and those without any; most answer at the first look."""
    needs = {day: _needed_layers(taken) for day, taken in days.items()}
    seen = _with_data((layer for groups in needs.values() for group in groups for layer in group), files, looks=1)
    empty: set[date] = set()
    while unclear := {
        day: next(group for group in groups if not seen & group)
        for day, groups in needs.items()
        if day not in empty and not all(seen & group for group in groups)
    }:
        with_data = _with_data((layer for group in unclear.values() for layer in group), files)
        empty |= {day for day, group in unclear.items() if not with_data & group}
        seen |= with_data
    if len(empty) == len(days):
        why = f"none of {len(days)} dates has any data"
        raise InputError("no usable date", path=where, why=why, remedy="get other images")
    kept = {day: taken for day, taken in days.items() if day not in empty}
    return kept, {day: taken for day, taken in days.items() if day in empty}


def log_stack_notes(name: str, kept: Days, empty: Days) -> list[str]:
    """Log what a user should know of a series; these are its notes."""
    notes = empty_dates_note(empty, len(kept))
    if not any(day.scene_classes or day.mask for day in kept.values()):
        notes.append("neither scene classification (SCL) nor masks are there: clouds are not masked")
    for note in notes:
        logger.warning("%s: %s", name, note)
    return notes


def log_fractions(name: str, gain: tuple[float, float]) -> None:
    """Say how fractions were understood, so that a wrong guess is seen."""
    offset = f" {gain[1] * SCALE:+g}" if gain[1] else ""
    event(f"{name}: fractions; reflectance = value x {gain[0] * SCALE:g}{offset}, stored in steps of {SCALE:g}")


def _needed_layers(day: Day) -> list[frozenset[BandLayer]]:
    """Layers of which one of each group must have data for a pixel to be valid, clouds aside.

    As `geo.sensors.observed` has it: each band that knows its nodata, and of the others one.
    """
    known = [layer for layer in day.layers if layer.nodata is not None]
    if day.scene_classes and not day.scene_classes.quality:  # of bits, zero may be a clear day
        known.insert(0, day.scene_classes)
    unknown = frozenset(layer for layer in day.layers if layer.nodata is None)
    return [*(frozenset([layer]) for layer in known), *([unknown] if unknown else [])]


def _with_data(layers: Iterable[BandLayer], files: OpenRasters, looks: int | None = None) -> set[BandLayer]:
    """The layers that have data, in sample windows or anywhere.

    The layers of a file are looked at together: where bands lie pixel by pixel, one block holds them all.
    """
    seen: set[BandLayer] = set()
    pending: dict[Path, list[BandLayer]] = defaultdict(list)
    for layer in sorted(layers, key=lambda layer: (layer.path, layer.index)):
        pending[layer.path].append(layer)
    for path, left in pending.items():
        for look in islice(_windows_to_look_at(left[0].size, left[0].block), looks):
            most = max(MOST_PIXELS // (look.height * look.width), 1)
            for some in (left[start : start + most] for start in range(0, len(left), most)):
                for raw in {layer.raw for layer in some}:
                    same = [layer for layer in some if layer.raw == raw]
                    pixels = files.read(path, [layer.index for layer in same], look, raw=raw)
                    pairs = zip(same, pixels, strict=True)
                    seen.update(layer for layer, own in pairs if _is_data(own, layer.nodata).any())
            left = [layer for layer in left if layer not in seen]
            if not left:
                break
    return seen


def _windows_to_look_at(size: tuple[int, int], block: tuple[int, int]) -> Iterator[Window]:
    """A file in whole blocks, from the middle row on: there the swath's edge is rarest."""
    height, width = size
    across = min(block[1], width)
    rows = block[0] * max(LEAST_PIXELS // (block[0] * block[1]), 1)
    tops = list(range(0, height, rows))
    middle = len(tops) // 2
    for top in (*tops[middle:], *tops[:middle]):
        for left in range(0, width, across):
            yield Window(top, left, min(rows, height - top), min(across, width - left))


# --- Headers, and whether a file can be a part of a series at all

FRACTIONS = ("float32", "float64")
INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
# GDAL decodes whole blocks: a whole granule in one strip still fits, a lie of the header does not.
MAXIMUM_BLOCK_BYTES, MAXIMUM_PIXEL_BYTES = 2**30, 8


@dataclass(frozen=True)
class Header:
    """Of each band: description or tag, nodata (None: zero), and scale and offset with Sentinel-2's where unset."""

    path: Path
    grid: Grid
    names: tuple[str, ...]
    nodata: tuple[float | None, ...]
    radiometry: tuple[tuple[float, float], ...]
    block: tuple[int, int]
    gain: tuple[float, float] | None = None  # of fractions: what makes counts of Sentinel-2's scale of them

    @property
    def count(self) -> int:
        return len(self.names)


def read_header(path: Path, files: OpenRasters, *, mask: bool = False) -> Header:
    """Look at a file; one that can be no band, or no mask, is refused."""
    dataset = files.dataset(path)
    if mask:
        _require_place(dataset, path)
        _require_blocks(dataset, path)
        if "complex" in dataset.dtypes[0]:
            why = f"values are {dataset.dtypes[0]}"
            raise InputError("not a mask", path=path, why=why, remedy="store 0 for clear and 1 for not clear")
    else:
        _require_numbers(dataset, path)
    names = [dataset.tags(index).get("BAND") or dataset.descriptions[index - 1] or "" for index in dataset.indexes]
    pairs = list(zip(dataset.scales, dataset.offsets, strict=True))
    gain = None if mask or dataset.dtypes[0] in INTEGERS else files.count_fractions(path)
    unset = LANDSAT_RADIOMETRY if is_landsat(path) and gain is None else (SCALE, 0.0)
    return Header(
        path,
        Grid.of(dataset),
        tuple(name.strip() for name in names),
        dataset.nodatavals,
        tuple(unset if pair == (1.0, 0.0) or gain is not None else (float(pair[0]), float(pair[1])) for pair in pairs),
        dataset.block_shapes[0],
        gain,
    )


def _require_numbers(dataset: Any, path: Path) -> None:
    """Reflectance is stored as whole numbers or fractions, on a known place, in blocks that can be decoded."""
    _require_place(dataset, path)
    if dataset.dtypes[0] not in (*INTEGERS, *FRACTIONS):
        why = f"values are {dataset.dtypes[0]}"
        raise InputError("not a stack of reflectance", path=path, why=why, remedy="store reflectance x 10000 as uint16")
    _require_blocks(dataset, path)


def require_radiometry(header: Header, index: int) -> tuple[float, float]:
    """Scale and offset of a reflectance band."""
    scale, offset = header.radiometry[index - 1]
    if not (1 / LARGEST_SCALE <= scale <= LARGEST_SCALE and abs(offset) <= LARGEST_SCALE):  # nor without a value
        why = f"scale {scale:g}, offset {offset:g}"
        raise InputError("no usable scale", path=header.path, why=why, remedy="set it with gdal_edit -scale 0.0001")
    return scale, offset


def _require_place(dataset: Any, path: Path) -> None:
    if dataset.crs is None:
        raise InputError("no coordinate system", path=path, remedy="set one with gdal_edit -a_srs")
    numbers = tuple(dataset.transform)[:6]
    if not numbers[0] or not numbers[4]:  # turned by a quarter
        why = f"its transform is {', '.join(f'{number:g}' for number in numbers)}"
        raise InputError("no usable pixel size", path=path, why=why, remedy="bring it to a grid with gdalwarp -tr")


def _require_blocks(dataset: Any, path: Path) -> None:
    height, width = dataset.block_shapes[0]
    # Where bands lie pixel by pixel, a block holds all of them.
    together = dataset.count if dataset.profile.get("interleave") == "pixel" else 1
    pixel = max(np.dtype(dataset.dtypes[0]).itemsize * together, MAXIMUM_PIXEL_BYTES)
    if height * width * pixel > MAXIMUM_BLOCK_BYTES:
        why = f"it is stored in blocks of {width} x {height} pixels" + (f" of {together} bands" if together > 1 else "")
        remedy = "store it in tiles with gdal_translate -co TILED=YES -co INTERLEAVE=BAND"
        raise InputError("blocks too large to read", path=path, why=why, remedy=remedy)


# --- Whether files lie on one grid, and in words how they do not

GRID_REMEDY = "bring all files to one grid, for example with gdalwarp -t_srs, -tr and -te"


def require_same_grid(path: Path, own: Grid, other: Grid, like: Path) -> None:
    """Refuse a file whose grid differs from another's."""
    if own == other:
        return
    if difference := grid_difference(own, other):
        why = f"{difference} as {like.name} has"
        raise InputError("files on different grids", path=path, why=why, remedy=GRID_REMEDY)


def align_to_grid(path: Path, own: Grid, grid: Grid, like: Path) -> Alignment:
    """How a file lies on the grid: the same, or with pixels of which each covers a whole number of the grid's."""
    try:
        if own.resolution / grid.resolution < 1.5:
            if difference := grid_difference(own, grid):
                raise NotAligned(f"{difference} as {like.name} has")
            return Alignment(1, 0, 0, grid.height, grid.width)
        return Alignment.of(own, grid)
    except NotAligned as failure:
        raise InputError("a file does not fit the grid", path=path, why=str(failure), remedy=GRID_REMEDY) from None


# --- From the numbers of a file to those of the grid

DARKEST, BRIGHTEST = np.iinfo(np.int16).min, np.iinfo(np.uint16).max


def _is_data(pixels: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Where a band has data; where the file does not say what nodata is, zero may be."""
    present: NDArray[np.bool_] = pixels != (0 if nodata is None else nodata)
    return present


def resample_numbers(
    piece: RasterPart, window: Window, nodata: float | None, resampling: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A window (h, w) of a file on the grid: its numbers, and where they are data."""
    pixels = piece.pixels
    if piece.alignment.ratio == 1:
        return pixels, _is_data(pixels, nodata)
    # The resampling of geo.resampling takes zero for nodata: all numbers that are data move away from it. One shift for
    # all windows of a file; the sums stay exact, for 98,304 x 144 (60 m to 10 m) is below 2^24.
    shift = 0 if not nodata else 1 - DARKEST
    moved = np.clip(pixels.astype(np.int64), DARKEST, BRIGHTEST) + shift
    shifted = RasterPart(np.where(_is_data(pixels, nodata), moved, 0), piece.place, piece.alignment)
    numbers, present = resample(shifted, window, resampling)
    return numbers - shift, present


# --- Open files, a bounded number: a season of single bands is more than a process may hold

LEAST_OPEN, MOST_OPEN = 8, 1024
SHARE = 8  # of the files that the system allows: several tiles may be open, and others want files too


class OpenRasters(HandleCache[Path]):
    """Open GeoTIFFs."""

    def __init__(self, most: int | None = None, given: tuple[float | None, float | None] = (None, None)) -> None:
        """`given` are the scale and offset that the user says, of files of fractions."""
        super().__init__()
        self._most = most
        self._given = given
        self._gains: dict[Path, tuple[float, float]] = {}

    def limit(self) -> int:
        return self._most or most_open()

    def dataset(self, path: Path) -> Any:
        """The open rasterio dataset of a file."""
        return self.get(path, lambda stack: stack.enter_context(open_raster(path)))

    def count_fractions(self, path: Path) -> tuple[float, float]:
        """From now on read a file of fractions as counts of Sentinel-2's scale; how these come from its values."""
        if path not in self._gains:
            dataset = self.dataset(path)
            scale, offset = self._given
            own = (float(dataset.scales[0]), float(dataset.offsets[0]))
            if scale is None and offset is None:
                scale, offset = own if own != (1.0, 0.0) else (self._guess_scale(path, dataset), 0.0)
            self._gains[path] = ((1.0 if scale is None else scale) / SCALE, (offset or 0.0) / SCALE)
        return self._gains[path]

    def _guess_scale(self, path: Path, dataset: Any) -> float:
        """Guess whether fractions are reflectance or scaled counts; anything else is refused."""
        looked_at = min(BANDS_LOOKED_AT, dataset.count)
        some = [1 + place * dataset.count // looked_at for place in range(looked_at)]
        for look in _windows_to_look_at(dataset.shape, dataset.block_shapes[0]):
            values = self.read(path, some, look)
            seen = values[is_number(values) & (values > 0)]
            if len(seen):
                typical = float(np.median(seen))
                if typical <= HIGHEST_REFLECTANCE:
                    return 1.0
                if typical >= LOWEST_COUNT:
                    return SCALE
                why = f"a typical value is {typical:g}, neither reflectance nor 10000 times as much"
                remedy = "give it with --scale: reflectance = value * scale"
                raise UsageError("the scale is not clear", path=path, why=why, remedy=remedy)
        return 1.0

    def read(self, path: Path, indexes: Sequence[int], window: Window, *, raw: bool = False) -> NDArray[Any]:
        """Pixels (bands, h, w) of a window, which may be empty; of fractions counts, unless they are wanted `raw`."""
        pixels = self._read(path, indexes, window)
        if raw or path not in self._gains:
            return pixels
        return _counts(pixels, self.dataset(path).nodatavals[indexes[0] - 1], self._gains[path])

    def _read(self, path: Path, indexes: Sequence[int], window: Window) -> NDArray[Any]:
        dataset = self.dataset(path)
        shape = (len(indexes), window.height, window.width)
        if not window.height or not window.width:
            return np.zeros(shape, dtype=dataset.dtypes[0])
        try:
            pixels: NDArray[Any] = dataset.read(list(indexes), window=rasterio_window(window))
        except (*GDAL_ERRORS, IndexError) as failure:
            why = f"the pixels cannot be read ({failure.__cause__ or failure})"
            raise InputError("damaged raster", path=path, why=why, remedy="get the file again") from None
        if pixels.shape != shape:
            why = "it is smaller than when it was opened"
            raise InputError("a raster changed while it was read", path=path, why=why, remedy="run again")
        return pixels


# Fractions become counts of Sentinel-2's scale when they are read: 0.2314 is 2314.
BANDS_LOOKED_AT = 8
HIGHEST_REFLECTANCE, LOWEST_COUNT = 2.0, 20.0  # typical values: clouds are brighter than 1, and water as dark as 50
NO_COUNT = -32768  # nodata, NaN and, where the file does not say what nodata is, zero


def _counts(values: NDArray[Any], nodata: float | None, gain: tuple[float, float]) -> NDArray[np.int32]:
    missing = ~is_number(values) | (values == (0 if nodata is None else nodata))
    counts = np.where(missing, 0, values).astype(np.float64) * gain[0] + gain[1]
    cut = np.clip(np.floor(counts + 0.5), NO_COUNT + 1, BRIGHTEST).astype(np.int32)
    return np.where(missing, np.int32(NO_COUNT), cut)


def most_open() -> int:
    """How many files one series keeps open; 128 where a process may have the usual 1,024."""
    try:
        from resource import RLIMIT_NOFILE, getrlimit
    except ImportError:  # not on Windows
        return 128
    allowed, _ = getrlimit(RLIMIT_NOFILE)
    return min(max(allowed // SHARE, LEAST_OPEN), MOST_OPEN) if allowed > 0 else MOST_OPEN
