"""What the sequence tasks minimise and how they are judged: classes, values or notes, at the end or at every step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from cropstar.datasets.batch import Batch, Dataset
from cropstar.errors import CropstarError
from cropstar.models.contract import Classifier
from cropstar.progress import track
from cropstar.training.objective import Verdict

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
LIKELIHOOD = Metric("nll", "negative log-likelihood a frame")
BITS = Metric("bits_per_character", "bits per character")


@dataclass(frozen=True)
class SequenceMeasure:
    """The mean over samples, or over the valid steps of all samples.

    class: cross-entropy of scores (N, K) and labels (N,); value: squared difference of (N, 1) and (N, 1); notes: the
    binary cross-entropies of (N, keys) and (N, keys), summed over the keys.
    """

    kind: Kind
    by_step: bool

    def answers(self, model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        x, valid, days, targets = (part.to(device) for part in (batch.x, batch.valid, batch.days, batch.labels))
        if not self.by_step:
            return model(x, valid, days), targets
        return model.by_date(x, valid, days)[valid], targets[valid]

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.sum(scores, targets) / self.weight(targets)

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
    measure: SequenceMeasure
    metric: Metric
    in_order: bool = False

    def judge(self, model: Classifier, dataset: Dataset, device: torch.device) -> Verdict:
        total, count, right = 0.0, 0, 0
        for scores, targets in self.said(model, dataset, device):
            total += float(
                self.measure.sum(scores.double(), targets.double() if targets.is_floating_point() else targets)
            )
            count += len(targets)
            if self.measure.kind == "class":
                right += int((scores.argmax(dim=1) == targets).sum())
        return self._verdict(total / count, right / count)

    @torch.no_grad()
    def said(self, model: Classifier, dataset: Dataset, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores and targets, batch by batch."""
        model.eval()
        for batch in batches_of(dataset):
            yield self.measure.answers(model, batch, device)

    def _verdict(self, loss: float, accuracy: float) -> Verdict:
        if not math.isfinite(loss):
            remedy = "lower optimiser.learning_rate; the last good checkpoint is kept"
            raise CropstarError("what the model says on data it never saw is no number", remedy=remedy)
        figures = {
            "class": {CROSS_ENTROPY.name: loss, BITS.name: loss / math.log(2), ACCURACY.name: accuracy},
            "value": {SQUARED_ERROR.name: loss},
            "notes": {LIKELIHOOD.name: loss},
        }[self.measure.kind]
        if self.metric is not BITS:
            figures.pop(BITS.name, None)
        reached = figures[self.metric.name]
        return Verdict(figures, reached if self.metric.larger_is_better else -reached, self.metric.show(reached))


def batches_of(dataset: Dataset) -> Iterator[Batch]:
    starts = range(0, len(dataset), dataset.batch_size)
    for start in track(starts, len(starts), f"judge on {dataset.part}", "batch"):
        yield dataset.batch(list(range(start, min(start + dataset.batch_size, len(dataset)))))
