"""`cropstar bench TASK`: a sequence task through the training loop, evaluated once on its test part."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

import cropstar
from cropstar import __version__
from cropstar.benchmarks.recurrence import save_memory
from cropstar.benchmarks.tasks import TASKS
from cropstar.benchmarks.tasks.base import BenchTask, SequenceObjective, Settings, StoreTask, TaskData
from cropstar.config import (
    SHORT,
    ModelConfig,
    TrainConfig,
    dump_config,
    dump_yaml,
    find_config,
    load_yaml,
    read_config,
    resolve_config,
)
from cropstar.errors import ArtifactError, InputError, MismatchError, UsageError
from cropstar.models.contract import Classifier, count_parameters
from cropstar.models.zoo import load_weights, weights_of
from cropstar.registry import did_you_mean
from cropstar.runtime import DATA, event, keep_large_buffers, peak_memory_megabytes
from cropstar.store.files import write_json
from cropstar.store.gate import read_json
from cropstar.store.model_file import read_tensors, write_tensors
from cropstar.training.monitoring import EventFiles, require_tensorboard
from cropstar.training.optimisation import Precision
from cropstar.training.runs import Run, claim_run, open_run
from cropstar.training.setup import predicts_by_date
from cropstar.training.train import TrainOptions, train
from cropstar.training.trainer import Budget, Progress, Task, ValidationResult, fit

MODEL_KIND = "benchmark"  # of the model file: no map can be made with it
STOPPED = "stopped.safetensors"  # the weights that were judged, where a budget ended between two epochs


@dataclass(frozen=True)
class BenchOptions:
    """Options of `cropstar bench`; None leaves a value to the configuration of the task."""

    task: str
    runs: Path
    device: torch.device
    config: Path | None = None
    data: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the configuration, with dotted keys
    own: dict[str, Any] = field(default_factory=dict)  # of its section `task`
    assignments: tuple[str, ...] = ()
    parameters: int | None = None  # the width is chosen so that the model has about so many
    budget: float | None = None  # minutes of training, over all restarts
    resume: Path | None = None
    fresh: bool = False
    checkpoint_seconds: float = 30.0
    tensorboard: bool = False
    look: bool = True  # at the test part
    identity: dict[str, Any] | None = None  # of the data, where they must be certain ones


def run_bench(options: BenchOptions) -> dict[str, Any]:
    """Train to the end, or until the budget is spent, and judge the best model once on the test part, if wanted."""
    keep_large_buffers()
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("benchmarks run in one process", remedy="leave out torchrun")
    if options.tensorboard:
        require_tensorboard()
    task = TASKS[options.task]
    if isinstance(task, StoreTask):
        if not options.look:
            raise UsageError(
                "--no-test does not apply to the crop tasks", remedy="choose their settings with 'cropstar tune'"
            )
        return _run_store_task(task, options)
    config, settings = _resolved(task, options)
    folder = Path(config.store)
    task.require_data(folder)
    Precision(config.precision, options.device)
    material = task.load(settings, config, folder)
    if options.identity is not None and material.identity != options.identity:
        why = "the other results of its table are of other data"
        raise MismatchError(
            "different data", path=folder, why=why, remedy="give those, or choose another output folder"
        )
    if options.parameters is not None and options.resume is None:
        wanted = match_parameters(config.model, options.parameters, lambda each: _build(task, config, each, material))
        config = config.model_copy(update={"model": wanted})
    torch.manual_seed(config.seed)
    model = _build(task, config, config.model, material)
    if settings.checkpoint is not None:
        save_memory(model, settings.checkpoint)
    data = {"task": task.name, "settings": settings.model_dump(mode="json"), "data": material.identity}
    with ExitStack() as hold:
        run = _claim(task, config, options, data, hold)
        event(
            f"{task.name}: {config.model.name}, {config.model.layers} layers of {config.model.hidden}, "
            f"{count_parameters(model):,} parameters; run {run.folder}"
        )
        result = _Bench(task, config, settings, material, model, run, options).result(hold)
        write_json(run.result, result)
    return result


class _Bench:
    """One run, from its first batch to the look at the test part."""

    def __init__(
        self,
        task: BenchTask,
        config: TrainConfig,
        settings: Settings,
        material: TaskData,
        model: Classifier,
        run: Run,
        options: BenchOptions,
    ) -> None:
        self._task, self._config, self._settings, self._material = task, config, settings, material
        self._model, self._run, self._options = model, run, options
        # Where the budget ends between two epochs, what was reached there: a run that goes on never knew of it.
        self._stopped: tuple[ValidationResult, dict[str, NDArray[Any]]] | None = None

    def result(self, hold: ExitStack) -> dict[str, Any]:
        minutes = self._options.budget
        events = EventFiles(self._run) if self._options.tensorboard else None
        if events is not None:
            hold.callback(events.close)
        progress = fit(
            Task(
                self._config,
                self._run,
                self._model,
                self._material.parts["train"],
                self._material.parts["validation"],
                self._material.shape.classes,
                self._options.device,
                self._options.checkpoint_seconds,
                events=events,
                objective=self._material.objective,
                budget=None if minutes is None else Budget(60 * minutes, self._note),
            ),
            self._save,
        )
        ended = "epochs" if progress.epoch >= self._config.epochs else "patience"
        if ended != "epochs" and minutes is not None and progress.seconds >= 60 * minutes:
            ended = "budget"
            event(f"the budget of {minutes:g} minutes is spent after {progress.step} batches; --resume continues")
        chosen = self._take_best(progress)
        test = None
        if self._options.look:
            test = self._material.objective.validate(self._model, self._material.parts["test"], self._options.device)
        return self._facts(progress, ended, chosen, test)

    def _save(self, model: Classifier, progress: Progress) -> None:
        self._write(self._run.model, weights_of(model), progress.best_epoch)

    def _write(self, file: Path, weights: dict[str, NDArray[Any]], epoch: int | None) -> None:
        header = {
            "task": self._task.name,
            "model": self._config.model.model_dump(mode="json"),
            "shape": self._material.shape.to_json(),
            "epoch": epoch,
        }
        write_tensors(file, MODEL_KIND, header, weights)

    def _note(self, model: Classifier, progress: Progress) -> None:
        verdict = self._material.objective.validate(model, self._material.parts["validation"], self._options.device)
        if not progress.best_epoch or verdict.score > progress.best_score:
            self._stopped = verdict, {name: array.copy() for name, array in weights_of(model).items()}

    def _take_best(self, progress: Progress) -> dict[str, Any]:
        """Give the model the best weights by validation; what they reached there."""
        if self._stopped is not None:
            verdict, weights = self._stopped
            load_weights(self._model, weights, self._run.folder)
            self._write(self._run.folder / STOPPED, weights, None)
            return {"step": progress.step, "epoch": None, "validation": verdict.figures, "weights": STOPPED}
        _, weights = read_tensors(self._run.model, MODEL_KIND)
        load_weights(self._model, weights, self._run.model)
        best = progress.history[progress.best_epoch - 1]
        reached = best["validation"]
        return {"step": None, "epoch": progress.best_epoch, "validation": reached, "weights": self._run.model.name}

    def _facts(
        self, progress: Progress, ended: str, chosen: dict[str, Any], test: ValidationResult | None
    ) -> dict[str, Any]:
        metric = self._task.metric
        seconds = max(progress.seconds, 1e-9)
        return {
            "version": __version__,
            "task": self._task.name,
            "run": str(self._run.folder),
            "command": " ".join(["cropstar", *sys.argv[1:]]),
            "metric": {"name": metric.name, "words": metric.words, "larger_is_better": metric.larger_is_better},
            "value": test.figures[metric.name] if test else None,
            "text": test.text if test else None,
            "test": test.figures if test else None,
            "chosen": chosen,
            "paper": dict(self._task.paper),
            "baseline": self._material.identity.get("baseline"),
            "seed": self._config.seed,
            "budget": {"minutes": self._options.budget, "ended": ended},
            "model": {**self._config.model.model_dump(mode="json"), "parameters": count_parameters(self._model)},
            "settings": self._settings.model_dump(mode="json"),
            "config": dump_config(self._config),
            "history": progress.history,
            "throughput": {
                "steps_per_second": progress.step / seconds,
                "samples_per_second": progress.samples / seconds,
                "seconds": round(progress.seconds, 1),
                "peak_memory_mb": round(peak_memory_megabytes(), 1),
            },
        }


def _build(task: BenchTask, config: TrainConfig, chosen: Any, material: TaskData) -> Classifier:
    model = task.build(config.model_copy(update={"model": chosen}), material)
    if not model.trains_in_epochs:
        raise UsageError(f"'{config.model.name}' cannot be benchmarked", why="it has no epochs", remedy="use another")
    objective = material.objective
    asks_steps = isinstance(objective, SequenceObjective) and objective.loss.by_step and not objective.in_order
    if model.spatial and not task.images:
        why = f"{config.model.name} reads images"
        raise UsageError(f"'{task.name}' has series", why=why, remedy="use a model such as star")
    if asks_steps and not predicts_by_date(model, material.shape.bands):
        why = f"{config.model.name} does not predict at every step"
        raise UsageError(f"'{task.name}' needs a model that reads step after step", why=why, remedy="e.g. --model star")
    return model


def _resolved(task: BenchTask, options: BenchOptions) -> tuple[TrainConfig, Settings]:
    """The configuration that was given, or that of the run to resume."""
    if options.resume is None:
        folder = options.data or DATA / (task.folder or "")
        return resolve_bench(task, options.config, options.options, options.assignments, options.own, folder)
    known = read_facts(options.resume)
    if known.get("task") != task.name:
        why = f"it is a run of '{known.get('task')}'"
        raise UsageError("cannot resume the run", path=options.resume, why=why, remedy="name its task")
    moved = {} if options.data is None else {"store": options.data}
    try:
        return resolve_config(Run(options.resume).config, moved), settings_of(task, known["settings"])
    except UsageError as failure:  # cropstar has written these
        why = "; ".join(part for part in (failure.what, failure.why) if part)
        raise ArtifactError("damaged", path=options.resume, why=why, remedy="start a new run") from None


def read_facts(folder: Path) -> dict[str, Any]:
    """The task, settings and data of a run."""
    try:
        known = read_json(Run(folder).data)
    except (OSError, ValueError) as failure:
        raise ArtifactError("no run of a benchmark", path=folder, why=str(failure), remedy="check the folder") from None
    if isinstance(known, dict) and "fingerprint" in known:
        remedy = "name its task, as in 'cropstar bench tum-series --resume RUN'"
        raise UsageError("the task is missing", path=folder, why="it is an ordinary training", remedy=remedy)
    if not isinstance(known, dict) or not isinstance(known.get("settings"), dict):
        raise ArtifactError("no run of a benchmark", path=folder, remedy="check the folder")
    return known


def _claim(task: BenchTask, config: TrainConfig, options: BenchOptions, data: dict[str, Any], hold: ExitStack) -> Run:
    """A new run, or one to resume; one that a budget ended counts as finished until it is resumed."""
    if options.resume is None:
        return claim_run(options.runs / task.name, config, data, hold, fresh=options.fresh)
    run = open_run(options.resume, data, hold, again=_ended_by_budget(Run(options.resume)))
    run.result.unlink(missing_ok=True)
    (run.folder / STOPPED).unlink(missing_ok=True)
    return run


def _ended_by_budget(run: Run) -> bool:
    if not run.finished:
        return False
    try:
        return bool(read_json(run.result)["budget"]["ended"] == "budget")
    except (ValueError, KeyError, TypeError):
        why = "it does not say why the run ended"
        raise ArtifactError("damaged", path=run.result, why=why, remedy="remove it to continue the run") from None


# --- crop tables: `cropstar train` with a configuration that ships with cropstar


def _run_store_task(task: StoreTask, options: BenchOptions) -> dict[str, Any]:
    for name, given in (("--budget", options.budget), ("--match-parameters", options.parameters)):
        if given is not None:
            raise UsageError(
                f"{name} does not apply to '{task.name}'", why="it is an ordinary training", remedy="leave it out"
            )
    if any(value is not None for value in options.own.values()):
        raise UsageError(f"'{task.name}' has no settings of its own", remedy="leave them out")
    folder = options.data or DATA / task.folder
    if options.resume is not None:
        config = resolve_config(options.resume / "config.yaml", {})
    else:
        if not folder.exists():
            remedy = f"{task.needs}; or name it with --data"
            raise InputError(f"no store for '{task.name}'", path=folder, remedy=remedy)
        file = options.config or find_config(task.config)
        config = resolve_config(file, {**options.options, "store": folder}, options.assignments)
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


# --- models of equal size

WIDTHS = (16, 32, 48)  # multiples of 16 suit attention's heads
WIDEST = 4096

ModelBuilder = Callable[[ModelConfig], Classifier]


def match_parameters(config: ModelConfig, wanted: int, build: ModelBuilder) -> ModelConfig:
    """The width whose number of parameters is nearest to the wanted one.

    Parameters grow with the square of the width: three small models tell the curve, and no large one has to be made.
    """
    counts = [count_parameters(build(config.model_copy(update={"hidden": width}))) for width in WIDTHS]
    square, linear, constant = (float(term) for term in np.polyfit(WIDTHS, counts, 2))
    below = linear**2 - 4 * square * (constant - wanted)
    width = (math.sqrt(max(below, 0)) - linear) / (2 * square) if square > 0 else 0.0
    nearest = min(
        (max(math.floor(width), 1), math.ceil(width), 1),
        key=lambda each: abs(square * each**2 + linear * each + constant - wanted),
    )
    if not 1 <= nearest <= WIDEST or wanted < constant:
        why = f"'{config.name}' of {config.layers} layers would be {width:.0f} wide"
        raise UsageError(
            f"no width has {wanted:,} parameters", why=why, remedy="give another number, or change the layers"
        )
    return config.model_copy(update={"hidden": nearest})


# --- the configuration of a benchmark, and the texts of `cropstar bench`


SECTION = "task"
UNUSED = (
    "split",
    "target",
    "loss",
    "sampling",
    "augmentation",
    "regular",
    "compile",
    "patch",
    "ensemble",
    "beside",
    "refit",
    "distil",
)  # but for stores


def shipped_config(name: str) -> Path:
    """The paper's settings of a task."""
    package = Path(cropstar.__file__).parent
    installed, checkout = package / "configs", package.parent / "configs"
    return (installed if installed.is_dir() else checkout) / "bench" / f"{name}.yaml"


def resolve_bench(
    task: BenchTask,
    file: Path | None,
    options: dict[str, Any],
    assignments: tuple[str, ...],
    own: dict[str, Any],
    folder: Path,
) -> tuple[TrainConfig, Settings]:
    """Training's configuration and the task's settings. `options` has dotted keys, `own` those of the task."""
    content = read_config(file or shipped_config(task.name))
    section = content.pop(SECTION, {}) or {}
    if not isinstance(section, dict):
        raise UsageError(f"'{SECTION}' is not a section", path=file, remedy="write 'key: value' lines under it")
    section |= {key: value for key, value in own.items() if value is not None}
    rest = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if equals and key.strip().startswith(f"{SECTION}."):
            section[key.strip().removeprefix(f"{SECTION}.")] = load_yaml(text, f"--set {key}")
        else:
            rest.append(assignment)
    try:
        settings = settings_of(task, section)
        config = resolve_config(None, options, tuple(rest), defaults={**content, "store": str(folder)})
        require_used(task, config)
    except UsageError as failure:
        if failure.path is None and file is not None:
            failure.path = str(file)
        raise
    return config, settings


def settings_of(task: BenchTask, section: dict[str, Any]) -> Settings:
    try:
        return task.settings.model_validate(section)
    except ValidationError as failure:
        first = failure.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = [f"{SECTION}.{name}" for name in task.settings.model_fields]
            remedy = did_you_mean(f"{SECTION}.{key}", known)
            raise UsageError(f"'{task.name}' has no setting '{SECTION}.{key}'", remedy=remedy) from None
        why = f"{first['msg'].lower()}, not {SHORT.repr(first['input'])}"
        raise UsageError(f"wrong value of '{SECTION}.{key}'", why=why, remedy="correct it") from None


def require_used(task: BenchTask, config: TrainConfig) -> None:
    """Refuse settings that would silently do nothing."""
    for name in UNUSED:
        if getattr(config, name) != TrainConfig.model_fields[name].default:
            raise UsageError(f"'{task.name}' does not use {name}", remedy="leave it out")
    used, other = ("batch", "series_batch") if task.images else ("series_batch", "batch")
    if getattr(config, other) not in (getattr(config, used), TrainConfig.model_fields[other].default):
        raise UsageError(f"'{task.name}' does not use {other}", remedy=f"set {used}, or both to the same value")
    for key, unset in (("day_encoding", "none"), ("revisit", None)):
        if getattr(config.model, key) != unset:
            why = "a sequence has no days"
            raise UsageError(f"wrong value of 'model.{key}'", why=why, remedy=f"set it to {unset or 'null'}")


# --- texts


def table_of_tasks() -> str:
    """One line per task: what it is, its metric, the paper's figures; then where data are looked for."""
    width = max(len(name) for name in TASKS)
    lines, places = [], []
    for name in TASKS:
        task = TASKS[name]
        paper = "; ".join(f"{who} {what}" for who, what in task.paper) or "not in the paper"
        lines.append(f"{name:{width}}  {task.about}\n{'':{width}}  {task.metric.words}; paper: {paper}")
        if task.folder is not None:
            places.append(f"{name:{width}}  {DATA / task.folder}: {task.needs}")
    return "\n".join([*lines, "", "Data folders, unless --data says otherwise:", *places])


def show_config(
    name: str,
    file: Path | None,
    options: dict[str, Any],
    assignments: tuple[str, ...],
    own: dict[str, Any],
    data: Path | None,
) -> str:
    """The resolved configuration, as YAML that `--config` takes."""
    task = TASKS[name]
    folder = data or DATA / (task.folder or "")
    if isinstance(task, StoreTask):
        return dump_config(resolve_config(file or find_config(task.config), {**options, "store": folder}, assignments))
    config, settings = resolve_bench(task, file, options, assignments, own, folder)
    return dump_yaml({SECTION: settings.model_dump(mode="json"), **config.model_dump(mode="json")})


def headline(result: dict[str, Any]) -> str:
    """The test figure beside the paper's; the validation figure if the test part was not used."""
    if result["text"] is None:
        figures = ", ".join(f"{name} {value:.4g}" for name, value in result["chosen"]["validation"].items())
        return f"{result['task']}: {figures} on validation; the test data were not used"
    paper = "; ".join(f"{who} {what}" for who, what in result["paper"].items())
    return f"{result['task']}: {result['text']} on test" + (f" (paper: {paper})" if paper else "")
