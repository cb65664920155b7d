"""Finished blocks of a map, kept as files in a work folder until the map is assembled.

    .<map>.<key>.blocks/
      00000256-00000512.npz    the block whose upper left pixel is in row 256, column 512
      00000256-00000512.state  the hidden state there, where it is asked for
      assembling               the map is being put together: what lies at its place is ours to replace

The key is made of the model, the input and the options: blocks of another model are never found. A block on the disk
is what a killed prediction goes on from, and what shards hand to the one that assembles. Every array has a checksum
(that of zip) and must be of the kind and shape that the job has: one that is not is computed again.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar import __version__
from cropstar.errors import ArtifactError, ResourceError, UsageError, machine_error
from cropstar.geo.grid import Grid
from cropstar.geo.raster import open_raster
from cropstar.geo.windows import Window
from cropstar.inputs import is_geotiff
from cropstar.prediction.layers import BY_DATE, EARLIEST, LAYERS, PROBABILITIES, PixelResults, compute_layers, likeliest
from cropstar.prediction.predictor import (
    Answer,
    Predictor,
    StateArrays,
    StateLayout,
    WindowPlan,
    WindowResult,
    state_bytes,
)
from cropstar.prediction.request import MapFiles, MapOptions, MapRequest
from cropstar.runtime import logger
from cropstar.sources.base import Series
from cropstar.sources.multisensor import sensor_numbers
from cropstar.store.classes import MASKED, UNKNOWN
from cropstar.store.files import atomic_path, flush_to_disk, locked, require_own_folder

BLOCKS = ".blocks"
ASSEMBLING = "assembling"
CLASSES = "classes"
LAYER = "layer:"
COUNTS = "counts"
UNREADABLE = (
    *(OSError, ValueError, KeyError, EOFError, RuntimeError, NotImplementedError, struct.error),
    *(zipfile.BadZipFile, zlib.error),
)
Kinds = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]  # shape and type of arrays by name
BlockLayers = Mapping[str, tuple[int, np.dtype[Any]]]  # bands and type of a block's layers by name
REMEDY = "run the same command again: it computes the block again"
READ_AT_ONCE = 2**20


@dataclass(frozen=True)
class BlockResult:
    """The classes and layers of one window of a map."""

    window: Window  # on the map's grid
    classes: NDArray[np.uint8]  # (h, w), 255 where nothing was seen
    layers: dict[str, NDArray[Any]] = field(default_factory=dict)  # (bands, h, w) each, by the layer's name

    @classmethod
    def of(
        cls,
        window: Window,
        probabilities: NDArray[np.float32],
        seen: NDArray[np.bool_],
        counts: NDArray[np.integer[Any]],
        layers: Sequence[str],
        *,
        unknown: NDArray[np.bool_] | None = None,
        inside: NDArray[np.bool_] | None = None,
    ) -> BlockResult:
        """The likeliest class of each pixel that was seen, and the layers that are asked for.

        `unknown` (h, w) has no class; what is not `inside` (h, w) is not mapped at all.
        """
        classes = likeliest(probabilities, seen)
        if unknown is not None:
            classes[unknown & seen] = UNKNOWN
        if inside is not None:
            classes[~inside] = MASKED
            seen = seen & inside
        return cls(window, classes, compute_layers(PixelResults(probabilities, classes, seen, counts), layers))


def block_layers(request: MapRequest, classes: int, dates: int) -> BlockLayers:
    """The layers that the blocks of a request hold, those of single dates among them."""
    layers = {
        name: (classes if name == PROBABILITIES else 1, np.dtype(LAYERS[name].dtype))
        for name in request.layers_of_blocks
    }
    if request.stable_confidence is not None:
        layers |= {BY_DATE: (dates, np.dtype(np.uint8)), EARLIEST: (1, np.dtype(np.uint16))}
    return layers


def make_block(
    options: MapOptions,
    window: Window,
    answer: Answer,
    counts: NDArray[np.integer[Any]],
    inside: NDArray[np.bool_] | None,
) -> BlockResult:
    """Make a block of the map from a model's results for one window."""
    unknown = answer.unknown
    if options.min_confidence is not None:
        doubtful = answer.probabilities.max(axis=0) < options.min_confidence
        unknown = doubtful if unknown is None else unknown | doubtful
    return BlockResult.of(
        window,
        answer.probabilities,
        answer.seen,
        counts,
        options.layers_of_blocks,
        unknown=unknown,
        inside=inside,
    )


def require_marks(options: MapOptions, predictor: Predictor) -> None:
    """Refuse marks of a map whose classes take all values of a byte."""
    classes = len(predictor.card.fingerprint.classes)
    if options.marks and classes > MASKED:
        why = f"its {classes} classes leave no value of a map for unknown and masked pixels"
        raise UsageError("a mask or --unknown with this model", path=predictor.path, why=why, remedy="leave them out")


class BlockFolder:
    """The finished blocks of one job."""

    def __init__(self, output: Path, key: str) -> None:
        self._output = output
        self.folder = output.with_name(f".{output.name}.{key}{BLOCKS}")

    def require_own(self) -> None:
        """Refuse a link that someone left in its place."""
        require_own_folder(self.folder)

    def path(self, window: Window) -> Path:
        return self.folder / f"{window.top:08d}-{window.left:08d}.npz"

    def state_path(self, window: Window) -> Path:
        return self.path(window).with_suffix(".state")

    def missing(self, windows: Sequence[Window]) -> list[Window]:
        """The windows without a finished block, in their order."""
        present = {path.name for path in self.folder.glob("*.npz")}
        return [window for window in windows if self.path(window).name not in present]

    def write(self, block: BlockResult, state: WindowResult | None = None) -> None:
        """The state first: where a block is, its state is too."""
        if state is not None:
            parts = {str(number): np.ascontiguousarray(part) for number, part in enumerate(state.state)}
            # Two workers of a cluster may come to the same block: each writes a file of its own.
            with atomic_path(self.state_path(block.window), flush=False) as partial, partial.open("wb") as handle:
                np.savez(handle, **{COUNTS: state.counts}, **parts)  # type: ignore[arg-type]  # of numpy's stubs
        arrays = {CLASSES: block.classes, **{LAYER + name: layer for name, layer in block.layers.items()}}
        arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        with atomic_path(self.path(block.window)) as partial, partial.open("wb") as handle:
            np.savez_compressed(handle, **arrays)  # type: ignore[arg-type]  # of numpy's stubs

    def read(self, windows: Sequence[Window], layers: BlockLayers) -> Iterator[BlockResult]:
        """The blocks one after the other; one that is damaged is removed, so that the next run makes it anew."""
        for window in windows:
            kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
                LAYER + name: ((bands, window.height, window.width), dtype) for name, (bands, dtype) in layers.items()
            }
            kinds[CLASSES] = ((window.height, window.width), np.dtype(np.uint8))
            arrays = self._arrays(self.path(window), kinds, window)
            classes = arrays.pop(CLASSES)
            yield BlockResult(window, classes, {name.removeprefix(LAYER): array for name, array in arrays.items()})

    def read_states(
        self, windows: Sequence[Window], layout: StateLayout, half: Sequence[bool] = ()
    ) -> Iterator[tuple[Window, NDArray[np.uint16], StateArrays]]:
        """Valid dates and states. One that is damaged goes with its block, so that the next run makes both anew."""
        channels = [count for layer in layout for count in layer]
        types = [np.dtype("<f2" if short else "<f4") for short in half or (False,) * len(channels)]
        for window in windows:
            shape = (window.height, window.width)
            kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
                str(number): ((*shape, count), kind)
                for number, (count, kind) in enumerate(zip(channels, types, strict=True))
            }
            kinds[COUNTS] = (shape, np.dtype(np.uint16))
            arrays = self._arrays(self.state_path(window), kinds, window)
            yield window, arrays[COUNTS], [arrays[str(number)] for number in range(len(channels))]

    def _arrays(self, path: Path, kinds: Kinds, window: Window) -> dict[str, NDArray[Any]]:
        try:
            return read_arrays(path, kinds)
        except UNREADABLE as failure:
            if (error := machine_error(failure, str(path))) is not None:
                raise error from None  # the block may well be good
            self.path(window).unlink(missing_ok=True)
            self.state_path(window).unlink(missing_ok=True)
            raise ArtifactError("a finished block is damaged", path=path, why=str(failure), remedy=REMEDY) from None

    @property
    def assembling(self) -> bool:
        return os.path.lexists(self.folder / ASSEMBLING)

    def begin_assembling(self) -> None:
        with suppress(FileExistsError):  # of an earlier run; or a link, which is not followed
            os.close(os.open(self.folder / ASSEMBLING, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        flush_to_disk(self.folder)  # before anything that is ours to replace

    def remove(self) -> None:
        """This folder, and what jobs of other models or options left for the same map, unless they still run."""
        for folder in folders_beside(self._output):
            if folder == self.folder:
                continue
            try:
                with locked(folder, "the prediction"):
                    shutil.rmtree(folder, ignore_errors=True)
            except ArtifactError:
                continue
        remove_last(self.folder, ASSEMBLING)


def remove_last(folder: Path, marker: str) -> None:
    """Remove a folder, its marker last, so that an interrupted removal can be recognised."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name != marker:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def read_arrays(path: Path, kinds: Kinds) -> dict[str, NDArray[Any]]:
    """Read exactly the expected arrays of an .npz file; nothing is allocated for others.

    Each is read to its end, where zip compares its checksum.
    """
    arrays: dict[str, NDArray[Any]] = {}
    with open(path, "rb", opener=_regular) as file, zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        if set(members) != set(kinds) or len(members) != len(archive.infolist()):
            raise ValueError(f"it holds {', '.join(sorted(members))[:200] or 'nothing'}")
        for name, (shape, kind) in kinds.items():
            size, header = kind.itemsize * math.prod(shape), _header(shape, kind)
            if members[name].file_size != len(header) + size:
                raise ValueError(f"{name} has {members[name].file_size:,} bytes where {size:,} are expected")
            with archive.open(members[name]) as member:
                if member.read(len(header)) != header:
                    raise ValueError(f"{name} is not {shape} of {kind}")
                arrays[name] = np.empty(shape, kind)
                content = arrays[name].reshape(-1).view(np.uint8).data
                for start in range(0, size, READ_AT_ONCE):
                    part = member.read(min(READ_AT_ONCE, size - start))
                    content[start : start + len(part)] = part
                    if len(part) < min(READ_AT_ONCE, size - start):
                        raise ValueError(f"{name} is cut off")
    return arrays


def _header(shape: tuple[int, ...], kind: np.dtype[Any]) -> bytes:
    """How an array begins in .npz: compared, not parsed, for that of a damaged file could be any Python."""
    header = io.BytesIO()
    content = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, content)
    return header.getvalue()


def _regular(path: str, flags: int) -> int:
    """A file that is neither a link nor a pipe."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a regular file")
    return handle


def folders_beside(output: Path) -> list[Path]:
    """The work folders of all jobs that have this output."""
    start = f".{output.name}."
    beside = output.parent.iterdir() if output.parent.is_dir() else ()
    return [path for path in beside if path.name.startswith(start) and path.name.endswith(BLOCKS) and path.is_dir()]


# --- The key of a job: blocks are only found again by the very same model, input and options

ENDS = 2**16  # bytes at either end of a file that are looked at
FORMAT = 2  # raised when blocks come to mean something else


def job_key(
    predictor: Predictor, series: Series, plan: WindowPlan, layers: Sequence[str], options: MapOptions | None = None
) -> str:
    """The key of a job, twenty digits; blocks hold classes and `layers`, and `options` leave parts of the map out."""
    times = [path.stat().st_mtime_ns for path in series.files]  # a file that was touched may be another image now
    facts = {**_job_facts(predictor, series, plan), "layers": sorted(layers), "times": times}
    if options is not None and options.marks:
        facts["marks"] = [options.unknown, options.min_confidence, options.mask_classes, options.only_parcels]
        facts["area"] = [_trace(path) for path in options.area_files]
    return _digest(facts)


def map_key(predictor: Predictor, series: Series, plan: WindowPlan, request: MapRequest) -> str:
    """A digest of how a map was made: the same content and options give the same key on every machine."""
    options = request.model_dump(mode="json", exclude=NOT_OF_THE_MAP)
    files = [request.parcels, request.mask, *filter(None, [request.declared_classes])]
    given = [None if path is None else _trace(path) for path in files]
    return _digest({**_job_facts(predictor, series, plan), "options": options, "given": given})


# Where things are, how the work is done and shared: none of it changes the map.
NOT_OF_THE_MAP = {
    *("model", "parcels", "mask", "declared_classes", "state", "device", "backend", "memory"),
    *("overwrite", "shard", "scheduler", "state_precision"),
}


def _job_facts(predictor: Predictor, series: Series, plan: WindowPlan) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": __version__,
        "model": predictor.digest,
        "device": predictor.device.type,
        "backend": predictor.backend,
        "half": None if predictor.half is None else str(predictor.half),
        "window": plan.window,
        "series_at_once": plan.series_at_once,
        "halo": predictor.halo(series),
        "grid": series.grid.to_json(),
        "dates": [day.isoformat() for day in series.dates],
        "bands": list(series.bands),
        "scale": [series.scale, series.offset],
        **({"owners": sensor_numbers(series).tolist()} if predictor.card.fingerprint.sensors else {}),
        "provenance": series.provenance,
        "files": [_trace(path) for path in files_of(series)],
    }


def _digest(facts: dict[str, Any]) -> str:
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def files_of(series: Series) -> list[Path]:
    """The files that a series is read from; every source of images can tell."""
    return list(series.files)


def _trace(path: Path) -> list[Any]:
    """Name, length and both ends. Every byte of a season would take as long as the map."""
    status = path.stat()
    digest = hashlib.blake2b(digest_size=10)
    with path.open("rb") as handle:
        digest.update(handle.read(ENDS))
        handle.seek(max(status.st_size - ENDS, 0))
        digest.update(handle.read(ENDS))
    return [path.name, status.st_size, digest.hexdigest()]


def block_side(series: Series) -> int | None:
    """The side of the square blocks that a GeoTIFF is stored in, to be read whole; None of anything else."""
    files = files_of(series)
    if not files or not is_geotiff(files[0]):
        return None
    with open_raster(files[0]) as dataset:
        height, width = dataset.block_shapes[0]
    return int(height) if height == width else None


# --- Room on the disk, asked for before anything is computed
#
# How small maps become is only known when they are there. So there are two figures: a cautious guess at the least, with
# which a job that cannot end is refused, and the most, uncompressed, of which there is only a warning.

OVERVIEWS = 4 / 3  # of a raster with its smaller copies
# Assumed, not measured, and low, so that nothing is refused that fits; hidden states hardly shrink.
LEAST_MAP, LEAST_LAYER, LEAST_STATE = 0.02, 0.1, 0.5
COUNT_BYTES = 2  # of the valid dates that are kept with a state
GIGABYTE = 10**9


@dataclass(frozen=True)
class DiskNeed:
    """Bytes that will lie at a place at the same time."""

    place: Path
    least: int
    most: int


def disk_needs(
    files: MapFiles,
    grid: Grid,
    classes: int,
    *,
    layout: StateLayout | None = None,
    half: Sequence[bool] = (),
    state: Path | None = None,
    in_blocks: bool = True,
) -> list[DiskNeed]:
    """The disk space that the files of a map need while it is assembled.

    `layout` and `half` are those of the state, where one is kept at `state`. Without `in_blocks` windows go straight
    to their files.
    """
    pixels, options = grid.height * grid.width, files.options
    smoothed = options.smoothing is not None
    dated = len(files.dates) + 2 if files.dates else 0
    in_block = 1 + _layer_bytes(options.layers_of_blocks, classes)
    drafts = in_block + (1 + _layer_bytes(options.layers_of_files, classes) if smoothed else 0)
    blocks = in_block + dated if in_blocks else 0
    published = 1 + _layer_bytes(options.layers, classes) + dated
    maps = pixels * ((LEAST_MAP if drafts == 1 else LEAST_LAYER) * (drafts + blocks) + LEAST_MAP * published)
    most = pixels * (drafts + blocks + OVERVIEWS * published)
    states = 0 if layout is None else pixels * (state_bytes(layout, half) + COUNT_BYTES)
    if in_blocks:  # states of blocks are stored as they are, beside the map
        maps, most = maps + states, most + states
    needs = [DiskNeed(files.map.parent, int(maps), int(most))]
    place = state or files.state
    return needs + ([DiskNeed(place.parent, int(LEAST_STATE * states), states)] if place is not None and states else [])


def require_disk_space(
    needs: Iterable[DiskNeed], *, work: Path | None = None, free_at: Callable[[Path], int] | None = None
) -> None:
    """Refuse a map that does not fit on the disk; blocks in the `work` folder are already there."""
    measure = free_at or (lambda place: shutil.disk_usage(place).free)
    disks: dict[int, list[DiskNeed]] = {}
    for need in needs:
        place = _existing_folder(need.place)
        disks.setdefault(os.stat(place).st_dev, []).append(DiskNeed(place, need.least, need.most))
    for device, own in disks.items():
        used = _folder_size(work) if work is not None and work.is_dir() and os.stat(work).st_dev == device else 0
        least, most = (max(sum(figures) - used, 0) for figures in _figures(own))
        free = measure(own[0].place)
        if least > free:
            why = f"at least {_gigabytes(least)} are needed and {_gigabytes(free)} are free"
            remedy = "free some disk space, choose another disk with -o, or ask for fewer layers"
            raise ResourceError("the disk is too small for the map", path=own[0].place, why=why, remedy=remedy)
        if most > free:
            logger.warning(
                "%s may become too small: the map can take up to %s and %s are free",
                own[0].place,
                _gigabytes(most),
                _gigabytes(free),
            )


def _layer_bytes(names: Iterable[str], classes: int) -> int:
    """Bytes of a pixel, uncompressed."""
    return sum(np.dtype(LAYERS[name].dtype).itemsize * (classes if name == PROBABILITIES else 1) for name in names)


def _figures(needs: Sequence[DiskNeed]) -> tuple[list[int], list[int]]:
    return [need.least for need in needs], [need.most for need in needs]


def _existing_folder(place: Path) -> Path:
    """The folder, or its nearest existing parent."""
    whole = place.resolve()
    return next(each for each in (whole, *whole.parents) if each.exists())


def _folder_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _gigabytes(count: int) -> str:
    return f"{count / GIGABYTE:,.2f} GB"
