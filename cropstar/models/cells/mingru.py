"""The minimal gated recurrent unit of "Were RNNs All We Needed?" (Feng et al. 2024).

    u_t = sigmoid(W_u x_t + b_u)      large u updates
    z_t = W_z x_t + b_z
    h_t = (1 - u_t) * h_{t-1} + u_t * z_t

Neither the gate nor the value looks at the state, so h is a weighted sum that needs no loop: two dates follow each
other as one date with the product of what they keep, and all dates are joined pair by pair in log2 T rounds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import CELLS, Cell, Projected, State, chrono_times, orthogonal_, set_bias, written_out

# On a processor, dates larger than this keep it busy one by one, and the loop moves less memory (one thread, 45 to 784
# dates: at 1,024 values a date the scan took 0.5 to 0.9 of the loop's time, at 8,192 values 1.4 to 7 times it).
LARGE_DATE = 2048  # accelerators, which want few large steps, always scan


@CELLS.register("mingru")
class MinGruCell(Cell):
    state_reach = 0  # a pixel's state never looks at its neighbours'

    def make_weights(self) -> None:
        self.update_gate = self.of_input()  # W_u, b_u
        self.input_value = self.of_input()  # W_z, b_z

    def initialise(self, memory: float) -> None:
        orthogonal_(self.update_gate)
        orthogonal_(self.input_value)
        set_bias(self.update_gate, -chrono_times(self.hidden, memory))  # minus: u updates

    def project(self, x: Tensor) -> Projected:
        return torch.sigmoid(self.update_gate(x)), self.input_value(x)

    def advance(self, projected: Projected, state: State) -> State:
        update, value = projected
        return (torch.lerp(state[0], value, update),)

    def reference(self, x: Tensor, state: State) -> State:
        (h,) = state
        u = torch.sigmoid(written_out(self.update_gate, x))
        z = written_out(self.input_value, x)
        return ((1 - u) * h + u * z,)

    def run(self, projected: Projected, mask: Tensor, complete: list[bool], state: State) -> tuple[Tensor, State]:
        if state[0].device.type == "cpu" and state[0].numel() > LARGE_DATE:
            return super().run(projected, mask, complete, state)
        update, value = projected
        keep, add = 1 - update, update * value
        if not all(complete):  # a date that is not valid keeps everything and adds nothing
            keep = torch.where(mask, keep, keep.new_ones(()))
            add = torch.where(mask, add, add.new_zeros(()))
        outputs = scan(keep, add, state[0])
        return outputs, (outputs[-1],)


def scan(keep: Tensor, add: Tensor, start: Tensor) -> Tensor:
    """h_t = keep_t * h_{t-1} + add_t for all t, with h before the first date in `start`; dates come first.

    Neighbouring dates are joined to half as many and solved, which gives every second state; one step more from
    these gives the states in between. No quotient of products is taken, so small `keep` lose nothing.
    """
    length = keep.shape[0]
    if length == 1:
        return keep * start + add
    pairs = length // 2
    early, late = slice(0, 2 * pairs, 2), slice(1, None, 2)
    after_late = scan(keep[early] * keep[late], keep[late] * add[early] + add[late], start)
    before_early = torch.cat([start.unsqueeze(0), after_late])[: length - pairs]
    after_early = keep[::2] * before_early + add[::2]
    states = torch.stack([after_early[:pairs], after_late], dim=1).flatten(0, 1)
    return states if length % 2 == 0 else torch.cat([states, after_early[-1:]])
