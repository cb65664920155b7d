"""The independently recurrent cell (Li et al. 2018): every unit sees only its own past.

    h_t = relu(W x_t + u * h_{t-1} + b)

u is one number per unit. Nothing bounds the state but u itself: keep `model.normalise` in mind for deep stacks, and the
maximum norm of the gradient for long series.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.models.cells.cell import CELLS, Cell, Projected, State, orthogonal_, written_out


@CELLS.register("indrnn")
class IndRnnCell(Cell):
    state_reach = 0  # a pixel's state never looks at its neighbours'

    def make_weights(self) -> None:
        self.input_value = self.of_input()  # W, b
        self.recurrence = nn.Parameter(torch.ones(self.hidden))  # u

    def initialise(self, memory: float) -> None:
        orthogonal_(self.input_value)
        # What a gate with a time scale of s dates would keep, s / (1 + s): between one half and memory / (1 + memory).
        with torch.no_grad():
            times = self.recurrence.uniform_(1.0, memory)
            self.recurrence.copy_(times / (1 + times))

    def project(self, x: Tensor) -> Projected:
        return (self.input_value(x),)

    def advance(self, projected: Projected, state: State) -> State:
        return (torch.relu(torch.addcmul(projected[0], self._unit_by_unit(state[0]), state[0])),)

    def reference(self, x: Tensor, state: State) -> State:
        (h,) = state
        return (torch.relu(written_out(self.input_value, x) + self._unit_by_unit(h) * h),)

    def _unit_by_unit(self, hidden: Tensor) -> Tensor:
        """u as (H,) or (H, 1, 1), to be multiplied with channels."""
        return self.recurrence.reshape(-1, *(1,) * (hidden.dim() - 2))
