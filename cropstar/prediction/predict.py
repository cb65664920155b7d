"""`cropstar predict`: from a raster series to a classified map and its picture.

Blocks are computed window by window and kept beside the map until all of them are there; then the map is put
together. Killed in between, it goes on from the blocks that are finished; several shards share them.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np
import rasterio
import torch
from rasterio.errors import RasterioError

from cropstar import __version__
from cropstar.geo.grid import hectares_per_pixel
from cropstar.geo.windows import Window, split
from cropstar.prediction.blocks import BlockFolder, BlockResult, block_of
from cropstar.prediction.cog import NODATA
from cropstar.prediction.every_date import Following, write_dated
from cropstar.prediction.heap import release_free_memory
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.job import block_side, job_key
from cropstar.prediction.kept import Kept, StateBlocks, new_card
from cropstar.prediction.options import MapResult as MapResult
from cropstar.prediction.options import PredictOptions as PredictOptions
from cropstar.prediction.options import require_apart as require_apart
from cropstar.prediction.options import require_half_possible, require_place
from cropstar.prediction.outputs import Finished, write_outputs
from cropstar.prediction.parcel_series import announce_target, parcels_of
from cropstar.prediction.pipeline import WriteBehind, read_ahead
from cropstar.prediction.planning import WindowPlan, plan_windows
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.season import Advanced, advance
from cropstar.prediction.season_file import writing_season
from cropstar.prediction.space import require_room
from cropstar.prediction.wanted import Files
from cropstar.reports.wording import plural
from cropstar.runtime import event, keep_large_buffers, progress_bar
from cropstar.sources.base import Observations, Series
from cropstar.sources.workers import bound_gdal, default_workers
from cropstar.store.files import locked

JOB = "CROPSTAR_JOB"  # the tag of a map that tells which blocks it was made from
DATES = "CROPSTAR_DATES"


def predict(
    source: Path | MapInput,
    output: Path,
    options: PredictOptions,
    *,
    predictor: Predictor | None = None,
    turn: int = 0,
) -> MapResult:
    """Classify a raster window by window; memory depends on the window, not on the raster.

    `turn` counts the inputs of a batch: see `Shard.of`.
    """
    source = source if isinstance(source, MapInput) else MapInput(source)
    require_place(source, output, options)
    predictor = predictor or predictor_of(options)
    with opened_job(source, output, options, predictor) as job:
        return job.run(turn)


def predictor_of(options: PredictOptions, device: torch.device | None = None) -> Predictor:
    """The model that the options ask for, there or on another device."""
    require_half_possible(options)
    return Predictor(
        options.model,
        device or options.device,
        margin=options.halo,
        backend="torch" if options.half and options.backend == "auto" else options.backend,
        half=options.half,
    )


@contextmanager
def opened_job(
    source: MapInput, output: Path, options: PredictOptions, predictor: Predictor, plan: WindowPlan | None = None
) -> Iterator[Job]:
    """A map with its series open and its windows planned. Whoever opens it anew finds the same windows and key."""
    keep_large_buffers()
    bound_gdal(threads=default_workers())
    kept = Kept.of(options.wanted, options.state, predictor)
    reading = predictor.card.provenance.get("reading", {})
    # What several machines share is slow: there each decodes into a place of its own.
    scratch = Path(tempfile.gettempdir()) if options.shared else output.parent
    series = source.open(predictor.card.fingerprint.bands, reading, options.given, scratch=scratch)
    try:
        predictor.require_fits(series, source.path, any_dates=options.any_dates)
        kept.require_exact(predictor, series)
        if plan is None:
            beside = kept.bytes_per_pixel(len(series.dates))
            plan = plan_windows(predictor, series, options.memory, options.window, block_side(series), beside=beside)
        predictor.series_at_once = plan.series_at_once
        key = job_key(predictor, series, plan, [*options.wanted.needed, *kept.names])
        files = Files(output, options.wanted, dates=series.dates, state=options.state)
        yield Job(source, series, files, predictor, plan, options, key, kept)
    finally:
        series.close()


def provenance_tags(predictor: Predictor, dates: Sequence[date]) -> dict[str, str]:
    """What a map says of where it comes from."""
    return {
        "CROPSTAR_VERSION": __version__,
        "CROPSTAR_MODEL": predictor.digest,
        "CROPSTAR_FINGERPRINT": predictor.card.fingerprint.dumps(),
        DATES: " ".join(day.isoformat() for day in dates),
    }


@dataclass(frozen=True)
class Job:
    """One map in the making."""

    source: MapInput
    series: Series
    files: Files
    predictor: Predictor
    plan: WindowPlan
    options: PredictOptions
    key: str
    kept: Kept

    @property
    def folder(self) -> BlockFolder:
        return BlockFolder(self.files.map, self.key)

    @property
    def windows(self) -> list[Window]:
        return list(split(self.series.grid.shape, self.plan.window))

    def run(self, turn: int) -> MapResult:
        folder, shard = self.folder, self.options.shard
        if self.is_done():
            return self.result(None)
        windows = self.windows
        mine = windows if shard is None else shard.of(windows, turn)
        self.announce(len(windows), len(mine))
        place = folder.folder if shard is None else folder.folder / f"shard-{shard.number}-of-{shard.count}"
        with locked(place, "the prediction"):
            self._compute(mine)
            if shard is None:
                return self.assemble()
        left = len(folder.missing(windows))
        if left == 0 or folder.missing(mine):  # whoever takes blocks away has put the map together
            with suppress(FileNotFoundError), locked(folder.folder, "the prediction"):
                if not folder.missing(windows):
                    return self.assemble()
                folder.remove()
            return self.result(None)
        event(f"{left} of {len(windows)} blocks are left to other shards; the last one puts the map together")
        return self.result(None)

    def is_done(self) -> bool:
        """Whether the map of another call that shares the work is there; one of anything else is refused."""
        assembling = self.folder.assembling
        if self.options.shared and self.is_there() and not (assembling and self.options.cluster):
            event(f"{self.files.map} is there already, made of the same blocks")
            return True
        self.files.require_ready(overwrite=self.options.overwrite or assembling)
        return False

    def missing(self, windows: Sequence[Window]) -> list[Window]:
        """Those that are still to be computed."""
        missing = self.folder.missing(windows)
        if len(missing) < len(windows):
            done = len(windows) - len(missing)
            event(f"going on: {done} of {len(windows)} blocks are finished", blocks=len(windows), finished=done)
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
            WriteBehind(partial(self._write, self.folder)) as behind,
            read_ahead(windows, lambda window: self.predictor.read(self.series, window)) as ready,
        ):
            for window, observations in ready:
                behind.put(self._block(window, observations))
                release_free_memory()
                yield window

    def _block(self, window: Window, observations: Observations) -> tuple[BlockResult, Advanced | None]:
        needed = self.options.wanted.needed
        if self.kept.nothing:
            probabilities, seen = self.predictor.classify(self.series, window, observations)
            outer = window.expand(self.predictor.halo(self.series), self.series.grid.shape)
            counts = observations.valid[:, *window.relative_to(outer).slices].sum(axis=0)
            return block_of(window, probabilities, seen, counts, needed), None
        stable = self.options.wanted.stable
        following = None if stable is None else Following(window, self.series.dates, stable)
        keep = self.options.state is not None
        found = advance(self.predictor, self.series, window, observations, follower=following, keep=keep)
        block = block_of(window, found.probabilities, found.seen, found.counts, needed)
        if following is not None:
            block.layers.update(following.layers())
        return block, found if keep else None

    def _write(self, folder: BlockFolder, made: tuple[BlockResult, Advanced | None]) -> None:
        block, found = made
        if found is not None:  # before the block: where that is, this is too
            StateBlocks(folder.folder).write(block.window, found)
        folder.write(block)

    def assemble(self) -> MapResult:
        """The map and all that belongs to it, of blocks that are all there."""
        folder, windows = self.folder, self.windows
        card, dates = self.predictor.card, self.series.dates
        tags = {**provenance_tags(self.predictor, dates), JOB: self.key}
        grid, classes, work = self.series.grid, card.fingerprint.classes, folder.folder
        folder.begin_assembling()
        with ExitStack() as stack:
            if self.options.state is not None:  # takes its name last, when the map is there
                state = new_card(self.predictor, self.series, self.files.map, self.options.given)
                writer = stack.enter_context(writing_season(self.options.state, state))
                StateBlocks(work).gather(windows, writer)
            if self.options.wanted.stable is not None:
                write_dated(lambda: folder.read(windows), self.files, grid, classes, tags=tags, work=work)
            title = f"Crops, {dates[0]} to {dates[-1]}"
            blocks = folder.read(windows)
            pooled = parcels_of(self.series, self.predictor)
            finished = write_outputs(
                blocks, self.files, grid, classes, tags=tags, title=title, work=work, pooled=pooled
            )
        folder.remove()
        return self.result(finished)

    def announce(self, windows: int, mine: int) -> None:
        halo, exact = self.predictor.halo(self.series), self.predictor.exact_halo(self.series)
        grid, shard = self.series.grid, self.options.shard
        announce_target(self.predictor.card, self.options.wanted.parcels)
        require_room(self.files, grid, self.predictor.card, self.kept.layout, self.folder.folder)
        share = "" if shard is None else f", {mine} of them in shard {shard}"
        event(
            f"{self.source}: {grid.width} x {grid.height} pixels, {plural(len(self.series.dates), 'date')}; "
            f"model {self.options.model}, {plural(windows, 'window')} of {self.plan.window} pixels{share}, "
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

    def is_there(self) -> bool:
        if self.options.state is not None and not self.options.state.exists():
            return False
        try:
            with rasterio.open(self.files.map, driver="GTiff") as dataset:
                return bool(dataset.tags().get(JOB) == self.key)
        except RasterioError:
            return False

    def result(self, finished: Finished | None) -> MapResult:
        count = len(self.predictor.card.fingerprint.classes)
        counts = np.zeros(256, dtype=np.int64) if finished is None else finished.counts
        there = finished is not None or self.is_there()
        return MapResult(self.files.map, self.files.picture, counts[:count], int(counts[NODATA]), there)
