"""The contract of a model.

    forward(x, valid, days)                 scores after the last date
    by_date(x, valid, days)                 scores after every date
    step(x_t, valid_t, days_t, state)       the state one date later, of models that stream
    classify(state)                         scores of a state

`classify` after repeated `step` gives what `forward` gives. Shapes: x (B,T,C) or (B,T,C,H,W), valid (B,T[,H,W]),
days (B,T); scores (B,K[,H,W]), by date (B,T,K[,H,W]).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor, nn

from cropstar.models.cells.cell import State

ModelState = tuple[State, ...]


class Classifier(nn.Module, ABC):
    """A member of the zoo."""

    spatial = False  # whether it reads images; others read every pixel as a series of its own
    streaming = False  # whether it has `step` and `classify`

    @abstractmethod
    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Scores after the last date."""

    def radius(self, length: int) -> int:
        """How many pixels around a pixel its scores depend on."""
        return 0

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Scores after every date: what the model would have said then."""
        raise NotImplementedError

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None) -> ModelState:
        raise NotImplementedError

    def classify(self, state: ModelState) -> Tensor:
        raise NotImplementedError
