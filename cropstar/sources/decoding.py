"""Decoding compressed images once: a large window of a scene is decoded to a scratch file.

A JPEG 2000 block of 1024 x 1024 pixels lies under some thirty tiles, and the blocks of a season's files are too many
to be kept in memory. So a part of the scene as large as the disk allows is decoded into one file of plain pixels,
and tiles are cut from there. The file is named as a partial one: the next writer to the store removes it.
"""

from __future__ import annotations

import math
import mmap
import os
import platform
import shutil
import tempfile
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.raster import GDAL_CACHE_MEGABYTES
from cropstar.geo.windows import Window
from cropstar.store.files import PARTIAL

PIXEL = np.dtype(np.uint16)
MAXIMUM_SCRATCH_BYTES = 32 * 2**30  # a quarter of a season of a whole Sentinel-2 tile
SHARE_OF_FREE_DISK = 0.25  # the tiles want the rest


@dataclass(frozen=True)
class Scratch:
    """A scratch file with the pixels of each layer of a series: one window of uint16 after the other."""

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

    def read(self, layer: int, part: Window) -> NDArray[np.uint16] | None:
        """Pixels of a layer, or nothing where they are not all in its window."""
        place = self.places[layer]
        inner = part.relative_to(place)
        if min(inner.top, inner.left) < 0 or inner.bottom > place.height or inner.right > place.width:
            return None
        if not part.height or not part.width:
            return np.zeros((part.height, part.width), dtype=PIXEL)
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

    @property
    def grid(self) -> Grid: ...

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
    """The side in pixels of the parts that are decoded in turn: whole tiles, equal parts, within the limit."""
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


# --- Blocks for prediction: what was decoded is kept for the next window that lies on it
#
# A block lies under several windows, with margins under many, and a season has too many blocks for the memory: without
# this each is decoded again and again. The file has no name, so that nothing is left of it, however the program ends.
# When it is full, what was not asked for the longest time goes.

BLOCK_SIDE = 1024  # of the blocks of Sentinel-2's files, whatever the size of their pixels

BlockPlace = tuple[int, int, int]  # layer, row, column


def keep_decoded(
    series: object, folder: Path, *, room: int | None = None, in_memory: int | None = None, side: int = BLOCK_SIDE
) -> None:
    """Have a series of compressed images keep what it decodes; other series are left as they are.

    `room` are the bytes that may lie in the folder. What GDAL holds `in_memory` anyway needs no file.
    """
    if not isinstance(series, DecodedSeries):
        return
    places = series.decoded_places(Window(0, 0, *series.grid.shape))
    in_memory = GDAL_CACHE_MEGABYTES * 2**20 if in_memory is None else in_memory
    if decoded_bytes(places) <= in_memory:
        return
    folder.mkdir(parents=True, exist_ok=True)
    slots = (scratch_bytes(folder) if room is None else room) // (side * side * PIXEL.itemsize)
    # Fewer than one window's would be thrown away before they are asked for again.
    if slots >= 4 * len(places):
        series.read_from(DecodedBlocks(folder, Window(0, 0, *series.grid.shape), places, series, slots, side))


@dataclass(frozen=True)
class DecodedBlocks(Scratch):
    """A scratch file that fills as blocks are asked for. For one thread, as the series."""

    series: DecodedSeries
    most: int  # blocks
    side: int = BLOCK_SIDE
    _slots: OrderedDict[BlockPlace, int] = field(default_factory=OrderedDict)
    _files: list[Any] = field(default_factory=list)  # the one that is open, once there is one

    def read(self, layer: int, part: Window) -> NDArray[np.uint16] | None:
        """Pixels of a layer, or nothing where they are not all in its window."""
        place = self.places[layer]
        inner = part.relative_to(place)
        if min(inner.top, inner.left) < 0 or part.bottom > place.bottom or part.right > place.right:
            return None
        pixels = np.zeros((part.height, part.width), dtype=PIXEL)
        if not pixels.size:
            return pixels
        touched = [(layer, row, column) for row, column in self._blocks_under(part)]
        if len(touched) > self.most:
            return None
        self._decode([block for block in touched if block not in self._slots], set(touched))
        for block in touched:
            self._slots.move_to_end(block)
            self._copy(block, part, pixels)
        return pixels

    def _decode(self, missing: list[BlockPlace], needed: set[BlockPlace]) -> None:
        """Neighbours in one go: GDAL decodes them side by side."""
        if not missing:
            return
        layer, place, side = missing[0][0], self.places[missing[0][0]], self.side
        rows, columns = [row for _, row, _ in missing], [column for _, _, column in missing]
        around = Window(
            min(rows) * side,
            min(columns) * side,
            (max(rows) - min(rows) + 1) * side,
            (max(columns) - min(columns) + 1) * side,
        )
        window = around.overlap(place)
        decoded = _InMemory(self.path, window, (window,) * (layer + 1))
        self.series.decode(layer, decoded)
        for block in missing:
            self._keep(block, decoded.pixels, window, needed)

    def _keep(self, block: BlockPlace, pixels: NDArray[np.uint16], window: Window, needed: set[BlockPlace]) -> None:
        if len(self._slots) < self.most:
            slot = len(self._slots)
        else:
            oldest = next(each for each in self._slots if each not in needed)
            slot = self._slots.pop(oldest)
        corner = self._place(block)
        shared = corner.overlap(window)
        content = np.zeros((self.side, self.side), dtype=PIXEL)
        content[shared.relative_to(corner).slices] = pixels[shared.relative_to(window).slices]
        left, start = content.data.cast("B"), slot * content.nbytes
        try:
            while left:
                written = os.pwrite(self._descriptor(), left, start)
                left, start = left[written:], start + written
        except OSError as failure:
            failure.filename = failure.filename or str(self.path)
            raise
        self._slots[block] = slot

    def _copy(self, block: BlockPlace, part: Window, pixels: NDArray[np.uint16]) -> None:
        corner = self._place(block)
        shared = corner.overlap(part)
        inside = shared.relative_to(corner)
        rows = np.empty((inside.height, self.side), dtype=PIXEL)
        start = (self._slots[block] * self.side + inside.top) * self.side * PIXEL.itemsize
        os.preadv(self._descriptor(), [rows.data.cast("B")], start)
        pixels[shared.relative_to(part).slices] = rows[:, inside.left : inside.right]

    def _blocks_under(self, window: Window) -> list[tuple[int, int]]:
        rows = range(window.top // self.side, (window.bottom - 1) // self.side + 1)
        columns = range(window.left // self.side, (window.right - 1) // self.side + 1)
        return [(row, column) for row in rows for column in columns]

    def _place(self, block: BlockPlace) -> Window:
        """The window of a block in its layer; it may extend beyond the edge."""
        return Window(block[1] * self.side, block[2] * self.side, self.side, self.side)

    def _descriptor(self) -> int:
        if not self._files:
            self._files.append(tempfile.TemporaryFile(dir=self.path, buffering=0))  # noqa: SIM115  # until the series goes
        descriptor: int = self._files[0].fileno()
        return descriptor


class _InMemory(Scratch):
    """Takes what is decoded into memory."""

    @cached_property
    def pixels(self) -> NDArray[np.uint16]:
        return np.zeros((self.window.height, self.window.width), dtype=PIXEL)

    def write(self, layer: int, first_row: int, pixels: NDArray[Any]) -> None:
        self.pixels[first_row : first_row + len(pixels)] = pixels
