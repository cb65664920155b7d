"""The state of a season: its file, and `cropstar update`, which adds later images to it.

    card                JSON: model, fingerprint, grid, dates, and how the images were read
    valid_dates (H, W)  on how many dates each pixel was seen
    checks (H, W)       a checksum of each pixel
    state/LAYER/PART    float32 or float16 (H, W, channels)

The file is HDF5. Arrays lie in one piece each. HDF5 says where; rows of windows are then read and written at their
places, straight from and to the arrays, since an update is little else. Any window can be checked, for every pixel has
a checksum of its own. The file is replaced as a whole: whatever fails, the one before stays.
"""

from __future__ import annotations

import io
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError, MismatchError, UsageError
from cropstar.execution.local import default_workers
from cropstar.execution.threads import AHEAD, WriteBehind, read_ahead
from cropstar.geo.grid import Grid
from cropstar.geo.raster import GDAL_ERRORS, bound_gdal, open_raster
from cropstar.geo.resampling import grid_difference
from cropstar.geo.windows import Window, split
from cropstar.inputs import MAXIMUM_HEADER_BYTES
from cropstar.prediction.area import MapArea, open_area
from cropstar.prediction.blocks import (
    BlockResult,
    block_side,
    disk_needs,
    make_block,
    require_disk_space,
    require_marks,
)
from cropstar.prediction.outputs import DATES, MapResult, MapWriter, provenance_tags
from cropstar.prediction.parcels import require_parcels, require_pixel_model
from cropstar.prediction.predictor import (
    READ,
    Answer,
    EarlierState,
    Predictor,
    StateArrays,
    StateLayout,
    WindowResult,
    advance,
    half_parts,
    layout_of,
    plan_windows,
    release_free_memory,
    require_streaming,
    state_bytes,
)
from cropstar.prediction.request import PRODUCT_FILES, MapFiles, MapInput, MapOptions, UpdateRequest
from cropstar.prediction.trust import judge_trust
from cropstar.reports.contents import crs_name
from cropstar.runtime import choose_device, event, keep_large_buffers, progress_bar
from cropstar.signals import hold_signals
from cropstar.sources.base import Bands, Observations, Series, closed_on_failure
from cropstar.sources.multisensor import sensor_numbers
from cropstar.store.files import atomic_path, locked, require_own_folder, target_lock
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import StateRow, checked, inside, open_hdf5, parse_json
from cropstar.store.reader import UNREADABLE

WINDOWS_WRITTEN = AHEAD + 2  # at a time: computed, waiting and being written
FORMAT = 2  # raised when older readers would misread a newer file
HALF_FORMAT = 3  # of files with parts in float16
CARD, VALID_DATES, CHECKS, STATE = "card", "valid_dates", "checks", "state"
REMEDY = "make it again with 'cropstar predict --state'"
FLUSH_BYTES = 2**27
PLACE, COUNT = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F  # odd, or a changed bit could vanish
KIND = "season"


@dataclass(frozen=True)
class SeasonCard:
    """The metadata of a state file."""

    model: str  # digest
    model_path: Path
    fingerprint: Fingerprint
    grid: Grid
    dates: tuple[date, ...]
    layout: StateLayout
    spatial: bool  # whether the model reads images
    map: Path  # made with it
    scale: float = 1.0  # of the last images; each image brings its own
    offset: float = 0.0
    reading: dict[str, Any] = field(default_factory=dict)  # how the user wanted images to be read
    products: dict[str, Any] = field(default_factory=dict)  # what was made beside the map; empty in older files
    half: tuple[bool, ...] = ()  # which parts of the state are float16; empty: none

    @classmethod
    def of(
        cls, predictor: Predictor, series: Series, output: Path, options: MapOptions, half: tuple[bool, ...] = ()
    ) -> SeasonCard:
        """The metadata after a first prediction."""
        return cls(
            predictor.digest,
            predictor.path.resolve(),
            predictor.card.fingerprint,
            series.grid,
            series.dates,
            layout_of(predictor.model, predictor.card.fingerprint.channels),
            predictor.model.spatial,
            output.resolve(),
            series.scale,
            series.offset,
            {"clear": list(options.reading["clear"])} if "clear" in options.reading else {},
            options.products(),
            half,
        )

    def dumps(self) -> str:
        facts = {
            "kind": KIND,
            "model": self.model,
            "model_path": str(self.model_path),
            "fingerprint": self.fingerprint.to_json(),
            "grid": self.grid.to_json(),
            "dates": [day.isoformat() for day in self.dates],
            "layout": self.layout,
            "spatial": self.spatial,
            "map": str(self.map),
            "scale": self.scale,
            "offset": self.offset,
            "given": self.reading,
            **({"products": self.products} if self.products else {}),
            **({"half": self.half} if self.half else {}),
        }
        return json.dumps(facts, sort_keys=True, ensure_ascii=False)

    @classmethod
    def loads(cls, text: str, path: Path) -> SeasonCard:
        row = checked(StateRow, parse_json(text))
        return cls(
            row.model,
            Path(row.model_path),
            Fingerprint.from_json(row.fingerprint, path),
            Grid.from_json(row.grid.model_dump()),
            tuple(map(date.fromisoformat, row.dates)),
            tuple(map(tuple, row.layout)),
            row.spatial,
            Path(row.map),
            row.scale,
            row.offset,
            {} if row.given.clear is None else {"clear": tuple(row.given.clear)},
            row.products,
            tuple(row.half),
        )


def season_facts(path: Path) -> dict[str, Any]:
    """Model, dates, grid and size of a state whose layout was checked."""
    reader = SeasonReader(path)
    reader.close()
    card = reader.card
    fingerprint = card.fingerprint.to_json()
    return {
        "kind": "season",
        "path": str(path),
        "bytes": path.stat().st_size,
        "model": card.model,
        "model_path": str(card.model_path),
        "model_is_there": card.model_path.is_file(),
        "map": str(card.map),
        "dates": [day.isoformat() for day in card.dates],
        "shape": list(card.grid.shape),
        "crs": crs_name(card.grid.crs),
        "bounds": list(card.grid.bounds),
        "spatial": card.spatial,
        "layers": [list(layer) for layer in card.layout],
        "bytes_per_pixel": state_bytes(card.layout, card.half),
        "precision": "float16" if card.half else "float32",
        "given": card.reading,
        **{name: fingerprint[name] for name in ("bands", "resolution", "season", "classes")},
        "scale": card.scale,
        "offset": card.offset,
    }


def _kinds(card: SeasonCard) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of every array."""
    shape = card.grid.shape
    places = [(layer, part, count) for layer, parts in enumerate(card.layout) for part, count in enumerate(parts)]
    parts = {
        f"{STATE}/{layer}/{part}": ((*shape, channels), np.dtype("<f2" if short else "<f4"))
        for (layer, part, channels), short in zip(places, card.half or (False,) * len(places), strict=True)
    }
    return {VALID_DATES: (shape, np.dtype("<u2")), CHECKS: (shape, np.dtype("<u8")), **parts}


def pixel_checks(window: Window, width: int, counts: NDArray[np.uint16], parts: StateArrays) -> NDArray[np.uint64]:
    """A number per pixel, which changes with every byte of it and with its place: sums, modulo 2 to the power of 64."""
    rows = np.arange(window.top, window.top + window.height, dtype=np.uint64)[:, None]
    columns = np.arange(window.left, window.left + window.width, dtype=np.uint64)
    checks: NDArray[np.uint64] = (rows * np.uint64(width) + columns) * np.uint64(PLACE)
    checks += counts.astype(np.uint64) * np.uint64(COUNT)
    for number, part in enumerate(parts):
        if part.shape[2] * part.itemsize % 8:
            total = part.view(f"u{part.itemsize}").sum(axis=2, dtype=np.uint64)
        else:  # rows as short as these three times as fast as by sum
            total = np.einsum("ijk->ij", part.view(np.uint64))
        checks += total * np.uint64(2 * number + 1)
    return checks


class _ArrayOnDisk:
    """An array in one piece, somewhere in an open file."""

    def __init__(self, descriptor: int, offset: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        self._descriptor, self._offset, self._kind = descriptor, offset, kind
        self._width, self._channels = shape[1], shape[2:]
        self._pixel = kind.itemsize * math.prod(self._channels)

    def read(self, window: Window) -> NDArray[Any]:
        arrays = np.empty((window.height, window.width, *self._channels), dtype=self._kind)
        for place, row in self._places(window, arrays):
            if os.preadv(self._descriptor, [row], place) != len(row):
                raise ValueError("it is cut off")
        return arrays

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
            with open_hdf5(path) as file:
                if int(file.attrs["format"]) not in (FORMAT, HALF_FORMAT):
                    raise ValueError("another version wrote it, in another format")
                card = file[CARD]
                if (
                    not isinstance(card, h5py.Dataset)
                    or card.dtype != np.uint8
                    or card.ndim != 1
                    or card.size > MAXIMUM_HEADER_BYTES
                ):
                    raise ValueError("its card is not text")
                self.card = SeasonCard.loads(card[()].tobytes().decode("utf-8"), path)
                offsets = _offsets(file, self.card, path.stat().st_size)
            self._disk = path.open("rb", buffering=0)
        except UNREADABLE as failure:
            raise self._unreadable(failure) from None
        self._arrays = _arrays(self._disk.fileno(), offsets, self.card)

    def read(self, window: Window) -> EarlierState:
        """The state of a window."""
        try:
            arrays = {name: array.read(window) for name, array in self._arrays.items()}
            counts, checks = arrays.pop(VALID_DATES), arrays.pop(CHECKS)
            parts: StateArrays = list(arrays.values())
            wrong = np.argwhere(pixel_checks(window, self.card.grid.width, counts, parts) != checks)
            if len(wrong):
                row, column = wrong[0] + (window.top, window.left)
                raise ValueError(f"the checksum of row {row}, column {column} is wrong")
        except UNREADABLE as failure:
            raise self._unreadable(failure) from None
        return EarlierState(parts, self.card.layout, counts)

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

    def write(self, window: Window, counts: NDArray[np.uint16], parts: StateArrays) -> None:
        parts = [np.ascontiguousarray(part) for part in parts]
        checks = pixel_checks(window, self._card.grid.width, counts, parts)
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
    # HDF5 calls back into this file; a signal raised there left it open, to be written to when it was gone.
    with hold_signals(), _ErrorDeferringFile(partial, "w+") as disk:
        with h5py.File(disk, "w", libver=("v110", "v110")) as file:
            file.attrs["format"] = HALF_FORMAT if card.half else FORMAT
            file.create_dataset(CARD, data=text, chunks=text.shape, fletcher32=True)
            for name, (shape, kind) in _kinds(card).items():
                space, stored = h5py.h5s.create_simple(shape), h5py.h5t.py_create(kind, logical=True)
                offsets[name] = h5py.h5d.create(file.id, name.encode(), stored, space, how, links).get_offset()
        if disk.failure is not None:
            raise disk.failure
    return offsets


def _offsets(file: h5py.File, card: SeasonCard, size: int) -> dict[str, int]:
    """Where the arrays are; those of other shapes, or that reach beyond the file's end, are no work of ours."""
    offsets = {}
    for name, (shape, kind) in _kinds(card).items():
        dataset = file[name]
        if not isinstance(dataset, h5py.Dataset) or dataset.shape != shape or dataset.dtype != kind:
            raise ValueError(f"{name} has the shape {getattr(dataset, 'shape', None)} instead of {shape}")
        if (offset := dataset.id.get_offset()) is None:
            raise ValueError(f"{name} does not lie in one piece")
        if offset + kind.itemsize * math.prod(shape) > size:
            raise ValueError("it is cut off")
        offsets[name] = offset
    return offsets


def _arrays(descriptor: int, offsets: Mapping[str, int], card: SeasonCard) -> dict[str, _ArrayOnDisk]:
    return {name: _ArrayOnDisk(descriptor, offsets[name], *kind) for name, kind in _kinds(card).items()}


class _ErrorDeferringFile(io.FileIO):
    """A file that defers write errors: HDF5 crashes on a full disk. The error is raised afterwards."""

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


# --- `cropstar update`: later images into the state, and the map that a full run would give
#
# The new state is written beside the old one while the windows are computed; then the map is put together, and last the
# state takes its name. Whatever fails before, the old state is as it was. A map that is there already when the state
# did not get its name is the one that the same command makes again.

# A state is read and written beside the computing, which takes several windows. Wide ones lie in long pieces, which a
# file system takes in half the time. What margins cost grows as images get smaller.
SERIES_AT_ONCE = 128 * 128
WIDEST_SERIES, WIDEST_IMAGE, LONGEST_IMAGE = 1024, 512, 256


def update(state: Path, inputs: Sequence[MapInput], request: UpdateRequest) -> MapResult:
    """Add later images to the state; both the state and the map are replaced."""
    keep_large_buffers()
    bound_gdal(threads=default_workers())
    if not state.is_file():
        raise InputError("no such state", path=state, remedy=REMEDY)
    work = state.with_name(f".{state.name}.update")
    require_own_folder(work)
    with target_lock(state, "the state"), locked(work, "the state"), ExitStack() as stack:
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        reader = SeasonReader(state)
        stack.callback(reader.close)
        request = _with_products(request, reader)
        predictor = _load_predictor(reader, request)
        require_pixel_model(predictor.card, request.parcels)
        files = MapFiles(request.output or _map_of_state(state, reader.card), request)
        replace(files, state=state).require_apart([*(each.path for each in inputs), *request.files_read])
        if request.parcels is not None:
            require_parcels(request.parcels, files.parcels, request.declared_column)
        place = files.map.parent
        series = open_later(inputs, reader.card, predictor, request.reading, any_dates=request.any_dates, scratch=place)
        stack.callback(series.close)
        dates = (*reader.card.dates, *series.dates)
        stack.enter_context(target_lock(files.map, "the output"))
        own = request.output is None and _is_of_season(files.map, reader.card, dates)
        files.require_new(overwrite=request.overwrite or own)
        require_marks(request, predictor)
        predictor.use_stage_of(dates)
        area = stack.enter_context(open_area(request, reader.card.grid))
        return _Update(reader, series, files, predictor, request, work, area).run()


def _with_products(request: UpdateRequest, reader: SeasonReader) -> UpdateRequest:
    """The request with all products of the season's first map, so that each of them is updated."""
    try:
        request = request.with_products(reader.card.products)
    except (UsageError, ValueError, TypeError) as failure:
        raise ArtifactError("the state cannot be used", path=reader.path, why=str(failure), remedy=REMEDY) from None
    for name in PRODUCT_FILES:
        path = getattr(request, name)
        if path is not None and name in reader.card.products and not path.exists():
            why = f"the map of the state was made with {path}, which is gone"
            raise InputError(f"no --{name}", path=reader.path, why=why, remedy=f"give --{name}")
    request.require_area()
    return request


def _map_of_state(state: Path, card: SeasonCard) -> Path:
    """The map that was made with the state. It must be in the same folder: a file may not name another place."""
    try:
        return inside(state.parent, card.map)
    except ValueError:
        why = f"the state was made with '{card.map}', which is not beside it"
        raise UsageError("cannot tell which map to update", path=state, why=why, remedy="name it with -o") from None


def _load_predictor(reader: SeasonReader, request: UpdateRequest) -> Predictor:
    path = request.model or reader.card.model_path
    if request.model is None and not path.is_file():
        raise ArtifactError(
            "the model of the state is missing",
            path=path,
            why=f"{reader.path} was made with it",
            remedy="give --model",
        )
    predictor = Predictor(path, choose_device(request.device), backend=request.backend, unknown=request.unknown)
    if predictor.digest != reader.card.model:
        why = f"the state is of model {reader.card.model[:12]}, this is {predictor.digest[:12]}"
        raise MismatchError("not the model of the state", path=path, why=why, remedy="give the one that made the state")
    require_streaming(predictor, "update")
    if reader.card.fingerprint != predictor.card.fingerprint:
        why = "its bands or classes are not those of its model"
        raise ArtifactError("the state cannot be used", path=reader.path, why=why, remedy=REMEDY)
    if layout_of(predictor.model, predictor.card.fingerprint.channels) != reader.card.layout:
        why = "it does not have the hidden state of the model"
        raise ArtifactError("the state cannot be used", path=reader.path, why=why, remedy=REMEDY)
    return predictor


def _is_of_season(path: Path, card: SeasonCard, dates: Sequence[Any]) -> bool:
    """Whether a map was made with this state, or by this very update before it was killed."""
    try:
        with open_raster(path) as dataset:
            tags = dataset.tags()
    except (InputError, *GDAL_ERRORS):
        return False
    known = [" ".join(day.isoformat() for day in some) for some in (card.dates, dates)]
    return bool(tags.get("CROPSTAR_MODEL") == card.model and tags.get(DATES) in known)


@dataclass(frozen=True)
class _Update:
    reader: SeasonReader
    series: LaterSeries
    files: MapFiles
    predictor: Predictor
    request: UpdateRequest
    work: Path
    area: MapArea

    def run(self) -> MapResult:
        old, series, predictor = self.reader.card, self.series, self.predictor
        half = old.half
        if self.request.state_precision is not None:
            half = half_parts(predictor.model, old.fingerprint.channels, self.request.state_precision)
        beside = state_bytes(old.layout, old.half) * READ + state_bytes(old.layout, half) * WINDOWS_WRITTEN
        plan = plan_windows(
            predictor, series, self.request.memory, self.request.window, block_side(series), beside=beside
        )
        side, across = (plan.window, plan.window) if self.request.window else self._sides(plan.window)
        # All of such a window at once: what comes out of the model is then written as it is.
        predictor.series_at_once = max(plan.series_at_once, SERIES_AT_ONCE)
        windows = list(split(old.grid.shape, side, across))
        card = replace(
            old,
            model_path=predictor.path.resolve(),
            dates=(*old.dates, *series.dates),
            products=self.request.products(),
            map=self.files.map.resolve(),
            scale=series.scale,
            offset=series.offset,
            half=half,
        )
        event(
            f"{self.reader.path}: {len(old.dates)} dates until {old.dates[-1]}, and now "
            f"{', '.join(day.isoformat() for day in series.dates)}; {len(windows)} windows of {across} x {side} "
            f"pixels, margin of {predictor.halo(series)} pixels",
            window=side,
            dates=len(card.dates),
        )
        trust = judge_trust(predictor.card, predictor.path, card.dates, series, self.request)
        trust.announce()
        classes = len(old.fingerprint.classes)
        require_disk_space(
            disk_needs(
                *(self.files, old.grid, classes), layout=old.layout, half=half, state=self.reader.path, in_blocks=False
            )
        )
        with writing_season(self.reader.path, card) as writer:
            map_writer = MapWriter(
                self.files,
                old.grid,
                old.fingerprint.classes,
                provenance_tags(predictor, card.dates),
                title=f"Crops, {card.dates[0]} to {card.dates[-1]}",
                work=self.work,
                trust=trust,
                model=predictor.path,
            )
            written = map_writer.write(self._blocks(windows, writer, half))
        return MapResult.of(self.files, written, classes)

    def _sides(self, largest: int) -> tuple[int, int]:
        """Height and width of windows, no more pixels than a square of the `largest` side has."""
        if self.predictor.model.spatial:
            return min(largest, LONGEST_IMAGE), min(largest, WIDEST_IMAGE)
        pixels = min(largest**2, SERIES_AT_ONCE)
        across = min(self.series.grid.width, WIDEST_SERIES, pixels)
        return pixels // across, across

    def _blocks(self, windows: Sequence[Window], writer: SeasonWriter, half: Sequence[bool]) -> Iterator[BlockResult]:
        """Each window one step further; its state goes into the new file. At the end all of that is written."""
        total = self.series.grid.height * self.series.grid.width
        started = time.monotonic()

        def write(made: tuple[Window, WindowResult]) -> None:
            window, result = made
            writer.write(window, result.counts, result.state)

        with (
            progress_bar(total, "update", "px", scale=True) as bar,
            WriteBehind(write) as behind,
            read_ahead(windows, self._read) as ready,
        ):
            for window, (observations, earlier) in ready:
                result = advance(self.predictor, self.series, window, observations, earlier=earlier, half=half)
                del observations, earlier
                behind.put((window, result))
                answer = Answer(result.probabilities, result.unknown, result.seen)
                yield make_block(self.request, window, answer, result.counts, self.area.inside(window))
                del answer
                del result
                if len(self.series.dates) > 1:  # else windows are of one size all the time, and leave no holes
                    release_free_memory()
                bar.update(window.height * window.width)
        seconds = time.monotonic() - started
        event(f"{total:,} pixels in {seconds:.1f} s: {total / seconds:,.0f} px/s", pixels=total, seconds=seconds)

    def _read(self, window: Window) -> tuple[Observations, EarlierState]:
        outer = window.expand(self.predictor.halo(self.series), self.series.grid.shape)
        return self.predictor.read(self.series, window), self.reader.read(outer)


class LaterSeries:
    """Images of later dates as one series, in the order of their dates; the bands are those of the model."""

    def __init__(self, pieces: Sequence[Series], bands: Bands) -> None:
        self._pieces = pieces
        owners = np.concatenate([sensor_numbers(piece) for piece in pieces])
        self._order = np.lexsort((owners, np.array([day.toordinal() for piece in pieces for day in piece.dates])))
        days = [day for piece in pieces for day in piece.dates]
        self.name, self.grid = pieces[0].name, pieces[0].grid
        self.dates: tuple[date, ...] = tuple(days[place] for place in self._order)
        self.bands = bands
        self.scale, self.offset = pieces[0].scale, pieces[0].offset
        self.provenance: dict[str, Any] = pieces[0].provenance
        self.files: list[Path] = [path for piece in pieces for path in piece.files]
        self.owners: NDArray[np.int8] = owners[self._order]

    def read(self, window: Window) -> Observations:
        read = [piece.read(window) for piece in self._pieces]
        chosen = [[piece.bands.index(band) for band in self.bands] for piece in self._pieces]
        values = np.concatenate([one.values[:, some] for one, some in zip(read, chosen, strict=True)])
        return Observations(values[self._order], np.concatenate([one.valid for one in read])[self._order])

    def close(self) -> None:
        for piece in self._pieces:
            piece.close()


def open_later(
    inputs: Sequence[MapInput],
    card: SeasonCard,
    predictor: Predictor,
    reading: Mapping[str, Any],
    *,
    any_dates: bool,
    scratch: Path,
) -> LaterSeries:
    """Images that go on where a state ends; anything else is refused before any compute."""
    bands, learnt = predictor.card.fingerprint.bands, predictor.card.provenance.get("reading", {})
    pieces: list[Series] = []
    with closed_on_failure(pieces):
        for each in inputs:
            remembered = card.reading if each.scene is None else {}
            # Of several sensors some are coarser than the grid.
            grid = card.grid if predictor.card.fingerprint.sensors else None
            series = each.open(bands, learnt, {**remembered, **reading}, scratch=scratch, grid=grid)
            pieces.append(series)
            series = pieces[-1] = predictor.read_by_model(series, each.path, alone=True)
            predictor.require_fits(series, each.path, any_dates=any_dates)
            _require_later(series, each.path, card)
            if (series.scale, series.offset) != (pieces[0].scale, pieces[0].offset):
                why = f"scale and offset of {inputs[0].path} are others"
                raise MismatchError(
                    "images of different scales", path=each.path, why=why, remedy="update with one at a time"
                )
        later = LaterSeries(pieces, bands)
        events = list(zip(later.dates, later.owners.tolist(), strict=True))
        twice = [day for (day, owner), following in pairwise(events) if (day, owner) == following]
        if twice:
            raise MismatchError("two images of the same date", why=str(twice[0]), remedy="give each date once")
    return later


def _require_later(series: Series, path: Path, card: SeasonCard) -> None:
    if series.grid != card.grid and (difference := grid_difference(series.grid, card.grid)):
        why = f"{difference} as the state has"
        raise MismatchError("not the grid of the state", path=path, why=why, remedy="give images of the same grid")
    if series.dates[0] <= card.dates[-1]:
        why = f"{series.dates[0]} is not after {card.dates[-1]}, the last date of the state"
        raise MismatchError("not a later date", path=path, why=why, remedy="give only later images")
