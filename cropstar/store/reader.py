"""Reading tiles: one open handle per tile, one request per window."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError
from cropstar.geo.calendar import EPOCH
from cropstar.geo.grid import Grid
from cropstar.geo.sensors import MOST_VALUE
from cropstar.geo.windows import Window
from cropstar.inputs import MAXIMUM_TILE_BYTES
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import GridRow, checked, open_hdf5, parse_json, plain_name
from cropstar.store.tile import (
    CHECKSUMS,
    OF_SENSOR,
    REMEDY,
    SENSORS_FORMAT,
    ParcelTable,
    checksum,
    count_sensors,
    group_of,
    read_attribute,
)

MAXIMUM_ARRAY_BYTES = 2**34  # of one array; that of a series tile is only mapped
# The axes of each array, a letter for each: equal letters are of equal size.
TABLE = {"table/numbers": "P", "table/labels": "P", "table/keys": "P"}
SHAPES = {
    "raster": {"values": "TCHW", "valid": "THW", "labels": "HW", "parcels": "HW", "days": "T", **TABLE},
    "patches": {
        **{"values": "NTCHW", "valid": "NTHW", "labels": "NHW", "parcels": "NHW", "days": "NT", "lengths": "N"},
        **{"transforms": "N6", "names": "N", **TABLE},
    },
    "series": {"values": "RC", "valid": "R", "days": "R", "starts": "S", **TABLE},
}
OWN_AXES = "TCR"  # those that every sensor has for itself
NAMES = {"table/groups": "P", "table/fields": "P"}
MAY_HAVE = {
    "raster": {"context": "TD", "static": "EHW", **NAMES},
    "patches": NAMES,
    "series": {"context": "RD", "date_labels": "R", **NAMES},
}

NUMBERS = ("u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8")
KINDS: dict[str, tuple[str, ...] | str] = {
    **{"valid": ("u1", "b1"), "labels": ("i2",), "parcels": ("i4",), "days": ("i4",), "lengths": ("i4",)},
    **{"starts": ("i8",), "transforms": ("f8",), "names": "S"},
    **{"table/numbers": ("i4",), "table/labels": ("i2",), "date_labels": ("i2",)},
    **dict.fromkeys(("table/keys", *NAMES), "S"),
    **{"context": ("f4",), "static": ("f4",)},
}
DAYS = ((date.min - EPOCH).days, (date.max - EPOCH).days)

# What h5py says of a damaged file.
UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError, OverflowError)


class OpenFiles:
    """Readers with open files; the oldest one is closed when there are too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._readers: dict[Path, TileReader] = {}

    def make_room_for(self, reader: TileReader) -> None:
        self._readers.pop(reader.path, None)
        while len(self._readers) >= self._most:
            self._readers.pop(next(iter(self._readers))).close()
        self._readers[reader.path] = reader


class Chunks:
    """The places of an array's chunks in its file, and their checksums."""

    def __init__(self, dataset: h5py.Dataset, checksums: NDArray[np.uint64]) -> None:
        self._shape = dataset.shape
        self._chunk: tuple[int, ...] = dataset.chunks or dataset.shape
        if dataset.chunks is None:
            places = [((0,) * dataset.ndim, dataset.id.get_offset(), dataset.id.get_storage_size())]
        else:
            found = (dataset.id.get_chunk_info(number) for number in range(dataset.id.get_num_chunks()))
            places = [(chunk.chunk_offset, chunk.byte_offset, chunk.size) for chunk in found]
        if len(checksums) != len(places):
            raise ValueError(f"{len(checksums)} checksums of {len(places)} chunks")
        self._whole: set[tuple[int, ...]] = set()  # those that were found to be as written
        self._places: dict[tuple[int, ...], tuple[int, int, int]] = {
            tuple(first // size if size else 0 for first, size in zip(corner, self._chunk, strict=True)): (
                offset or 0,
                length,
                int(known),
            )
            for (corner, offset, length), known in zip(places, checksums, strict=True)
        }

    def damaged(self, selection: Any, content: mmap.mmap) -> bool:
        """Whether any of the chunks that a selection (of slices and numbers) lies in is not as written.

        Each is looked at when it is first read from an open file: to do it again would find no more, and cost a tenth.
        """
        if len(self._whole) == len(self._places):
            return False
        for place in self._touched(selection):
            if place in self._whole:
                continue
            offset, length, known = self._places[place]
            if checksum(memoryview(content)[offset : offset + length]) != known:
                return True
            self._whole.add(place)
        return False

    def _touched(self, selection: Any) -> Iterable[tuple[int, ...]]:
        if selection == ():
            return self._places
        ranges = []
        for axis, (size, chunk) in enumerate(zip(self._shape, self._chunk, strict=True)):
            part = selection[axis] if axis < len(selection) else slice(None)
            start, stop, _ = part.indices(size) if isinstance(part, slice) else (part, part + 1, 1)
            ranges.append(range(start // chunk, -(-stop // chunk)) if stop > start else range(0))
        return product(*ranges)


class TileReader:
    """An open tile. Arrays are read on demand; what is small is kept."""

    def __init__(self, path: Path, pool: OpenFiles | None = None) -> None:
        self.path = path
        self._pool = pool
        self._file: h5py.File | None = None
        self._map: mmap.mmap | None = None
        # Kept open: looking a dataset up by name takes about as long as reading a patch of it.
        self._datasets: dict[str, h5py.Dataset] = {}
        self._chunks: dict[str, Chunks] = {}
        try:
            version = int(self._handle.attrs["format"])
            self.has_checksums = CHECKSUMS in self._handle
            self.layout = read_attribute(self._handle, "layout")
            self.scene = plain_name(read_attribute(self._handle, "scene"))
            self.recipe = read_attribute(self._handle, "recipe")
            self._sensors = count_sensors(self._handle)
            _require_shapes(self._handle, self.layout, self._sensors)
        except UNREADABLE as failure:
            self.close()
            raise _unreadable(path, failure) from None
        if version > SENSORS_FORMAT:
            self.close()
            raise ArtifactError(
                "a tile is of a newer format", path=path, why=f"format {version}", remedy="update cropstar"
            )

    @cached_property
    def fingerprint(self) -> Fingerprint:
        found = Fingerprint.from_json(self._json("fingerprint"), self.path)
        if found.sensors or self._sensors > 1:
            self._require_sensors(found)
        return found

    def _require_sensors(self, fingerprint: Fingerprint) -> None:
        """Refuse a tile whose arrays are not those of its sensors."""
        axis = {"raster": 1, "patches": 2, "series": 1}[self.layout]
        bands = [self._dataset(f"{group_of(number)}values").shape[axis] for number in range(self._sensors)]
        context = self._dataset("context").shape[1] if self._has("context") else 0
        context += self._dataset("static").shape[0] if self._has("static") else 0
        if bands != [len(sensor.bands) for sensor in fingerprint.sensors] or context != len(fingerprint.context):
            why = "its arrays are not those of its sensors"
            raise ArtifactError("a tile cannot be read", path=self.path, why=why, remedy=REMEDY)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return self._json("provenance")

    @cached_property
    def grid(self) -> Grid:
        try:
            row = checked(GridRow, self._json("grid"))
            if (row.shape[0], row.shape[1]) != self.shape:
                raise ValueError(f"its grid has {row.shape} pixels, its arrays {list(self.shape)}")
        except ValueError as failure:
            raise _unreadable(self.path, failure) from None
        return Grid.from_json(row.model_dump())

    @cached_property
    def days(self) -> NDArray[np.int32]:
        """The days of all dates, ascending; for patches (N, T), those of the first sensor."""
        return self._events.days if self._several and self.layout != "patches" else self._read("days")

    @property
    def sensors(self) -> NDArray[np.int8] | None:
        """The sensor that each date is of, by its place in the fingerprint; None where there is only one."""
        return self._events.sensors if self._several and self.layout != "patches" else None

    @property
    def _several(self) -> bool:
        return bool(self.fingerprint.sensors)

    @cached_property
    def _events(self) -> Events:
        """The dates of all sensors in one order; not of patches, each of which has an order of its own."""
        days = [self._read(f"{group_of(number)}days") for number in range(self._sensors)]
        if self.layout == "raster":
            return merge_events(days)
        starts = [self._read(f"{group_of(number)}starts") for number in range(self._sensors)]
        return merge_events(days, [np.repeat(np.arange(len(each) - 1), np.diff(each)) for each in starts])

    @property
    def length(self) -> int:
        """The number of dates of the longest series."""
        if self.layout == "series":
            return int(np.diff(self.starts).max(initial=0))
        return len(self.days) if self.layout == "raster" else int(self.lengths.max(initial=0))

    @property
    def observed_days(self) -> NDArray[np.int32]:
        """All dates of the tile, each once."""
        if self.layout != "patches":
            return np.unique(self.days)
        if self._several:
            return np.unique(np.concatenate([image.days for image in self.images]))
        return np.unique(self.days[np.arange(self.days.shape[1]) < self.lengths[:, None]])

    @cached_property
    def images(self) -> Sequence[Image]:
        """The images of the tile: itself, or its patches; none of a tile of series."""
        if self.layout == "raster":
            return [self]
        return [Patch(self, index) for index in range(len(self.lengths))] if self.layout == "patches" else []

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """The number of dates of each patch."""
        own = self._sensor_lengths
        return own[0] if len(own) == 1 else np.sum(own, axis=0, dtype=np.int32)

    @cached_property
    def transforms(self) -> NDArray[np.float64]:
        return self._read("transforms")

    @cached_property
    def names(self) -> list[str]:
        """The name of each patch."""
        return self._texts("names")

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of an image of the tile."""
        height, width = self._dataset("labels").shape[-2:]
        return int(height), int(width)

    @cached_property
    def crs(self) -> str:
        """The coordinate system of patches."""
        return self._text("crs")

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        own = [self._read(f"{group_of(number)}starts") for number in range(self._sensors)]
        return own[0] if len(own) == 1 else np.sum(own, axis=0, dtype=np.int64)

    @cached_property
    def table(self) -> ParcelTable:
        groups, fields = (self._texts(name) if self._has(name) else None for name in NAMES)
        numbers, labels = self._read("table/numbers"), self._read("table/labels")
        return ParcelTable(numbers, self._texts("table/keys"), labels, groups, fields)

    @cached_property
    def date_labels(self) -> NDArray[np.int16] | None:
        """The class of every date of a tile of series, where dates have one of their own."""
        return self._read("date_labels") if self._has("date_labels") else None

    def values(self, window: Window) -> NDArray[Any]:
        """(T, C, h, w) stored integers; of several sensors the bands of all, zero where a date is of another."""
        if not self._several:
            return self._read("values", (slice(None), slice(None), *window.slices))
        merged = self._events.values(
            [
                self._read(f"{group_of(number)}values", (slice(None), slice(None), *window.slices))
                for number in range(self._sensors)
            ],
            self.fingerprint,
        )
        dated = self.fingerprint.columns[-1].stop
        if self._has("context"):
            context = self._context
            merged[:, dated : dated + context.shape[1]] = context[:, :, None, None]
            dated += context.shape[1]
        if self._has("static"):
            merged[:, dated:] = self._read("static", (slice(None), *window.slices))
        return merged

    def valid(self, window: Window) -> NDArray[np.bool_]:
        """(T, h, w)."""
        if not self._several:
            return self._read("valid", (slice(None), *window.slices)).view(np.bool_)
        selection = (slice(None), *window.slices)
        return self._events.merged([self._read(f"{group_of(n)}valid", selection) for n in range(self._sensors)]).view(
            np.bool_
        )

    @cached_property
    def _context(self) -> NDArray[np.float32]:
        """(T or rows, D) of all dates in their order."""
        return self._events.merged([self._read(f"{group_of(number)}context") for number in range(self._sensors)])

    def whole_mask(self) -> NDArray[np.bool_]:
        """The validity of every observation of the tile."""
        if not self._several:
            return self._read("valid").view(np.bool_)
        return self._events.merged([self._read(f"{group_of(n)}valid") for n in range(self._sensors)]).view(np.bool_)

    def labels(self, window: Window | None = None) -> NDArray[np.int16]:
        """(h, w) of a window, or of the whole tile whatever its layout."""
        return self._read("labels", window.slices if window else ())

    def parcels(self, window: Window | None = None) -> NDArray[np.int32]:
        return self._read("parcels", window.slices if window else ())

    def sample(self, index: int) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int32]]:
        """One sample of a series tile: values (T, C), valid (T,), days (T,); read-only."""
        rows = slice(self.starts[index], self.starts[index + 1])
        values, valid, days = self.series
        return values[rows], valid[rows], days[rows]

    @cached_property
    def series(self) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int32]]:
        """All rows of a series tile: values (rows, C), valid (rows,), days (rows,).

        Of one sensor they are mapped into memory; of several they are put together there, once.
        """
        if not self._several:
            return self._mapped("values"), self._mapped("valid").view(np.bool_), self.days
        values = self._events.values(
            [self._mapped(f"{group_of(number)}values") for number in range(self._sensors)], self.fingerprint
        )
        if self._has("context"):
            values[:, self.fingerprint.columns[-1].stop :] = self._context
        valid = self._events.merged([self._mapped(f"{group_of(number)}valid") for number in range(self._sensors)])
        return values, valid.view(np.bool_), self.days

    def _mapped(self, name: str) -> NDArray[Any]:
        """An array as it lies in the file, brought into memory by the system where it is touched."""
        dataset = self._dataset(name)
        self._check(name)
        try:
            offset = dataset.id.get_offset()  # None of chunks, as older tiles have them, and of nothing
            if offset is None:
                return self._read(name)
            array: NDArray[Any] = np.frombuffer(self._bytes, dataset.dtype, dataset.size, offset)
            self._require_sense(name, array)
        except UNREADABLE as failure:  # a size that the file does not have is a ValueError of frombuffer
            raise _unreadable(self.path, failure) from None
        return array.reshape(dataset.shape)

    def _check(self, name: str, selection: Any = ()) -> None:
        """Compare the bytes that a selection is read from with their checksums."""
        if not self.has_checksums:
            return
        try:
            if name not in self._chunks:
                self._chunks[name] = Chunks(self._dataset(name), self._handle[f"{CHECKSUMS}/{name}"][()])
            damaged = self._chunks[name].damaged(selection, self._bytes)
        except UNREADABLE as failure:
            raise _unreadable(self.path, failure) from None
        if damaged:
            raise ArtifactError(
                "a tile is damaged", path=self.path, why=f"{name} do not match their checksum", remedy=REMEDY
            )

    @property
    def _bytes(self) -> mmap.mmap:
        """The file as it lies on the disk, brought into memory by the system where it is touched."""
        if self._map is None:
            with self.path.open("rb") as handle:
                self._map = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        return self._map

    def close(self) -> None:
        """Let the file go; it is opened again when something more is read."""
        self.__dict__.pop("series", None)  # a map holds a file open too; it goes with the last array that looks into it
        self._map = None
        self._datasets.clear()
        self._chunks.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _handle(self) -> h5py.File:
        if self._file is None:
            if self._pool is not None:
                self._pool.make_room_for(self)
            try:
                # The chunk cache is off: in random order a chunk is gone from it before it is wanted again.
                self._file = open_hdf5(self.path, rdcc_nbytes=0)
            except UNREADABLE as failure:
                raise _unreadable(self.path, failure) from None
        return self._file

    def _read(self, name: str, selection: Any = ()) -> NDArray[Any]:
        dataset = self._dataset(name)
        self._check(name, selection)
        try:
            array: NDArray[Any] = dataset[selection]
            self._require_sense(name, array)
        except UNREADABLE as failure:
            raise _unreadable(self.path, failure) from None
        return array

    def _require_sense(self, name: str, array: NDArray[Any]) -> None:
        """Refuse numbers that later would be used as dates, places or classes and are none."""
        kind = name.rpartition("/")[2]
        if kind == "starts":
            samples, rows = self._dataset("table/keys").size, self._dataset(name.replace(kind, "days")).size
            if len(array) != samples + 1 or array[0] or array[-1] != rows or (np.diff(array) < 0).any():
                raise ValueError(f"its {name} are not those of {samples:,} samples in {rows:,} rows")
        elif kind == "numbers":
            if len(np.unique(array)) != len(array) or array.min(initial=1) < 1:
                raise ValueError("its parcels are not numbered from 1, each once")
        elif kind == "transforms":
            if not np.isfinite(array).all():
                raise ValueError("it has an image that lies nowhere")
        elif (bounds := self._bounds(name, kind)) is not None and array.size:
            lowest, highest = bounds
            if not (array.min() >= lowest and array.max() <= highest):  # nor is NaN
                raise ValueError(f"its {name} are not all from {lowest:g} to {highest:g}")

    def _bounds(self, name: str, kind: str) -> tuple[float, float] | None:
        """The smallest and largest number that an array may have, where that is known."""
        if kind in ("values", "context", "static"):  # those that are not valid are zero
            return (-MOST_VALUE, MOST_VALUE) if self._dataset(name).dtype.kind == "f" else None
        if kind in ("labels", "date_labels"):
            return UNLABELLED, len(self.fingerprint.classes) - 1
        if kind == "lengths":
            return 0, int(self._dataset(name.replace(kind, "days")).shape[1])
        return {"days": DAYS, "valid": (0, 1), "parcels": (0, 2**31 - 1)}.get(kind)

    def _texts(self, name: str) -> list[str]:
        try:
            return [text.decode("utf-8") for text in self._read(name)]
        except ValueError as failure:
            raise _unreadable(self.path, failure) from None

    def _dataset(self, name: str) -> h5py.Dataset:
        try:
            if name not in self._datasets:
                self._datasets[name] = self._handle[name]
        except UNREADABLE as failure:
            raise _unreadable(self.path, failure) from None
        return self._datasets[name]

    def patch_lengths(self, index: int) -> list[int]:
        """How many dates each sensor has of one patch."""
        return [int(each[index]) for each in self._sensor_lengths]

    @cached_property
    def _sensor_lengths(self) -> list[NDArray[np.int32]]:
        return [self._read(f"{group_of(number)}lengths") for number in range(self._sensors)]

    def read_patch(self, name: str, index: int, selection: tuple[slice, ...]) -> NDArray[Any]:
        """A part of an array of one patch."""
        return self._read(name, (index, *selection))

    def _has(self, name: str) -> bool:
        try:
            return name in self._handle
        except UNREADABLE as failure:
            raise _unreadable(self.path, failure) from None

    def _json(self, name: str) -> dict[str, Any]:
        try:
            data: dict[str, Any] = parse_json(self._text(name))
        except ValueError as failure:
            raise _unreadable(self.path, failure) from None
        return data

    def _text(self, name: str) -> str:
        try:
            return read_attribute(self._handle, name)
        except UNREADABLE as failure:
            raise _unreadable(self.path, failure) from None


def _require_shapes(handle: h5py.File, layout: str, sensors: int) -> None:
    """Refuse arrays that do not go together or would not fit into memory, before any is read."""
    if layout not in SHAPES:
        raise ValueError(f"a layout '{layout[:20]}'")
    sizes: dict[str, int] = {}
    shapes = SHAPES[layout] | {name: axes for name, axes in MAY_HAVE[layout].items() if name in handle}
    for name, axes in shapes.items():
        _require_shape(handle, name, name, list(axes), sizes)
    own = ("values", "valid", "days", *OF_SENSOR[layout], *(["context"] if "context" in shapes else []))
    for number in range(1, sensors):
        for name in own:
            axes = shapes[name]
            named = [f"{axis}{number}" if axis in OWN_AXES else axis for axis in axes]
            _require_shape(handle, f"{group_of(number)}{name}", name, named, sizes)


def _require_shape(handle: h5py.File, place: str, name: str, axes: list[str], sizes: dict[str, int]) -> None:
    dataset = handle[place]
    if not isinstance(dataset, h5py.Dataset) or dataset.ndim != len(axes):
        raise ValueError(f"'{place}' is not an array of {len(axes)} axes")
    if dataset.dtype.str[1:] not in KINDS.get(name, NUMBERS) and dataset.dtype.kind != KINDS.get(name):
        raise ValueError(f"'{place}' is of the kind {dataset.dtype}")
    chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
    if dataset.nbytes > MAXIMUM_ARRAY_BYTES or chunk > MAXIMUM_TILE_BYTES:
        raise ValueError(f"'{place}' claims {dataset.nbytes:,} bytes")
    for axis, size in zip(axes, dataset.shape, strict=True):
        if sizes.setdefault(axis, size) != size:
            raise ValueError(f"'{place}' has the shape {dataset.shape}, which does not go with the others")


def _unreadable(path: Path, failure: Exception) -> ArtifactError:
    if isinstance(failure, ArtifactError):
        return failure
    return ArtifactError("a tile cannot be read", path=path, why=str(failure), remedy=REMEDY)


# --- several sensors: their dates in one order


@dataclass(frozen=True)
class Events:
    """The dates of all sensors, in the order of time; on one day in the order of the sensors."""

    days: NDArray[np.int32]  # (T,)
    sensors: NDArray[np.int8]  # (T,) the sensor of each
    places: list[NDArray[np.intp]]  # of each sensor: where its own dates, in their order, stand among all

    def merged(self, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """Arrays of the sensors (T of each, ...), of equal further axes, as one (T, ...)."""
        whole = np.empty((len(self.days), *parts[0].shape[1:]), dtype=np.result_type(*parts))
        for place, part in zip(self.places, parts, strict=True):
            whole[place] = part
        return whole

    def values(self, parts: Sequence[NDArray[Any]], fingerprint: Fingerprint) -> NDArray[Any]:
        """Stored values (T of each, bands of each, ...) as one array (T, C, ...) with zeros between."""
        kinds = [part.dtype for part in parts] + ([np.dtype(np.float32)] if fingerprint.context else [])
        shape = (len(self.days), len(fingerprint.bands), *parts[0].shape[2:])
        whole: NDArray[Any] = np.zeros(shape, dtype=np.result_type(*kinds))
        for place, columns, part in zip(self.places, fingerprint.columns, parts, strict=True):
            whole[place, columns] = part
        return whole


def merge_events(days: Sequence[NDArray[np.int32]], samples: Sequence[NDArray[np.int64]] | None = None) -> Events:
    """The days of each sensor, and the samples that they belong to where there are many, laid end to end."""
    whole = np.concatenate(days)
    sensors = np.repeat(np.arange(len(days), dtype=np.int8), [len(each) for each in days])
    keys = (sensors, whole) if samples is None else (sensors, whole, np.concatenate(samples))
    order = np.lexsort(keys)  # stable: dates of one sensor stay in their order
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    ends = np.cumsum([len(each) for each in days])
    places = [rank[end - len(each) : end] for end, each in zip(ends, days, strict=True)]
    return Events(whole[order], sensors[order], places)


# --- images: a raster tile, and each patch of a tile of patches


class Image(Protocol):
    """A time series of images: a raster tile, or one image of a tile of patches."""

    path: Path
    scene: str

    @property
    def fingerprint(self) -> Fingerprint: ...

    @property
    def grid(self) -> Grid: ...

    @property
    def days(self) -> NDArray[np.int32]: ...

    @property
    def sensors(self) -> NDArray[np.int8] | None: ...

    @property
    def table(self) -> ParcelTable: ...

    def values(self, window: Window) -> NDArray[Any]: ...

    def valid(self, window: Window) -> NDArray[np.bool_]: ...

    def labels(self, window: Window | None = None) -> NDArray[np.int16]: ...

    def parcels(self, window: Window | None = None) -> NDArray[np.int32]: ...


class Patch:
    """One image of a tile of patches."""

    def __init__(self, tile: TileReader, index: int) -> None:
        self.path, self.scene = tile.path, tile.scene
        self._tile, self._index = tile, index

    @property
    def fingerprint(self) -> Fingerprint:
        return self._tile.fingerprint

    @property
    def name(self) -> str:
        return self._tile.names[self._index]

    @property
    def grid(self) -> Grid:
        a, b, c, d, e, f = (float(part) for part in self._tile.transforms[self._index])
        height, width = self._tile.shape
        return Grid(self._tile.crs, (a, b, c, d, e, f), height, width)

    @property
    def days(self) -> NDArray[np.int32]:
        return self._tile.days[self._index, : self._lengths[0]] if self._events is None else self._events.days

    @property
    def sensors(self) -> NDArray[np.int8] | None:
        return None if self._events is None else self._events.sensors

    @property
    def table(self) -> ParcelTable:
        """The parcels of this image alone."""
        return self._tile.table.select(np.unique(self.parcels()))

    def values(self, window: Window) -> NDArray[Any]:
        parts = self._parts("values", (slice(None), *window.slices))
        return parts[0] if self._events is None else self._events.values(parts, self.fingerprint)

    def valid(self, window: Window) -> NDArray[np.bool_]:
        parts = self._parts("valid", window.slices)
        return (parts[0] if self._events is None else self._events.merged(parts)).view(np.bool_)

    def labels(self, window: Window | None = None) -> NDArray[np.int16]:
        return self._tile.read_patch("labels", self._index, window.slices if window else ())

    def parcels(self, window: Window | None = None) -> NDArray[np.int32]:
        return self._tile.read_patch("parcels", self._index, window.slices if window else ())

    def _parts(self, name: str, selection: tuple[slice, ...]) -> list[NDArray[Any]]:
        """An array of every sensor, up to the last date that it has of this image."""
        return [
            self._tile.read_patch(f"{group_of(number)}{name}", self._index, (slice(length), *selection))
            for number, length in enumerate(self._lengths)
        ]

    @cached_property
    def _lengths(self) -> list[int]:
        return self._tile.patch_lengths(self._index)

    @cached_property
    def _events(self) -> Events | None:
        """None of one sensor."""
        if len(self._lengths) == 1 and not self.fingerprint.sensors:
            return None
        return merge_events([part.copy() for part in self._parts("days", ())])
