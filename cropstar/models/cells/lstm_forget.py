"""The LSTM with its forget gate alone, "LSTM w/f" in the tables of the STAR paper.

    f_t = sigmoid(W_f x_t + U_f h_{t-1} + b_f)      large f keeps
    z_t = tanh(W_z x_t + U_z h_{t-1} + b_z)
    c_t = f_t * c_{t-1} + (1 - f_t) * z_t
    h_t = tanh(c_t)

The state is (h, c): unlike STAR's, the outer tanh is not fed back into the sum. Variants:

- `paper`: the equations above;
- `janet`: the authors' TensorFlow code, with an offset of one on the input side ("The unreasonable effectiveness of
  the forget gate", van der Westhuizen and Lasenby): c_t = f_t * c_{t-1} + (1 - sigmoid(W_f x + U_f h + b_f - 1)) * z_t.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import CELLS, Cell, Projected, State, chrono_times

JANET_OFFSET = 1.0


@CELLS.register("lstm_forget")
class LstmForgetCell(Cell):
    state_parts = 2
    variants = ("paper", "janet")

    def make_weights(self) -> None:
        self.forget_gate = self.gate()  # f
        self.value = self.gate()  # z

    def initialise(self, memory: float) -> None:
        self.forget_gate.initialise(chrono_times(self.hidden, memory))  # plus: f keeps
        self.value.initialise()

    def project(self, x: Tensor) -> Projected:
        return self.forget_gate.project(x), self.value.project(x)

    def advance(self, projected: Projected, state: State) -> State:
        hidden, memory = state
        logits = self.forget_gate.add_state(projected[0], hidden)
        value = torch.tanh(self.value.add_state(projected[1], hidden))
        if self.options.variant == "janet":
            memory = torch.sigmoid(logits) * memory + torch.sigmoid(JANET_OFFSET - logits) * value
        else:
            memory = torch.lerp(value, memory, torch.sigmoid(logits))
        return torch.tanh(memory), memory

    def reference(self, x: Tensor, state: State) -> State:
        h, c = state
        logits = self.forget_gate.reference(x, h)
        f = torch.sigmoid(logits)
        z = torch.tanh(self.value.reference(x, h))
        update = 1 - (torch.sigmoid(logits - 1) if self.options.variant == "janet" else f)
        c = f * c + update * z
        return torch.tanh(c), c
