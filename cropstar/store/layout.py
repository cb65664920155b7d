"""How arrays lie in an HDF5 file: chunk shapes and the compression filter, chosen by measurement.

The table behind these choices is in docs/store.md; `benchmarks/store_layout.py` makes it anew.
"""

from __future__ import annotations

from typing import Any

import h5py
import hdf5plugin
import numpy as np
from numpy.typing import NDArray

FORMAT = 1  # raised when older readers would misread a newer tile
PATCH = 48  # pixels a side of a chunk, which holds all dates and bands: patches of 48, 24, 16 or 12 lie in one
TABLE_ROWS = 8192  # of a small table in one chunk


def compression() -> dict[str, Any]:
    """The filter's options for h5py; files open anywhere hdf5plugin or HDF5's filter plugins are."""
    return dict(hdf5plugin.Blosc(cname="lz4hc", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE))


def raster_chunk(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Whole in time and band, one patch in space: a patch is read with one request to the disk."""
    *leading, height, width = shape
    return (*leading, min(PATCH, height), min(PATCH, width))


def _create(group: h5py.Group, name: str, **settings: Any) -> None:
    """Closed at once: where its chunks lie in the file must not depend on who else, a profiler say, still holds it."""
    group.create_dataset(name, **settings).id.close()


def write_raster(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    _create(group, name, data=values, chunks=raster_chunk(values.shape), **compression())


def write_patches(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """An image a chunk."""
    chunk = (1, *raster_chunk(values.shape[1:]))
    _create(group, name, data=values, chunks=chunk, **compression())


def write_series(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """Rows of series end to end, neither in chunks nor compressed: readers map them into memory.

    Means over parcels hardly compress (by a quarter), and a sample would cost the whole chunk that it lies in.
    """
    _create(group, name, data=values)


def write_rows(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """Small tables."""
    if values.size == 0:
        _create(group, name, data=values)
        return
    chunk = (min(TABLE_ROWS, values.shape[0]), *values.shape[1:])
    _create(group, name, data=values, chunks=chunk, **compression())


WRITERS = {"raster": write_raster, "patches": write_patches, "series": write_series}  # of the large arrays


def encode_strings(values: list[str]) -> NDArray[Any]:
    """Text of one length, filled up with zeros.

    HDF5 keeps text of any length in a heap without a checksum, where one flipped bit can make it search for ever.
    """
    encoded = [value.encode("utf-8") for value in values]
    longest = max(map(len, encoded), default=0)
    return np.array(encoded, dtype=h5py.string_dtype("utf-8", max(longest, 1)))


def write_text(handle: h5py.File, name: str, text: str) -> None:
    """An attribute of fixed length, for the same reason."""
    encoded = text.encode("utf-8")
    handle.attrs.create(name, encoded, dtype=h5py.string_dtype("utf-8", max(len(encoded), 1)))


def read_text(handle: h5py.File, name: str) -> str:
    return bytes(handle.attrs[name]).decode("utf-8")
