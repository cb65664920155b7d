"""One immutable HDF5 file: observations, mask, dates, labels and parcels of a piece of a scene.

Three layouts share the fingerprint and the writing rules:

- raster: values (T,C,H,W), valid (T,H,W), labels (H,W), parcels (H,W)
- patches: N small images of one size, values (N,T,C,H,W) and so on, each with dates of its own
- series: N samples of different length, laid end to end; `starts` (N+1) tells where each begins
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError
from cropstar.geo.grid import Grid
from cropstar.store import layout
from cropstar.store.atomic import atomic_path, flush_to_disk
from cropstar.store.fingerprint import Fingerprint

REMEDY = "run the ingest again: it makes damaged tiles anew"


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

    layout = "raster"

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"values": self.values, "valid": self.valid, "labels": self.labels, "parcels": self.parcels}

    def rows(self) -> dict[str, NDArray[Any]]:
        return {"days": self.days}


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

    layout = "patches"

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"values": self.values, "valid": self.valid, "labels": self.labels, "parcels": self.parcels}

    def rows(self) -> dict[str, NDArray[Any]]:
        names = layout.encode_strings(self.names)
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
    table: ParcelTable  # one row a sample, in order
    provenance: dict[str, Any] = field(default_factory=dict)
    date_labels: NDArray[np.int16] | None = None  # (rows,), where every date has a class of its own

    layout = "series"

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {"values": self.values, "valid": self.valid, "starts": self.starts}

    def rows(self) -> dict[str, NDArray[Any]]:
        return {"days": self.days} | ({} if self.date_labels is None else {"date_labels": self.date_labels})


Tile = RasterTile | PatchTile | SeriesTile

# What each layout must have and may have; the digest covers all that is there.
REQUIRED = {
    "raster": ("labels", "parcels"),
    "patches": ("labels", "parcels", "lengths", "transforms", "names"),
    "series": ("starts",),
}
COMMON = ("values", "valid", "days", "table/numbers", "table/labels", "table/keys")
OPTIONAL = ("table/groups", "table/fields", "date_labels")


def write_tile(path: Path, tile: Tile) -> None:
    """Write beside the place, read back and compare, then rename: what has the name is whole.

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
        with h5py.File(path, "r") as handle:
            if layout.read_text(handle, "recipe") != recipe:
                return False
            _require_whole(handle, path)
    except (OSError, KeyError, RuntimeError, ValueError, TypeError):
        return False
    return True


def _write(handle: h5py.File, tile: Tile) -> None:
    arrays, rows = tile.arrays(), _rows(tile)
    write = layout.WRITERS[tile.layout]
    for name, array in arrays.items():
        write(handle, name, array.astype(np.uint8) if array.dtype == bool else array)
    for name, array in rows.items():
        layout.write_rows(handle, name, array)
    handle.attrs["format"] = layout.FORMAT
    layout.write_text(handle, "layout", tile.layout)
    layout.write_text(handle, "scene", tile.scene)
    layout.write_text(handle, "recipe", tile.recipe)
    layout.write_text(handle, "fingerprint", tile.fingerprint.dumps())
    layout.write_text(handle, "provenance", json.dumps(tile.provenance, sort_keys=True, ensure_ascii=False))
    if isinstance(tile, RasterTile):
        layout.write_text(handle, "grid", json.dumps(tile.grid.to_json(), sort_keys=True))
    if isinstance(tile, PatchTile):
        layout.write_text(handle, "crs", tile.crs)
    layout.write_text(handle, "digest", _digest({**arrays, **rows}))


def _rows(tile: Tile) -> dict[str, NDArray[Any]]:
    """The small arrays: dates and what else is one a row, and the table of parcels."""
    optional = {"table/groups": tile.table.groups, "table/fields": tile.table.fields}
    return {
        **tile.rows(),
        "table/numbers": tile.table.numbers,
        "table/labels": tile.table.labels,
        "table/keys": layout.encode_strings(tile.table.keys),
        **{name: layout.encode_strings(texts) for name, texts in optional.items() if texts is not None},
    }


def _digest(arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _require_whole(handle: h5py.File, path: Path) -> None:
    names = (*REQUIRED[layout.read_text(handle, "layout")], *COMMON, *(name for name in OPTIONAL if name in handle))
    if _digest({name: handle[name][()] for name in names}) != layout.read_text(handle, "digest"):
        raise ArtifactError("a tile does not hold what was written", path=path, remedy=REMEDY)
