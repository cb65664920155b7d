"""`cropstar bench suite`: the trainings of a matrix one after the other, with tables and figures.

<folder>/
  suite.json                     which file it is of
  cells/<task>/<cell>/           see suite_matrix.py
  results.csv, results.md        written anew after every cell, as are
  depth.png, curves.png          the metric against layers, and against epochs

The same command continues a suite that was stopped: what is finished is kept, what was cut off goes on from its last
checkpoint, what failed is tried again. More models, depths, seeds or minutes may be added in between.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cropstar import __version__
from cropstar.benchmarks.running import BenchOptions, read_facts, run_bench
from cropstar.benchmarks.suite_matrix import (
    SuiteOutcome,
    SuiteTraining,
    failure_file,
    read_json,
    read_outcome,
    read_suite,
    settings_file,
)
from cropstar.benchmarks.suite_results import as_csv, as_markdown, draw_curves, draw_depths
from cropstar.benchmarks.tasks.base import StoreTask
from cropstar.errors import (
    CropstarError,
    Interrupted,
    MismatchError,
    PartialResult,
    ResourceError,
    UsageError,
    expected_error,
)
from cropstar.reports.wording import duration, plural
from cropstar.runtime import event, logger, progress_bar
from cropstar.store.files import atomic_path, locked, sweep, write_json, write_text
from cropstar.training.tuning import silenced

SETTINGS, TABLE, PAGE, DEPTHS, CURVES = "suite.json", "results.csv", "results.md", "depth.png", "curves.png"


@dataclass(frozen=True)
class SuiteOptions:
    folder: Path
    device: torch.device
    data: Path | None = None  # the folder in place of data/
    budget: float | None = None  # minutes each, in place of the file's
    checkpoint_seconds: float = 30.0


def run_suite(file: Path, options: SuiteOptions) -> list[SuiteOutcome]:
    """Run what is not finished. One that fails is noted and the others go on: then it ends with a PartialResult."""
    cells = read_suite(file, options.budget)
    with ExitStack() as hold:
        _claim(file, options.folder, hold)
        _require_same(cells, options.folder)
        suite = _Suite(file, cells, options)
        suite.run()
    failed = [outcome for outcome in suite.outcomes.values() if outcome.state == "failed"]
    if failed:
        raise PartialResult(
            f"{len(failed)} of {plural(len(cells), 'cell')} failed",
            path=options.folder / PAGE,
            why=f"{failed[0].cell.title}: {failed[0].error}",
            remedy="run the same command to try them again",
        )
    return list(suite.outcomes.values())


class _Suite:
    def __init__(self, file: Path, cells: list[SuiteTraining], options: SuiteOptions) -> None:
        self._file, self._options = file, options
        self._beside: list[float] = []  # seconds a cell for reading, judging and drawing
        self.outcomes = {cell.place: read_outcome(options.folder, cell) for cell in cells}

    def run(self) -> None:
        waiting = [outcome for outcome in self.outcomes.values() if outcome.state != "finished" or outcome.may_go_on]
        total, done = len(self.outcomes), len(self.outcomes) - len(waiting)
        kept = f", {done} of them already finished" if done else ""
        event(f"{plural(total, 'cell')}{kept}; {self._options.folder}", cells=total, finished=done)
        self._write()
        with progress_bar(total, "suite", "cell") as bar:
            bar.update(done)
            for place, before in enumerate(waiting):
                number, cell = done + place + 1, before.cell
                event(f"cell {number}/{total}  {cell.title}", cell=number, title=cell.title)
                began = time.monotonic()
                self.outcomes[cell.place] = after = self._run(before)
                self._write()
                # A resumed cell trained only in part now: it tells nothing about the time beside training.
                self._beside.append(max(0.0, time.monotonic() - began - (after.seconds or 0.0)))
                self._log(after, [outcome.cell for outcome in waiting[place + 1 :]])
                bar.update()

    def _run(self, before: SuiteOutcome) -> SuiteOutcome:
        """One cell to its end. A full disk or a signal ends the suite, anything else is the cell's own failure."""
        cell, folder = before.cell, self._options.folder
        failure_file(folder, cell).unlink(missing_ok=True)
        write_json(settings_file(folder, cell), cell.described())
        try:
            with silenced():
                run_bench(self._bench_options(before))
        except Exception as failure:
            error = expected_error(failure) or failure
            if isinstance(error, Interrupted) or (isinstance(error, ResourceError) and error.what != "out of memory"):
                raise
            words = " ".join(str(error).split())[:500]
            line = words if isinstance(error, CropstarError) else f"{type(error).__name__}: {words}"
            write_json(failure_file(folder, cell), {"error": line})
        return read_outcome(folder, cell)

    def _bench_options(self, before: SuiteOutcome) -> BenchOptions:
        cell, options = before.cell, self._options
        task, place = cell.entry.kind, options.folder / cell.place
        data = None if cell.entry.data is None else Path(cell.entry.data)
        if data is None and options.data is not None:
            data = options.data / (task.folder or "")
        identity = self._data_beside(cell)
        if before.run is not None:  # a larger budget than it had
            return BenchOptions(
                task.name,
                place,
                options.device,
                data=data,
                budget=cell.budget,
                resume=before.run,
                identity=identity,
                checkpoint_seconds=options.checkpoint_seconds,
            )
        return BenchOptions(
            task.name,
            place,
            options.device,
            cell.config,
            data,
            cell.options,
            {},
            cell.assignments,
            cell.entry.match_parameters,
            cell.budget,
            identity=identity,
            checkpoint_seconds=options.checkpoint_seconds,
        )

    def _data_beside(self, cell: SuiteTraining) -> dict[str, Any] | None:
        """The identity of the data that the cells in the same table were run on, where there is one of these settings.

        A path may change: data are moved, or mounted elsewhere.
        """
        if isinstance(cell.entry.kind, StoreTask):
            return None
        for other in self.outcomes.values():
            if other.run is not None and other.cell.entry is cell.entry:
                known = read_facts(other.run)
                if known["settings"] == cell.described()["settings"]:
                    return dict(known["data"])
        return None

    def _write(self) -> None:
        folder, outcomes = self._options.folder, list(self.outcomes.values())
        write_text(folder / TABLE, as_csv(outcomes, folder))
        pictures = {}
        for name, draw in ((DEPTHS, draw_depths), (CURVES, draw_curves)):
            picture = draw(outcomes)
            if picture is not None:
                pictures[name] = picture
                with atomic_path(folder / name) as partial:
                    partial.write_bytes(picture)
        write_text(folder / PAGE, as_markdown(outcomes, self._file.name, list(pictures)))

    def _log(self, outcome: SuiteOutcome, waiting: list[SuiteTraining]) -> None:
        seconds = time_left(list(self.outcomes.values()), waiting)
        if seconds is not None:
            seconds += len(waiting) * sum(self._beside) / len(self._beside)
        left = f"; about {duration(seconds)} left" if waiting and seconds is not None else ""
        if outcome.value is None:
            logger.warning("%s failed: %s%s", outcome.cell.title, outcome.error, left)
            return
        figure, took = outcome.metric.show(outcome.value), duration(outcome.seconds)
        event(
            f"  {figure} on test, ended by {outcome.ended} after {took}{left}",
            title=outcome.cell.title,
            value=outcome.value,
            ended=outcome.ended,
            seconds=outcome.seconds,
        )


def time_left(outcomes: list[SuiteOutcome], waiting: list[SuiteTraining]) -> float | None:
    """The estimated seconds for the remaining cells; None if nothing is known yet."""
    known = [(outcome.cell, outcome.seconds) for outcome in outcomes if outcome.seconds is not None]
    total = 0.0
    for cell in waiting:
        alike = [pair for pair in known if pair[0].entry is cell.entry] or known
        guess = sum(seconds / other.layers for other, seconds in alike) / len(alike) * cell.layers if alike else None
        limit = None if cell.budget is None else 60 * cell.budget
        if guess is None and limit is None:
            return None
        total += min(value for value in (guess, limit) if value is not None)
    return total


def _claim(file: Path, folder: Path, hold: ExitStack) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError("the output is a file", path=folder, remedy="give a folder with -o")
    others = [path for path in folder.iterdir() if path.name != ".lock"] if folder.is_dir() else []
    if others and not (folder / SETTINGS).is_file():
        why = "it contains other files"
        raise UsageError("not the folder of a suite", path=folder, why=why, remedy="choose a new one with -o")
    hold.enter_context(locked(folder, "the suite"))
    sweep(folder)
    write_json(folder / SETTINGS, {"suite": file.name, "version": __version__})


def _require_same(cells: list[SuiteTraining], folder: Path) -> None:
    """Refuse cells that were started with other settings: their figures could not be compared."""
    for cell in cells:
        if settings_file(folder, cell).exists():
            before, now = read_json(settings_file(folder, cell)), cell.described()
            changed = [
                key
                for part in ("settings", "config")
                for key in now[part]
                if before.get(part, {}).get(key) != now[part][key]
            ]
            if before != now:
                why = f"{cell.title} was started with a different {', '.join(changed[:3]) or 'task'}"
                remedy = "choose another folder with -o"
                raise MismatchError("cannot continue the suite", path=folder, why=why, remedy=remedy)
