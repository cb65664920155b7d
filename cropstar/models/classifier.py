"""A recurrent stack with a head."""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.contract import Classifier, ModelState
from cropstar.models.days import with_days
from cropstar.models.heads import Head
from cropstar.models.stack import BidirectionalStack, RecurrentStack

POOLS = ("last", "mean")


class RecurrentClassifier(Classifier):
    """Scores from the last state, or from the mean of the states of all valid dates."""

    def __init__(
        self,
        stack: RecurrentStack | BidirectionalStack,
        head: Head,
        day_encoding: str,
        pool: str = "last",
        thermal: int | None = None,
    ) -> None:
        super().__init__()
        self.stack = stack
        self.head = head
        self.day_encoding = day_encoding
        self.thermal = thermal
        self.pool = pool
        self.spatial = stack.layers()[0].spatial
        self.streaming = stack.streaming
        self.makes_maps = head.makes_maps

    def radius(self, length: int) -> int:
        return self.stack.radius(length) + self.head.radius if self.spatial and self.makes_maps else 0

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        outputs, state = self.stack(self._prepare(x, valid, days), valid, days)
        if self.pool == "last":
            return self._scores(state[-1][0])
        weight = _weights(valid, outputs)  # (T, B, 1, ...)
        return self._scores((outputs * weight).sum(dim=0) / weight.sum(dim=0).clamp(min=1))

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        if not self.streaming:
            return super().by_date(x, valid, days)
        outputs, _ = self.stack(self._prepare(x, valid, days), valid, days)
        if self.pool == "mean":
            weight = _weights(valid, outputs)
            outputs = (outputs * weight).cumsum(dim=0) / weight.cumsum(dim=0).clamp(min=1)
        scores = self._scores(outputs.flatten(0, 1))  # (T*B, K, ...)
        dated: Tensor = scores.unflatten(0, outputs.shape[:2])
        return dated.transpose(0, 1)

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None) -> ModelState:
        """x (B, C[, H, W]), valid (B[, H, W]), days (B,). With mean pooling the sum and the count come last."""
        if not isinstance(self.stack, RecurrentStack):
            return super().step(x, valid, days, state)
        prepared = self._prepare(x.unsqueeze(1), valid.unsqueeze(1), days.unsqueeze(1)).squeeze(1)
        if self.pool == "last":
            return self.stack.step(prepared, valid, days, state)
        after = self.stack.step(prepared, valid, days, state[:-1] if state is not None else None)
        weight = valid.unsqueeze(1).to(prepared.dtype)
        total, count = state[-1] if state is not None else (torch.zeros_like(after[-1][0]), torch.zeros_like(weight))
        return (*after, (total + after[-1][0] * weight, count + weight))

    def advance(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None = None) -> ModelState:
        """Whole sequences of series go to the stack at once; of images only one date is held at a time."""
        if self.pool != "last" or self.spatial or not isinstance(self.stack, RecurrentStack):
            return super().advance(x, valid, days, state)
        return self.stack.advance(self._prepare(x, valid, days), valid, days, state)

    def classify(self, state: ModelState) -> Tensor:
        if self.pool == "last":
            return self._scores(state[-1][0])
        total, count = state[-1]
        return self._scores(total / count.clamp(min=1))

    def _scores(self, features: Tensor) -> Tensor:
        scores: Tensor = self.head(features)
        return scores

    def _prepare(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Day channels, and zeros under the mask: neighbours of a cloudy pixel must not see the cloud.

        A masked pixel then looks to a convolution just like one beyond the raster's edge.
        """
        x = with_days(x, days, self.day_encoding, self.thermal)
        return torch.where(valid.unsqueeze(2), x, x.new_zeros(()))


def _weights(valid: Tensor, outputs: Tensor) -> Tensor:
    """(B, T, ...) as (T, B, 1, ...) of the outputs' kind."""
    return valid.transpose(0, 1).unsqueeze(2).to(outputs.dtype)
