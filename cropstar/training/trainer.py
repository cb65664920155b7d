"""The trainer: objective, task, and a training loop that a killed run resumes.

Order, dropout and learning rate follow from (seed, epoch, batch) alone, so that a run killed anywhere and resumed ends
where the unbroken run ends. The loop knows nothing of crops but what their objective tells it; the sequence tasks of
`cropstar bench` have objectives of their own.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.config import OptimiserConfig, TrainConfig
from cropstar.datasets.batches import Batch, Dataset, epoch_order
from cropstar.datasets.samples import Prepared
from cropstar.datasets.transforms import Draw
from cropstar.errors import ArtifactError, CropstarError, Interrupted, MismatchError, one_line
from cropstar.execution.threads import read_ahead
from cropstar.models.contract import Classifier
from cropstar.models.zoo import load_weights, weights_of
from cropstar.runtime import StopRequest, event, logger, progress_bar, stop_on_request
from cropstar.store.files import write_json_lines
from cropstar.store.gate import ProgressRow, checked
from cropstar.store.model_file import Tensors, read_tensors, write_tensors
from cropstar.training.accuracy import evaluate, score
from cropstar.training.distillation import TaughtSamples, forward_distilled
from cropstar.training.distributed import ALONE, Processes
from cropstar.training.losses import Lineages, Loss, build_loss, class_weights
from cropstar.training.metrics import class_f1, macro_f1, overall_accuracy
from cropstar.training.monitoring import Diagnosis, EventFiles
from cropstar.training.optimisation import (
    Engine,
    Precision,
    Tally,
    WeightAverage,
    compile_forward,
    fit_into_memory,
    learning_rate,
)
from cropstar.training.runs import Run

# --- the objective: the loss of a batch, and how a model is judged on validation


@dataclass(frozen=True)
class ValidationResult:
    """The figures of a model on validation."""

    figures: dict[str, float]
    score: float  # by which the best epoch is chosen: larger is better
    text: str  # the figures for the log
    loss: float | None = None  # decides between epochs of one score: smaller is better; None: the earliest is the best


class Objective(Protocol):
    @property
    def loss(self) -> Loss: ...

    @property
    def in_order(self) -> bool:
        """Whether an epoch takes the samples as they lie, such as the pieces of one text; else shuffled."""

    def forward(self, model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        """Run the model on a batch: its scores and the targets, (N, ...) each and on the device."""

    def validate(self, model: Classifier, dataset: Dataset, device: torch.device) -> ValidationResult: ...


@dataclass(frozen=True)
class Crops:
    """Classes of pixels, parcels or dates. The epoch with the best macro-F1 is kept; of equal ones the least loss."""

    loss: Loss
    classes: int
    in_order: bool = False

    def forward(self, model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        """Scores (N, K) and labels (N,)."""
        scored = score(model, batch, device)
        # Pixels that no date saw would teach the head nothing but the shares of the classes.
        return scored.scores[scored.seen.to(device)], scored.labels[scored.seen].to(device)

    def validate(self, model: Classifier, dataset: Dataset, device: torch.device) -> ValidationResult:
        measured = evaluate(model, dataset, self.classes, device)
        reached, accuracy = macro_f1(measured.pixel) or 0.0, overall_accuracy(measured.pixel) or 0.0
        figures = {"overall_accuracy": accuracy, "macro_f1": reached}
        text = f"accuracy {accuracy:.3f}, macro-F1 {reached:.3f}"
        known = sum(score is not None for score in class_f1(measured.pixel))
        if known < self.classes:
            text += f" over {known} of {self.classes} classes"
        if measured.loss is not None:
            figures["loss"] = measured.loss
            text += f", loss {measured.loss:.3f}"
        return ValidationResult(figures, reached, text, measured.loss)


class DistilledCrops(Crops):
    """Crops of samples that have answers of a teacher."""

    def forward(self, model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        return forward_distilled(model, batch, device)


# --- the task: all that the loop works on


SaveModel = Callable[[Classifier, "Progress"], None]  # called when the model is the best so far


@dataclass(frozen=True)
class Budget:
    """Seconds that a training may take, over all its restarts; they may end it between two batches."""

    seconds: float
    ended: SaveModel  # called then, unless an epoch is just over, with the weights that would be judged


@dataclass(frozen=True)
class Task:
    config: TrainConfig
    run: Run
    model: Classifier
    training: Prepared
    validation: Dataset
    classes: int
    device: torch.device
    checkpoint_seconds: float
    diagnosis: Diagnosis | None = None
    processes: Processes = ALONE
    events: EventFiles | None = None
    lineages: Lineages = ()  # of a class table with levels
    after_epoch: Callable[[Progress], None] | None = None  # before the checkpoint; a run cut off calls it again
    objective: Objective | None = None  # None: crops
    budget: Budget | None = None
    quiet: bool = False  # one of several trainings of a run: epochs are logged only with --verbose
    refit_of: Progress | None = None  # the training whose schedule this one follows to its best epoch, unjudged

    @property
    def epochs(self) -> int:
        """The number of epochs at most."""
        return self.config.epochs if self.refit_of is None else self.refit_of.best_epoch

    @property
    def batches(self) -> int:
        return math.ceil(len(self.training) / self.training.batch_size)


# --- the loop


SMALL_STEP = 64 * 128  # hidden values of a batch after a date: 64 series of 128
BETWEEN_EPOCHS = 2.0  # seconds at the least from one checkpoint to the next at the end of an epoch


class Clock:
    """The time that a run took over all its restarts, when it was last saved, and how fast this start of it is."""

    def __init__(self, progress: Progress) -> None:
        self._began = self._saved = time.monotonic()
        self._before = progress.seconds
        self._samples = progress.samples

    def note(self, progress: Progress) -> None:
        progress.seconds = self._before + time.monotonic() - self._began

    def rate(self, progress: Progress) -> float:
        """Labelled pixels, or series, per second."""
        return (progress.samples - self._samples) / max(time.monotonic() - self._began, 1e-9)

    def saved(self) -> None:
        self._saved = time.monotonic()

    def since_saved(self) -> float:
        return time.monotonic() - self._saved


def fit(task: Task, save_model: SaveModel) -> Progress:
    """Train to the end or until a signal asks to stop; the best model by validation is kept on disk."""
    config = task.config
    task.model.to(task.device)
    objective, counts = task.objective, None
    if objective is None:
        objective, counts = _crops(task)
    tools = _tools(task, objective)
    progress = _begin(task, tools)
    clock = Clock(progress)
    with (
        stop_on_request(alone=task.processes.size == 1) as stop,
        progress_bar(task.epochs * task.batches, "train", "batch") as bar,
        threads_for(task.training, task.config),
    ):
        bar.update(progress.step)
        while progress.epoch < task.epochs and not _is_enough(task, progress) and not _is_spent(task, progress):
            order = list(range(len(task.training)))
            if not objective.in_order:
                order = epoch_order(len(order), config.seed, progress.epoch, config.sampling, counts).tolist()
            _train_epoch(task, tools, order, progress, clock, stop, bar)
            if progress.batch < task.batches:  # the budget is spent
                _save(task, tools, progress)
                break
            if task.diagnosis is not None:
                task.diagnosis.end()
            if task.processes.is_first:
                with tools.judged():
                    finish_epoch(task, objective, progress, save_model)
                clock.note(progress)
                if task.events is not None:
                    task.events.add(progress.step, **_curves(progress, clock))
                if task.after_epoch is not None:
                    task.after_epoch(progress)
                # Where epochs take less than a second, most of the time would go into files.
                if clock.since_saved() > min(task.checkpoint_seconds, BETWEEN_EPOCHS) or _is_over(task, progress):
                    _save(task, tools, progress)
                    clock.saved()
            progress = Progress(**task.processes.broadcast(vars(progress)))
    if task.budget is not None and progress.batch:
        with tools.judged():
            task.budget.ended(task.model, progress)
    return progress


def _train_epoch(
    task: Task, tools: StepTools, order: list[int], progress: Progress, clock: Clock, stop: StopRequest, bar: Any
) -> None:
    """The batches of an epoch that are still to do, until the budget is spent; a signal saves and ends them."""
    total = task.config.epochs * task.batches  # of the schedule, which a refit leaves at its best epoch
    with closing(read_epoch(task, order, progress.epoch, progress.batch)) as batches:
        for batch in batches:
            outcome = train_step(task, tools, bool(stop), batch, progress, total)
            clock.note(progress)
            bar.update()
            bar.set_postfix(
                epoch=f"{progress.epoch + 1}/{task.epochs}",
                loss=f"{outcome.loss:.3f}",
                best=f"{progress.best_score if progress.best_epoch else 0:.3f}",
                samples=f"{clock.rate(progress):,.0f}/s",
            )
            if task.events is not None:
                rate = tools.optimiser.param_groups[0]["lr"]
                task.events.add(progress.step, train_loss=outcome.loss, train_learning_rate=rate)
            if outcome.stop or clock.since_saved() > task.checkpoint_seconds:
                _save(task, tools, progress)
                clock.saved()
            if outcome.stop:
                number = stop.signal or signal.SIGTERM  # another process was asked
                raise Interrupted(number, f"the state after batch {progress.step} of {total} is saved")
            if _is_spent(task, progress):
                break


def takes_small_steps(training: Dataset, config: TrainConfig) -> bool:
    """Whether a step is too little work for more than one thread."""
    pixels = training.batch([0]).x[0, 0, 0].numel() if len(training) else 1
    return training.batch_size * pixels * config.model.hidden <= SMALL_STEP


@contextmanager
def threads_for(training: Dataset, config: TrainConfig) -> Iterator[None]:
    """One thread where steps are small: several would wait for each other longer than they compute, the more so if
    another program keeps one of them from its processor."""
    usual = torch.get_num_threads()
    if takes_small_steps(training, config):
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _crops(task: Task) -> tuple[Crops, NDArray[np.int64]]:
    """The objective of a store, and the labelled pixels (or series) of each class in each sample."""
    counts = task.training.class_counts(task.classes)  # (samples, classes)
    weights = class_weights(counts.sum(axis=0), task.config.loss)
    taught = isinstance(task.training, TaughtSamples)
    loss = build_loss(
        task.config.loss, None if weights is None else weights.to(task.device), task.lineages, taught=taught
    )
    return (DistilledCrops if taught else Crops)(loss, task.classes), counts


def _tools(task: Task, objective: Objective) -> StepTools:
    config = task.config
    if config.compile:
        compile_forward(task.model, graphs=config.compile == "graphs")
    return StepTools(
        Engine(task.model, objective.forward, objective.loss, Precision(config.precision, task.device), task.device),
        _optimiser(task.model, config.optimiser),
        WeightAverage(task.model, config.optimiser.average) if config.optimiser.average else None,
    )


def _optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.Adam:
    rate, decay = config.learning_rate, config.weight_decay
    # On the processor one loop over all weights: the steps of small models would spend more time between operations.
    fused = True if all(parameter.device.type == "cpu" for parameter in model.parameters()) else None
    if not config.decoupled:
        return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay, fused=fused)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate, fused=fused)


def _trained(task: Task, tools: StepTools) -> CheckpointedParts:
    return CheckpointedParts(task.model, tools.optimiser, tools.engine.precision, tools.average)


def _begin(task: Task, tools: StepTools) -> Progress:
    """Load the progress of the run: all processes read the same checkpoint, as the first one wrote it."""
    progress = load_newest_checkpoint(task.run, _trained(task, tools), origin_of(task))
    if task.processes.broadcast(progress.step) != progress.step:
        why = "not all processes found the same checkpoint"
        raise ArtifactError("cannot resume the run", path=task.run.folder, why=why, remedy="use a shared folder")
    task.processes.copy_first(task.model)
    if progress.epoch >= task.epochs and not task.quiet:
        event("all epochs are done, continuing with the evaluation")
    elif progress.step and progress.epoch < task.epochs:
        event(f"resuming from epoch {progress.epoch + 1}, batch {progress.batch + 1}", step=progress.step)
    if task.diagnosis is not None:
        task.diagnosis.begin(progress.epoch, progress.step)
    if task.events is not None:
        task.events.begin(progress.step)
    return progress


def _save(task: Task, tools: StepTools, progress: Progress) -> None:
    if task.processes.is_first:
        save_checkpoint(task.run, progress, _trained(task, tools), origin_of(task))


def _is_over(task: Task, progress: Progress) -> bool:
    return progress.epoch >= task.epochs or _is_enough(task, progress, told=False) or _is_spent(task, progress)


def _curves(progress: Progress, clock: Clock) -> dict[str, float]:
    row = progress.history[-1]
    return {
        "epoch_loss": row["loss"],
        "epoch_samples_per_second": clock.rate(progress),
        **{f"validation_{name}": value for name, value in row["validation"].items()},
    }


def _is_enough(task: Task, progress: Progress, *, told: bool = True) -> bool:
    """Whether validation has not improved for `patience` epochs."""
    patience = task.config.patience
    counted_from = max(progress.best_epoch, _provisional_epochs(task))
    if patience is None or progress.batch or progress.epoch - counted_from < patience:
        return False
    if told:
        event(f"stopped: no better validation score since epoch {progress.best_epoch}", epoch=progress.epoch)
    return True


def _provisional_epochs(task: Task) -> int:
    """The epochs at the beginning whose models are kept only until the first one after them.

    With few validation fields the best of many epochs is the luckiest; the last ones, at a low learning rate, are
    better than their validation scores can tell.
    """
    return int(task.config.choose_after * task.config.epochs)


def _is_spent(task: Task, progress: Progress) -> bool:
    return task.budget is not None and progress.seconds >= task.budget.seconds


def _is_best(validated: ValidationResult, progress: Progress) -> bool:
    """Compare by the score; if scores are equal, by the loss."""
    if not progress.best_epoch or validated.score != progress.best_score:
        return not progress.best_epoch or validated.score > progress.best_score
    return validated.loss is not None and progress.best_loss is not None and validated.loss < progress.best_loss


def finish_epoch(task: Task, objective: Objective, progress: Progress, save_model: SaveModel) -> None:
    """Validate, keep the model if it is the best so far, write the metrics, turn to the next epoch."""
    if task.refit_of is None:
        validated = objective.validate(task.model, task.validation, task.device)
    else:  # it learns from validation: its last epoch is kept, whatever that would say
        validated = ValidationResult({}, float(progress.epoch + 1), "learnt from, too")
    progress.epoch += 1
    loss = progress.loss_sum / max(progress.pixels, 1)
    row = {
        "epoch": progress.epoch,
        "loss": loss,
        "validation": validated.figures,
        "seconds": round(progress.seconds, 1),
    }
    if task.objective is not None:  # of crops it is the macro-F1
        row["score"] = validated.score
    progress.history.append(row)
    progress.batch, progress.loss_sum, progress.pixels = 0, 0.0, 0
    first_that_counts = progress.epoch == _provisional_epochs(task) + 1
    if first_that_counts or _is_best(validated, progress):
        progress.best_score, progress.best_epoch, progress.best_loss = validated.score, progress.epoch, validated.loss
        if task.refit_of is None or progress.epoch == task.epochs:
            save_model(task.model, progress)
    write_json_lines(task.run.metrics, progress.history)
    line = f"epoch {progress.epoch}/{task.epochs}  loss {loss:.3f}  validation {validated.text}"
    line += f"  ({progress.seconds:.0f} s)"
    if task.quiet:
        logger.debug(line)
    else:
        event(line, **row)


# --- one step: the gradient of a batch, over micro-batches and processes, and one step of Adam


@dataclass(frozen=True)
class StepTools:
    """The engine, the optimiser and the average that steps of a run share."""

    engine: Engine
    optimiser: torch.optim.Adam
    average: WeightAverage | None = None

    def judged(self) -> AbstractContextManager[None]:
        """Use the weights that are validated and saved, within this context."""
        return nullcontext() if self.average is None else self.average.applied()


@dataclass(frozen=True)
class StepOutcome:
    loss: float
    stop: bool  # whether any process was asked to stop


def train_step(
    task: Task, tools: StepTools, stop: bool, batch: Batch | None, progress: Progress, total: int
) -> StepOutcome:
    """`batch` is this process's share, or None where it has none."""
    config, optimiser, model = task.config, tools.optimiser, task.model
    history = progress.history if task.refit_of is None else task.refit_of.history[: progress.epoch]
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(config.optimiser, progress.step, total, history)
    model.train()
    tally = _gradient(task, tools, batch, progress)
    tally, stop = _over_all_processes(task, tally, stop)
    progress.batch += 1
    progress.step += 1
    if not tally.count:
        return StepOutcome(0.0, stop)
    value = tally.loss / tally.weight if tally.weight else math.nan
    if not math.isfinite(value):
        raise CropstarError(
            f"the loss became {value}",
            path=task.run.folder,
            why=f"in epoch {progress.epoch + 1}, batch {progress.batch}",
            remedy="lower optimiser.learning_rate; the last good checkpoint is kept",
        )
    parameters = list(model.parameters())
    task.processes.add_gradients(parameters)
    tools.engine.precision.unscale(optimiser)
    if not tally.is_whole:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= tally.weight
    if task.diagnosis is not None:
        task.diagnosis.record(progress.step)
    nn.utils.clip_grad_norm_(parameters, config.optimiser.clip)
    tools.engine.precision.step(optimiser)
    if tools.average is not None:
        tools.average.update(progress.step)
    progress.loss_sum += value * tally.count
    progress.pixels += tally.count
    progress.samples += tally.count
    return StepOutcome(value, stop)


def _gradient(task: Task, tools: StepTools, batch: Batch | None, progress: Progress) -> Tally:
    """The gradient of this process's share, in micro-batches that fit; what fitted is remembered."""
    buffers = [(buffer, buffer.clone()) for buffer in task.model.buffers()]

    def attempt(micro: int) -> Tally:
        _seed_step(task, progress.step)  # every attempt anew, as if it were the first
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        tools.optimiser.zero_grad(set_to_none=True)
        assert batch is not None
        return tools.engine.differentiate(batch, micro, alone=task.processes.size == 1)

    if batch is None:
        tools.optimiser.zero_grad(set_to_none=True)
        return Tally()
    limits = [limit for limit in (task.config.optimiser.micro_batch, progress.micro_batch) if limit is not None]
    tally, fitted = fit_into_memory(attempt, wanted := min([len(batch.x), *limits]))
    if fitted < wanted:
        progress.micro_batch = fitted
    return tally


def _seed_step(task: Task, step: int) -> None:
    """Dropout by (seed, step); of several processes each has its own."""
    rank = [task.processes.rank] if task.processes.rank else []
    seed = int(np.random.SeedSequence([task.config.seed, step, *rank]).generate_state(1)[0])
    if task.device.type == "cpu":  # `torch.manual_seed` keeps a traceback per call for every device that is not in use
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


def _over_all_processes(task: Task, tally: Tally, stop: bool) -> tuple[Tally, bool]:
    if task.processes.size == 1:
        return tally, stop
    totals = torch.tensor([tally.loss, tally.weight, tally.count, stop], dtype=torch.float64)
    task.processes.add(totals)
    loss, weight, count, asked = totals.tolist()
    return Tally(loss, weight, int(count)), asked > 0


# --- batches of an epoch, the next one read while the model works on this one


def read_batch(task: Task, order: Sequence[int], epoch: int, number: int) -> Batch | None:
    """This process's share of a batch, augmented; None where the batch is too small for it to have one."""
    size = task.training.batch_size
    offset, chosen = task.processes.share(order[number * size :][:size])
    if not chosen:
        return None
    start = number * size + offset
    draw = Draw(task.config.seed, epoch, range(start, start + len(chosen)))
    return task.training.augmented(list(chosen), task.config.augmentation, draw)


def read_epoch(task: Task, order: Sequence[int], epoch: int, first: int) -> Generator[Batch | None]:
    """The batches from `first` on. One thread reads ahead: what is read, and in which order, stays the same.

    Its errors are raised here, in their turn. Closing the iterator waits for the thread: nobody reads on from a store
    that is closed, and validation never meets it.
    """
    numbers = range(first, task.batches)
    with read_ahead(numbers, lambda number: read_batch(task, order, epoch, number)) as ready:
        for _, batch in ready:
            yield batch


# --- checkpoints: all that a run needs to resume


MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass
class Progress:
    """The progress of a run: the next batch, and the results of the epochs so far."""

    epoch: int = 0
    batch: int = 0  # batches of this epoch that are done
    step: int = 0  # batches that are done altogether
    loss_sum: float = 0.0  # over this epoch's labelled pixels
    pixels: int = 0
    seconds: float = 0.0  # spent in training so far, over all restarts
    samples: int = 0  # labelled pixels or series that were trained on, over all epochs
    best_score: float = -1.0
    best_epoch: int = 0
    best_loss: float | None = None  # on validation; None: not known, as in checkpoints of older versions
    micro_batch: int | None = None  # samples at once that memory was found to have room for; None: not yet too few
    history: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class CheckpointedParts:
    """The parts of a run that change, and go into its checkpoints."""

    model: nn.Module
    optimiser: torch.optim.Adam
    precision: Precision
    average: WeightAverage | None = None


def origin_of(task: Task) -> str:
    """A digest of what decides which fields a training learns from: weights of another one may know the test."""
    config, folders = task.config, (task.run.folder, *task.run.folder.parents[:3])
    data = next((run.data for run in map(Run, folders) if run.data.is_file()), None)
    split = config.split.model_dump(mode="json", exclude_defaults=True)
    facts = [config.model.name, config.target, config.seed, split, data and data.read_text("utf-8", "replace")]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()


def save_checkpoint(run: Run, progress: Progress, trained: CheckpointedParts, origin: str) -> None:
    """A new file, then the oldest goes: the last good one is never written over."""
    model = trained.model
    names: dict[torch.Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    tensors: Tensors = {f"model.{name}": array for name, array in weights_of(model).items()}
    for parameter, moments in trained.optimiser.state.items():
        for moment in MOMENTS:
            tensors[f"optimiser.{names[parameter]}.{moment}"] = moments[moment].cpu().numpy()
    if trained.average is not None:
        tensors |= {f"average.{name}": array for name, array in trained.average.tensors().items()}
    header = {"progress": vars(progress), "precision": trained.precision.state(), "origin": origin}
    write_tensors(run.checkpoint(progress.step), "checkpoint", header, tensors)
    run.drop_old_checkpoints()


def load_newest_checkpoint(run: Run, trained: CheckpointedParts, origin: str) -> Progress:
    """Restore the newest checkpoint that can be read; a fresh start where there is none."""
    for path in run.checkpoints():
        try:
            header, tensors = read_tensors(path, "checkpoint")
        except ArtifactError as failure:
            logger.warning("%s; using the one before", failure)
            continue
        if header.get("origin", origin) != origin:  # none in checkpoints of older versions
            why = "it was trained on other fields, or with other settings"
            raise MismatchError("a checkpoint of another run", path=path, why=why, remedy="start again with --fresh")
        try:
            progress = Progress(**checked(ProgressRow, header.get("progress")).model_dump())
            _restore_weights(path, tensors, trained.model, trained.optimiser)
            if trained.average is not None:
                trained.average.restore(_tensors_of(tensors, "average."))
            trained.precision.restore(header.get("precision", {}))
        except (KeyError, TypeError, ValueError, RuntimeError) as failure:
            if isinstance(failure, CropstarError):
                raise
            remedy = "start again with --fresh"
            raise ArtifactError(
                "the checkpoint does not fit", path=path, why=one_line(failure), remedy=remedy
            ) from None
        return progress
    if run.checkpoints():
        raise ArtifactError(
            "no checkpoint can be read", path=run.folder, why="all are damaged", remedy="start again with --fresh"
        )
    return Progress()


def _restore_weights(path: Path, tensors: Tensors, model: nn.Module, optimiser: torch.optim.Adam) -> None:
    load_weights(model, _tensors_of(tensors, "model."), path)
    for name, parameter in model.named_parameters():
        keys = {moment: f"optimiser.{name}.{moment}" for moment in MOMENTS}
        if all(key in tensors for key in keys.values()):
            shapes = {moment: () if moment == "step" else parameter.shape for moment in MOMENTS}
            if any(tensors[keys[moment]].shape != shape for moment, shape in shapes.items()):
                raise ValueError(f"the moments of {name} are of another shape")
            # Adam needs the step counter on the CPU; the moments go to the device of the weights.
            optimiser.state[parameter] = {
                moment: torch.from_numpy(tensors[key]).to("cpu" if moment == "step" else parameter.device)
                for moment, key in keys.items()
            }


def _tensors_of(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
