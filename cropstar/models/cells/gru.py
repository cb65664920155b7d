"""The gated recurrent unit (Cho et al. 2014).

    r_t = sigmoid(W_r x_t + U_r h_{t-1} + b_r)      reset gate
    u_t = sigmoid(W_u x_t + U_u h_{t-1} + b_u)      large u keeps, as with Cho et al. and torch
    z_t = tanh(W_z x_t + U_z (r_t * h_{t-1}) + b_z)
    h_t = u_t * h_{t-1} + (1 - u_t) * z_t

The reset gate acts before the product, as in the original. `nn.GRU` lets it act after, on U_z h_{t-1} + b_hn, for the
sake of one product for all gates, and has a second bias: with the same weights the two agree only where r_t has one
value for all units.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import CELLS, DEFAULTS, Cell, CellOptions, Gate, Projected, State, chrono_times


@CELLS.register("gru")
class GruCell(Cell):
    # One product after the other: the reset gates of the neighbours look a pixel further than the neighbours.
    input_reach = 2
    state_reach = 2

    def __init__(self, inputs: int, hidden: int, *, spatial: bool, options: CellOptions = DEFAULTS) -> None:
        super().__init__(inputs, hidden, spatial=spatial, options=options)
        self.reset_gate = Gate(inputs, hidden, spatial=spatial)  # r
        self.keep_gate = Gate(inputs, hidden, spatial=spatial)  # u
        self.value = Gate(inputs, hidden, spatial=spatial)  # z

    def initialise(self, memory: float) -> None:
        self.reset_gate.initialise()
        self.keep_gate.initialise(chrono_times(self.hidden, memory))  # plus: u keeps
        self.value.initialise()

    def project(self, x: Tensor) -> Projected:
        return self.reset_gate.project(x), self.keep_gate.project(x), self.value.project(x)

    def advance(self, projected: Projected, state: State) -> State:
        (hidden,) = state
        reset = torch.sigmoid(self.reset_gate.add_state(projected[0], hidden))
        keep = torch.sigmoid(self.keep_gate.add_state(projected[1], hidden))
        value = torch.tanh(self.value.add_state(projected[2], reset * hidden))
        return (torch.lerp(value, hidden, keep),)

    def reference(self, x: Tensor, state: State) -> State:
        (h,) = state
        r = torch.sigmoid(self.reset_gate.reference(x, h))
        u = torch.sigmoid(self.keep_gate.reference(x, h))
        z = torch.tanh(self.value.reference(x, r * h))
        return (u * h + (1 - u) * z,)
