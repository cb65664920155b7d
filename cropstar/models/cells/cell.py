"""What every recurrent cell offers to the stack."""

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


@dataclass(frozen=True)
class CellOptions:
    """Choices that some cells have; a cell that lacks one refuses any other value than its default."""

    variant: str = "paper"
    revisit: float | None = None  # days between usual acquisitions; where given, gates follow the time that passed


DEFAULTS = CellOptions()


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

    def __init__(self, inputs: int, hidden: int, *, spatial: bool, options: CellOptions = DEFAULTS) -> None:
        super().__init__()
        self.inputs = inputs
        self.hidden = hidden
        self.spatial = spatial
        self.options = options

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
