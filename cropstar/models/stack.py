"""Layers of recurrent cells over a masked series; one code for series and for images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from cropstar.models.cells.cell import Cell, State
from cropstar.models.encoding import complete_dates, is_complete
from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.native.star import BinSums, StemWindow, star_stack
from cropstar.native.tensors import Packed, fits, gradients_wanted

StackState = tuple[State, ...]  # one entry per layer


class RecurrentStack(nn.Module):
    """Cells on top of each other. A date that is not valid leaves the state as it was, in every layer."""

    streaming = True

    def __init__(self, cells: Sequence[Cell], dropout: float = 0.0, *, normalise: bool = False) -> None:
        super().__init__()
        if len({id(cell) for cell in cells}) != len(cells):
            raise ValueError("each layer needs a cell of its own")
        self.cells = nn.ModuleList(cells)
        self.norms = nn.ModuleList(MaskedBatchNorm(cell.hidden) for cell in cells[:-1]) if normalise else None
        self.dropout = dropout

    def layers(self) -> list[Cell]:
        return [cell for cell in self.cells if isinstance(cell, Cell)]

    @property
    def width(self) -> int:
        """Channels of the outputs."""
        return self.layers()[-1].hidden

    def radius(self, length: int) -> int:
        """How far the last state of a pixel looks: through every layer, and back in time through the widest."""
        cells = self.layers()
        if not cells[0].spatial:
            return 0
        return sum(cell.input_reach for cell in cells) + (length - 1) * max(cell.state_reach for cell in cells)

    def initialise(self, memory: float) -> None:
        for cell in self.layers():
            cell.initialise(memory)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, StackState]:
        """The outputs of all dates (T, B, H, ...) and the last state. x (B, T, C, ...), valid (B, T, ...)."""
        packed = self._packed(x)
        if packed is not None:
            outputs, last, _ = self._together(packed, x, valid, None, outputs=True)
            assert outputs is not None
            return outputs, last
        sequence, mask, complete, day = in_time(x, valid, days)
        final: list[State] = []
        for depth, cell in enumerate(self.layers()):
            sequence, norm = self._entering(sequence, mask, depth, 2)
            sequence, state = cell.follow(sequence, mask, complete, day, norm)
            final.append(state)
        return sequence, tuple(final)

    def advance(self, x: Tensor, valid: Tensor, days: Tensor, state: StackState | None) -> StackState:
        """All dates from a state on, without the outputs: x (B, T, C, ...), valid (B, T, ...), days (B, T)."""
        packed = self._packed(x, state)
        if packed is not None:
            return self._together(packed, x, valid, state)[1]
        for t in range(x.shape[1]):
            # In one piece: products of strided matrices have other last bits, and other ones for every length.
            state = self.step(x[:, t].contiguous(), valid[:, t], days[:, t], state)
        assert state is not None
        return state

    def by_kernel(
        self, x: Tensor, valid: Tensor, state: StackState | None, stems: Sequence[StemWindow], bin_sums: BinSums | None
    ) -> tuple[StackState, State] | None:
        """All dates from a state on, through the stems first, the last layer's states added to sums.

        The last state and the windows of the stems, or None where no kernel does that.
        """
        packed = self._packed(x, state)
        if packed is None:
            return None
        _, last, windows = self._together(packed, x, valid, state, bin_sums=bin_sums, stems=stems)
        return last, tuple(windows)

    def follow(self, x: Tensor, valid: Tensor, days: Tensor, state: StackState | None) -> tuple[Tensor, StackState]:
        """All dates from a state on, with the outputs (T, B, H, ...)."""
        packed = self._packed(x, state)
        if packed is not None:
            sequence, last, _ = self._together(packed, x, valid, state, outputs=True)
            assert sequence is not None
            return sequence, last
        outputs = []
        for t in range(x.shape[1]):
            state = self.step(x[:, t].contiguous(), valid[:, t], days[:, t], state)
            outputs.append(state[-1][0])
        assert state is not None
        return torch.stack(outputs), state

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: StackState | None) -> StackState:
        """One date: x (B, C, ...), valid (B, ...), days (B,)."""
        packed = self._packed(x, state)
        if packed is not None:
            return self._together(packed, x.unsqueeze(1), valid.unsqueeze(1), state)[1]
        mask = valid.unsqueeze(1)
        complete = is_complete(mask)
        day = spread_days(days, x)
        after: list[State] = []
        for depth, cell in enumerate(self.layers()):
            x, norm = self._entering(x, mask, depth, 1)
            after.append(cell.step(x, mask, complete, day, None if state is None else state[depth], norm))
            x = after[-1][0]
        return tuple(after)

    def _packed(self, x: Tensor, state: StackState | None = None) -> list[Packed] | None:
        """The layers for the kernel that runs them together, date by date: the states never leave the cache."""
        if self.training and (self.norms is not None or self.dropout):
            return None
        given = [part for layer in state or () for part in layer]
        if given and (gradients_wanted(*given) or not fits(*given)):
            return None
        packed: list[Packed] = []
        for depth, cell in enumerate(self.layers()):
            layer = cell.packed(x, self._norm(depth))
            if layer is None:
                return None
            packed.append(layer)
        return packed

    def _together(
        self,
        packed: list[Packed],
        x: Tensor,
        valid: Tensor,
        state: StackState | None,
        *,
        outputs: bool = False,
        bin_sums: BinSums | None = None,
        stems: Sequence[StemWindow] = (),
    ) -> tuple[Tensor | None, StackState, list[Tensor]]:
        before = None if state is None else [part for (part,) in state]
        x, valid = x.transpose(0, 1), valid.transpose(0, 1)
        final, sequence, windows = star_stack(x, valid, packed, before, outputs=outputs, bin_sums=bin_sums, stems=stems)
        return sequence, tuple((part,) for part in final), windows

    def _norm(self, depth: int) -> MaskedBatchNorm | None:
        """The normalisation of a layer's input."""
        return None if self.norms is None or depth == 0 else _as_norm(self.norms[depth - 1])

    def _entering(self, x: Tensor, mask: Tensor, depth: int, axis: int) -> tuple[Tensor, MaskedBatchNorm | None]:
        """A layer's input, and the normalisation that is left to the cell: at inference it may be folded."""
        norm = self._norm(depth)
        if not self.training:
            return x, norm
        if norm is not None:
            x = norm(x, mask, axis)
        return (nn.functional.dropout(x, self.dropout) if depth else x), None


class BidirectionalStack(nn.Module):
    """Each layer reads the season forwards and backwards and passes both outputs on."""

    streaming = False

    def __init__(
        self,
        forwards: Sequence[Cell],
        backwards: Sequence[Cell],
        dropout: float = 0.0,
        *,
        normalise: bool = False,
    ) -> None:
        super().__init__()
        self.forwards = nn.ModuleList(forwards)
        self.backwards = nn.ModuleList(backwards)
        self.norms = nn.ModuleList(MaskedBatchNorm(2 * cell.hidden) for cell in forwards[:-1]) if normalise else None
        self.dropout = dropout

    def layers(self) -> list[Cell]:
        return [cell for cell in (*self.forwards, *self.backwards) if isinstance(cell, Cell)]

    @property
    def width(self) -> int:
        return 2 * self.layers()[0].hidden

    def radius(self, length: int) -> int:
        """A layer above sees what the one below has seen from either end of the season."""
        cells = self.layers()[: len(self.forwards)]
        if not cells[0].spatial:
            return 0
        return sum(cell.input_reach + (length - 1) * cell.state_reach for cell in cells)

    def initialise(self, memory: float) -> None:
        for cell in self.layers():
            cell.initialise(memory)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, StackState]:
        """The outputs of all dates (T, B, 2H, ...), and what both directions end with."""
        sequence, mask, complete, day = in_time(x, valid, days)
        half = len(self.forwards)
        pairs = zip(self.layers()[:half], self.layers()[half:], strict=True)
        last: Tensor = sequence
        for depth, (onward, back) in enumerate(pairs):
            if depth and self.norms is not None:
                sequence = self.norms[depth - 1](sequence, mask, 2)
            if depth:
                sequence = nn.functional.dropout(sequence, self.dropout, self.training)
            ahead, end = onward.follow(sequence, mask, complete, day)
            behind, start = back.follow(sequence.flip(0), mask.flip(0), complete[::-1], day.flip(0))
            sequence = torch.cat([ahead, behind.flip(0)], dim=2)
            last = torch.cat([end[0], start[0]], dim=1)
        return sequence, ((last,),)


def _as_norm(module: nn.Module) -> MaskedBatchNorm:
    assert isinstance(module, MaskedBatchNorm)
    return module


def in_time(x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, Tensor, list[bool], Tensor]:
    """Dates first: x (T, B, C, ...), mask (T, B, 1, ...), the dates on which nothing is masked, and the days."""
    mask = valid.transpose(0, 1).unsqueeze(2)
    return x.transpose(0, 1), mask, complete_dates(mask), spread_days(days, x[:, 0]).transpose(0, 1)


def spread_days(days: Tensor, like: Tensor) -> Tensor:
    """Days (B,) or (B, T) as (B, 1, ...) or (B, T, 1, ...), to be added to channels of one date."""
    return days.to(like.dtype).reshape(*days.shape, *(1,) * (like.dim() - 1))
