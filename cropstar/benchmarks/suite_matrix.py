"""The matrix of a suite, read from YAML, and the outcome of each of its cells.

    models: [rnn, star]         for all tasks that do not say otherwise; likewise layers, seeds and budget
    layers: [1, 2, 4]
    seeds: [0, 1, 2]
    budget: 10                  minutes of training each
    tasks:
      - task: adding
        name: adding-1000       in tables, figures and folders; the task's own where it is left out
        set: {task.length: 1000, epochs: 20}
        by_model: {rnn: {optimiser.learning_rate: 0.0001}}

A cell has a folder:

    <suite>/cells/mnist/star-4-seed0/
      cell.json                 all that decides the outcome
      failure.json              why it failed, where it did
      mnist/star-4x128-001/     its run; the result.json in it means that the cell is finished
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from cropstar.benchmarks.running import resolve_bench, shipped_config
from cropstar.benchmarks.tasks import TASKS
from cropstar.benchmarks.tasks.base import BenchTask, Metric, StoreTask
from cropstar.config import FITTED, SHORT, Section, TrainConfig, find_config, read_config, resolve_config
from cropstar.errors import ArtifactError, UsageError
from cropstar.models.contract import NETWORKS
from cropstar.models.zoo import parse_name
from cropstar.registry import did_you_mean
from cropstar.store import gate

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
    """The cells in the order in which they are run; `budget` wins over the file's. Whatever is misspelt is said now."""
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
