"""What a training is after: what a batch costs, and how a model is judged on validation.

The loop knows nothing else of its task. Crops are the objective of `cropstar train`; the sequence tasks of
`cropstar bench` have their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from cropstar.datasets.batches import Batch, Dataset
from cropstar.models.contract import Classifier
from cropstar.training.evaluation import evaluate
from cropstar.training.losses import Criterion
from cropstar.training.metrics import macro_f1, overall_accuracy


@dataclass(frozen=True)
class Verdict:
    """What a model reached on validation."""

    figures: dict[str, float]
    score: float  # by which the best epoch is chosen: larger is better
    text: str  # the figures in words
    loss: float | None = None  # decides between epochs of one score: smaller is better; None: the earliest is the best


class Measure(Protocol):
    """The loss as a weighted mean of terms, whose two sides can be summed piece by piece."""

    def answers(self, model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        """What the model says and what is true, (N, ...) each and on the device."""

    def __call__(self, scores: Tensor, targets: Tensor, /) -> Tensor:
        """The mean."""

    def sum(self, scores: Tensor, targets: Tensor, /) -> Tensor:
        """The terms' sum, each times its weight."""

    def weight(self, targets: Tensor, /) -> Tensor:
        """The sum of the weights."""


class Objective(Protocol):
    @property
    def measure(self) -> Measure: ...

    @property
    def in_order(self) -> bool:
        """Whether an epoch takes the samples as they lie, such as the pieces of one text; else shuffled."""

    def judge(self, model: Classifier, dataset: Dataset, device: torch.device) -> Verdict: ...


@dataclass(frozen=True)
class Crops:
    """Cross-entropy by class. The epoch with the best macro-F1 is kept; of equal ones that with the least loss."""

    measure: Criterion
    classes: int
    in_order: bool = False

    def judge(self, model: Classifier, dataset: Dataset, device: torch.device) -> Verdict:
        measured = evaluate(model, dataset, self.classes, device)
        reached, accuracy = macro_f1(measured.pixel) or 0.0, overall_accuracy(measured.pixel) or 0.0
        figures = {"overall_accuracy": accuracy, "macro_f1": reached}
        text = f"accuracy {accuracy:.3f}, macro-F1 {reached:.3f}"
        if measured.loss is not None:
            figures["loss"] = measured.loss
            text += f", loss {measured.loss:.3f}"
        return Verdict(figures, reached, text, measured.loss)
