"""Shared by all sources: the series and scenes that they yield, merging of products, naming.

A source of images yields a `Series`: dated, banded observations of one grid, read window by window. Ingest stores
`Scene`s: a `RasterScene` cuts a series and its parcels into tiles, other sources have scenes of their own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, to_days
from cropstar.geo.grid import Grid
from cropstar.geo.sensors import SCALE, SCENE_CLASSIFICATION, Sensor, clear_sky
from cropstar.geo.windows import Window, split
from cropstar.runtime import logger, progress_bar
from cropstar.sources.decoding import DecodedSeries, cell_size
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import FORMAT, ParcelTable, PatchTile, RasterTile, SensorArrays, SeriesTile, Tile

if TYPE_CHECKING:
    from cropstar.sources.labels import Parcels

Bands = tuple[str, ...]


@dataclass(frozen=True)
class Observations:
    """A window of a series. Values under an invalid pixel are zero and mean nothing."""

    values: NDArray[np.uint16]  # (T, C, H, W) scaled integers
    valid: NDArray[np.bool_]  # (T, H, W) false under cloud, shadow and nodata


class Series(Protocol):
    """An open raster time series. reflectance = values * scale + offset."""

    name: str
    grid: Grid
    dates: tuple[date, ...]
    bands: Bands
    scale: float
    offset: float
    provenance: dict[str, Any]

    @property
    def files(self) -> Sequence[Path]: ...  # on this disk, all that it is read from

    def read(self, window: Window) -> Observations: ...

    def close(self) -> None: ...


# --- Scenes

LARGE_FILE_BYTES = 64 * 2**20  # larger files are digested side by side
READ_BYTES = 2**20


@dataclass(frozen=True)
class TileSpec:
    """One tile to be made; in a collection of samples the window counts samples downwards and is one wide."""

    name: str
    window: Window


class Scene(Protocol):
    """A scene to ingest: named tiles that can be built one by one, in any order.

    A scene that is read from files while it is built says in `volume` how many bytes that is. It is then built by
    several processes: each is sent a pickled copy, which holds no open file and opens its own when they are needed.
    A scene that lies in memory has a volume of 0 and stays in the process that opened it.
    """

    name: str
    recipe: str
    layout: str  # of its tiles: "raster", "patches" or "series"
    fingerprint: Fingerprint

    @property
    def volume(self) -> int: ...

    def tile_specs(self) -> list[TileSpec]: ...

    def build(self, spec: TileSpec) -> Tile: ...

    def describe(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class SceneContext(Protocol):
    """Context bands that every date of a scene has (see `sources/context.py`)."""

    names: tuple[str, ...]
    options: Any

    def dated(self, dates: Sequence[date]) -> NDArray[np.float32] | None: ...

    def static(self, window: Window) -> NDArray[np.float32] | None: ...


class RasterScene:
    """Cuts a series and its parcels into raster tiles."""

    layout = "raster"

    def __init__(
        self,
        series: Series,
        parcels: Parcels,
        tile_size: int,
        recipe: str,
        origin: str | None = None,
        others: Sequence[Series] = (),
        sensors: Sequence[Sensor] = (),
        context: SceneContext | None = None,
    ) -> None:
        """`others` are series of further sensors on the same grid; `sensors` then are those of all, in order."""
        self.name = safe_name(series.name)
        self.recipe = recipe
        self.provenance = {**series.provenance, "origin": origin or self.name}  # scenes of one origin share fields
        self.parcels = parcels
        self._series, self._others = series, others
        self._tile_size = tile_size
        sensors = sensors or (Sensor("", tuple(series.bands), series.scale, series.offset),)
        season = Season.of([day for each in (series, *others) for day in each.dates])
        self._context = context
        names = () if context is None else context.names
        self.fingerprint = Fingerprint.of(sensors, series.grid.resolution, season, parcels.classes, names)
        if context is not None:
            self.provenance |= context.options.to_json()
        self._dated = [None if context is None else context.dated(each.dates) for each in (series, *others)]

    @property
    def volume(self) -> int:
        """Bytes of all values."""
        dated = sum(len(series.dates) * len(series.bands) for series in (self._series, *self._others))
        return 2 * dated * self._series.grid.height * self._series.grid.width

    @property
    def decoding(self) -> DecodedSeries | None:
        """The series, if it is worth decoding in large parts."""
        return self._series if isinstance(self._series, DecodedSeries) else None

    def cells(self, specs: Sequence[TileSpec], scratch_bytes: int) -> list[list[TileSpec]]:
        """The tiles in groups that are decoded together, in the order of the scene."""
        if self.decoding is None:
            return [list(specs)]
        size = cell_size(self.decoding, self._series.grid.shape, self._tile_size, scratch_bytes)
        groups: dict[tuple[int, int], list[TileSpec]] = {}
        for spec in specs:
            groups.setdefault((spec.window.top // size, spec.window.left // size), []).append(spec)
        return list(groups.values())

    def tile_specs(self) -> list[TileSpec]:
        # The recipe is in the name: a tile is never replaced by another one of the same name.
        return [
            TileSpec(f"{self.name}-{self.recipe[:8]}-y{window.top:05d}-x{window.left:05d}", window)
            for window in split(self._series.grid.shape, self._tile_size)
        ]

    def build(self, spec: TileSpec) -> RasterTile:
        observations = self._series.read(spec.window)
        grid = self._series.grid.crop(spec.window)
        labels, numbers = self.parcels.burn(grid)
        return RasterTile(
            scene=self.name,
            recipe=self.recipe,
            grid=grid,
            fingerprint=self.fingerprint,
            days=to_days(self._series.dates),
            values=observations.values,
            valid=observations.valid,
            labels=labels,
            parcels=numbers,
            table=self.parcels.table.select(np.unique(numbers)),
            provenance=self.provenance,
            others=tuple(
                SensorArrays(to_days(series.dates), read.values, read.valid, context=self._dated[number])
                for number, series in enumerate(self._others, start=1)
                for read in [series.read(spec.window)]
            ),
            context=self._dated[0],
            static=None if self._context is None else self._context.static(spec.window),
        )

    def describe(self) -> dict[str, Any]:
        """The description of the scene in the manifest."""
        return {
            "recipe": self.recipe,
            "grid": self._series.grid.to_json(),
            "dates": [day.isoformat() for day in self._series.dates],
            "parcels": len(self.parcels.table.keys),
            **self._describe_others(),
            **self.provenance,
        }

    def _describe_others(self) -> dict[str, Any]:
        others = zip(self.fingerprint.sensors[1:], self._others, strict=False)
        sensors = {
            sensor.name: {"dates": [day.isoformat() for day in series.dates], **series.provenance}
            for sensor, series in others
        }
        return {"sensors": sensors} if sensors else {}

    def close(self) -> None:
        for series in (self._series, *self._others):
            series.close()


class SampleScene(ABC):
    """Series or small images in a fixed order, cut into tiles of consecutive ones."""

    name: str
    recipe: str
    layout: str
    fingerprint: Fingerprint
    provenance: dict[str, Any]
    dates: Sequence[date]

    @property
    def volume(self) -> int:
        """Bytes of all values that are read from files while tiles are built."""
        return 0

    @abstractmethod
    def cuts(self) -> Iterable[tuple[int, int]]:
        """The first sample of every tile, and the one past its end."""

    @abstractmethod
    def build(self, spec: TileSpec) -> Tile: ...

    @abstractmethod
    def counts(self) -> dict[str, Any]:
        """The scene's entries in the manifest besides dates and provenance: counts, and the published splits."""

    def tile_specs(self) -> list[TileSpec]:
        name = f"{self.name}-{self.recipe[:8]}"
        return [TileSpec(f"{name}-n{first:07d}", Window(first, 0, end - first, 1)) for first, end in self.cuts()]

    def describe(self) -> dict[str, Any]:
        """The description of the scene in the manifest."""
        dates = [day.isoformat() for day in self.dates]
        return {"recipe": self.recipe, "dates": dates, **self.counts(), **self.provenance}

    def close(self) -> None:  # noqa: B027  (most have nothing open)
        """Close what is open between tiles."""


def equal_parts(total: int, size: int) -> list[tuple[int, int]]:
    """The bounds of parts of `size`, the last one perhaps smaller."""
    return [(start, min(start + size, total)) for start in range(0, total, size)]


def recipe_of(files: Sequence[Path], options: dict[str, Any]) -> str:
    """A digest of what a scene is made from, every byte of it: equal recipes give equal tiles."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([FORMAT, options], sort_keys=True).encode())
    sizes = [path.stat().st_size for path in files]
    large = _digests([path for path, size in zip(files, sizes, strict=True) if size > LARGE_FILE_BYTES])
    for path, size in zip(files, sizes, strict=True):
        digest.update(f"{path.name}:{size}".encode())
        if size > LARGE_FILE_BYTES:
            digest.update(large[path])
        else:
            _feed(digest, path)
    return digest.hexdigest()


def _digests(files: Sequence[Path]) -> dict[Path, bytes]:
    """Large files by several threads: hashing and reading wait for nobody. A file of several names is read once."""
    inodes = {path: (status.st_dev, status.st_ino) for path in files for status in [path.stat()]}
    chosen = {inode: path for path, inode in inodes.items()}
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads,
        progress_bar(sum(path.stat().st_size for path in chosen.values()), "check files", "B", scale=True) as bar,
    ):

        def digested(path: Path) -> bytes:
            own = hashlib.blake2b(digest_size=16)
            _feed(own, path, bar)
            return own.digest()

        digests = dict(zip(chosen, threads.map(digested, chosen.values()), strict=True))
    return {path: digests[inode] for path, inode in inodes.items()}


def _feed(digest: Any, path: Path, bar: Any = None) -> None:
    with path.open("rb") as handle:
        while block := handle.read(READ_BYTES):
            digest.update(block)
            if bar is not None:
                bar.update(len(block))


# --- Merging: what SAFE products, items of a catalogue and dated files have in common, so that all give the same values

DARKEST, BRIGHTEST = 1, np.iinfo(np.uint16).max  # 0 is nodata
LayerT = TypeVar("LayerT")
LayerT_co = TypeVar("LayerT_co", covariant=True)
SceneT = TypeVar("SceneT")
FoundT = TypeVar("FoundT")


class SceneOnGrid(Protocol[LayerT_co]):
    """One product or item on the grid."""

    @property
    def layers(self) -> tuple[LayerT_co, ...]: ...  # in the order of the bands

    @property
    def scene_classes(self) -> LayerT_co | None: ...


@dataclass(frozen=True)
class ScenesByDate(Generic[SceneT, FoundT]):
    """The scenes that make up a MergedSeries: those of a day in the order in which they are read."""

    grid: Grid
    bands: Bands
    days: dict[date, list[SceneT]]
    empty: list[FoundT]  # products or items without any data
    warnings: list[str]
    merges: list[str]


class MergedSeries(ABC, Generic[LayerT]):
    """Products or items of each date on one grid, all of one scale. Sources say how a layer is read."""

    scale = SCALE
    offset = 0.0
    dates: tuple[date, ...]
    bands: Bands
    clear: Collection[int]  # scene classes
    scenes: Sequence[Sequence[SceneOnGrid[LayerT]]]  # of each date, in the order in which they are asked

    @abstractmethod
    def read_nearest(self, layer: LayerT, window: Window) -> NDArray[Any]:
        """The layer's pixel that contains each pixel of the window, zero where there is none."""

    @abstractmethod
    def read_resampled(self, layer: LayerT, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values (h, w) of the series' scale, and where there are any."""

    def knows_nodata(self, layer: LayerT) -> bool:
        """Whether nodata of this layer alone make a pixel invalid. Of layers that do not know, one must have data."""
        return True

    def clear_pixels(self, scene: SceneOnGrid[LayerT], window: Window) -> NDArray[np.bool_]:
        """Where (h, w) the ground is seen; everywhere without a scene classification."""
        if scene.scene_classes is None:
            return np.ones((window.height, window.width), dtype=bool)
        return clear_sky(self.read_nearest(scene.scene_classes, window), self.clear)

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (window.height, window.width)
        values = np.zeros((len(self.dates), len(self.bands), *shape), dtype=np.uint16)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        for day, scenes in enumerate(self.scenes):
            for scene in scenes:
                if not valid[day].all():
                    self._fill(scene, window, values[day], valid[day])
        return Observations(values, valid)

    def _fill(
        self, scene: SceneOnGrid[LayerT], window: Window, values: NDArray[np.uint16], valid: NDArray[np.bool_]
    ) -> None:
        """Add what a scene shows of the pixels that none before it showed; values (C, h, w), valid (h, w)."""
        fresh = ~valid & self.clear_pixels(scene, window)
        seen = np.full_like(fresh, all(map(self.knows_nodata, scene.layers)))
        pixels = np.empty_like(values)
        for band, layer in enumerate(scene.layers):
            if not fresh.any():
                return  # all cloud: the other bands need not be fetched or decoded
            pixels[band], present = self.read_resampled(layer, window)
            if self.knows_nodata(layer):
                fresh &= present
            else:
                seen |= present
        fresh &= seen
        np.copyto(values, pixels, where=fresh)
        valid |= fresh


def to_values(
    numbers: NDArray[Any], offset: float = 0.0, gain: float = 1.0, *, darkest: int = DARKEST
) -> NDArray[np.uint16]:
    """A file's numbers as values of the series' scale, cut to 16 bits; what they mean under nodata is left open.

    Dark pixels may be a little below zero: wrapped around they would be the brightest. Halves are rounded up, so that
    an offset of whole numbers never changes the rounding.
    """
    if numbers.dtype in (np.uint8, np.uint16) and (offset, gain) == (0.0, 1.0):
        return numbers.astype(np.uint16, copy=False)
    values: NDArray[Any] = numbers.astype(np.float64 if numbers.dtype == np.float64 else np.float32)
    values += offset
    values *= gain
    values += 0.5
    cut: NDArray[np.uint16] = np.clip(np.floor(values, out=values), darkest, BRIGHTEST, out=values).astype(np.uint16)
    return cut


def fits_uint16(values: NDArray[Any]) -> bool:
    """Whether values are whole numbers that 16 bits can hold."""
    in_range = values.min(initial=0) >= 0 and values.max(initial=0) <= BRIGHTEST
    return bool(in_range and (values == np.round(values)).all())


def choose_bands(
    present: Iterable[Collection[str]], wanted: Bands | None, usual: Bands, each: str, warnings: list[str]
) -> tuple[Bands, bool]:
    """The bands wanted, else those of the usual ones that any has, perhaps none; and whether clouds can be masked.

    `each` is what has them: a date or an item.
    """
    available = {band for bands in present for band in bands}
    bands = wanted or tuple(band for band in usual if band in available)
    if bands and not wanted and bands != usual:
        missing = [band for band in usual if band not in bands]
        warnings.append(f"no {each} has {', '.join(missing)}: the bands are {', '.join(bands)}")
    with_mask = SCENE_CLASSIFICATION in available
    if bands and not with_mask:
        warnings.append(f"no {each} has a scene classification (SCL): clouds are not masked")
    return bands, with_mask


def missing_bands(bands: Bands, with_mask: bool, there: Collection[str]) -> str:
    """The required bands that are missing, as a text."""
    return ", ".join(band for band in (*bands, *([SCENE_CLASSIFICATION] * with_mask)) if band not in there)


def describe_merges(days: Mapping[date, Sequence[str]], many: str) -> list[str]:
    """Which products or items of one day were put together, by their names."""
    return [
        f"{day}: {len(names)} {many} merged, each pixel from the first in which it is valid: {', '.join(names)}"
        for day, names in days.items()
        if len(names) > 1
    ]


def log_notes(subject: str, warnings: Sequence[str], merges: Sequence[str]) -> list[str]:
    """Log what a user should know of a series; all of it are its notes."""
    notes = [f"{subject}: {note}" for note in (*warnings, *merges)]
    for number, note in enumerate(notes):
        logger.log(logging.WARNING if number < len(warnings) else logging.INFO, note)
    return notes


# --- Packing many small images into tiles

Transform = tuple[float, float, float, float, float, float]
UNPLACED: Transform = (10.0, 0.0, 0.0, 0.0, -10.0, 0.0)  # of images of 10 m that do not say where they lie


@dataclass(frozen=True)
class PatchImage:
    """One image of a collection, as its source read it."""

    name: str
    transform: Transform
    days: NDArray[np.int32]  # (T,), at least one
    values: NDArray[np.uint16]  # (T, C, H, W), zero where not valid
    valid: NDArray[np.bool_]  # (T, H, W)
    labels: NDArray[np.int16]  # (H, W), UNLABELLED where there is none
    fields: NDArray[np.int64]  # (H, W), equal numbers are one field of this image, 0 is none
    keys: dict[int, str]  # what each field is called; a name that stands in several images is one field in pieces
    group: str  # what the collection's own splits deal out
    others: tuple[DatedImages, ...] = ()  # days, values and validity of further sensors, in the order of all images


DatedImages = tuple[NDArray[np.int32], NDArray[np.uint16], NDArray[np.bool_]]


def pack_patches(scene: SampleScene, images: Sequence[PatchImage], first: int, crs: str = "") -> PatchTile:
    """A tile of images of one size; `first` is the running number of the first of them in the scene."""
    if (first + len(images)) * images[0].labels.size > np.iinfo(np.int32).max:
        why = f"{first + len(images)} images of {images[0].labels.size} pixels need more parcel numbers than there are"
        remedy = "ingest them in parts, into several stores"
        raise InputError("too many images", path=scene.name, why=why, remedy=remedy)
    height, width = images[0].labels.shape
    numbered = [_number_fields(image, (first + place) * height * width) for place, image in enumerate(images)]
    own = _padded([(image.days, image.values, image.valid) for image in images])
    others = zip(*(image.others for image in images), strict=True)
    return PatchTile(
        scene=scene.name,
        recipe=scene.recipe,
        fingerprint=scene.fingerprint,
        crs=crs,
        transforms=np.array([image.transform for image in images], dtype=np.float64),
        names=[image.name for image in images],
        lengths=np.array([len(image.days) for image in images], dtype=np.int32),
        days=own.days,
        values=own.values,
        valid=own.valid,
        labels=np.stack([image.labels for image in images]).astype(np.int16),
        parcels=np.stack([parcels for parcels, _ in numbered]),
        table=_concatenate([table for _, table in numbered]),
        provenance=scene.provenance,
        others=tuple(_padded(each) for each in others),
    )


def _padded(images: Sequence[DatedImages]) -> SensorArrays:
    """Images of one sensor with as many dates as the longest; those that are added are not valid."""
    longest = max(len(days) for days, _, _ in images)
    shape = (len(images), longest, *images[0][1].shape[1:])
    days = np.zeros(shape[:2], dtype=np.int32)
    values, valid = np.zeros(shape, dtype=np.uint16), np.zeros((*shape[:2], *shape[3:]), dtype=bool)
    for place, (own, numbers, clear) in enumerate(images):
        days[place, : len(own)], days[place, len(own) :] = own, own[-1]
        values[place, : len(own)], valid[place, : len(own)] = numbers, clear
    return SensorArrays(days, values, valid, lengths=np.array([len(own) for own, _, _ in images], dtype=np.int32))


def pack_series(
    scene: SampleScene,
    series: Sequence[tuple[NDArray[np.int32], NDArray[Any], NDArray[np.bool_]]],
    table: ParcelTable,
) -> SeriesTile:
    """A tile of series, each the days (T,), values (T, C) and validity (T,) of its observations."""
    return SeriesTile(
        scene=scene.name,
        recipe=scene.recipe,
        fingerprint=scene.fingerprint,
        starts=np.cumsum([0, *(len(days) for days, _, _ in series)], dtype=np.int64),
        days=np.concatenate([days for days, _, _ in series]).astype(np.int32, copy=False),
        values=np.concatenate([values for _, values, _ in series]),
        valid=np.concatenate([valid for _, _, valid in series]),
        table=table,
        provenance=scene.provenance,
    )


def _number_fields(image: PatchImage, before: int) -> tuple[NDArray[np.int32], ParcelTable]:
    """Give the labelled fields numbers that no other image has, whichever process packs it; their class is the
    most frequent of their pixels."""
    known = (image.fields != 0) & (image.labels != UNLABELLED)
    found, places = np.unique(image.fields[known], return_inverse=True)
    parcels = np.zeros(image.fields.shape, dtype=np.int32)
    parcels[known] = before + 1 + places
    labels = np.zeros(len(found), dtype=np.int16)
    for rank in range(len(found)):
        labels[rank] = np.bincount(image.labels[known][places == rank]).argmax()
    keys = [image.keys[int(number)] for number in found]
    numbers = np.arange(before + 1, before + 1 + len(found), dtype=np.int32)
    return parcels, ParcelTable(numbers, keys, labels, [image.group] * len(found))


def _concatenate(tables: list[ParcelTable]) -> ParcelTable:
    return ParcelTable(
        np.concatenate([table.numbers for table in tables]),
        [key for table in tables for key in table.keys],
        np.concatenate([table.labels for table in tables]),
        [group for table in tables for group in table.groups or []],
    )


# --- Open files

# A season has some 70 dates of 11 files; systems allow 1,024 open files and others want some too.
MAXIMUM_OPEN = 800

Key = TypeVar("Key", bound=Hashable)


class HandleCache(Generic[Key]):
    """A cache of open files that closes the least recently used ones.

    One thread at a time; a copy in another process opens files of its own.
    """

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._open: OrderedDict[Key, tuple[Any, ExitStack]] = OrderedDict()
        self._process = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_open", "_process")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()

    def limit(self) -> int:
        """How many may be open at once."""
        return MAXIMUM_OPEN

    def get(self, key: Key, open_one: Callable[[ExitStack], Any]) -> Any:
        """The open file of a key, opened by `open_one` if necessary; the exit stack closes it later."""
        if self._process != os.getpid():  # after a fork the parent's file positions are shared: never use them
            self._forget()
        if key not in self._open:
            while len(self._open) >= self.limit():
                self._open.popitem(last=False)[1][1].close()
            with ExitStack() as stack:
                self._open[key] = open_one(stack), stack.pop_all()
        self._open.move_to_end(key)
        return self._open[key][0]

    def release(self, key: Key) -> None:
        """Close a file that will not be asked again soon: GDAL forgets its blocks."""
        if key in self._open and self._process == os.getpid():
            self._open.pop(key)[1].close()

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1][1].close()


class Closable(Protocol):
    def close(self) -> None: ...


@contextmanager
def closed_on_failure(*opened: Iterable[Closable]) -> Iterator[None]:
    """Close all that is in these lists by then if the block fails."""
    try:
        yield
    except BaseException:
        for each in chain(*opened):
            each.close()
        raise


# --- Names and notes


def safe_name(text: str) -> str:
    """A text as a part of the name of a file."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)


def name_with_years(*parts: object, dates: Sequence[date]) -> str:
    """Parts of a name and the years of a series: another season of a place is another scene of a store."""
    return "-".join(map(str, [*parts, *sorted({dates[0].year, dates[-1].year})]))


def empty_dates_note(empty: Iterable[date], kept: int) -> list[str]:
    """The note on dates without any data, if there are any."""
    names = [str(day) for day in sorted(empty)]
    if not names:
        return []
    return [f"{len(names)} of {len(names) + kept} dates left out, without any data: {', '.join(names)}"]
