"""`cropstar bench suite`: the trainings of a matrix one after the other, with tables and figures.

The matrix is a YAML file:

    models: [rnn, star]         for all tasks that do not say otherwise; likewise layers, seeds and budget
    layers: [1, 2, 4]
    seeds: [0, 1, 2]
    budget: 10                  minutes of training each
    tasks:
      - task: adding
        name: adding-1000       in tables, figures and folders; the task's own where it is left out
        set: {task.length: 1000, epochs: 20}
        by_model: {rnn: {optimiser.learning_rate: 0.0001}}

A cell of the matrix is one training. All of them go to one folder:

    <folder>/
      suite.json                which file it is of
      cells/mnist/star-4-seed0/
        cell.json               all that decides the outcome
        failure.json            why it failed, where it did
        mnist/star-4x128-001/   its run; the result.json in it means that the cell is finished
      results.csv, results.md   written anew after every cell, as are
      depth.png, curves.png     the metric against layers, and against epochs

The same command continues a suite that was stopped: what is finished is kept, what was cut off goes on from its last
checkpoint, what failed is tried again. More models, depths, seeds or minutes may be added in between.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, ValidationError

from cropstar import __version__
from cropstar.benchmarks.running import BenchOptions, read_facts, resolve_bench, run_bench, shipped_config
from cropstar.benchmarks.suite_results import as_csv, as_markdown, draw_curves, draw_depths
from cropstar.benchmarks.tasks import TASKS
from cropstar.benchmarks.tasks.base import BenchTask, Metric, StoreTask
from cropstar.config import FITTED, SHORT, Section, TrainConfig, find_config, read_config, resolve_config
from cropstar.errors import (
    ArtifactError,
    CropstarError,
    Interrupted,
    MismatchError,
    PartialResult,
    ResourceError,
    UsageError,
    expected_error,
)
from cropstar.models.contract import NETWORKS
from cropstar.models.zoo import parse_name
from cropstar.registry import did_you_mean
from cropstar.reports.wording import duration, plural
from cropstar.runtime import event, logger, progress_bar
from cropstar.store import gate
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
    """Run all cells that are not finished. If one fails the others still run, then a PartialResult is raised."""
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
        how = BenchOptions(
            task.name,
            place,
            options.device,
            data=data,
            budget=cell.budget,
            identity=self._data_beside(cell),
            checkpoint_seconds=options.checkpoint_seconds,
        )
        if before.run is not None:  # a larger budget than it had
            return replace(how, resume=before.run)
        return replace(
            how,
            config=cell.config,
            options=cell.options,
            assignments=cell.assignments,
            parameters=cell.entry.match_parameters,
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


# --- the matrix

MAXIMUM_CELLS = 10_000  # a run folder each
SHIPPED = ("paper", "short")  # in configs/bench, beside the settings of each task
MATRIX = ("model.name", "model.layers", "seed", "store")  # what `set` cannot say

# Names become folders.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_+.-]*$", max_length=80)]
Names = Annotated[list[Name], Field(min_length=1)]
Layers = Annotated[list[Annotated[int, Field(ge=1, le=64)]], Field(min_length=1)]
Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]
Minutes = Annotated[float, Field(gt=0)]
Value = str | bool | int | float | None
Assignments = dict[str, Value | list[Value]]


class MatrixEntry(Section):
    """One task with its settings, and the models, depths and seeds that it is run with."""

    task: str
    name: Name | None = None
    models: Names | None = None
    layers: Layers | None = None
    seeds: Seeds | None = None
    budget: Minutes | None = None
    data: str | None = None
    config: str | None = None
    match_parameters: int | None = Field(None, ge=1)
    assignments: Assignments = Field(default_factory=dict, alias="set")
    by_model: dict[Name, Assignments] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        return self.name or self.task

    @property
    def kind(self) -> BenchTask | StoreTask:
        return TASKS[self.task]


class Matrix(Section):
    models: Names | None = None
    layers: Layers | None = None
    seeds: Seeds = Field(default_factory=lambda: [0])
    budget: Minutes | None = None
    tasks: list[MatrixEntry] = Field(min_length=1)


@dataclass(frozen=True)
class SuiteTraining:
    """One training of the matrix."""

    entry: MatrixEntry
    model: str
    layers: int
    seed: int
    budget: float | None  # minutes

    @property
    def title(self) -> str:
        return f"{self.entry.title}, {self.model}, {self.layers} layer{'s' * (self.layers > 1)}, seed {self.seed}"

    @property
    def place(self) -> Path:
        """Its folder, relative to that of the suite."""
        return Path("cells") / self.entry.title / f"{self.model}-{self.layers}-seed{self.seed}"

    @property
    def options(self) -> dict[str, Any]:
        return {"model.name": self.model, "model.layers": self.layers, "seed": self.seed}

    @property
    def assignments(self) -> tuple[str, ...]:
        given = {**self.entry.assignments, **self.entry.by_model.get(self.model, {})}
        return tuple(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items())

    @property
    def config(self) -> Path | None:
        return None if self.entry.config is None else Path(self.entry.config)

    def described(self) -> dict[str, Any]:
        """All settings that decide the outcome, without the data. A suite continues only with the same ones."""
        task, settings, somewhere = self.entry.kind, {}, Path("data")
        config: TrainConfig
        if isinstance(task, StoreTask):
            file = self.config or find_config(task.config)
            config = resolve_config(file, {**self.options, "store": somewhere}, self.assignments)
        else:
            config, own = resolve_bench(task, self.config, self.options, self.assignments, {}, somewhere)
            settings = own.model_dump(mode="json")
        if (config.model.name, config.model.layers, config.seed) != (self.model, self.layers, self.seed):
            why = "its settings name another model, depth or seed"
            raise UsageError(f"contradictory settings of {self.title}", why=why, remedy="use models, layers and seeds")
        whole = config.model_dump(mode="json", exclude={"store"})
        return {"task": task.name, "config": whole, "settings": settings, "match": self.entry.match_parameters}


def read_suite(file: Path, budget: float | None = None) -> list[SuiteTraining]:
    """The cells in the order of their run, all checked; `budget` overrides the file's."""
    if not file.exists() and not file.suffix:
        if str(file) not in SHIPPED:
            raise UsageError("no such configuration", path=file, remedy=f"give a file, or {' or '.join(SHIPPED)}")
        file = shipped_config(str(file))
    try:
        matrix = Matrix.model_validate(read_config(file))
    except ValidationError as failure:
        raise _explain(failure, file) from None
    titles = [entry.title for entry in matrix.tasks]
    for title in (title for title in titles if titles.count(title) > 1):
        why = "their results could not be distinguished"
        raise UsageError(f"two tasks are called '{title}'", path=file, why=why, remedy="give one of them a 'name'")
    cells: list[SuiteTraining] = []
    for entry in matrix.tasks:
        _require_possible(entry, file)
        cells += _cells(entry, matrix, budget, file)
        if len(cells) > MAXIMUM_CELLS:
            raise UsageError(
                "a suite that is too large", path=file, why=f"over {MAXIMUM_CELLS:,} cells", remedy="divide it"
            )
    for cell in {(cell.entry.title, cell.model): cell for cell in cells}.values():
        cell.described()  # depths and seeds are checked already
    return cells


def _cells(entry: MatrixEntry, matrix: Matrix, budget: float | None, file: Path) -> Iterator[SuiteTraining]:
    """All models of a depth, then the next, then the next seed: what is looked at early can be compared."""
    models, layers = entry.models or matrix.models, entry.layers or matrix.layers
    for key, value in (("models", models), ("layers", layers)):
        if value is None:
            raise UsageError(f"no {key} for '{entry.title}'", path=file, remedy=f"list them under '{key}'")
    assert models is not None
    assert layers is not None
    for name in [*models, *entry.by_model]:
        if name not in NETWORKS and name not in FITTED:
            parse_name(name)
    for name in entry.by_model.keys() - set(models):
        raise UsageError(f"'{entry.title}' has settings for '{name}'", path=file, remedy="list it under 'models'")
    minutes = budget or entry.budget or matrix.budget
    if isinstance(entry.kind, StoreTask):
        minutes = None  # it is an ordinary training, which knows no budget
    for seed in dict.fromkeys(entry.seeds or matrix.seeds):
        for depth in dict.fromkeys(layers):
            yield from (SuiteTraining(entry, model, depth, seed, minutes) for model in dict.fromkeys(models))


def _require_possible(entry: MatrixEntry, file: Path) -> None:
    task = entry.kind
    for keys in _all_assignments(entry):
        for key in keys.keys() & set(MATRIX):
            remedy = "use models, layers, seeds and data"
            raise UsageError(f"'{key}' under 'set' of '{entry.title}'", path=file, why="not a setting", remedy=remedy)
    if isinstance(task, StoreTask) and entry.match_parameters is not None:
        why = f"'{task.name}' is an ordinary training"
        raise UsageError("match_parameters cannot be used", path=file, why=why, remedy="set model.hidden")
    if entry.match_parameters is not None and any("model.hidden" in keys for keys in _all_assignments(entry)):
        why = f"'{entry.title}' has match_parameters, which choose the width"
        raise UsageError("'model.hidden' under 'set'", path=file, why=why, remedy="leave one out")


def _all_assignments(entry: MatrixEntry) -> list[Assignments]:
    return [entry.assignments, *entry.by_model.values()]


def _explain(failure: ValidationError, file: Path) -> UsageError:
    first = failure.errors()[0]
    *above, last = first["loc"]
    key = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        section = MatrixEntry if "tasks" in above else Matrix
        known = [field.alias or name for name, field in section.model_fields.items()]
        return UsageError(f"unknown key '{key}'", path=file, remedy=did_you_mean(str(last), known))
    if first["type"] == "missing":
        return UsageError(f"the key '{key}' is missing", path=file, remedy="see docs/benchmarks.md")
    why = f"{first['msg'].lower()}, not {SHORT.repr(first['input'])}"
    return UsageError(f"wrong value of '{key}'", path=file, why=why, remedy="correct it")


# --- outcomes

State = Literal["finished", "failed", "unfinished"]


@dataclass(frozen=True)
class SuiteOutcome:
    """A cell and what is known of it; figures are there where it is finished."""

    cell: SuiteTraining
    state: State
    error: str = ""
    run: Path | None = None
    value: float | None = None  # of the task's metric, on the test part
    validation: float | None = None  # of the same, where the epoch was chosen
    ended: str = ""  # epochs, patience or budget
    minutes: float | None = None  # of the budget
    seconds: float | None = None
    parameters: int | None = None
    hidden: int | None = None
    best_epoch: int | None = None
    baseline: float | None = None
    curve: tuple[float, ...] = ()  # on validation, epoch by epoch

    @property
    def metric(self) -> Metric:
        return self.cell.entry.kind.metric

    @property
    def may_go_on(self) -> bool:
        """Whether a smaller budget than today's ended it."""
        return self.ended == "budget" and (
            self.cell.budget is None or (self.minutes is not None and self.cell.budget > self.minutes)
        )


def failure_file(suite: Path, cell: SuiteTraining) -> Path:
    return suite / cell.place / "failure.json"


def settings_file(suite: Path, cell: SuiteTraining) -> Path:
    return suite / cell.place / "cell.json"


def read_outcome(suite: Path, cell: SuiteTraining) -> SuiteOutcome:
    failed, outcome = failure_file(suite, cell), _read_run(suite, cell)
    if not failed.exists():
        return outcome
    # What a budget ended before goes on where it was, once the cause is removed.
    run = outcome.run if outcome.ended == "budget" else None
    return SuiteOutcome(cell, "failed", str(read_json(failed).get("error", "")), run)


def _read_run(suite: Path, cell: SuiteTraining) -> SuiteOutcome:
    finished = sorted((suite / cell.place).glob("*/*/result.json"), key=lambda path: path.parent.name)
    if not finished:
        return SuiteOutcome(cell, "unfinished")
    result = read_json(finished[-1])
    try:
        return _outcome(cell, finished[-1].parent, result)
    except (KeyError, TypeError, ValueError, IndexError) as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise ArtifactError("not the result of a run", path=finished[-1], why=why, remedy="remove its folder") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        known = gate.read_json(path)
    except ValueError as failure:
        raise ArtifactError("damaged", path=path, why=str(failure), remedy="remove its folder") from None
    if not isinstance(known, dict):
        raise ArtifactError("damaged", path=path, why="not a JSON object", remedy="remove its folder")
    return known


def _outcome(cell: SuiteTraining, run: Path, result: dict[str, Any]) -> SuiteOutcome:
    task, history = cell.entry.kind, result["history"]
    if isinstance(task, StoreTask):  # the result of `cropstar train`
        name, best = "overall_accuracy", int(result["best_epoch"])
        value, reached = result["test"][task.unit][name] or 0.0, history[best - 1]["validation"] if best else {}
        ended: dict[str, Any] = {
            "ended": "epochs" if len(history) >= cell.described()["config"]["epochs"] else "patience"
        }
    else:
        name, best = task.metric.name, result["chosen"]["epoch"]
        value, reached, ended = result["value"], result["chosen"]["validation"], result["budget"]
    return SuiteOutcome(
        cell,
        "finished",
        run=run,
        value=float(value),
        validation=reached.get(name),
        ended=str(ended["ended"]),
        minutes=ended.get("minutes"),
        seconds=float(result["throughput"]["seconds"]),
        parameters=int(result["model"]["parameters"]),
        hidden=int(result["model"]["hidden"]),
        best_epoch=best,
        baseline=result.get("baseline"),
        curve=tuple(float(row["validation"][name]) for row in history),
    )
