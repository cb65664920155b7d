"""The training loop.

Order, dropout and learning rate follow from (seed, epoch, batch) alone, so that a run killed anywhere
and resumed ends where the unbroken run ends.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from cropstar.config import TrainConfig
from cropstar.datasets.batch import Dataset
from cropstar.datasets.prepared import Prepared
from cropstar.datasets.sampling import epoch_order
from cropstar.datasets.transforms import Draw
from cropstar.errors import CropstarError, Interrupted
from cropstar.logs import event
from cropstar.models.contract import Classifier
from cropstar.progress import progress_bar
from cropstar.signals import stop_on_request
from cropstar.store.atomic import write_text
from cropstar.training.diagnosis import Diagnosis
from cropstar.training.evaluation import evaluate, score
from cropstar.training.losses import Criterion, class_weights
from cropstar.training.metrics import macro_f1, overall_accuracy
from cropstar.training.runs import Run
from cropstar.training.schedule import learning_rate
from cropstar.training.state import Progress, load_newest_checkpoint, save_checkpoint

SaveModel = Callable[[Classifier, Progress], None]  # called when the model is the best so far


@dataclass(frozen=True)
class Task:
    """All that the loop works on."""

    config: TrainConfig
    run: Run
    model: Classifier
    training: Prepared
    validation: Dataset
    classes: int
    device: torch.device
    checkpoint_seconds: float
    diagnosis: Diagnosis | None = None

    @property
    def batches(self) -> int:
        return math.ceil(len(self.training) / self.training.batch_size)


def fit(task: Task, save_model: SaveModel) -> Progress:
    """Train to the end or until a signal asks to stop; the best model by validation is kept on disk."""
    config, model = task.config, task.model.to(task.device)
    optimiser = torch.optim.Adam(
        model.parameters(), lr=config.optimiser.learning_rate, weight_decay=config.optimiser.weight_decay
    )
    progress = load_newest_checkpoint(task.run, model, optimiser)
    if progress.epoch >= config.epochs:
        event("all epochs are done, going on with the evaluation")
    elif progress.step:
        event(f"going on from epoch {progress.epoch + 1}, batch {progress.batch + 1}", step=progress.step)
    if task.diagnosis is not None:
        task.diagnosis.begin(progress.epoch, progress.step)
    counts = task.training.class_counts(task.classes)  # (samples, classes)
    weights = class_weights(counts.sum(axis=0), config.loss)
    criterion = Criterion(config.loss, None if weights is None else weights.to(task.device))
    total, size = config.epochs * task.batches, task.training.batch_size
    started, last_saved = time.monotonic() - progress.seconds, time.monotonic()
    with stop_on_request() as stop, progress_bar(total, "train", "batch") as bar:
        bar.update(progress.step)
        while progress.epoch < config.epochs and not _is_enough(task, progress):
            order = epoch_order(len(task.training), config.seed, progress.epoch, config.sampling, counts)
            while progress.batch < task.batches:
                chosen = order[progress.batch * size :][:size].tolist()
                loss = train_step(task, optimiser, criterion, chosen, progress, total)
                bar.update()
                bar.set_postfix(epoch=progress.epoch + 1, loss=f"{loss:.3f}", best=f"{max(progress.best_score, 0):.3f}")
                progress.seconds = time.monotonic() - started
                if stop or time.monotonic() - last_saved > task.checkpoint_seconds:
                    save_checkpoint(task.run, progress, model, optimiser)
                    last_saved = time.monotonic()
                if stop:
                    assert stop.signal is not None
                    raise Interrupted(stop.signal, f"the state after batch {progress.step} of {total} is saved")
            if task.diagnosis is not None:
                task.diagnosis.end()
            finish_epoch(task, progress, save_model)
            progress.seconds = time.monotonic() - started
            save_checkpoint(task.run, progress, model, optimiser)
            last_saved = time.monotonic()
    return progress


def train_step(
    task: Task, optimiser: torch.optim.Adam, criterion: Criterion, chosen: list[int], progress: Progress, total: int
) -> float:
    """One batch: scores of the labelled pixels, their mean loss, one step of Adam."""
    config = task.config
    torch.manual_seed(int(np.random.SeedSequence([config.seed, progress.step]).generate_state(1)[0]))
    for group in optimiser.param_groups:
        group["lr"] = learning_rate(config.optimiser, progress.step, total, progress.history)
    task.model.train()
    start = progress.batch * task.training.batch_size
    draw = Draw(config.seed, progress.epoch, range(start, start + len(chosen)))
    batch = task.training.augmented(chosen, config.augmentation, draw)
    scored = score(task.model, batch, task.device)
    # Pixels that no date saw would teach the head nothing but the shares of the classes.
    labels, scores = scored.labels[scored.seen].to(task.device), scored.scores[scored.seen.to(task.device)]
    progress.batch += 1
    progress.step += 1
    if not len(labels):
        return 0.0
    loss = criterion(scores, labels)
    value = float(loss.detach())
    if not math.isfinite(value):
        raise CropstarError(
            f"the loss became {value}",
            path=task.run.folder,
            why=f"in epoch {progress.epoch + 1}, batch {progress.batch}",
            remedy="lower optimiser.learning_rate; the last good checkpoint is kept",
        )
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if task.diagnosis is not None:
        task.diagnosis.record(progress.step)
    nn.utils.clip_grad_norm_(task.model.parameters(), config.optimiser.clip)
    optimiser.step()
    progress.loss_sum += value * len(labels)
    progress.pixels += len(labels)
    progress.samples += len(labels)
    return value


def _is_enough(task: Task, progress: Progress) -> bool:
    """Whether validation has not become better for longer than the configuration has patience."""
    patience = task.config.patience
    if patience is None or progress.batch or progress.epoch - progress.best_epoch < patience:
        return False
    event(f"stopped: no better validation score since epoch {progress.best_epoch}", epoch=progress.epoch)
    return True


def finish_epoch(task: Task, progress: Progress, save_model: SaveModel) -> None:
    """Validate, keep the model if it is the best so far, write the metrics, turn to the next epoch."""
    measured = evaluate(task.model, task.validation, task.classes, task.device)
    reached = macro_f1(measured.pixel) or 0.0
    progress.epoch += 1
    loss, accuracy = progress.loss_sum / max(progress.pixels, 1), overall_accuracy(measured.pixel) or 0.0
    row = {
        "epoch": progress.epoch,
        "loss": loss,
        "validation": {"overall_accuracy": accuracy, "macro_f1": reached},
        "seconds": round(progress.seconds, 1),
    }
    progress.history.append(row)
    progress.batch, progress.loss_sum, progress.pixels = 0, 0.0, 0
    if reached > progress.best_score:
        progress.best_score, progress.best_epoch = reached, progress.epoch
        save_model(task.model, progress)
    write_text(task.run.metrics, "".join(json.dumps(line, sort_keys=True) + "\n" for line in progress.history))
    event(
        f"epoch {progress.epoch}/{task.config.epochs}  loss {loss:.3f}  validation accuracy {accuracy:.3f}, "
        f"macro-F1 {reached:.3f}  ({progress.seconds:.0f} s)",
        **row,
    )
