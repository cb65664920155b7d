"""Long short-term memory (Hochreiter and Schmidhuber; with the forget gate of Gers et al., without peepholes).

    f_t = sigmoid(W_f x_t + U_f h_{t-1} + b_f)      forget gate: large f keeps
    i_t = sigmoid(W_i x_t + U_i h_{t-1} + b_i)      input gate
    o_t = sigmoid(W_o x_t + U_o h_{t-1} + b_o)      output gate
    z_t = tanh(W_z x_t + U_z h_{t-1} + b_z)
    c_t = f_t * c_{t-1} + i_t * z_t
    h_t = o_t * tanh(c_t)

The state is (h, c). `nn.LSTM` has a second bias that adds nothing; here is one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import CELLS, Cell, Projected, State, chrono_times


@CELLS.register("lstm")
class LstmCell(Cell):
    state_parts = 2

    def make_weights(self) -> None:
        self.forget_gate = self.gate()  # f
        self.input_gate = self.gate()  # i
        self.output_gate = self.gate()  # o
        self.value = self.gate()  # z

    def initialise(self, memory: float) -> None:
        # Plus for the gate that keeps, and minus the same numbers for the one that writes, so that f + i = 1 at first.
        bias = chrono_times(self.hidden, memory)
        self.forget_gate.initialise(bias)
        self.input_gate.initialise(-bias)
        self.output_gate.initialise()
        self.value.initialise()

    def project(self, x: Tensor) -> Projected:
        gates = (self.forget_gate, self.input_gate, self.output_gate, self.value)
        return tuple(gate.project(x) for gate in gates)

    def advance(self, projected: Projected, state: State) -> State:
        hidden, memory = state
        forget, write, read, value = projected
        kept = torch.sigmoid(self.forget_gate.add_state(forget, hidden)) * memory
        written = torch.sigmoid(self.input_gate.add_state(write, hidden))
        memory = torch.addcmul(kept, written, torch.tanh(self.value.add_state(value, hidden)))
        return torch.sigmoid(self.output_gate.add_state(read, hidden)) * torch.tanh(memory), memory

    def reference(self, x: Tensor, state: State) -> State:
        h, c = state
        f = torch.sigmoid(self.forget_gate.reference(x, h))
        i = torch.sigmoid(self.input_gate.reference(x, h))
        o = torch.sigmoid(self.output_gate.reference(x, h))
        z = torch.tanh(self.value.reference(x, h))
        c = f * c + i * z
        return o * torch.tanh(c), c
