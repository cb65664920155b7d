"""The training loop.

Order, dropout and learning rate follow from (seed, epoch, batch) alone, so that a run killed anywhere
and resumed ends where the unbroken run ends.
"""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cropstar.config import OptimiserConfig
from cropstar.datasets.batches import epoch_order
from cropstar.errors import ArtifactError, Interrupted
from cropstar.runtime import event, logger, progress_bar, stop_on_request
from cropstar.store.files import write_text
from cropstar.training.accumulation import Engine
from cropstar.training.averaging import WeightAverage
from cropstar.training.distillation import Distillation, Taught
from cropstar.training.loading import read_epoch
from cropstar.training.losses import Criterion, class_weights
from cropstar.training.objective import Crops, Objective, Verdict
from cropstar.training.precision import Precision, compile_forward
from cropstar.training.processes import one_signal_is_enough
from cropstar.training.state import Progress, Trained, load_newest_checkpoint, save_checkpoint
from cropstar.training.step import Tools, train_step
from cropstar.training.task import SaveModel, Task

__all__ = ["SaveModel", "Task", "fit", "train_step"]


class Clock:
    """The time that a run took over all its restarts, when it was last saved, and how fast this start of it is."""

    def __init__(self, progress: Progress) -> None:
        self._began = self._saved = time.monotonic()
        self._before = progress.seconds
        self._samples = progress.samples

    def note(self, progress: Progress) -> None:
        progress.seconds = self._before + time.monotonic() - self._began

    def rate(self, progress: Progress) -> float:
        """Labelled pixels, or series, a second."""
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
    total = config.epochs * task.batches  # of the schedule, which a refit leaves at its best epoch
    clock = Clock(progress)
    with (
        one_signal_is_enough(task.processes),
        stop_on_request() as stop,
        progress_bar(task.epochs * task.batches, "train", "batch") as bar,
    ):
        bar.update(progress.step)
        while progress.epoch < task.epochs and not _is_enough(task, progress) and not _is_spent(task, progress):
            order = list(range(len(task.training)))
            if not objective.in_order:
                order = epoch_order(len(order), config.seed, progress.epoch, config.sampling, counts).tolist()
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
                _save(task, tools, progress)
            progress = Progress(**task.processes.tell(vars(progress)))
            clock.saved()
    if task.budget is not None and progress.batch:
        with tools.judged():
            task.budget.ended(task.model, progress)
    return progress


def _crops(task: Task) -> tuple[Crops, NDArray[np.int64]]:
    """The objective of a store, and the labelled pixels (or series) of each class in each sample."""
    counts = task.training.class_counts(task.classes)  # (samples, classes)
    weights = class_weights(counts.sum(axis=0), task.config.loss)
    kind = Distillation if isinstance(task.training, Taught) else Criterion
    criterion = kind(task.config.loss, None if weights is None else weights.to(task.device), task.lineages)
    return Crops(criterion, task.classes), counts


def _tools(task: Task, objective: Objective) -> Tools:
    config = task.config
    if config.compile:
        compile_forward(task.model, graphs=config.compile == "graphs")
    return Tools(
        Engine(task.model, objective.measure, Precision(config.precision, task.device), task.device),
        _optimiser(task.model, config.optimiser),
        WeightAverage(task.model, config.optimiser.average) if config.optimiser.average else None,
    )


def _optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.Adam:
    rate, decay = config.learning_rate, config.weight_decay
    if not config.decoupled:
        return torch.optim.Adam(model.parameters(), lr=rate, weight_decay=decay)
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([group for group in groups if group["params"]], lr=rate)


def _trained(task: Task, tools: Tools) -> Trained:
    return Trained(task.model, tools.optimiser, tools.engine.precision, tools.average)


def _begin(task: Task, tools: Tools) -> Progress:
    """Where the run stands: all processes read the same checkpoint, as the first one wrote it."""
    progress = load_newest_checkpoint(task.run, _trained(task, tools))
    if task.processes.tell(progress.step) != progress.step:
        why = "not all processes found the same checkpoint"
        raise ArtifactError("cannot go on with the run", path=task.run.folder, why=why, remedy="use a shared folder")
    task.processes.copy_first(task.model)
    if progress.epoch >= task.epochs:
        event("all epochs are done, going on with the evaluation")
    elif progress.step:
        event(f"going on from epoch {progress.epoch + 1}, batch {progress.batch + 1}", step=progress.step)
    if task.diagnosis is not None:
        task.diagnosis.begin(progress.epoch, progress.step)
    if task.events is not None:
        task.events.begin(progress.step)
    return progress


def _save(task: Task, tools: Tools, progress: Progress) -> None:
    if task.processes.is_first:
        save_checkpoint(task.run, progress, _trained(task, tools))


def _curves(progress: Progress, clock: Clock) -> dict[str, float]:
    row = progress.history[-1]
    return {
        "epoch_loss": row["loss"],
        "epoch_samples_per_second": clock.rate(progress),
        **{f"validation_{name}": value for name, value in row["validation"].items()},
    }


def _is_enough(task: Task, progress: Progress) -> bool:
    """Whether validation has not become better for longer than the configuration has patience."""
    patience = task.config.patience
    counted_from = max(progress.best_epoch, _provisional_epochs(task))
    if patience is None or progress.batch or progress.epoch - counted_from < patience:
        return False
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


def _is_best(verdict: Verdict, progress: Progress) -> bool:
    """By the score; of epochs with one score, as where validation is solved, by the loss."""
    if not progress.best_epoch or verdict.score != progress.best_score:
        return not progress.best_epoch or verdict.score > progress.best_score
    return verdict.loss is not None and progress.best_loss is not None and verdict.loss < progress.best_loss


def finish_epoch(task: Task, objective: Objective, progress: Progress, save_model: SaveModel) -> None:
    """Validate, keep the model if it is the best so far, write the metrics, turn to the next epoch."""
    if task.refit_of is None:
        verdict = objective.judge(task.model, task.validation, task.device)
    else:  # it learns from validation: its last epoch is kept, whatever that would say
        verdict = Verdict({}, float(progress.epoch + 1), "learnt from, too")
    progress.epoch += 1
    loss = progress.loss_sum / max(progress.pixels, 1)
    row = {
        "epoch": progress.epoch,
        "loss": loss,
        "validation": verdict.figures,
        "seconds": round(progress.seconds, 1),
    }
    if task.objective is not None:  # of crops it is the macro-F1
        row["score"] = verdict.score
    progress.history.append(row)
    progress.batch, progress.loss_sum, progress.pixels = 0, 0.0, 0
    first_that_counts = progress.epoch == _provisional_epochs(task) + 1
    if first_that_counts or _is_best(verdict, progress):
        progress.best_score, progress.best_epoch, progress.best_loss = verdict.score, progress.epoch, verdict.loss
        save_model(task.model, progress)
    write_text(task.run.metrics, "".join(json.dumps(line, sort_keys=True) + "\n" for line in progress.history))
    told = (
        f"epoch {progress.epoch}/{task.epochs}  loss {loss:.3f}  validation {verdict.text}  ({progress.seconds:.0f} s)"
    )
    if task.quiet:
        logger.debug(told)
    else:
        event(told, **row)
