"""The vanilla recurrent cell.

    h_t = tanh(W x_t + U h_{t-1} + b)

It has no gate, so the season's length does not enter its initialisation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import CELLS, Cell, Projected, State


@CELLS.register("rnn")
class RnnCell(Cell):
    def make_weights(self) -> None:
        self.value = self.gate()  # W, U, b

    def initialise(self, memory: float) -> None:
        self.value.initialise()

    def project(self, x: Tensor) -> Projected:
        return (self.value.project(x),)

    def advance(self, projected: Projected, state: State) -> State:
        return (torch.tanh(self.value.add_state(projected[0], state[0])),)

    def reference(self, x: Tensor, state: State) -> State:
        return (torch.tanh(self.value.reference(x, state[0])),)
