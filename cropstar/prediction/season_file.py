"""The state of a season on the disk: one HDF5 file with the hidden state of a whole raster after its last date.

    card                JSON: model, fingerprint, grid, dates, and how the images were read
    valid_dates (H, W)  on how many dates each pixel was seen
    checks (H, W)       a checksum of each pixel
    state/LAYER/PART    float32 (H, W, channels)

Arrays lie in one piece each. HDF5 says where; rows of windows are then read and written at their places, straight from
and to the arrays, since an update is little else. Any window can be checked, for every pixel has a checksum of its own.
The file is replaced as a whole: whatever fails, the one before stays.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError
from cropstar.geo.windows import Window
from cropstar.limits import MAXIMUM_HEADER_BYTES
from cropstar.prediction.season import Before, Parts
from cropstar.prediction.season_card import SeasonCard
from cropstar.store.files import atomic_path
from cropstar.store.reader import UNREADABLE

FORMAT = 2  # raised when older readers would misread a newer file
CARD, VALID_DATES, CHECKS, STATE = "card", "valid_dates", "checks", "state"
REMEDY = "make it anew with 'cropstar predict --state'"
FLUSH_BYTES = 2**27
PLACE, COUNT = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F  # odd, or a changed bit could vanish


def kinds(card: SeasonCard) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of every array."""
    shape = card.grid.shape
    parts = {
        f"{STATE}/{layer}/{part}": ((*shape, channels), np.dtype("<f4"))
        for layer, parts in enumerate(card.layout)
        for part, channels in enumerate(parts)
    }
    return {VALID_DATES: (shape, np.dtype("<u2")), CHECKS: (shape, np.dtype("<u8")), **parts}


def checks_of(window: Window, width: int, counts: NDArray[np.uint16], parts: Parts) -> NDArray[np.uint64]:
    """A number a pixel, which changes with every byte of it and with its place: sums, modulo 2 to the power of 64."""
    rows = np.arange(window.top, window.top + window.height, dtype=np.uint64)[:, None]
    columns = np.arange(window.left, window.left + window.width, dtype=np.uint64)
    found: NDArray[np.uint64] = (rows * np.uint64(width) + columns) * np.uint64(PLACE)
    found += counts.astype(np.uint64) * np.uint64(COUNT)
    for number, part in enumerate(parts):
        if part.shape[2] % 2:
            total = part.view(np.uint32).sum(axis=2, dtype=np.uint64)
        else:  # rows as short as these three times as fast as by sum
            total = np.einsum("ijk->ij", part.view(np.uint64))
        found += total * np.uint64(2 * number + 1)
    return found


class _Rows:
    """An array in one piece, somewhere in an open file."""

    def __init__(self, descriptor: int, offset: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        self._descriptor, self._offset, self._kind = descriptor, offset, kind
        self._width, self._channels = shape[1], shape[2:]
        self._pixel = kind.itemsize * math.prod(self._channels)

    def read(self, window: Window) -> NDArray[Any]:
        found = np.empty((window.height, window.width, *self._channels), dtype=self._kind)
        for place, row in self._places(window, found):
            if os.preadv(self._descriptor, [row], place) != len(row):
                raise ValueError("it is cut off")
        return found

    def write(self, window: Window, values: NDArray[Any]) -> None:
        for place, row in self._places(window, np.ascontiguousarray(values, dtype=self._kind)):
            written = 0
            while written < len(row):
                written += os.pwrite(self._descriptor, row[written:], place + written)

    def _places(self, window: Window, values: NDArray[Any]) -> Iterator[tuple[int, memoryview]]:
        """Where each row of the window lies; windows as wide as the raster lie there in one piece."""
        lines = values.reshape(1 if window.width == self._width else window.height, -1)
        for number, line in enumerate(lines):
            pixel = (window.top + number) * self._width + window.left
            yield self._offset + pixel * self._pixel, line.data.cast("B")


class SeasonReader:
    """An open state."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError("no such state", path=path, remedy=REMEDY)
        self.path = path
        self._disk: BinaryIO | None = None
        try:
            with h5py.File(path, "r") as file:
                if int(file.attrs["format"]) != FORMAT:
                    raise ValueError("it is of another version's format")
                card = file[CARD]
                if card.dtype != np.uint8 or card.ndim != 1 or card.size > MAXIMUM_HEADER_BYTES:
                    raise ValueError("its card is no text")
                self.card = SeasonCard.loads(card[()].tobytes().decode("utf-8"), path)
                offsets = _offsets(file, self.card, path.stat().st_size)
            self._disk = path.open("rb", buffering=0)
        except UNREADABLE as failure:
            raise self._unreadable(failure) from None
        self._arrays = _arrays(self._disk.fileno(), offsets, self.card)

    def read(self, window: Window) -> Before:
        """All that is known of a window."""
        try:
            found = {name: array.read(window) for name, array in self._arrays.items()}
            counts, checks = found.pop(VALID_DATES), found.pop(CHECKS)
            parts: Parts = list(found.values())
            wrong = np.argwhere(checks_of(window, self.card.grid.width, counts, parts) != checks)
            if len(wrong):
                row, column = wrong[0] + (window.top, window.left)
                raise ValueError(f"the checksum of row {row}, column {column} is wrong")
        except UNREADABLE as failure:
            raise self._unreadable(failure) from None
        return Before(parts, self.card.layout, counts)

    def close(self) -> None:
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def _unreadable(self, failure: Exception) -> ArtifactError:
        return ArtifactError("the state cannot be used", path=self.path, why=str(failure), remedy=REMEDY)


class SeasonWriter:
    """A state in the making; takes windows in any order."""

    def __init__(self, partial: Path, card: SeasonCard) -> None:
        self._card = card
        self._waiting = 0  # bytes that the system may not have brought to the disk
        offsets = _lay_out(partial, card)
        self._disk: BinaryIO = partial.open("r+b", buffering=0)
        self._arrays = _arrays(self._disk.fileno(), offsets, card)

    def write(self, window: Window, counts: NDArray[np.uint16], parts: Parts) -> None:
        parts = [np.ascontiguousarray(part, dtype=np.float32) for part in parts]
        checks = checks_of(window, self._card.grid.width, counts, parts)
        given: list[NDArray[Any]] = [counts, checks, *parts]
        for array, values in zip(self._arrays.values(), given, strict=True):
            array.write(window, values)
            self._waiting += values.nbytes
        if self._waiting > FLUSH_BYTES:  # while others compute, so that little is left for the end
            os.fsync(self._disk.fileno())
            self._waiting = 0

    def close(self) -> None:
        self._disk.close()


@contextmanager
def writing_season(path: Path, card: SeasonCard) -> Iterator[SeasonWriter]:
    """A state that takes its name when the block ends well."""
    with atomic_path(path) as partial:
        writer = SeasonWriter(partial, card)
        try:
            yield writer
        finally:
            writer.close()


def _lay_out(partial: Path, card: SeasonCard) -> dict[str, int]:
    """Make a file with the card and places for the arrays, which are holes for now; where those are."""
    text = np.frombuffer(card.dumps().encode("utf-8"), dtype=np.uint8)
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_layout(h5py.h5d.CONTIGUOUS)
    how.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    how.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    how.set_obj_track_times(False)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    offsets = {}
    with _PatientFile(partial, "w+") as disk:
        with h5py.File(disk, "w", libver=("v110", "v110")) as file:
            file.attrs["format"] = FORMAT
            file.create_dataset(CARD, data=text, chunks=text.shape, fletcher32=True)
            for name, (shape, kind) in kinds(card).items():
                space, stored = h5py.h5s.create_simple(shape), h5py.h5t.py_create(kind, logical=True)
                offsets[name] = h5py.h5d.create(file.id, name.encode(), stored, space, how, links).get_offset()
        if disk.failure is not None:
            raise disk.failure
    return offsets


def _offsets(file: h5py.File, card: SeasonCard, size: int) -> dict[str, int]:
    """Where the arrays are; those of other shapes, or that reach beyond the file's end, are no work of ours."""
    offsets = {}
    for name, (shape, kind) in kinds(card).items():
        dataset = file[name]
        offset = dataset.id.get_offset()
        if dataset.shape != shape or dataset.dtype != kind or offset is None or dataset.external:
            raise ValueError(f"{name} has the shape {dataset.shape} where {shape} is said")
        if offset + kind.itemsize * math.prod(shape) > size:
            raise ValueError("it is cut off")
        offsets[name] = offset
    return offsets


def _arrays(descriptor: int, offsets: Mapping[str, int], card: SeasonCard) -> dict[str, _Rows]:
    return {name: _Rows(descriptor, offsets[name], *kind) for name, kind in kinds(card).items()}


class _PatientFile(io.FileIO):
    """A file that keeps a full disk to itself: HDF5 crashes when told of it. The failure is raised afterwards."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        written = 0
        while self.failure is None and written < len(view):
            try:
                written += super().write(view[written:]) or 0
            except OSError as failure:
                self.failure = failure
        if written < len(view):  # as if it had been
            self.seek(len(view) - written, io.SEEK_CUR)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        if self.failure is None:
            try:
                return super().truncate(size)
            except OSError as failure:
                self.failure = failure
        return size or 0
