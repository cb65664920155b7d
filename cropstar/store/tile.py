"""Tiles: immutable HDF5 files with observations, mask, dates, labels and parcels of a piece of a scene.

Three layouts share the fingerprint and the writing rules:

- raster: values (T,C,H,W), valid (T,H,W), labels (H,W), parcels (H,W)
- patches: N small images of one size, values (N,T,C,H,W) and so on, each with dates of its own
- series: N samples of different length, laid end to end; `starts` (N+1) tells where each begins

Of several sensors the first has these places. Every other has arrays of its own in a group, `sensor1/values` and so
on, with its own dates and bands: nothing is filled in where another sensor saw. What every date has beside its bands is
`context` (a row per date, float32) and, of images, `static` (E,H,W), the same on all dates.

Every bit is covered by a checksum that is looked at whenever it is read: HDF5's own for its metadata, and ours (xxh3)
over the bytes of each chunk as they lie in the file, or of a whole array that is not in chunks. HDF5's own for chunks,
Fletcher-32, would make reading patches half as slow again; ours costs a few hundredths.

Chunk shapes and the compression filter were chosen by measurement: the table is in docs/store.md, and
`benchmarks/store_layout.py` makes it anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import xxhash
from numpy.typing import NDArray

from cropstar.errors import ArtifactError
from cropstar.geo.grid import Grid
from cropstar.store.files import atomic_path, flush_to_disk
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import open_hdf5

REMEDY = "run the ingest again: it replaces damaged tiles"
FORMAT = 1  # of tiles with one sensor, as they have always been
SENSORS_FORMAT = 2  # of tiles with several, or with context; the newest that is read
PATCH = 48  # pixels a side of a chunk, which holds all dates and bands: patches of 48, 24, 16 or 12 lie in one
CHECKSUMS = "checksums"  # the group with an array of them for each array
TABLE_ROWS = 8192  # of a small table in one chunk


@dataclass(frozen=True)
class ParcelTable:
    """The parcels of a scene: `numbers` are the values of the parcel raster (0 means no parcel)."""

    numbers: NDArray[np.int32]
    keys: list[str]  # the user's own ids
    labels: NDArray[np.int16]
    groups: list[str] | None = None  # what a data set's own splits deal out; the scene's group where it is None
    fields: list[str] | None = None  # the field of each, where several are of one; None: the key names the field

    def select(self, numbers: NDArray[np.int32]) -> ParcelTable:
        rows = np.flatnonzero(np.isin(self.numbers, numbers))
        groups, fields = (
            None if texts is None else [texts[row] for row in rows] for texts in (self.groups, self.fields)
        )
        return ParcelTable(self.numbers[rows], [self.keys[row] for row in rows], self.labels[rows], groups, fields)


@dataclass(frozen=True)
class SensorArrays:
    """The arrays of a further sensor of a tile, with the axes of the tile's own arrays of these names."""

    days: NDArray[np.int32]
    values: NDArray[Any]
    valid: NDArray[np.bool_]
    lengths: NDArray[np.int32] | None = None  # of patches
    starts: NDArray[np.int64] | None = None  # of series
    context: NDArray[np.float32] | None = None  # (T | rows, D), of images and series; not of patches

    def arrays(self) -> dict[str, NDArray[Any]]:
        large = {"values": self.values, "valid": self.valid, "starts": self.starts}
        return {name: array for name, array in large.items() if array is not None}

    def rows(self) -> dict[str, NDArray[Any]]:
        small = {"days": self.days, "lengths": self.lengths, "context": self.context}
        return {name: array for name, array in small.items() if array is not None}


def group_of(sensor: int) -> str:
    """The HDF5 group of a sensor in a tile."""
    return f"sensor{sensor}/" if sensor else ""


@dataclass(frozen=True)
class RasterTile:
    scene: str
    recipe: str  # digest of the source and the options: equal recipe, equal tile
    grid: Grid
    fingerprint: Fingerprint
    days: NDArray[np.int32]  # (T,) since 1970-01-01
    values: NDArray[Any]  # (T, C, H, W)
    valid: NDArray[np.bool_]  # (T, H, W)
    labels: NDArray[np.int16]  # (H, W), UNLABELLED where there is none
    parcels: NDArray[np.int32]  # (H, W), 0 where there is none
    table: ParcelTable
    provenance: dict[str, Any] = field(default_factory=dict)
    others: tuple[SensorArrays, ...] = ()  # sensors after the first
    context: NDArray[np.float32] | None = None  # (T, D)
    static: NDArray[np.float32] | None = None  # (E, H, W)

    layout = "raster"

    def arrays(self) -> dict[str, NDArray[Any]]:
        own = {"values": self.values, "valid": self.valid, "labels": self.labels, "parcels": self.parcels}
        return own | ({} if self.static is None else {"static": self.static})

    def rows(self) -> dict[str, NDArray[Any]]:
        return {"days": self.days} | ({} if self.context is None else {"context": self.context})


@dataclass(frozen=True)
class PatchTile:
    """Small images of one size, as published collections consist of; a parcel number lies in one image alone."""

    scene: str
    recipe: str
    fingerprint: Fingerprint
    crs: str  # of all of them; "" where the collection does not say where they lie
    transforms: NDArray[np.float64]  # (N, 6), affine as in Grid
    names: list[str]  # (N,)
    lengths: NDArray[np.int32]  # (N,): image i has the dates days[i, :lengths[i]]
    days: NDArray[np.int32]  # (N, T)
    values: NDArray[Any]  # (N, T, C, H, W)
    valid: NDArray[np.bool_]  # (N, T, H, W), false beyond an image's length
    labels: NDArray[np.int16]  # (N, H, W)
    parcels: NDArray[np.int32]  # (N, H, W)
    table: ParcelTable
    provenance: dict[str, Any] = field(default_factory=dict)
    others: tuple[SensorArrays, ...] = ()  # sensors after the first

    layout = "patches"

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"values": self.values, "valid": self.valid, "labels": self.labels, "parcels": self.parcels}

    def rows(self) -> dict[str, NDArray[Any]]:
        names = encode_strings(self.names)
        return {"days": self.days, "lengths": self.lengths, "transforms": self.transforms, "names": names}


@dataclass(frozen=True)
class SeriesTile:
    scene: str
    recipe: str
    fingerprint: Fingerprint
    starts: NDArray[np.int64]  # (N+1,): sample i has the rows starts[i]:starts[i+1]
    days: NDArray[np.int32]  # (rows,)
    values: NDArray[Any]  # (rows, C)
    valid: NDArray[np.bool_]  # (rows,)
    table: ParcelTable  # one row per sample, in order
    provenance: dict[str, Any] = field(default_factory=dict)
    date_labels: NDArray[np.int16] | None = None  # (rows,), where every date has a class of its own
    others: tuple[SensorArrays, ...] = ()  # sensors after the first
    context: NDArray[np.float32] | None = None  # (rows, D)

    layout = "series"

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"values": self.values, "valid": self.valid, "starts": self.starts}

    def rows(self) -> dict[str, NDArray[Any]]:
        optional = {"date_labels": self.date_labels, "context": self.context}
        return {"days": self.days} | {name: array for name, array in optional.items() if array is not None}


Tile = RasterTile | PatchTile | SeriesTile

# What each layout must have and may have; the digest covers all that is there.
REQUIRED = {
    "raster": ("labels", "parcels"),
    "patches": ("labels", "parcels", "lengths", "transforms", "names"),
    "series": ("starts",),
}
COMMON = ("values", "valid", "days", "table/numbers", "table/labels", "table/keys")
OPTIONAL = ("table/groups", "table/fields", "date_labels", "context", "static")
# Of every sensor after the first.
OF_SENSOR = {"raster": (), "patches": ("lengths",), "series": ("starts",)}


def write_tile(path: Path, tile: Tile) -> None:
    """Write to a temporary file, read back and compare, then rename: a file with its final name is complete.

    The file is built in memory and written in one go: HDF5 itself crashes when the disk is full. It counts only once
    a manifest names it, so it need not reach the disk before: see `flush_tiles`.
    """
    with h5py.File(path.name, "w", driver="core", backing_store=False, libver=("v110", "v110")) as handle:
        _write(handle, tile)
        handle.flush()
        image = handle.id.get_file_image()
    with atomic_path(path, flush=False) as partial:
        partial.write_bytes(image)
        if partial.read_bytes() != image:
            raise ArtifactError("a tile does not hold what was written", path=path, remedy=REMEDY)


def flush_tiles(paths: Iterable[Path]) -> None:
    """Bring written tiles to the disk. One by one as they are written this would take a tenth of ingest's time."""
    folders = set()
    for path in paths:
        flush_to_disk(path)
        folders.add(path.parent)
    for folder in folders:
        flush_to_disk(folder)


def is_whole(path: Path, recipe: str) -> bool:
    """Whether a tile is on disk, made by this recipe, and every byte of its arrays is as written."""
    if not path.exists():
        return False
    try:
        with open_hdf5(path) as handle:
            if read_attribute(handle, "recipe") != recipe:
                return False
            _require_whole(handle, path)
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        return False
    return True


def _write(handle: h5py.File, tile: Tile) -> None:
    arrays, rows = tile.arrays(), _small_arrays(tile)
    for number, other in enumerate(tile.others, 1):
        arrays |= {group_of(number) + name: array for name, array in other.arrays().items()}
        rows |= {group_of(number) + name: array for name, array in other.rows().items()}
    write = WRITERS[tile.layout]
    for name, array in arrays.items():
        write(handle, name, array.astype(np.uint8) if array.dtype == bool else array)
    for name, array in rows.items():
        write_rows(handle, name, array)
    handle.attrs["format"] = SENSORS_FORMAT if tile.fingerprint.sensors else FORMAT
    write_attribute(handle, "layout", tile.layout)
    write_attribute(handle, "scene", tile.scene)
    write_attribute(handle, "recipe", tile.recipe)
    write_attribute(handle, "fingerprint", tile.fingerprint.dumps())
    write_attribute(handle, "provenance", json.dumps(tile.provenance, sort_keys=True, ensure_ascii=False))
    if isinstance(tile, RasterTile):
        write_attribute(handle, "grid", json.dumps(tile.grid.to_json(), sort_keys=True))
    if isinstance(tile, PatchTile):
        write_attribute(handle, "crs", tile.crs)
    for name in (*arrays, *rows):
        _create_dataset(handle, f"{CHECKSUMS}/{name}", data=_checksums(handle[name].id))
    write_attribute(handle, "digest", _arrays_digest({**arrays, **rows}))


def _small_arrays(tile: Tile) -> dict[str, NDArray[Any]]:
    """The small arrays: dates and what else is one per row, and the table of parcels."""
    optional = {"table/groups": tile.table.groups, "table/fields": tile.table.fields}
    return {
        **tile.rows(),
        "table/numbers": tile.table.numbers,
        "table/labels": tile.table.labels,
        "table/keys": encode_strings(tile.table.keys),
        **{name: encode_strings(texts) for name, texts in optional.items() if texts is not None},
    }


def _arrays_digest(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def checksum(content: Any) -> int:
    """The checksum of stored bytes."""
    return int(xxhash.xxh3_64_intdigest(content))


def _checksums(dataset: h5py.h5d.DatasetID) -> NDArray[np.uint64]:
    """Of every chunk of an array, in the order in which HDF5 lists them; or of the array as a whole."""
    if dataset.get_create_plist().get_layout() != h5py.h5d.CHUNKED:
        whole = h5py.Dataset(dataset)[()]
        return np.array([checksum(whole.tobytes())], dtype=np.uint64)
    places = [dataset.get_chunk_info(number).chunk_offset for number in range(dataset.get_num_chunks())]
    return np.array([checksum(dataset.read_direct_chunk(place)[1]) for place in places], dtype=np.uint64)


def _require_whole(handle: h5py.File, path: Path) -> None:
    layout = read_attribute(handle, "layout")
    names = [*REQUIRED[layout], *COMMON, *(name for name in OPTIONAL if name in handle)]
    for number in range(1, count_sensors(handle)):
        group = group_of(number)
        names += [f"{group}{name}" for name in ("values", "valid", "days", *OF_SENSOR[layout])]
        names += [f"{group}context"] * (f"{group}context" in handle)
    checked = True
    if CHECKSUMS in handle:  # tiles of older versions have none
        known = handle[CHECKSUMS]
        checked = all(np.array_equal(known[name][()], _checksums(handle[name].id)) for name in names)
    if not checked or _arrays_digest({name: handle[name][()] for name in names}) != read_attribute(handle, "digest"):
        raise ArtifactError("a tile does not hold what was written", path=path, remedy=REMEDY)


def count_sensors(handle: h5py.File) -> int:
    """How many sensors a tile has arrays of."""
    number = 1
    while group_of(number).rstrip("/") in handle:
        number += 1
    return number


# --- how arrays lie in the file: chunks and compression


def compression() -> dict[str, Any]:
    """The filter's options for h5py; files open anywhere hdf5plugin or HDF5's filter plugins are."""
    return dict(hdf5plugin.Blosc(cname="lz4hc", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE))


def raster_chunk(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Whole in time and band, one patch in space: a patch is read with one request to the disk."""
    *leading, height, width = shape
    return (*leading, min(PATCH, height), min(PATCH, width))


def _create_dataset(group: h5py.Group, name: str, **settings: Any) -> None:
    """Closed at once: where its chunks lie in the file must not depend on who else, a profiler say, still holds it."""
    group.create_dataset(name, **settings).id.close()


def write_raster(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    _create_dataset(group, name, data=values, chunks=raster_chunk(values.shape), **compression())


def write_patches(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """An image a chunk."""
    chunk = (1, *raster_chunk(values.shape[1:]))
    _create_dataset(group, name, data=values, chunks=chunk, **compression())


def write_series(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """Rows of series end to end, neither in chunks nor compressed: readers map them into memory.

    Means over parcels hardly compress (by a quarter), and a sample would cost the whole chunk that it lies in.
    """
    _create_dataset(group, name, data=values)


def write_rows(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """Small tables."""
    if values.size == 0:
        _create_dataset(group, name, data=values)
        return
    chunk = (min(TABLE_ROWS, values.shape[0]), *values.shape[1:])
    _create_dataset(group, name, data=values, chunks=chunk, **compression())


WRITERS = {"raster": write_raster, "patches": write_patches, "series": write_series}  # of the large arrays


def encode_strings(values: list[str]) -> NDArray[Any]:
    """Text of one length, filled up with zeros.

    HDF5 keeps text of any length in a heap without a checksum, where one flipped bit can make it search for ever.
    """
    encoded = [value.encode("utf-8") for value in values]
    longest = max(map(len, encoded), default=0)
    return np.array(encoded, dtype=h5py.string_dtype("utf-8", max(longest, 1)))


def write_attribute(handle: h5py.File, name: str, text: str) -> None:
    """An attribute of fixed length, for the same reason."""
    encoded = text.encode("utf-8")
    handle.attrs.create(name, encoded, dtype=h5py.string_dtype("utf-8", max(len(encoded), 1)))


def read_attribute(handle: h5py.File, name: str) -> str:
    value = handle.attrs[name]
    if not isinstance(value, bytes):  # of a number Python would make as many bytes
        raise ValueError(f"its {name} is not a text")
    return value.decode("utf-8")
