"""Reading tiles: one open handle a tile, one request a patch."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window
from cropstar.store import layout
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import REMEDY, ParcelTable

# What h5py says of a damaged file.
UNREADABLE = (OSError, KeyError, RuntimeError, ValueError, TypeError)


class TileReader:
    """An open tile. Arrays are read on demand; what is small is kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # Kept open: looking a dataset up by name takes about as long as reading a patch of it.
        self._datasets: dict[str, h5py.Dataset] = {}
        try:
            # The chunk cache is off: in random order a chunk is gone from it before it is wanted again.
            self._handle = h5py.File(path, "r", rdcc_nbytes=0)
        except OSError as failure:
            raise _unreadable(path, failure) from None
        try:
            version = int(self._handle.attrs["format"])
            self.layout = layout.read_text(self._handle, "layout")
            self.scene = layout.read_text(self._handle, "scene")
        except UNREADABLE as failure:
            self.close()
            raise _unreadable(path, failure) from None
        if version > layout.FORMAT:
            self.close()
            raise ArtifactError(
                "a tile is of a newer format", path=path, why=f"format {version}", remedy="update cropstar"
            )

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return Fingerprint.from_json(self._json("fingerprint"), self.path)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        return self._json("provenance")

    @cached_property
    def grid(self) -> Grid:
        return Grid.from_json(self._json("grid"))

    @cached_property
    def days(self) -> NDArray[np.int32]:
        return self._read("days")

    @property
    def length(self) -> int:
        """The number of dates of the longest series."""
        return len(self.days) if self.layout == "raster" else int(np.diff(self.starts).max(initial=0))

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        return self._read("starts")

    @cached_property
    def table(self) -> ParcelTable:
        keys = [key.decode("utf-8") for key in self._read("table/keys")]
        return ParcelTable(self._read("table/numbers"), keys, self._read("table/labels"))

    def values(self, window: Window) -> NDArray[Any]:
        """(T, C, h, w) stored integers."""
        return self._read("values", (slice(None), slice(None), *window.slices))

    def valid(self, window: Window) -> NDArray[np.bool_]:
        """(T, h, w)."""
        return self._read("valid", (slice(None), *window.slices)).view(np.bool_)

    def whole_mask(self) -> NDArray[np.bool_]:
        """The validity of every observation of the tile."""
        return self._read("valid").view(np.bool_)

    def labels(self, window: Window | None = None) -> NDArray[np.int16]:
        return self._read("labels", window.slices if window else ())

    def parcels(self, window: Window | None = None) -> NDArray[np.int32]:
        return self._read("parcels", window.slices if window else ())

    def sample(self, index: int) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.int32]]:
        """One sample of a series tile: values (T, C), valid (T,), days (T,)."""
        rows = slice(int(self.starts[index]), int(self.starts[index + 1]))
        return self._read("values", rows), self._read("valid", rows).view(np.bool_), self.days[rows]

    def close(self) -> None:
        self._datasets.clear()
        self._handle.close()

    def _read(self, name: str, selection: Any = ()) -> NDArray[Any]:
        try:
            if name not in self._datasets:
                self._datasets[name] = self._handle[name]
            array: NDArray[Any] = self._datasets[name][selection]
        except UNREADABLE as failure:
            raise _unreadable(self.path, failure) from None
        return array

    def _json(self, name: str) -> dict[str, Any]:
        try:
            data: dict[str, Any] = json.loads(layout.read_text(self._handle, name))
        except UNREADABLE as failure:
            raise _unreadable(self.path, failure) from None
        return data


def _unreadable(path: Path, failure: Exception) -> ArtifactError:
    return ArtifactError("a tile cannot be read", path=path, why=str(failure), remedy=REMEDY)
