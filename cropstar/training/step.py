"""One step of training: a batch's gradient, over micro-batches and processes, and one step of Adam."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cropstar.datasets.batches import Batch
from cropstar.errors import CropstarError
from cropstar.training.accumulation import Engine, Tally, fit_into_memory
from cropstar.training.averaging import WeightAverage
from cropstar.training.schedule import learning_rate
from cropstar.training.state import Progress
from cropstar.training.task import Task


@dataclass(frozen=True)
class Tools:
    """What a step works with, made once for a run."""

    engine: Engine
    optimiser: torch.optim.Adam
    average: WeightAverage | None = None

    def judged(self) -> AbstractContextManager[None]:
        """Within, the model has the weights that are judged and kept."""
        return nullcontext() if self.average is None else self.average.applied()


@dataclass(frozen=True)
class Outcome:
    loss: float
    stop: bool  # whether any process was asked to stop


def train_step(task: Task, tools: Tools, stop: bool, batch: Batch | None, progress: Progress, total: int) -> Outcome:
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
        return Outcome(0.0, stop)
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
    if not tally.is_mean:
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
    return Outcome(value, stop)


def _gradient(task: Task, tools: Tools, batch: Batch | None, progress: Progress) -> Tally:
    """The gradient of this process's share, in micro-batches that fit; what fitted is remembered."""
    buffers = [(buffer, buffer.clone()) for buffer in task.model.buffers()]

    def attempt(micro: int) -> Tally:
        _seed(task, progress.step)  # every attempt anew, as if it were the first
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        tools.optimiser.zero_grad(set_to_none=True)
        assert batch is not None
        return tools.engine.differentiate(batch, micro, mean=task.processes.size == 1)

    if batch is None:
        tools.optimiser.zero_grad(set_to_none=True)
        return Tally()
    limits = [limit for limit in (task.config.optimiser.micro_batch, progress.micro_batch) if limit is not None]
    tally, fitted = fit_into_memory(attempt, wanted := min([len(batch.x), *limits]))
    if fitted < wanted:
        progress.micro_batch = fitted
    return tally


def _seed(task: Task, step: int) -> None:
    """Dropout by (seed, step); of several processes each has its own."""
    rank = [task.processes.rank] if task.processes.rank else []
    torch.manual_seed(int(np.random.SeedSequence([task.config.seed, step, *rank]).generate_state(1)[0]))


def _over_all_processes(task: Task, tally: Tally, stop: bool) -> tuple[Tally, bool]:
    if task.processes.size == 1:
        return tally, stop
    totals = torch.tensor([tally.loss, tally.weight, tally.count, stop], dtype=torch.float64)
    task.processes.add(totals)
    loss, weight, count, asked = totals.tolist()
    return Tally(loss, weight, int(count)), asked > 0
