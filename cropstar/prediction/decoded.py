"""Blocks of JPEG 2000 that were decoded, kept on the disk for the next window that lies on them.

A block of 1024 x 1024 pixels lies under several windows, with margins under many, and a season has too many blocks for
the memory: without this each is decoded again and again. The file has no name, so that nothing is left of it, however
the program ends. When it is full, what was not asked for the longest time goes.
"""

from __future__ import annotations

import os
import tempfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.windows import Window
from cropstar.sources.base import Series
from cropstar.sources.decoding import PIXEL, DecodedSeries, Scratch, decoded_bytes, scratch_bytes
from cropstar.sources.workers import GDAL_CACHE_MEGABYTES

SIDE = 1024  # of the blocks of Sentinel-2's files, whatever the size of their pixels

Block = tuple[int, int, int]  # layer, row, column


def keep_decoded(
    series: Series, folder: Path, *, room: int | None = None, in_memory: int | None = None, side: int = SIDE
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
    side: int = SIDE
    _slots: OrderedDict[Block, int] = field(default_factory=OrderedDict)
    _files: list[Any] = field(default_factory=list)  # the one that is open, once there is one

    def read(self, layer: int, wanted: Window) -> NDArray[np.uint16] | None:
        """Pixels of a layer, or nothing where they are not all in its window."""
        place = self.places[layer]
        inner = wanted.relative_to(place)
        if min(inner.top, inner.left) < 0 or wanted.bottom > place.bottom or wanted.right > place.right:
            return None
        pixels = np.zeros((wanted.height, wanted.width), dtype=PIXEL)
        if not pixels.size:
            return pixels
        touched = [(layer, row, column) for row, column in self._blocks_under(wanted)]
        if len(touched) > self.most:
            return None
        self._decode([block for block in touched if block not in self._slots], set(touched))
        for block in touched:
            self._slots.move_to_end(block)
            self._copy(block, wanted, pixels)
        return pixels

    def _decode(self, missing: list[Block], needed: set[Block]) -> None:
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
        window = _shared(around, place)
        caught = _Caught(self.path, window, (window,) * (layer + 1))
        self.series.decode(layer, caught)
        for block in missing:
            self._keep(block, caught.pixels, window, needed)

    def _keep(self, block: Block, pixels: NDArray[np.uint16], window: Window, needed: set[Block]) -> None:
        if len(self._slots) < self.most:
            slot = len(self._slots)
        else:
            oldest = next(each for each in self._slots if each not in needed)
            slot = self._slots.pop(oldest)
        corner = self._place(block)
        shared = _shared(corner, window)
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

    def _copy(self, block: Block, wanted: Window, pixels: NDArray[np.uint16]) -> None:
        corner = self._place(block)
        shared = _shared(corner, wanted)
        inside = shared.relative_to(corner)
        rows = np.empty((inside.height, self.side), dtype=PIXEL)
        start = (self._slots[block] * self.side + inside.top) * self.side * PIXEL.itemsize
        os.preadv(self._descriptor(), [rows.data.cast("B")], start)
        pixels[shared.relative_to(wanted).slices] = rows[:, inside.left : inside.right]

    def _blocks_under(self, window: Window) -> list[tuple[int, int]]:
        rows = range(window.top // self.side, (window.bottom - 1) // self.side + 1)
        columns = range(window.left // self.side, (window.right - 1) // self.side + 1)
        return [(row, column) for row in rows for column in columns]

    def _place(self, block: Block) -> Window:
        """Where a block lies in its layer, beyond whose edge it may reach."""
        return Window(block[1] * self.side, block[2] * self.side, self.side, self.side)

    def _descriptor(self) -> int:
        if not self._files:
            self._files.append(tempfile.TemporaryFile(dir=self.path, buffering=0))  # noqa: SIM115  # until the series goes
        descriptor: int = self._files[0].fileno()
        return descriptor


@dataclass(frozen=True)
class _Caught(Scratch):
    """Takes what is decoded into memory."""

    pixels: NDArray[np.uint16] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", np.zeros((self.window.height, self.window.width), dtype=PIXEL))

    def write(self, layer: int, first_row: int, pixels: NDArray[Any]) -> None:
        self.pixels[first_row : first_row + len(pixels)] = pixels


def _shared(one: Window, other: Window) -> Window:
    top, left = max(one.top, other.top), max(one.left, other.left)
    return Window(top, left, min(one.bottom, other.bottom) - top, min(one.right, other.right) - left)
