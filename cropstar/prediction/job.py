"""`cropstar predict`: from a request to its maps.

Blocks are computed window by window and kept beside the map until all of them are there; then the map is put
together. Killed in between, it goes on from the blocks that are finished; several shards share them.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.errors import (
    ArtifactError,
    CropstarError,
    InputError,
    Interrupted,
    PartialResult,
    ResourceError,
    UsageError,
    expected_error,
)
from cropstar.execution.local import default_workers
from cropstar.execution.threads import WriteBehind, read_ahead
from cropstar.geo.grid import hectares_per_pixel
from cropstar.geo.raster import GDAL_ERRORS, bound_gdal, open_raster
from cropstar.geo.windows import Window, split
from cropstar.models.backends import choose_half, has_bfloat16_kernels
from cropstar.prediction.area import MapArea, open_area
from cropstar.prediction.blocks import (
    BlockFolder,
    BlockResult,
    block_layers,
    block_side,
    disk_needs,
    job_key,
    make_block,
    map_key,
    require_disk_space,
    require_marks,
)
from cropstar.prediction.layers import BY_DATE, ClassHistory
from cropstar.prediction.outputs import MapContents, MapResult, MapWriter, provenance_tags
from cropstar.prediction.parcels import parcel_classifier, require_parcels, warn_of_parcel_model
from cropstar.prediction.predictor import (
    Answer,
    OnDate,
    Predictor,
    StateLayout,
    WindowPlan,
    WindowResult,
    advance,
    half_parts,
    layout_of,
    plan_windows,
    release_free_memory,
    require_streaming,
    state_bytes,
)
from cropstar.prediction.request import MapFiles, MapInput, MapRequest
from cropstar.prediction.season import WINDOWS_WRITTEN, SeasonCard, SeasonReader, writing_season
from cropstar.prediction.trust import Trust, judge_trust
from cropstar.reports.wording import plural
from cropstar.runtime import choose_device, event, keep_large_buffers, logger, progress_bar
from cropstar.sources.base import Observations, Series
from cropstar.store.files import locked, target_lock

MOST_WINDOWS = 1_000_000  # of a map: a Sentinel-2 tile in windows of 16 pixels has half of them
JOB = "CROPSTAR_JOB"  # the tag of a map that tells what it was made from, and how


def predict(
    source: Path | MapInput,
    output: Path,
    request: MapRequest,
    *,
    predictor: Predictor | None = None,
    turn: int = 0,
) -> MapResult:
    """Classify a raster window by window; memory depends on the window, not on the raster.

    `turn` counts the inputs of a batch: see `Shard.of`.
    """
    source = source if isinstance(source, MapInput) else MapInput(source)
    require_possible(source, output, request)
    predictor = predictor or load_predictor(request)
    with open_job(source, output, request, predictor) as job:
        return job.run(turn)


def predict_all(inputs: Sequence[MapInput], outputs: Sequence[Path], request: MapRequest) -> list[MapResult]:
    """A map of every input. A wrong option or a full disk concerns all of them and ends it at once."""
    batch = MapBatch(len(inputs))
    if request.scheduler is not None:
        from cropstar.prediction.cluster import predict_on_cluster

        predict_on_cluster(inputs, outputs, request, batch)
        return batch.conclude()
    predictor = load_predictor(request)
    for turn, (source, output) in enumerate(zip(inputs, outputs, strict=True)):
        try:
            result = predict(source, output, request, predictor=predictor, turn=turn)
        except (CropstarError, OSError) as failure:
            batch.failed(failure, turn)
            continue
        batch.done(result)
    return batch.conclude()


def load_predictor(request: MapRequest, device: torch.device | None = None) -> Predictor:
    """The model that a request asks for, there or on another device."""
    request.require_consistent()
    chosen = device or choose_device(request.device)
    half = choose_half(request.precision, request.half, chosen)
    if half is not None and request.backend == "native" and not has_bfloat16_kernels():
        why = "the kernels compute in float32 on this processor"
        raise UsageError("--backend native in half precision", why=why, remedy="leave one of them out")
    return Predictor(
        request.model, chosen, margin=request.halo, backend=request.backend, half=half, unknown=request.unknown
    )


def require_possible(source: MapInput, output: Path, request: MapRequest) -> None:
    """Refuse impossible requests, before the model and the series are opened."""
    files = MapFiles(output, request, state=request.state)
    files.require_apart([source.path, *request.files_read])
    request.require_area()
    if request.parcels is not None:
        require_parcels(request.parcels, files.parcels, request.declared_column)


@contextmanager
def open_job(
    source: MapInput, output: Path, request: MapRequest, predictor: Predictor, plan: WindowPlan | None = None
) -> Iterator[MapJob]:
    """A map with its series open and its windows planned. Opening it again gives the same windows and key."""
    keep_large_buffers()
    bound_gdal(threads=default_workers())
    planned = plan is not None
    stable, layout = request.stable_confidence, _state_layout(request, predictor)
    reading = predictor.card.provenance.get("reading", {})
    # What several machines share is slow: there each decodes into a place of its own.
    scratch = Path(tempfile.gettempdir()) if request.shared else output.parent
    series = source.open(predictor.card.fingerprint.bands, reading, request.reading, scratch=scratch)
    try:
        series = predictor.read_by_model(series, source.path)
        predictor.require_fits(series, source.path, any_dates=request.any_dates)
        if layout is not None and predictor.halo(series) < predictor.exact_halo(series):
            why = f"a state needs the exact margin of {predictor.exact_halo(series)} pixels"
            raise UsageError("--state with a smaller --halo", why=why, remedy="leave --halo out")
        if plan is None:
            beside = bytes_beside(request, layout, len(series.dates))
            plan = plan_windows(predictor, series, request.memory, request.window, block_side(series), beside=beside)
        predictor.series_at_once = plan.series_at_once
        require_marks(request, predictor)
        predictor.use_stage_of(series.dates)
        by_date = [] if stable is None else [f"{BY_DATE} {stable!r}"]
        channels, precision = predictor.card.fingerprint.channels, request.state_precision or "float32"
        half = () if layout is None else half_parts(predictor.model, channels, precision)
        held = [*request.layers_of_blocks, *by_date, *(["state"] if layout is not None else [])]
        held += ["half"] if half else []
        key = job_key(predictor, series, plan, held, request)
        days = tuple(dict.fromkeys(series.dates))  # several sensors may see a place on one day
        files = MapFiles(output, request, () if stable is None else days, request.state)
        named = map_key(predictor, series, plan, request)
        # The first to open it says how a mask is understood; workers, which get a plan, do not repeat it.
        with open_area(request, series.grid, quiet=planned) as area:
            yield MapJob(source, series, files, predictor, plan, request, key, layout, named, area, half)
    finally:
        series.close()


def _state_layout(request: MapRequest, predictor: Predictor) -> StateLayout | None:
    """That of the state, where one is kept; refuses models that have none."""
    if request.stable_confidence is not None:
        require_streaming(predictor, "--every-date")
    if request.state is None:
        return None
    require_streaming(predictor, "--state")
    return layout_of(predictor.model, predictor.card.fingerprint.channels)


def bytes_beside(request: MapRequest, layout: StateLayout | None, dates: int) -> int:
    """Bytes of a pixel for the classes of every date and the state until they are written."""
    classes = 0 if request.stable_confidence is None else (dates + 2) * WINDOWS_WRITTEN + 2 * dates  # and valid dates
    return classes + (0 if layout is None else state_bytes(layout) * WINDOWS_WRITTEN)


@dataclass(frozen=True)
class MapJob:
    """One map in the making."""

    source: MapInput
    series: Series
    files: MapFiles
    predictor: Predictor
    plan: WindowPlan
    request: MapRequest
    key: str  # of its blocks
    layout: StateLayout | None  # of the state, where one is kept
    map_key: str
    area: MapArea  # what is mapped
    half: tuple[bool, ...] = ()  # which parts of the state are float16

    @property
    def folder(self) -> BlockFolder:
        return BlockFolder(self.files.map, self.key)

    @property
    def windows(self) -> list[Window]:
        """All windows; refuses a map of very many, each of which has a file of its own."""
        height, width = self.series.grid.shape
        count = math.ceil(height / self.plan.window) * math.ceil(width / self.plan.window)
        if count > MOST_WINDOWS:
            why = f"{width:,} x {height:,} pixels are {count:,} windows of {self.plan.window} pixels"
            raise UsageError("too many windows", path=self.source.path, why=why, remedy="give a larger --window")
        return list(split(self.series.grid.shape, self.plan.window))

    def run(self, turn: int) -> MapResult:
        with self.holding_targets() as killed:
            return self.result(None) if self.is_done(killed=killed) else self._make_map(turn)

    def _make_map(self, turn: int) -> MapResult:
        folder, shard = self.folder, self.request.shard
        self.require_room()
        windows = self.windows
        mine = windows if shard is None else shard.of(windows, turn)
        self.announce(len(windows), len(mine))
        place = folder.folder if shard is None else folder.folder / f"shard-{shard.number}-of-{shard.count}"
        with locked(place, "the prediction"):
            self._compute(mine)
            if shard is None:
                return self.assemble()
        left = len(folder.missing(windows))
        if left == 0 or folder.missing(mine):  # the process that removes blocks has assembled the map
            with suppress(FileNotFoundError), locked(folder.folder, "the prediction"):
                if not folder.missing(windows):
                    return self.assemble()
                folder.remove()
            return self.result(None)
        event(f"{left} of {len(windows)} blocks are left to other shards; the last one to finish writes the map")
        return self.result(None)

    @contextmanager
    def holding_targets(self) -> Iterator[bool]:
        """Within, no other call writes the same map or state, with whatever options; those of one job share them.

        Yields whether a call that held them was killed.
        """
        with ExitStack() as held:
            for path in [*([self.request.state] if self.request.state else []), self.files.map]:
                killed = held.enter_context(target_lock(path, "the output", shared=self.request.shared))
            yield killed

    def is_done(self, *, killed: bool = False) -> bool:
        """Whether the map exists: made by another shard, or by a call that was killed just before its end.

        Any other file in its place is refused.
        """
        self.folder.require_own()
        assembling = self.folder.assembling
        ours = self.request.shared or assembling or killed
        if ours and self.is_complete() and not (assembling and self.request.scheduler):
            event(f"{self.files.map} exists already, made of the same blocks")
            if not self.request.shared:
                self.folder.remove()
            return True
        self.files.require_new(overwrite=self.request.overwrite or assembling)
        return False

    def missing(self, windows: Sequence[Window]) -> list[Window]:
        """The windows that are still to be computed."""
        missing = self.folder.missing(windows)
        if len(missing) < len(windows):
            done = len(windows) - len(missing)
            event(f"continuing: {done} of {len(windows)} blocks are finished", blocks=len(windows), finished=done)
        return missing

    def _compute(self, windows: Sequence[Window]) -> None:
        missing = self.missing(windows)
        if not missing:
            return
        total, area = sum(window.height * window.width for window in missing), hectares_per_pixel(self.series.grid)
        started, pixels = time.monotonic(), 0
        with progress_bar(total, "predict", "px", scale=True) as bar, closing(self.make(missing)) as made:
            for window in made:
                pixels += window.height * window.width
                if area is not None:
                    rate = pixels * area / (time.monotonic() - started)
                    bar.set_postfix_str(f"{rate:,.1f} ha/s", refresh=False)
                bar.update(window.height * window.width)
        seconds = time.monotonic() - started
        ground = "" if area is None else f", {total * area / seconds:,.0f} ha/s"
        event(
            f"{total:,} pixels in {seconds:.1f} s: {total / seconds:,.0f} px/s{ground}", pixels=total, seconds=seconds
        )

    def make(self, windows: Sequence[Window]) -> Generator[Window, None, None]:
        """Compute and keep blocks, reading ahead and writing behind; a window comes when it is computed."""
        with (
            WriteBehind[tuple[BlockResult, WindowResult | None]](lambda made: self.folder.write(*made)) as behind,
            read_ahead(windows, lambda window: self.predictor.read(self.series, window)) as ready,
        ):
            for window, observations in ready:
                behind.put(self._block(window, observations))
                release_free_memory()
                yield window

    def _block(self, window: Window, observations: Observations) -> tuple[BlockResult, WindowResult | None]:
        """A block, and what its state is taken from where that is kept."""
        stable, keep_state = self.request.stable_confidence, self.layout is not None
        inside = self.area.inside(window)
        if stable is None and not keep_state:
            answer = self.predictor.answer(self.series, window, observations)
            outer = window.expand(self.predictor.halo(self.series), self.series.grid.shape)
            counts = observations.valid[:, *window.relative_to(outer).slices].sum(axis=0)
            return make_block(self.request, window, answer, counts, inside), None
        history = None if stable is None else ClassHistory(window, self.files.dates, stable)
        on_date = None if history is None else _after_each_day(self.series.dates, history)
        result = advance(
            *(self.predictor, self.series, window, observations), on_date=on_date, keep_state=keep_state, half=self.half
        )
        answer = Answer(result.probabilities, result.unknown, result.seen)
        block = make_block(self.request, window, answer, result.counts, inside)
        if history is not None:
            block.layers.update(history.layers(inside))
        return block, result if keep_state else None

    def assemble(self) -> MapResult:
        """The map and all that belongs to it, of blocks that are all there."""
        folder, windows = self.folder, self.windows
        card, dates = self.predictor.card, self.series.dates
        tags = {**provenance_tags(self.predictor, dates), JOB: self.map_key}
        grid, classes, work = self.series.grid, card.fingerprint.classes, folder.folder
        layers = block_layers(self.request, len(classes), len(self.files.dates))
        if not (self.request.overwrite or folder.assembling):  # others may have made it while blocks were computed
            self.files.require_new(overwrite=False)
        folder.begin_assembling()
        map_writer = MapWriter(
            self.files,
            grid,
            classes,
            tags,
            title=f"Crops, {dates[0]} to {dates[-1]}",
            work=work,
            trust=self.trust,
            model=self.predictor.path,
            parcel_model=parcel_classifier(self.series, self.predictor),
        )
        with ExitStack() as stack:
            if self.request.state is not None:  # takes its name last, when the map is there
                writer = stack.enter_context(writing_season(self.request.state, self._season_card()))
                assert self.layout is not None
                for states in folder.read_states(windows, self.layout, self.half):
                    writer.write(*states)
            stable = self.request.stable_confidence
            if stable is not None:
                map_writer.write_per_date(lambda: folder.read(windows, layers), stable)
            written = map_writer.write(folder.read(windows, layers))
        folder.remove()
        return self.result(written)

    def require_room(self) -> None:
        """Refuse a map for which the disk is too small, before its windows are listed."""
        grid, classes = self.series.grid, len(self.predictor.card.fingerprint.classes)
        needs = disk_needs(self.files, grid, classes, layout=self.layout, half=self.half)
        require_disk_space(needs, work=self.folder.folder)

    def announce(self, windows: int, mine: int) -> None:
        """Log what will be computed."""
        halo, exact = self.predictor.halo(self.series), self.predictor.exact_halo(self.series)
        card, grid, shard = self.predictor.card, self.series.grid, self.request.shard
        warn_of_parcel_model(card, self.request.parcels)
        share = "" if shard is None else f", {mine} of them in shard {shard}"
        self.trust.announce()
        event(
            f"{self.source}: {grid.width} x {grid.height} pixels, {plural(len(self.series.dates), 'date')}; "
            f"model {self.request.model}, {plural(windows, 'window')} of {self.plan.window} pixels{share}, "
            f"margin of {halo} pixels",
            window=self.plan.window,
            margin=halo,
            memory=self.plan.bytes,
        )
        if halo < exact:
            event(
                f"--halo {halo} is faster and not exact: classes may change at the edges of windows; "
                f"a margin of {exact} pixels is exact",
                exact_margin=exact,
            )

    def is_complete(self) -> bool:
        """Whether the map exists with all its files, and no input is newer than it."""
        if not all(path.is_file() for path in self.files.all()):
            return False
        made = self.files.map.stat().st_mtime_ns
        inputs = [*self.series.files, *([self.request.parcels] if self.request.parcels else [])]
        if any(path.stat().st_mtime_ns > made for path in inputs):
            return False
        try:
            with open_raster(self.files.map) as dataset:
                ours = dataset.tags().get(JOB) == self.map_key
            return bool(ours) and self._has_its_state()
        except (ArtifactError, InputError, *GDAL_ERRORS):
            return False

    def _has_its_state(self) -> bool:
        """Whether the state is of this job too, and not one left from an earlier job."""
        if self.request.state is None:
            return True
        reader = SeasonReader(self.request.state)
        reader.close()
        return reader.card.dumps() == self._season_card().dumps()

    def _season_card(self) -> SeasonCard:
        return SeasonCard.of(self.predictor, self.series, self.files.map, self.request, self.half)

    @cached_property
    def trust(self) -> Trust:
        """Accuracy and caveats of the map."""
        return judge_trust(self.predictor.card, self.predictor.path, self.series.dates, self.series, self.request)

    def result(self, written: MapContents | None) -> MapResult:
        """The result, with the contents that were written, if any."""
        complete = written is not None or self.is_complete()
        written = written or MapContents(np.zeros(256, dtype=np.int64), None)
        return MapResult.of(self.files, written, len(self.predictor.card.fingerprint.classes), finished=complete)


def _after_each_day(dates: Sequence[date], history: ClassHistory) -> OnDate:
    """Tell the history of the classes after the last acquisition of each day."""
    ends = [place for place, day in enumerate(dates) if place + 1 == len(dates) or dates[place + 1] != day]
    number_of = {place: number for number, place in enumerate(ends)}

    def on_date(place: int, pixels: slice, found: NDArray[np.float32], seen: NDArray[np.bool_]) -> None:
        if place in number_of:
            history.add(number_of[place], pixels, found, seen)

    return on_date


# --- Several maps in one go: one input that cannot be mapped does not keep the others from it


class MapBatch:
    """The results of the inputs so far."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._results: list[MapResult] = []
        self._failures: list[CropstarError] = []

    def done(self, result: MapResult) -> None:
        self._results.append(result)
        if result.finished:
            result.announce()

    def failed(self, failure: CropstarError | OSError, turn: int) -> None:
        """Goes on, unless it concerns all inputs."""
        error = expected_error(failure)
        assert error is not None
        if self._count == 1 or isinstance(error, (Interrupted, ResourceError)):
            raise failure
        if isinstance(error, UsageError) and not self._results and not self._failures and turn == 0:
            raise failure  # the options themselves, most likely
        logger.warning("%s", error)
        self._failures.append(error)

    def conclude(self) -> list[MapResult]:
        if self._failures and not self._results:
            raise self._failures[0]
        if self._failures:
            first = self._failures[0]
            why = f"{len(self._failures)} of {self._count} inputs could not be mapped, first: {first.what}"
            remedy = "fix them and run the same command again"
            raise PartialResult("not all maps were made", path=first.path, why=why, remedy=remedy)
        return self._results
