"""The contract of a model, fulfilled by a recurrent stack with a head.

    forward(x, valid, days)                 scores after the last date
    step(x_t, valid_t, days_t, state)       the state one date later
    classify(state)                         scores of a state

`classify` after repeated `step` gives what `forward` gives. Shapes: x (B,T,C) or (B,T,C,H,W),
valid (B,T[,H,W]), days (B,T); scores (B,K[,H,W]).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.models.days import with_days
from cropstar.models.heads import ImageHead, SeriesHead
from cropstar.models.stack import RecurrentStack, StackState


class RecurrentClassifier(nn.Module):
    def __init__(self, stack: RecurrentStack, head: SeriesHead | ImageHead, day_encoding: str) -> None:
        super().__init__()
        self.stack = stack
        self.head = head
        self.day_encoding = day_encoding

    @property
    def spatial(self) -> bool:
        return self.stack.layers()[0].spatial

    def radius(self, length: int) -> int:
        """How far a pixel's scores look: states spread by one pixel a layer and a date, then the head."""
        return len(self.stack.cells) + length - 1 + self.head.radius if self.spatial else 0

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        return self.classify(self.stack(self._prepare(x, valid, days), valid))

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: StackState | None) -> StackState:
        """x (B, C[, H, W]), valid (B[, H, W]), days (B,)."""
        prepared = self._prepare(x.unsqueeze(1), valid.unsqueeze(1), days.unsqueeze(1))
        return self.stack.step(prepared.squeeze(1), valid, state)

    def classify(self, state: StackState) -> Tensor:
        scores: Tensor = self.head(state[-1][0])
        return scores

    def _prepare(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Day channels, and zeros under the mask: neighbours of a cloudy pixel must not see the cloud.

        A masked pixel then looks to a convolution just like one beyond the raster's edge.
        """
        x = with_days(x, days, self.day_encoding)
        return torch.where(valid.unsqueeze(2), x, x.new_zeros(()))
