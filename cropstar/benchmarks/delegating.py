"""The crop tables: a benchmark that is `cropstar train` with a configuration that ships with cropstar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cropstar.benchmarks.tasks.contract import StoreTask
from cropstar.errors import InputError, UsageError
from cropstar.places import DATA
from cropstar.resolving import find_config, resolve
from cropstar.training.train import TrainOptions, train

if TYPE_CHECKING:
    from cropstar.benchmarks.running import BenchOptions


def run_store_task(task: StoreTask, options: BenchOptions) -> dict[str, Any]:
    for name, given in (("--budget", options.budget), ("--match-parameters", options.parameters)):
        if given is not None:
            raise UsageError(
                f"{name} is not for '{task.name}'", why="it is an ordinary training", remedy="leave it out"
            )
    if any(value is not None for value in options.own.values()):
        raise UsageError(f"'{task.name}' has no settings of its own", remedy="leave them out")
    folder = options.data or DATA / task.folder
    if options.resume is not None:
        config = resolve(options.resume / "config.yaml", {})
    else:
        if not folder.exists():
            remedy = f"{task.needs}; or name it with --data"
            raise InputError(f"no store for '{task.name}'", path=folder, remedy=remedy)
        file = options.config or find_config(task.config)
        config = resolve(file, {**options.options, "store": folder}, options.assignments)
    how = TrainOptions(
        options.runs / task.name,
        options.device,
        options.resume,
        options.fresh,
        options.checkpoint_seconds,
        tensorboard=options.tensorboard,
    )
    run, result = train(config, how)
    value = float(result["test"][task.unit]["overall_accuracy"] or 0.0)
    metric = task.metric
    return {
        **result,
        "task": task.name,
        "run": str(run.folder),
        "metric": {"name": metric.name, "words": metric.words, "larger_is_better": metric.larger_is_better},
        "value": value,
        "text": metric.show(value),
        "paper": dict(task.paper),
        "seed": config.seed,
        "budget": {"minutes": None, "ended": "epochs"},
    }
