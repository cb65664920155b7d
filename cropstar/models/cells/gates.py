"""What gated cells share: the products of one gate, and the time scales that new gates begin with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.models.products import orthogonal_, product, written_out


class Gate(nn.Module):
    """W x + U h + b, the argument of one nonlinearity.

    Several gates read the same input, yet each keeps products of its own: W and U are orthogonal by themselves, and on
    a processor one product of stacked weights was no clear gain over several.
    """

    def __init__(self, inputs: int, hidden: int, *, spatial: bool) -> None:
        super().__init__()
        self.input = product(inputs, hidden, spatial=spatial, bias=True)
        self.state = product(hidden, hidden, spatial=spatial, bias=False)

    def initialise(self, bias: Tensor | None = None) -> None:
        """Orthogonal products; a bias of zero unless given."""
        orthogonal_(self.input)
        orthogonal_(self.state)
        if bias is not None:
            set_bias(self.input, bias)

    def project(self, x: Tensor) -> Tensor:
        projected: Tensor = self.input(x)
        return projected

    def add_state(self, projected: Tensor, hidden: Tensor) -> Tensor:
        total: Tensor = projected + self.state(hidden)
        return total

    def reference(self, x: Tensor, hidden: Tensor) -> Tensor:
        return written_out(self.input, x) + written_out(self.state, hidden)


def log_times(hidden: int, memory: float) -> Tensor:
    """log U(1, memory): chrono initialisation (Tallec and Ollivier, "Can recurrent neural networks warp time?").

    As the bias of a gate that *keeps*, it makes the gate's time scales uniform between one date and `memory` dates; a
    gate that *updates* needs its negative.
    """
    return torch.empty(hidden).uniform_(1.0, memory).log_()


def set_bias(layer: nn.Linear | nn.Conv2d, values: Tensor) -> None:
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias.copy_(values)
