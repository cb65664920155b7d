"""The state of a season on the disk: one HDF5 file with the hidden state of a whole raster after its last date.

    card                JSON: model, fingerprint, grid, dates, and how the images were read
    valid_dates (H, W)  on how many dates each pixel was seen
    state/LAYER/PART    float32 (H, W, channels)

Every chunk has a checksum. The file is replaced as a whole: whatever fails, the one before stays.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  (files of earlier versions are compressed)
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window
from cropstar.limits import MAXIMUM_HEADER_BYTES
from cropstar.prediction.season import Before, Layout, Parts
from cropstar.store.atomic import atomic_path
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.reader import UNREADABLE

FORMAT = 1  # raised when older readers would misread a newer file
KIND = "season"
CARD, VALID_DATES, STATE = "card", "valid_dates", "state"
LARGEST_CHUNK, SMALLEST_CHUNK = 32, 8  # pixels a side: small ones, for margins are read with every window
REMEDY = "make it anew with 'cropstar predict --state'"


def filters() -> dict[str, Any]:
    """A checksum, since nothing else would notice a changed byte.

    No compression: hidden states hardly get smaller (0.94), and at its fastest it took a third of the time of writing.
    """
    return {"fletcher32": True}


@dataclass(frozen=True)
class SeasonCard:
    """What a state says of itself."""

    model: str  # digest
    model_path: Path
    fingerprint: Fingerprint
    grid: Grid
    dates: tuple[date, ...]
    layout: Layout
    spatial: bool  # whether the model reads images
    chunk: int  # pixels a side
    map: Path  # made with it
    scale: float = 1.0  # of the last images; each image brings its own
    offset: float = 0.0
    given: dict[str, Any] = field(default_factory=dict)  # how the user wanted images to be read

    def dumps(self) -> str:
        said = {
            "kind": KIND,
            "model": self.model,
            "model_path": str(self.model_path),
            "fingerprint": self.fingerprint.to_json(),
            "grid": self.grid.to_json(),
            "dates": [day.isoformat() for day in self.dates],
            "layout": self.layout,
            "spatial": self.spatial,
            "chunk": self.chunk,
            "map": str(self.map),
            "scale": self.scale,
            "offset": self.offset,
            "given": self.given,
        }
        return json.dumps(said, sort_keys=True, ensure_ascii=False)

    @classmethod
    def loads(cls, text: str, path: Path) -> SeasonCard:
        said = json.loads(text)
        if said["kind"] != KIND:
            raise ValueError("it is no state of a season")
        dates = tuple(date.fromisoformat(day) for day in said["dates"])
        if not dates or list(dates) != sorted(set(dates)):
            raise ValueError("its dates are not in order")
        return cls(
            str(said["model"]),
            Path(said["model_path"]),
            Fingerprint.from_json(said["fingerprint"], path),
            Grid.from_json(said["grid"]),
            dates,
            tuple(tuple(int(channels) for channels in layer) for layer in said["layout"]),
            bool(said["spatial"]),
            int(said["chunk"]),
            Path(said["map"]),
            float(said["scale"]),
            float(said["offset"]),
            {"clear": tuple(int(number) for number in said["given"]["clear"])} if "clear" in said["given"] else {},
        )

    @property
    def names(self) -> list[str]:
        return [f"{STATE}/{layer}/{part}" for layer, parts in enumerate(self.layout) for part in range(len(parts))]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every dataset."""
        channels = [count for layer in self.layout for count in layer]
        parts = {name: (*self.grid.shape, count) for name, count in zip(self.names, channels, strict=True)}
        return {VALID_DATES: self.grid.shape, **parts}

    def chunks(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        side = (min(self.chunk, self.grid.height), min(self.chunk, self.grid.width))
        return (*side, *shape[2:])


def chunk_side(window: int) -> int:
    """A side that windows consist of, so that no chunk is written twice."""
    fitting = (side for side in range(LARGEST_CHUNK, SMALLEST_CHUNK - 1, -1) if window % side == 0)
    return next(fitting, LARGEST_CHUNK)


def state_bytes(layout: Layout) -> int:
    """Of a pixel."""
    return 4 * sum(channels for layer in layout for channels in layer)


class SeasonReader:
    """An open state."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise InputError("no such state", path=path, remedy=REMEDY)
        self.path = path
        self._file: h5py.File | None = None
        try:
            self._file = h5py.File(path, "r", rdcc_nbytes=0)
            if int(self._file.attrs["format"]) > FORMAT:
                raise ValueError("it is of a newer format")
            card = self._file[CARD]
            if card.dtype != np.uint8 or card.ndim != 1 or card.size > MAXIMUM_HEADER_BYTES:
                raise ValueError("its card is no text")
            self.card = SeasonCard.loads(card[()].tobytes().decode("utf-8"), path)
            self._require_layout()
        except UNREADABLE as failure:
            self.close()
            raise self._unreadable(failure) from None

    def read(self, window: Window) -> Before:
        """All that is known of a window."""
        assert self._file is not None
        try:
            parts: Parts = [self._file[name][window.slices] for name in self.card.names]
            counts: NDArray[np.uint16] = self._file[VALID_DATES][window.slices]
        except UNREADABLE as failure:
            raise self._unreadable(failure) from None
        return Before(parts, self.card.layout, counts)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _require_layout(self) -> None:
        """Arrays of other shapes, or chunks of a size that fills the memory, are no work of ours."""
        assert self._file is not None
        for name, shape in self.card.shapes().items():
            dataset = self._file[name]
            kind = np.uint16 if name == VALID_DATES else np.float32
            if dataset.shape != shape or dataset.dtype != kind or dataset.chunks != self.card.chunks(shape):
                raise ValueError(f"{name} has the shape {dataset.shape} where {shape} is said")
            if self.card.chunk > LARGEST_CHUNK:
                raise ValueError(f"chunks of {self.card.chunk} pixels")

    def _unreadable(self, failure: Exception) -> ArtifactError:
        return ArtifactError("the state cannot be used", path=self.path, why=str(failure), remedy=REMEDY)


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


class SeasonWriter:
    """A state in the making; takes windows in any order."""

    def __init__(self, partial: Path, card: SeasonCard) -> None:
        self._disk = _PatientFile(partial, "w+")
        self._card = card
        self._file: h5py.File | None = h5py.File(self._disk, "w", libver=("v110", "v110"))
        self._file.attrs["format"] = FORMAT
        text = np.frombuffer(card.dumps().encode("utf-8"), dtype=np.uint8)
        self._file.create_dataset(CARD, data=text, chunks=text.shape, fletcher32=True)
        for name, shape in card.shapes().items():
            kind = "u2" if name == VALID_DATES else "f4"
            self._file.create_dataset(name, shape, kind, chunks=card.chunks(shape), **filters())

    def write(self, window: Window, counts: NDArray[np.uint16], parts: Parts) -> None:
        assert self._file is not None
        try:
            self._file[VALID_DATES][window.slices] = counts
            for name, part in zip(self._card.names, parts, strict=True):
                self._file[name][window.slices] = part
        finally:
            self._raise()

    def finish(self) -> None:
        """Bring everything into the file, or say that it could not be."""
        file, self._file = self._file, None
        try:
            if file is not None:
                file.close()
        finally:
            try:
                self._raise()
            finally:
                self._disk.close()

    def _raise(self) -> None:
        if self._disk.failure is not None:
            raise self._disk.failure


@contextmanager
def writing_season(path: Path, card: SeasonCard) -> Iterator[SeasonWriter]:
    """A state that takes its name when the block ends well; whoever writes calls `finish` before relying on it."""
    with atomic_path(path) as partial:
        writer = SeasonWriter(partial, card)
        try:
            yield writer
        except BaseException:
            with suppress(Exception):
                writer.finish()  # closes; the file goes with the name that it never got
            raise
        writer.finish()
