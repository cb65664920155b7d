"""The STAR cell of "Gating Revisited: Deep Multi-layer RNNs That Can Be Trained" (Turkoglu et al.).

    z_t = tanh(W_z x_t + b_z)
    k_t = sigmoid(W_x x_t + W_h h_{t-1} + b_k)
    h_t = tanh((1 - k_t) * h_{t-1} + k_t * z_t)

k is the update gate: large k forgets. Only W_h needs the earlier state, so the other two products are
computed for all dates at once.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.models.cells.cell import CELLS, Cell, Projected, State
from cropstar.models.products import orthogonal_, product


@CELLS.register("star")
class StarCell(Cell):
    def __init__(self, inputs: int, hidden: int, *, spatial: bool) -> None:
        super().__init__(inputs, hidden, spatial=spatial)
        self.input_value = product(inputs, hidden, spatial=spatial, bias=True)  # W_z, b_z
        self.input_gate = product(inputs, hidden, spatial=spatial, bias=True)  # W_x, b_k
        self.state_gate = product(hidden, hidden, spatial=spatial, bias=False)  # W_h

    def initialise(self, memory: float) -> None:
        for layer in (self.input_value, self.input_gate, self.state_gate):
            orthogonal_(layer)
        # Chrono initialisation. The sign is minus because k updates, whereas the forget gate that it is
        # usually written for keeps.
        assert self.input_gate.bias is not None
        with torch.no_grad():
            self.input_gate.bias.uniform_(1.0, memory).log_().neg_()

    def project(self, x: Tensor) -> Projected:
        return torch.tanh(self.input_value(x)), self.input_gate(x)

    def advance(self, projected: Projected, state: State) -> State:
        value, gate_input = projected
        (hidden,) = state
        gate = torch.sigmoid(gate_input + self.state_gate(hidden))
        return (torch.tanh(torch.lerp(hidden, value, gate)),)


def star_reference(cell: StarCell, x: Tensor, valid: Tensor, hidden: Tensor) -> Tensor:
    """The equations to the letter, one date after the other: what every fast path must equal.

    x (B, T, C, ...), valid (B, T, ...), hidden (B, H, ...); returns h_t of all dates, (B, T, H, ...).
    """
    states = []
    for t in range(x.shape[1]):
        z = torch.tanh(_apply(cell.input_value, x[:, t]))
        k = torch.sigmoid(_apply(cell.input_gate, x[:, t]) + _apply(cell.state_gate, hidden))
        proposal = torch.tanh((1 - k) * hidden + k * z)
        hidden = torch.where(valid[:, t].unsqueeze(1), proposal, hidden)
        states.append(hidden)
    return torch.stack(states, dim=1)


def _apply(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """The product written out: matrix, or convolution as a sum of shifted matrices."""
    if isinstance(layer, nn.Linear):
        total = x @ layer.weight.T
    else:
        size, half = layer.kernel_size[0], layer.kernel_size[0] // 2
        padded = nn.functional.pad(x, (half, half, half, half))
        height, width = x.shape[-2:]
        total = sum(
            (
                torch.einsum("oc,nchw->nohw", layer.weight[:, :, i, j], padded[:, :, i : i + height, j : j + width])
                for i in range(size)
                for j in range(size)
            ),
            start=x.new_zeros(()),
        )
    if layer.bias is not None:
        total = total + layer.bias.reshape(-1, *(1,) * (x.dim() - 2))
    return total
