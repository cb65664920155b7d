"""Losses: cross-entropy with weights for rare classes, hard samples and levels; distillation; soft Dice.

A loss is a function of scores and targets alone: it neither runs a model nor knows where its samples come from. It is
made of sums over the samples, so that a batch can be worked on in micro-batches: `combine` of the summed `sums` is the
loss of the whole, however the batch was cut.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.config import LossConfig
from cropstar.models.heads import level_log_probabilities
from cropstar.store.classes import UNLABELLED

Lineages = tuple[tuple[int, ...], ...]  # of every class: its node on each level, as `ClassTable.tree` numbers them


class Loss(ABC):
    """The loss of scores (N, ...) and targets (N, ...)."""

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.combine(self.sums(scores, targets))

    @abstractmethod
    def sums(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Sums over the samples, of any shape; those of micro-batches are added up."""

    @abstractmethod
    def combine(self, sums: Tensor) -> Tensor:
        """The loss from the sums over the whole batch."""


class MeanLoss(Loss):
    """A weighted mean over the samples.

    Its weights do not depend on the scores, so that micro-batches and processes need one pass alone: gradients of their
    sums are added up and divided by the weight of the whole batch at the end.
    """

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        return self.sum(scores, targets) / self.weight(targets)

    @abstractmethod
    def sum(self, scores: Tensor, targets: Tensor) -> Tensor:
        """The sum of the samples' terms, each times its weight."""

    @abstractmethod
    def weight(self, targets: Tensor) -> Tensor:
        """The sum of the weights."""

    def sums(self, scores: Tensor, targets: Tensor) -> Tensor:
        return torch.stack([self.sum(scores, targets), self.weight(targets)])

    def combine(self, sums: Tensor) -> Tensor:
        return sums[0] / sums[1]


def build_loss(config: LossConfig, weights: Tensor | None, lineages: Lineages = (), *, taught: bool = False) -> Loss:
    """The loss of a configuration; `taught`: of targets that have a teacher's answers."""
    if taught:
        return Distillation(config, weights, lineages)
    return SoftDice(config.smoothing) if config.name == "dice" else CrossEntropy(config, weights, lineages)


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
class CrossEntropy(MeanLoss):
    """Cross-entropy of scores (N, K) and labels (N,); a sample has the weight of its class."""

    config: LossConfig
    weights: Tensor | None  # (K,)
    lineages: Lineages = ()  # of a class table with levels; the last level is that of the classes themselves

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        if self._is_plain:
            return nn.functional.cross_entropy(scores, targets, weight=self.weights)
        return super().__call__(scores, targets)

    def sum(self, scores: Tensor, targets: Tensor) -> Tensor:
        if self._is_plain:
            return nn.functional.cross_entropy(scores, targets, weight=self.weights, reduction="sum")
        terms = self._terms(scores, targets)
        return terms.sum() if self.weights is None else (terms * self.weights[targets]).sum()

    def weight(self, targets: Tensor) -> Tensor:
        if self.weights is None:
            return torch.tensor(float(len(targets)), device=targets.device)
        return self.weights[targets].sum()

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
            log_probabilities = level_log_probabilities(scores, self.lineages, level)
            above = above - log_probabilities.gather(1, nodes[:, level : level + 1])[:, 0]
        return terms + self.config.levels * above / len(coarser)

    def _leaf_terms(self, log_probabilities: Tensor, labels: Tensor) -> Tensor:
        """The terms of log-probabilities (N, K); the share `smoothing` of every label is spread over all classes."""
        own = self._surprise(log_probabilities.gather(1, labels[:, None])[:, 0])
        if self.config.smoothing == 0:
            return own
        return (1 - self.config.smoothing) * own + self.config.smoothing * self._surprise(log_probabilities).mean(dim=1)

    def _surprise(self, log_probabilities: Tensor) -> Tensor:
        if self.config.focus == 0:
            return -log_probabilities
        return -((1 - log_probabilities.exp()) ** self.config.focus) * log_probabilities


@dataclass(frozen=True)
class Distillation(CrossEntropy):
    """Cross-entropy with the labels, and the divergence D(teacher | student) of Kullback and Leibler.

    labelled        (1 - share) * cross-entropy + share * divergence
    not labelled    divergence, with the weight `share` of a labelled sample

    Targets are (N, 1 + K): the label, and the teacher's probabilities or NaN where it gives none.
    """

    def __call__(self, scores: Tensor, targets: Tensor) -> Tensor:
        return MeanLoss.__call__(self, scores, targets)

    def sum(self, scores: Tensor, targets: Tensor) -> Tensor:
        labels, taught, labelled, answered = _apart(targets)
        share = self.config.teacher
        divergence = scores.new_zeros(len(scores))
        student = scores[answered].log_softmax(dim=1)
        divergence[answered] = (torch.xlogy(taught[answered], taught[answered]) - taught[answered] * student).sum(dim=1)
        own = scores.new_zeros(len(scores))
        own[labelled] = self._terms(scores[labelled], labels[labelled])
        mixed = torch.where(answered, (1 - share) * own + share * divergence, own)
        return (torch.where(labelled, mixed, divergence) * self._weights(targets)).sum()

    def weight(self, targets: Tensor) -> Tensor:
        return self._weights(targets).sum()

    def _weights(self, targets: Tensor) -> Tensor:
        labels, _, labelled, _ = _apart(targets)
        weights = torch.full_like(targets[:, 0], self.config.teacher)
        weights[labelled] = 1.0 if self.weights is None else self.weights[labels[labelled]]
        return weights


def _apart(targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Labels (N,), the teacher's probabilities (N, K), and which of the samples have the one and the other."""
    labels, taught = targets[:, 0].long(), targets[:, 1:]
    return labels, taught, labels != UNLABELLED, taught[:, 0].isfinite()


@dataclass(frozen=True)
class SoftDice(Loss):
    """One minus the mean of the soft Dice coefficients 2 sum(p y) / (sum(p) + sum(y)) of the classes in a batch.

    Every class that the batch has labels of counts the same, however rare. It is not a mean over samples: each sum runs
    over the whole batch before the quotient is taken.
    """

    smoothing: float = 0.0  # label smoothing: share of each label that is spread over all classes

    def sums(self, scores: Tensor, targets: Tensor) -> Tensor:
        """(4, K): of p y, of p, of y, and the labels of each class."""
        p = scores.softmax(dim=1)
        labels = nn.functional.one_hot(targets, scores.shape[1]).to(p.dtype)
        y = labels * (1 - self.smoothing) + self.smoothing / scores.shape[1]
        return torch.stack([(p * y).sum(dim=0), p.sum(dim=0), y.sum(dim=0), labels.sum(dim=0)])

    def combine(self, sums: Tensor) -> Tensor:
        overlap, predicted, true, labels = sums
        dice = 2 * overlap / (predicted + true)
        loss: Tensor = 1 - dice[labels > 0].mean()
        return loss
