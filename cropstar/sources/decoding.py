"""Decoding once what is read many times: a large window of a scene's files laid open in a scratch file.

A JPEG 2000 block of 1024 x 1024 pixels lies under some thirty tiles, and the blocks of a season's files are too many
to be kept in memory. So a part of the scene as large as the disk allows is decoded into one file of plain pixels,
and tiles are cut from there. The file has the name of a partial one: whoever writes to the store next removes it.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.windows import Window
from cropstar.store.files import PARTIAL

PIXEL = np.dtype(np.uint16)
MAXIMUM_SCRATCH_BYTES = 32 * 2**30  # a quarter of a season of a whole Sentinel-2 tile
SHARE_OF_FREE_DISK = 0.25  # the tiles want the rest


@dataclass(frozen=True)
class Scratch:
    """Where the pixels of each layer of a series lie in the file: one window of uint16 after the other."""

    path: Path
    window: Window  # on the series' grid
    places: tuple[Window, ...]  # of the layers, each in its own pixels

    @property
    def size(self) -> int:
        return self._offsets[-1]

    @cached_property
    def _offsets(self) -> list[int]:
        return [0, *accumulate(place.height * place.width * PIXEL.itemsize for place in self.places)]

    def write(self, layer: int, first_row: int, pixels: NDArray[Any]) -> None:
        """Rows of a layer, counted from the top of its window."""
        place = self.places[layer]
        start = self._offsets[layer] + first_row * place.width * PIXEL.itemsize
        content = np.ascontiguousarray(pixels, dtype=PIXEL).data.cast("B")
        with self.path.open("r+b", buffering=0) as handle:
            handle.seek(start)
            while content:
                content = content[handle.write(content) or 0 :]

    def read(self, layer: int, wanted: Window) -> NDArray[np.uint16] | None:
        """Pixels of a layer, or nothing where they are not all in its window."""
        place = self.places[layer]
        inner = wanted.relative_to(place)
        if min(inner.top, inner.left) < 0 or inner.bottom > place.height or inner.right > place.width:
            return None
        if not wanted.height or not wanted.width:
            return np.zeros((wanted.height, wanted.width), dtype=PIXEL)
        # Mapped for this one read: a map that stays would count as memory of the process.
        row = place.width * PIXEL.itemsize
        start = self._offsets[layer] + inner.top * row
        before = start % mmap.ALLOCATIONGRANULARITY
        with self.path.open("rb") as handle:
            length = before + inner.height * row
            mapped = mmap.mmap(handle.fileno(), length, access=mmap.ACCESS_READ, offset=start - before)
        rows = np.frombuffer(mapped, PIXEL, inner.height * place.width, before).reshape(inner.height, place.width)
        return rows[:, inner.left : inner.right].copy()


@runtime_checkable
class DecodedSeries(Protocol):
    """A series that can be decoded into a scratch file, layer by layer and by several processes."""

    def decoded_places(self, window: Window) -> tuple[Window, ...]:
        """The pixels of every layer that reading within a window can ask for."""

    def decoding_chains(self) -> list[range]:
        """Layers that belong together: after the first of a chain it is known whether the others are needed."""

    def decode(self, layer: int, scratch: Scratch) -> bool:
        """Decode one layer, and say whether there is anything to be seen in it."""

    def read_from(self, scratch: Scratch | None) -> None:
        """Take pixels from there from now on, or from the files again."""


def scratch_bytes(folder: Path) -> int:
    """How large a scratch file in a folder may be."""
    return min(MAXIMUM_SCRATCH_BYTES, int(shutil.disk_usage(folder).free * SHARE_OF_FREE_DISK))


def cell_size(series: DecodedSeries, shape: tuple[int, int], tile_size: int, limit: int) -> int:
    """Pixels a side of the parts to be decoded one after the other: whole tiles, equal parts, within the limit."""
    tiles = math.ceil(max(shape) / tile_size)
    for parts in range(1, tiles + 1):
        size = math.ceil(tiles / parts) * tile_size
        window = Window(0, 0, min(size, shape[0]), min(size, shape[1]))
        if decoded_bytes(series.decoded_places(window)) <= limit:
            return size
    return tile_size


def decoded_bytes(places: Sequence[Window]) -> int:
    return sum(place.height * place.width for place in places) * PIXEL.itemsize


def around(windows: Sequence[Window]) -> Window:
    """The smallest window that holds all of them."""
    top, left = min(window.top for window in windows), min(window.left for window in windows)
    bottom, right = max(window.bottom for window in windows), max(window.right for window in windows)
    return Window(top, left, bottom - top, right - left)


@contextmanager
def scratch_file(folder: Path, series: DecodedSeries, window: Window) -> Iterator[Scratch]:
    """An empty scratch file for a window of a series, removed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".decoded.{platform.node()}.{os.getpid()}{PARTIAL}"
    scratch = Scratch(path, window, series.decoded_places(window))
    try:
        with path.open("wb") as handle:
            handle.truncate(scratch.size)  # a hole that fills as layers are decoded
        yield scratch
    finally:
        path.unlink(missing_ok=True)
