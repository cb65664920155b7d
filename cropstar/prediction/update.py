"""`cropstar update`: one more image into the state of a season, and the map that a full run would give.

The new state is written beside the old one while the windows are computed; then the map is put together, and last the
state takes its name. Whatever fails before, the old state is as it was. A map that is there already when the state
did not get its name is the one that the same command makes again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import rasterio
import torch
from rasterio.errors import RasterioError

from cropstar.errors import ArtifactError, InputError, MismatchError
from cropstar.geo.windows import Window, split
from cropstar.prediction.blocks import BlockResult, block_of
from cropstar.prediction.cog import NODATA
from cropstar.prediction.heap import release_free_memory
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.job import block_side
from cropstar.prediction.joined import JoinedSeries, open_later
from cropstar.prediction.kept import WRITTEN
from cropstar.prediction.outputs import write_outputs
from cropstar.prediction.parcel_series import require_map
from cropstar.prediction.pipeline import WriteBehind, read_ahead
from cropstar.prediction.planning import MEMORY, READ, parse_memory, plan_windows
from cropstar.prediction.predict import DATES, MapResult, provenance_tags, require_apart
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.season import Advanced, Before, advance, layout_of, require_streaming
from cropstar.prediction.season_card import SeasonCard, state_bytes
from cropstar.prediction.season_file import REMEDY, SeasonReader, SeasonWriter, writing_season
from cropstar.prediction.space import needs_of, require_space
from cropstar.prediction.wanted import Files, Wanted
from cropstar.runtime import event, keep_large_buffers, progress_bar
from cropstar.sources.base import Observations
from cropstar.sources.workers import bound_gdal, default_workers
from cropstar.store.files import locked

# Pixels a side, of series and of images: a state is read and written beside the computing, which takes several windows.
# What margins cost grows as images get smaller.
LARGEST = {False: 128, True: 256}


@dataclass(frozen=True)
class UpdateOptions:
    device: torch.device
    model: Path | None = None  # where it is now; None takes the place that the state knows
    output: Path | None = None  # None writes the state's map anew
    window: int | None = None
    any_dates: bool = False
    overwrite: bool = False
    memory: int = parse_memory(MEMORY)
    wanted: Wanted = field(default_factory=Wanted)
    given: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "auto"


def update(state: Path, inputs: Sequence[MapInput], options: UpdateOptions) -> MapResult:
    """Take later images into the state; both the state and the map are replaced."""
    keep_large_buffers()
    bound_gdal(threads=default_workers())
    if not state.is_file():
        raise InputError("no such state", path=state, remedy=REMEDY)
    work = state.with_name(f".{state.name}.update")
    with locked(work, "the state"), ExitStack() as stack:
        stack.callback(shutil.rmtree, work, ignore_errors=True)
        reader = SeasonReader(state)
        stack.callback(reader.close)
        predictor = _predictor(reader, options)
        require_map(predictor.card, options.wanted.parcels)
        files = Files(options.output or reader.card.map, options.wanted)
        require_apart([files.map, state], [each.path for each in inputs])
        series = open_later(inputs, reader.card, predictor, options.given, any_dates=options.any_dates)
        stack.callback(series.close)
        dates = (*reader.card.dates, *series.dates)
        own = options.output is None and _is_of_season(files.map, reader.card, dates)
        files.require_ready(overwrite=options.overwrite or own)
        return _Update(reader, series, files, predictor, options, work).run()


def _predictor(reader: SeasonReader, options: UpdateOptions) -> Predictor:
    path = options.model or reader.card.model_path
    if options.model is None and not path.is_file():
        raise ArtifactError(
            "the model of the state is not there",
            path=path,
            why=f"{reader.path} was made with it",
            remedy="give --model",
        )
    predictor = Predictor(path, options.device, backend=options.backend)
    if predictor.digest != reader.card.model:
        why = f"the state is of model {reader.card.model[:12]}, this is {predictor.digest[:12]}"
        raise MismatchError("not the model of the state", path=path, why=why, remedy="give the one that made the state")
    require_streaming(predictor, "update")
    if layout_of(predictor.model, len(predictor.card.fingerprint.bands)) != reader.card.layout:
        why = "it does not hold what the model keeps"
        raise ArtifactError("the state cannot be used", path=reader.path, why=why, remedy=REMEDY)
    return predictor


def _is_of_season(path: Path, card: SeasonCard, dates: Sequence[Any]) -> bool:
    """Whether a map was made with this state, or by this very update before it was killed."""
    try:
        with rasterio.open(path, driver="GTiff") as dataset:
            said = dataset.tags()
    except RasterioError:
        return False
    known = [" ".join(day.isoformat() for day in some) for some in (card.dates, dates)]
    return bool(said.get("CROPSTAR_MODEL") == card.model and said.get(DATES) in known)


@dataclass(frozen=True)
class _Update:
    reader: SeasonReader
    series: JoinedSeries
    files: Files
    predictor: Predictor
    options: UpdateOptions
    work: Path

    def run(self) -> MapResult:
        old, series, predictor = self.reader.card, self.series, self.predictor
        beside = state_bytes(old.layout) * (READ + WRITTEN)
        plan = plan_windows(
            predictor, series, self.options.memory, self.options.window, block_side(series), beside=beside
        )
        side = plan.window if self.options.window else min(plan.window, LARGEST[predictor.model.spatial])
        # All of such a window at once: what comes out of the model is then written as it is.
        predictor.series_at_once = max(plan.series_at_once, LARGEST[False] ** 2)
        windows = list(split(old.grid.shape, side))
        card = replace(
            old,
            model_path=predictor.path.resolve(),
            dates=(*old.dates, *series.dates),
            map=self.files.map.resolve(),
            scale=series.scale,
            offset=series.offset,
        )
        event(
            f"{self.reader.path}: {len(old.dates)} dates until {old.dates[-1]}, and now "
            f"{', '.join(day.isoformat() for day in series.dates)}; {len(windows)} windows of {side} pixels, "
            f"margin of {predictor.halo(series)} pixels",
            window=side,
            dates=len(card.dates),
        )
        classes = len(old.fingerprint.classes)
        require_space(
            needs_of(self.files, old.grid, classes, layout=old.layout, state=self.reader.path, in_blocks=False)
        )
        with writing_season(self.reader.path, card) as writer:
            finished = write_outputs(
                self._blocks(windows, writer),
                self.files,
                old.grid,
                old.fingerprint.classes,
                tags=provenance_tags(predictor, card.dates),
                title=f"Crops, {card.dates[0]} to {card.dates[-1]}",
                work=self.work,
            )
        counts = finished.counts
        return MapResult(
            self.files.map, self.files.picture, counts[: len(old.fingerprint.classes)], int(counts[NODATA])
        )

    def _blocks(self, windows: Sequence[Window], writer: SeasonWriter) -> Iterator[BlockResult]:
        """Each window one step further; its state goes into the new file. At the end all of that is written."""
        total = self.series.grid.height * self.series.grid.width
        started = time.monotonic()

        def write(made: tuple[Window, Advanced]) -> None:
            window, found = made
            writer.write(window, found.counts, found.state)

        with (
            progress_bar(total, "update", "px", scale=True) as bar,
            WriteBehind(write) as behind,
            read_ahead(windows, self._read) as ready,
        ):
            for window, (observations, before) in ready:
                found = advance(self.predictor, self.series, window, observations, before=before)
                del observations, before
                behind.put((window, found))
                yield block_of(window, found.probabilities, found.seen, found.counts, self.options.wanted.needed)
                del found
                if len(self.series.dates) > 1:  # else windows are of one size all the time, and leave no holes
                    release_free_memory()
                bar.update(window.height * window.width)
        seconds = time.monotonic() - started
        event(f"{total:,} pixels in {seconds:.1f} s: {total / seconds:,.0f} px/s", pixels=total, seconds=seconds)

    def _read(self, window: Window) -> tuple[Observations, Before]:
        outer = window.expand(self.predictor.halo(self.series), self.series.grid.shape)
        return self.predictor.read(self.series, window), self.reader.read(outer)
