"""What training minimises: cross-entropy, with weights for rare classes, for what is hard to tell and for levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.config import LossConfig
from cropstar.datasets.batches import Batch
from cropstar.models.contract import Classifier
from cropstar.models.heads import level_log_probabilities
from cropstar.training.evaluation import score

Lineages = tuple[tuple[int, ...], ...]  # of every class: its node on each level, as `ClassTable.tree` numbers them


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


def class_weights(counts: NDArray[np.int64], config: LossConfig) -> Tensor | None:
    """(K,) from the training labels of each class: (mean share / own share) ** balance; absent ones have none."""
    if config.balance == 0:
        return None
    present = counts > 0
    ratio = counts[present].mean() / counts[present]
    weights = np.zeros(len(counts))
    weights[present] = ratio**config.balance
    return torch.from_numpy(weights).float()


@dataclass(frozen=True)
class Criterion:
    """The weighted mean of the terms of N labelled samples, scores (N, K): a sample weighs what its class weighs.

    `sum` and `weight` give the two sides of that mean, for a batch that is worked on in pieces: however it is cut,
    the pieces' sums added up and divided by the pieces' weights added up is the mean of the whole.
    """

    config: LossConfig
    weights: Tensor | None  # (K,)
    lineages: Lineages = ()  # of a class table with levels; the last level is that of the classes themselves

    def answers(self, model: Classifier, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor]:
        """Scores (N, K) and labels (N,)."""
        scored = score(model, batch, device)
        # Pixels that no date saw would teach the head nothing but the shares of the classes.
        labels, scores = scored.labels[scored.seen].to(device), scored.scores[scored.seen.to(device)]
        return scores, labels

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        if self._is_plain:
            return nn.functional.cross_entropy(scores, labels, weight=self.weights)
        return self.sum(scores, labels) / self.weight(labels)

    def sum(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The terms' sum, each times its weight."""
        if self._is_plain:
            return nn.functional.cross_entropy(scores, labels, weight=self.weights, reduction="sum")
        terms = self._terms(scores, labels)
        return terms.sum() if self.weights is None else (terms * self.weights[labels]).sum()

    def weight(self, labels: Tensor) -> Tensor:
        """The sum of the weights."""
        if self.weights is None:
            return torch.tensor(float(len(labels)), device=labels.device)
        return self.weights[labels].sum()

    @property
    def _is_plain(self) -> bool:
        return self.config.focus == 0 and self.config.smoothing == 0 and self.config.levels == 0

    def _terms(self, scores: Tensor, labels: Tensor) -> Tensor:
        """(N,), without weights."""
        terms = self._leaf_terms(nn.functional.log_softmax(scores, dim=1), labels)
        coarser = range(len(self.lineages[0]) - 1) if self.lineages else range(0)
        if self.config.levels == 0 or not coarser:
            return terms
        nodes = torch.tensor(self.lineages, device=labels.device)[labels]  # (N, levels)
        above = torch.zeros_like(terms)
        for level in coarser:
            said = level_log_probabilities(scores, self.lineages, level)
            above = above - said.gather(1, nodes[:, level : level + 1])[:, 0]
        return terms + self.config.levels * above / len(coarser)

    def _leaf_terms(self, said: Tensor, labels: Tensor) -> Tensor:
        """Of log-probabilities (N, K): the share `smoothing` of every label is spread over all classes."""
        own = self._surprise(said.gather(1, labels[:, None])[:, 0])
        if self.config.smoothing == 0:
            return own
        return (1 - self.config.smoothing) * own + self.config.smoothing * self._surprise(said).mean(dim=1)

    def _surprise(self, said: Tensor) -> Tensor:
        if self.config.focus == 0:
            return -said
        return -((1 - said.exp()) ** self.config.focus) * said
