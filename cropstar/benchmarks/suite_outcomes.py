"""What became of the cells of a suite, as their folders have it.

<suite>/cells/mnist/star-4-seed0/
  cell.json                      all that decides the outcome
  failure.json                   why it failed, where it did
  mnist/star-4x128-001/          its run; the result.json in it means that the cell is finished
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cropstar.benchmarks.objectives import Metric
from cropstar.benchmarks.suite_file import Cell
from cropstar.benchmarks.tasks.contract import StoreTask
from cropstar.errors import ArtifactError

State = Literal["finished", "failed", "unfinished"]


@dataclass(frozen=True)
class Outcome:
    """A cell and what is known of it; figures are there where it is finished."""

    cell: Cell
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


def failure_file(suite: Path, cell: Cell) -> Path:
    return suite / cell.place / "failure.json"


def settings_file(suite: Path, cell: Cell) -> Path:
    return suite / cell.place / "cell.json"


def read_outcome(suite: Path, cell: Cell) -> Outcome:
    failed, found = failure_file(suite, cell), _read_run(suite, cell)
    if not failed.exists():
        return found
    # What a budget ended before goes on where it was, once the cause is removed.
    run = found.run if found.ended == "budget" else None
    return Outcome(cell, "failed", str(read_json(failed).get("error", "")), run)


def _read_run(suite: Path, cell: Cell) -> Outcome:
    finished = sorted((suite / cell.place).glob("*/*/result.json"), key=lambda path: path.parent.name)
    if not finished:
        return Outcome(cell, "unfinished")
    result = read_json(finished[-1])
    try:
        return _outcome(cell, finished[-1].parent, result)
    except (KeyError, TypeError, ValueError, IndexError) as failure:
        why = f"{type(failure).__name__}: {failure}"
        raise ArtifactError("not the result of a run", path=finished[-1], why=why, remedy="remove its folder") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as failure:
        raise ArtifactError("damaged", path=path, why=str(failure), remedy="remove its folder") from None
    if not isinstance(known, dict):
        raise ArtifactError("damaged", path=path, why="no object of JSON", remedy="remove its folder")
    return known


def _outcome(cell: Cell, run: Path, result: dict[str, Any]) -> Outcome:
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
    return Outcome(
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
