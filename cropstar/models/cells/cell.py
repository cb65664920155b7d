"""The base class of recurrent cells, with products and gates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.native.tensors import Packed
from cropstar.registry import Registry

State = tuple[Tensor, ...]  # the first part is the cell's output
Projected = tuple[Tensor, ...]
KERNEL_SIDE = 3


@dataclass(frozen=True)
class CellOptions:
    """Choices that some cells have; a cell that lacks one refuses any other value than its default."""

    variant: str = "paper"
    revisit: float | None = None  # days between usual acquisitions; where given, gates follow the time that passed


class Cell(nn.Module, ABC):
    """One layer's recurrence, split into what can be computed for all dates at once and what cannot.

    Tensors are (N, C) for series and (N, C, H, W) for images.
    """

    state_parts = 1
    variants: tuple[str, ...] = ("paper",)
    dated = False  # whether `advance` is given the day, as the last part of what was projected
    # Of images: how many pixels away one date reads its input, and the state before it.
    input_reach = 1
    state_reach = 1
    backend = "auto"  # who computes it where there is a choice; see models/backends.py

    def __init__(self, inputs: int, hidden: int, *, spatial: bool, options: CellOptions | None = None) -> None:
        super().__init__()
        self.inputs = inputs
        self.hidden = hidden
        self.spatial = spatial
        self.options = options or CellOptions()
        self.make_weights()

    @abstractmethod
    def make_weights(self) -> None:
        """Make the products and gates: `of_input`, `of_state` and `gate` have the cell's sizes."""

    @abstractmethod
    def initialise(self, memory: float) -> None:
        """Set new weights; gates get time scales between one date and `memory` dates."""

    @abstractmethod
    def project(self, x: Tensor) -> Projected:
        """Everything that needs no earlier state; called once for all dates."""

    @abstractmethod
    def advance(self, projected: Projected, state: State) -> State:
        """One date onwards."""

    @abstractmethod
    def reference(self, x: Tensor, state: State) -> State:
        """One date onwards by the equations to the letter: what every fast path must equal."""

    def of_input(self) -> nn.Linear | nn.Conv2d:
        """A product W x + b."""
        return product(self.inputs, self.hidden, spatial=self.spatial, bias=True)

    def of_state(self, *, bias: bool) -> nn.Linear | nn.Conv2d:
        """A product U h, or U h + b."""
        return product(self.hidden, self.hidden, spatial=self.spatial, bias=bias)

    def gate(self) -> Gate:
        return Gate(self.inputs, self.hidden, spatial=self.spatial)

    def initial_state(self, like: Tensor) -> State:
        """Zeros for a batch shaped like one date's input."""
        zeros = like.new_zeros(like.shape[0], self.hidden, *like.shape[2:])
        return (zeros,) * self.state_parts

    def follow(
        self, sequence: Tensor, mask: Tensor, complete: list[bool], day: Tensor, norm: MaskedBatchNorm | None = None
    ) -> tuple[Tensor, State]:
        """One layer over all dates: (T, B, C, ...) in, (T, B, H, ...) and the final state out.

        `norm` is what the input goes through first; a cell may make it part of its weights.
        """
        if norm is not None:
            sequence = norm(sequence, mask, 2)
        length, batch = sequence.shape[:2]
        projected = tuple(part.unflatten(0, (length, batch)) for part in self.project(sequence.flatten(0, 1)))
        return self.run(self.with_day(projected, day), mask, complete, self.initial_state(sequence[0]))

    def step(
        self,
        x: Tensor,
        mask: Tensor,
        complete: bool,
        day: Tensor,
        before: State | None,
        norm: MaskedBatchNorm | None = None,
    ) -> State:
        """One layer, one date: x (B, C, ...), mask (B, 1, ...), `before` None at the first date."""
        if norm is not None:
            x = norm(x, mask, 1)
        before = self.initial_state(x) if before is None else before
        proposal = self.advance(self.with_day(self.project(x), day), before)
        return proposal if complete else keep_where_invalid(mask, proposal, before)

    def packed(self, x: Tensor, norm: MaskedBatchNorm | None = None) -> Packed | None:
        """The weights for the kernel that runs all layers of series together; None where it cannot take this one.

        The normalisation of its input is part of them.
        """
        return None

    def with_day(self, projected: Projected, day: Tensor) -> Projected:
        """The day as well, for a cell that follows the time that passes."""
        return (*projected, day) if self.dated else projected

    def run(self, projected: Projected, mask: Tensor, complete: list[bool], state: State) -> tuple[Tensor, State]:
        """All dates, (T, B, ...) each: the outputs (T, B, H, ...) and the last state.

        `mask` (T, B, 1, ...) tells where a date is valid; `complete` names dates on which it is everywhere.
        """
        # unbind, not indexing: its backward stacks all dates once instead of adding T full-size gradients.
        dates = list(zip(*(part.unbind(0) for part in projected), strict=True))
        outputs = []
        for t, date in enumerate(dates):
            proposal = self.advance(date, state)
            state = proposal if complete[t] else keep_where_invalid(mask[t], proposal, state)
            outputs.append(state[0])
        return torch.stack(outputs), state


def keep_where_invalid(mask: Tensor, proposal: State, before: State) -> State:
    """The new state where the date is valid, the earlier one elsewhere."""
    return tuple(torch.where(mask, new, old) for new, old in zip(proposal, before, strict=True))


CELLS: Registry[type[Cell]] = Registry("cell")


# --- gates, and the time scales that new ones begin with


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


def chrono_times(hidden: int, memory: float) -> Tensor:
    """log U(1, memory): chrono initialisation (Tallec and Ollivier, "Can recurrent neural networks warp time?").

    As the bias of a gate that *keeps*, it makes the gate's time scales uniform between one date and `memory` dates; a
    gate that *updates* needs its negative.
    """
    return torch.empty(hidden).uniform_(1.0, memory).log_()


def set_bias(layer: nn.Linear | nn.Conv2d, values: Tensor) -> None:
    assert layer.bias is not None
    with torch.no_grad():
        layer.bias.copy_(values)


# --- products: a matrix for series, a 3x3 convolution for images


def product(inputs: int, outputs: int, *, spatial: bool, bias: bool) -> nn.Linear | nn.Conv2d:
    """A learnt product over channels, the same call for (N, C) and (N, C, H, W)."""
    if spatial:
        return nn.Conv2d(inputs, outputs, KERNEL_SIDE, padding=KERNEL_SIDE // 2, bias=bias)
    return nn.Linear(inputs, outputs, bias=bias)


def orthogonal_(layer: nn.Linear | nn.Conv2d) -> None:
    """Orthogonal weights, zero bias.

    Each product is initialised on its own: an orthogonal concatenation of several would leave every
    block with singular values below one, and deep stacks with vanishing gradients.
    """
    nn.init.orthogonal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def written_out(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """The product by its definition, for references: a matrix, or a convolution as a sum of shifted matrices."""
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
