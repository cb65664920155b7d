"""The contract of a benchmark task: its data, metric, objective and settings, and the figures of the paper.

A task trains on sequences; steps stand in place of dates.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from cropstar.config import AugmentationConfig, RegularConfig, Section, TrainConfig
from cropstar.datasets.batches import Batch, Dataset
from cropstar.datasets.samples import LabelledDataset, Prepared
from cropstar.datasets.transforms import Draw
from cropstar.errors import CropstarError, InputError
from cropstar.geo.calendar import Season
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.registry import Registry
from cropstar.runtime import track
from cropstar.training.losses import MeanLoss
from cropstar.training.trainer import Objective, ValidationResult

BLOCK = 2**20
Figures = tuple[tuple[str, str], ...]  # what the paper reports, by model


class Settings(Section):
    """The section `task` of a benchmark's configuration; tasks add to it."""

    checkpoint: int | None = Field(
        None, ge=1, description="steps between the states that are stored for the backward pass; null: store all"
    )


@dataclass(frozen=True)
class TaskData:
    """The data, shape and objective of a task."""

    parts: dict[str, Prepared]  # train, validation, test
    shape: Shape  # inputs a step, outputs, steps
    objective: Objective
    identity: dict[str, Any]  # tells these data from others: a run goes on with its own alone


class BenchTask(ABC):
    """One of the sequence tasks."""

    name: str
    about: str
    metric: Metric
    paper: Figures
    folder: str | None = None  # under data/; None where samples are generated
    needs: str = ""  # where to get the files, and what to put there
    settings: type[Settings] = Settings
    images: bool = False  # whether a step is one

    @abstractmethod
    def load(self, settings: Any, config: TrainConfig, folder: Path) -> TaskData: ...

    def build(self, config: TrainConfig, material: TaskData) -> Classifier:
        return build_model(config.model, material.shape)

    def require_data(self, folder: Path) -> None:
        if self.folder is not None and not folder.exists():
            why = "there is no such file or folder"
            raise InputError(
                f"no data for '{self.name}'", path=folder, why=why, remedy=f"{self.needs}; or name it with --data"
            )


@dataclass(frozen=True)
class StoreTask:
    """A task that is the ordinary training on an ingested store, with a configuration that ships with cropstar."""

    name: str
    about: str
    config: str
    metric: Metric
    paper: Figures
    folder: str
    needs: str
    unit: str  # what the paper's figure counts: the pixel's or the parcel's


TASKS: Registry[BenchTask | StoreTask] = Registry("task")


def register(task: type[BenchTask]) -> type[BenchTask]:
    """List a task under its name."""
    TASKS.register(task.name)(task())
    return task


def digest_of(files: Iterable[Path]) -> dict[str, str]:
    """A short digest of each file."""
    digests = {}
    for file in files:
        digest = hashlib.blake2b(digest_size=8)
        with file.open("rb") as handle:
            while block := handle.read(BLOCK):
                digest.update(block)
        digests[file.name] = digest.hexdigest()
    return digests


# --- metrics and objectives

Kind = Literal["class", "value", "notes"]


@dataclass(frozen=True)
class Metric:
    """The figure that a task is known by."""

    name: str  # in the figures of a verdict
    words: str
    larger_is_better: bool = False
    is_share: bool = False  # shown in per cent

    def show(self, value: float) -> str:
        return f"{self.words} {100 * value:.2f} %" if self.is_share else f"{self.words} {value:.4f}"


ACCURACY = Metric("accuracy", "accuracy", larger_is_better=True, is_share=True)
SQUARED_ERROR = Metric("mean_squared_error", "mean squared error")
CROSS_ENTROPY = Metric("cross_entropy", "cross-entropy")
LIKELIHOOD = Metric("nll", "negative log-likelihood per frame")
BITS = Metric("bits_per_character", "bits per character")


@dataclass(frozen=True)
class SequenceLoss(MeanLoss):
    """The mean over samples, or over the valid steps of all samples.

    class: cross-entropy of scores (N, K) and labels (N,); value: squared difference of (N, 1) and (N, 1); notes: the
    binary cross-entropies of (N, keys) and (N, keys), summed over the keys.
    """

    kind: Kind
    by_step: bool

    def sum(self, scores: Tensor, targets: Tensor) -> Tensor:
        if self.kind == "class":
            return functional.cross_entropy(scores, targets, reduction="sum")
        if self.kind == "value":
            return functional.mse_loss(scores, targets, reduction="sum")
        return functional.binary_cross_entropy_with_logits(scores, targets.to(scores.dtype), reduction="sum")

    def weight(self, targets: Tensor) -> Tensor:
        return torch.tensor(float(len(targets)), device=targets.device)


@dataclass(frozen=True)
class SequenceObjective:
    loss: SequenceLoss
    metric: Metric
    in_order: bool = False

    def forward(self, model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        x, valid, days, targets = (part.to(device) for part in (batch.x, batch.valid, batch.days, batch.labels))
        if not self.loss.by_step:
            return model(x, valid, days), targets
        return model.by_date(x, valid, days)[valid], targets[valid]

    def validate(self, model: Classifier, dataset: Dataset, device: torch.device) -> ValidationResult:
        total, count, right = 0.0, 0, 0
        for scores, targets in self.predictions(model, dataset, device):
            total += float(self.loss.sum(scores.double(), targets.double() if targets.is_floating_point() else targets))
            count += len(targets)
            if self.loss.kind == "class":
                right += int((scores.argmax(dim=1) == targets).sum())
        return self._validation_result(total / count, right / count)

    @torch.no_grad()
    def predictions(self, model: Classifier, dataset: Dataset, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores and targets, batch by batch."""
        model.eval()
        for batch in batches_of(dataset):
            yield self.forward(model, batch, device)

    def _validation_result(self, loss: float, accuracy: float) -> ValidationResult:
        if not math.isfinite(loss):
            remedy = "lower optimiser.learning_rate; the last good checkpoint is kept"
            raise CropstarError("the loss on held-out data is not a number", remedy=remedy)
        figures = {
            "class": {CROSS_ENTROPY.name: loss, BITS.name: loss / math.log(2), ACCURACY.name: accuracy},
            "value": {SQUARED_ERROR.name: loss},
            "notes": {LIKELIHOOD.name: loss},
        }[self.loss.kind]
        if self.metric is not BITS:
            figures.pop(BITS.name, None)
        reached = figures[self.metric.name]
        return ValidationResult(
            figures, reached if self.metric.larger_is_better else -reached, self.metric.show(reached)
        )


def batches_of(dataset: Dataset) -> Iterator[Batch]:
    starts = range(0, len(dataset), dataset.batch_size)
    for start in track(starts, len(starts), f"evaluate on {dataset.part}", "batch"):
        yield dataset.batch(list(range(start, min(start + dataset.batch_size, len(dataset)))))


# --- data sets of sequences

Sample = tuple[NDArray[np.float32], NDArray[Any]]  # x (T, C) or (T, C, H, W), and the target
NO_SEASON = Season(1, 365)


class SequenceDataset:
    """Samples by their number. Those of different lengths are filled up with steps that are not valid."""

    def __init__(self, part: str, count: int, batch_size: int, read: Callable[[int], Sample]) -> None:
        self.part = part
        self.batch_size = batch_size
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        raise NotImplementedError("only crops are balanced by class")

    def batch(self, indexes: list[int]) -> Batch:
        return as_batch([self._read(index) for index in indexes], indexes)


class FreshSamples(Prepared):
    """Generated samples: every epoch has new ones, that follow from the seed, the epoch and their number."""

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        numbers = [index + draw.epoch * len(self) for index in indexes]
        return self.samples.batch(numbers)


def prepare(samples: LabelledDataset, *, fresh: bool = False) -> Prepared:
    return (FreshSamples if fresh else Prepared)(samples, NO_SEASON, RegularConfig())


def from_arrays(part: str, batch_size: int, inputs: Sequence[NDArray[Any]], targets: Sequence[Any]) -> Prepared:
    """A part of inputs (T, C) in memory, converted to float32 when they are read."""

    def read(index: int) -> Sample:
        return inputs[index].astype(np.float32), np.asarray(targets[index])

    return prepare(SequenceDataset(part, len(inputs), batch_size, read))


def as_batch(samples: Sequence[Sample], numbers: Sequence[int]) -> Batch:
    """Targets are one per sample or one per step; where lengths differ they are filled up like the inputs."""
    lengths = [len(x) for x, _ in samples]
    longest = max(lengths)
    by_step = all(target.ndim > 0 and len(target) == len(x) for x, target in samples) and longest > 1
    first = samples[0][0]
    valid = np.arange(longest) < np.array(lengths)[:, None]  # (B, T)
    if first.ndim == 4:  # every pixel of a frame
        valid = np.broadcast_to(valid[:, :, None, None], (*valid.shape, *first.shape[2:]))
    return Batch(
        torch.from_numpy(np.stack([_padded(x, longest) for x, _ in samples])),
        torch.from_numpy(np.ascontiguousarray(valid)),
        torch.zeros(len(samples), longest, dtype=torch.int32),
        torch.from_numpy(np.stack([_padded(target, longest) if by_step else target for _, target in samples])),
        torch.tensor(numbers, dtype=torch.int64),
    )


def _padded(array: NDArray[Any], length: int) -> NDArray[Any]:
    if len(array) == length:
        return array
    return np.pad(array, [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)])
