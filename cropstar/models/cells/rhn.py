"""The recurrent highway network (Zilly et al. 2017) with coupled gates, c = 1 - t.

    s_0 = h_{t-1}
    z_l = tanh(W_z x_t [l = 1] + U_zl s_{l-1} + b_zl)
    t_l = sigmoid(W_t x_t [l = 1] + U_tl s_{l-1} + b_tl)      transform gate: large t updates
    s_l = (1 - t_l) * s_{l-1} + t_l * z_l                     l = 1 .. depth
    h_t = s_depth

`depth` is that of one date's transition; a subclass may set another. Here it is one: depth comes from layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cropstar.models.cells.cell import CELLS, Cell, Projected, State, chrono_times, orthogonal_, set_bias, written_out


@CELLS.register("rhn")
class RhnCell(Cell):
    depth = 1

    def make_weights(self) -> None:
        self.input_reach = self.state_reach = self.depth
        self.value = self.gate()  # z_1
        self.transform_gate = self.gate()  # t_1
        self.inner_values = nn.ModuleList(self.of_state(bias=True) for _ in range(1, self.depth))  # z_2, ...
        self.inner_gates = nn.ModuleList(self.of_state(bias=True) for _ in range(1, self.depth))  # t_2, ...

    def initialise(self, memory: float) -> None:
        # Minus, because t updates; log(depth), because every inner step forgets and a date has `depth` of them.
        self.value.initialise()
        self.transform_gate.initialise(-chrono_times(self.hidden, memory) - math.log(self.depth))
        for value, gate in self._inner_steps():
            orthogonal_(value)
            orthogonal_(gate)
            set_bias(gate, -chrono_times(self.hidden, memory) - math.log(self.depth))

    def project(self, x: Tensor) -> Projected:
        return self.value.project(x), self.transform_gate.project(x)

    def advance(self, projected: Projected, state: State) -> State:
        (hidden,) = state
        value = torch.tanh(self.value.add_state(projected[0], hidden))
        hidden = torch.lerp(hidden, value, torch.sigmoid(self.transform_gate.add_state(projected[1], hidden)))
        for inner_value, inner_gate in self._inner_steps():
            hidden = torch.lerp(hidden, torch.tanh(inner_value(hidden)), torch.sigmoid(inner_gate(hidden)))
        return (hidden,)

    def reference(self, x: Tensor, state: State) -> State:
        (s,) = state
        z = torch.tanh(self.value.reference(x, s))
        t = torch.sigmoid(self.transform_gate.reference(x, s))
        s = (1 - t) * s + t * z
        for inner_value, inner_gate in self._inner_steps():
            z = torch.tanh(written_out(inner_value, s))
            t = torch.sigmoid(written_out(inner_gate, s))
            s = (1 - t) * s + t * z
        return (s,)

    def _inner_steps(self) -> list[tuple[nn.Linear | nn.Conv2d, nn.Linear | nn.Conv2d]]:
        return list(zip(self.inner_values, self.inner_gates, strict=True))  # type: ignore[arg-type]
