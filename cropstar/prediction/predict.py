"""`cropstar predict`: from a raster series to a classified map and its picture.

Blocks are computed window by window and kept beside the map until all of them are there; then the map is put
together. Killed in between, it goes on from the blocks that are finished; several shards share them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import torch
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from cropstar import __version__
from cropstar.devices import keep_large_buffers
from cropstar.errors import UsageError
from cropstar.geo.ground import hectares_per_pixel
from cropstar.geo.windows import Window, split
from cropstar.logs import event
from cropstar.prediction.blocks import BlockFolder, BlockResult, block_of, folders_beside
from cropstar.prediction.cog import NODATA
from cropstar.prediction.every_date import Following, write_dated
from cropstar.prediction.heap import release_free_memory
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.job import block_side, job_key
from cropstar.prediction.kept import Kept, StateBlocks, new_card
from cropstar.prediction.outputs import Finished, write_outputs
from cropstar.prediction.pipeline import WriteBehind, read_ahead
from cropstar.prediction.planning import MEMORY, WindowPlan, parse_memory, plan_windows
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.season import Advanced, advance
from cropstar.prediction.season_file import writing_season
from cropstar.prediction.shards import Shard
from cropstar.prediction.wanted import Files, Wanted
from cropstar.progress import progress_bar
from cropstar.reports.wording import plural
from cropstar.sources.series import Observations, Series
from cropstar.sources.workers import bound_gdal, default_workers
from cropstar.store.atomic import locked

JOB = "CROPSTAR_JOB"  # the tag of a map that tells which blocks it was made from
DATES = "CROPSTAR_DATES"


@dataclass(frozen=True)
class PredictOptions:
    model: Path
    device: torch.device
    window: int | None = None  # pixels a side; None takes what the memory allows
    any_dates: bool = False
    overwrite: bool = False
    memory: int = parse_memory(MEMORY)
    halo: int | None = None  # a margin below the model's own: faster, and not exact
    shard: Shard | None = None
    wanted: Wanted = field(default_factory=Wanted)
    given: Mapping[str, Any] = field(default_factory=dict)  # how the input is to be read
    state: Path | None = None  # where the hidden state after the last date goes


@dataclass(frozen=True)
class MapResult:
    raster: Path
    picture: Path
    pixels: NDArray[np.int64]  # of each class
    unseen: int  # pixels without a valid date
    finished: bool = True  # false while other shards have blocks to do


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
    keep_large_buffers()
    bound_gdal(threads=default_workers())
    source = source if isinstance(source, MapInput) else MapInput(source)
    files = Files(output, options.wanted, state=options.state)
    _require_place(source, files, options)
    predictor = predictor or Predictor(options.model, options.device, margin=options.halo)
    kept = Kept.of(options.wanted, options.state, predictor)
    reading = predictor.card.provenance.get("reading", {})
    series = source.open(predictor.card.fingerprint.bands, reading, options.given)
    try:
        predictor.require_fits(series, source.path, any_dates=options.any_dates)
        kept.require_exact(predictor, series)
        beside = kept.bytes_per_pixel(len(series.dates))
        plan = plan_windows(predictor, series, options.memory, options.window, block_side(series), beside=beside)
        predictor.series_at_once = plan.series_at_once
        key = job_key(predictor, series, plan, [*options.wanted.needed, *kept.names])
        files = replace(files, dates=series.dates)
        return _Job(source, series, files, predictor, plan, options, key, kept).run(turn)
    finally:
        series.close()


def _require_place(source: MapInput, files: Files, options: PredictOptions) -> None:
    """What can be refused before the model and the series are opened."""
    output = files.map
    require_apart([output, *([options.state] if options.state else [])], [source.path])
    # Blocks beside it may be those of this job, killed while it put the map together: `run` looks at it again.
    files.require_ready(overwrite=options.overwrite or bool(folders_beside(output)) or options.shard is not None)


def require_apart(outputs: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuse to write over what is read, and two things to one place."""
    for path in outputs:
        if path.exists() and any(other.exists() and path.samefile(other) for other in inputs):
            raise UsageError("the output is the input", path=path, remedy="choose another output with -o")
    if len({path.resolve() for path in outputs}) < len(outputs):
        raise UsageError("map and state have one name", path=outputs[0], remedy="give each its own")


def provenance_tags(predictor: Predictor, dates: Sequence[date]) -> dict[str, str]:
    """What a map says of where it comes from."""
    return {
        "CROPSTAR_VERSION": __version__,
        "CROPSTAR_MODEL": predictor.digest,
        "CROPSTAR_FINGERPRINT": predictor.card.fingerprint.dumps(),
        DATES: " ".join(day.isoformat() for day in dates),
    }


@dataclass(frozen=True)
class _Job:
    """One map in the making."""

    source: MapInput
    series: Series
    files: Files
    predictor: Predictor
    plan: WindowPlan
    options: PredictOptions
    key: str
    kept: Kept

    def run(self, turn: int) -> MapResult:
        folder, shard = BlockFolder(self.files.map, self.key), self.options.shard
        if shard is not None and self._is_there():
            event(f"{self.files.map} is there already, made of the same blocks")
            return self._result(None)
        self.files.require_ready(overwrite=self.options.overwrite or folder.assembling)
        windows = list(split(self.series.grid.shape, self.plan.window))
        mine = windows if shard is None else shard.of(windows, turn)
        self._announce(len(windows), len(mine))
        place = folder.folder if shard is None else folder.folder / f"shard-{shard.number}-of-{shard.count}"
        with locked(place, "the prediction"):
            self._compute(folder, mine)
            if shard is None:
                return self._assemble(folder, windows)
        left = len(folder.missing(windows))
        if left == 0 or folder.missing(mine):  # whoever takes blocks away has put the map together
            with suppress(FileNotFoundError), locked(folder.folder, "the prediction"):
                if not folder.missing(windows):
                    return self._assemble(folder, windows)
                folder.remove()
            return self._result(None)
        event(f"{left} of {len(windows)} blocks are left to other shards; the last one puts the map together")
        return self._result(None)

    def _compute(self, folder: BlockFolder, windows: Sequence[Window]) -> None:
        missing = folder.missing(windows)
        if len(missing) < len(windows):
            done = len(windows) - len(missing)
            event(f"going on: {done} of {len(windows)} blocks are finished", blocks=len(windows), finished=done)
        if not missing:
            return
        total, area = sum(window.height * window.width for window in missing), hectares_per_pixel(self.series.grid)
        started, pixels = time.monotonic(), 0
        with (
            progress_bar(total, "predict", "px", scale=True) as bar,
            WriteBehind(partial(self._write, folder)) as behind,
            read_ahead(missing, lambda window: self.predictor.read(self.series, window)) as ready,
        ):
            for window, observations in ready:
                behind.put(self._block(window, observations))
                release_free_memory()
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

    def _assemble(self, folder: BlockFolder, windows: Sequence[Window]) -> MapResult:
        card, dates = self.predictor.card, self.series.dates
        tags = {**provenance_tags(self.predictor, dates), JOB: self.key}
        grid, classes, work = self.series.grid, card.fingerprint.classes, folder.folder
        folder.begin_assembling()
        with ExitStack() as stack:
            if self.options.state is not None:  # takes its name last, when the map is there
                state = new_card(self.predictor, self.series, self.plan.window, self.files.map, self.options.given)
                writer = stack.enter_context(writing_season(self.options.state, state))
                StateBlocks(work).gather(windows, writer)
            if self.options.wanted.stable is not None:
                write_dated(lambda: folder.read(windows), self.files, grid, classes, tags=tags, work=work)
            title = f"Crops, {dates[0]} to {dates[-1]}"
            blocks = folder.read(windows)
            finished = write_outputs(blocks, self.files, grid, classes, tags=tags, title=title, work=work)
        folder.remove()
        return self._result(finished)

    def _announce(self, windows: int, mine: int) -> None:
        halo, exact = self.predictor.halo(self.series), self.predictor.exact_halo(self.series)
        grid, shard = self.series.grid, self.options.shard
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

    def _is_there(self) -> bool:
        if self.options.state is not None and not self.options.state.exists():
            return False
        try:
            with rasterio.open(self.files.map, driver="GTiff") as dataset:
                return bool(dataset.tags().get(JOB) == self.key)
        except RasterioError:
            return False

    def _result(self, finished: Finished | None) -> MapResult:
        count = len(self.predictor.card.fingerprint.classes)
        counts = np.zeros(256, dtype=np.int64) if finished is None else finished.counts
        there = finished is not None or self._is_there()
        return MapResult(self.files.map, self.files.picture, counts[:count], int(counts[NODATA]), there)
