"""What training minimises: cross-entropy, with weights for rare classes and for what is hard to tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.config import LossConfig


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
    config: LossConfig
    weights: Tensor | None  # (K,)

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean over N labelled samples, scores (N, K); with class weights a weighted mean."""
        if self.config.focus == 0:
            return nn.functional.cross_entropy(scores, labels, weight=self.weights)
        own = nn.functional.log_softmax(scores, dim=1).gather(1, labels[:, None])[:, 0]  # log p of the true class
        terms = -((1 - own.exp()) ** self.config.focus) * own
        if self.weights is None:
            return terms.mean()
        chosen = self.weights[labels]
        return (terms * chosen).sum() / chosen.sum()
