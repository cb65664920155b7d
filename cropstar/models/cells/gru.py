"""The gated recurrent unit (Cho et al. 2014).

    r_t = sigmoid(W_r x_t + U_r h_{t-1} + b_r)      reset gate
    u_t = sigmoid(W_u x_t + U_u h_{t-1} + b_u)      large u keeps, as with Cho et al. and torch
    z_t = tanh(W_z x_t + U_z (r_t * h_{t-1}) + b_z)
    h_t = u_t * h_{t-1} + (1 - u_t) * z_t

Variants:

- `paper`: the equations above, with the reset gate before the product, as in the original;
- `reset-after`: as in `nn.GRU` and cuDNN, the reset gate acts after the product, which has a bias of its own:
  z_t = tanh(W_z x_t + b_z + r_t * (U_z h_{t-1} + b_h)). It often learns faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import CELLS, Cell, Projected, State, chrono_times, written_out


@CELLS.register("gru")
class GruCell(Cell):
    variants = ("paper", "reset-after")
    # One product after the other: the reset gates of the neighbours look a pixel further than the neighbours.
    input_reach = 2
    state_reach = 2

    def make_weights(self) -> None:
        self.reset_gate = self.gate()  # r
        self.keep_gate = self.gate()  # u
        self.value = self.gate()  # z
        self.resets_after = self.options.variant == "reset-after"
        if self.resets_after:
            self.value.state = self.of_state(bias=True)  # with b_h
            self.input_reach = self.state_reach = 1  # a single product

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
        if self.resets_after:
            value = torch.tanh(projected[2] + reset * self.value.state(hidden))
        else:
            value = torch.tanh(self.value.add_state(projected[2], reset * hidden))
        return (torch.lerp(value, hidden, keep),)

    def reference(self, x: Tensor, state: State) -> State:
        (h,) = state
        r = torch.sigmoid(self.reset_gate.reference(x, h))
        u = torch.sigmoid(self.keep_gate.reference(x, h))
        if self.options.variant == "reset-after":
            z = torch.tanh(written_out(self.value.input, x) + r * written_out(self.value.state, h))
        else:
            z = torch.tanh(self.value.reference(x, r * h))
        return (u * h + (1 - u) * z,)
