"""Layers of recurrent cells over a masked series; one code for series and for images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.models.cells.cell import Cell, State

StackState = tuple[State, ...]  # one entry a layer


class RecurrentStack(nn.Module):
    """Cells on top of each other. A date that is not valid leaves the state as it was, in every layer."""

    def __init__(self, cells: list[Cell], dropout: float = 0.0) -> None:
        super().__init__()
        if len({id(cell) for cell in cells}) != len(cells):
            raise ValueError("each layer needs a cell of its own")
        self.cells = nn.ModuleList(cells)
        self.dropout = dropout

    def layers(self) -> list[Cell]:
        return [cell for cell in self.cells if isinstance(cell, Cell)]

    def initialise(self, memory: float) -> None:
        for cell in self.layers():
            cell.initialise(memory)

    def forward(self, x: Tensor, valid: Tensor) -> StackState:
        """The state after the last date. x (B, T, C, ...), valid (B, T, ...)."""
        sequence = x.transpose(0, 1)  # (T, B, C, ...)
        mask = valid.transpose(0, 1).unsqueeze(2)  # (T, B, 1, ...)
        complete = mask.flatten(1).all(dim=1).tolist()  # dates on which nothing needs masking
        final: list[State] = []
        for depth, cell in enumerate(self.layers()):
            if depth:
                sequence = nn.functional.dropout(sequence, self.dropout, self.training)
            sequence, state = _run_layer(cell, sequence, mask, complete)
            final.append(state)
        return tuple(final)

    def step(self, x: Tensor, valid: Tensor, state: StackState | None) -> StackState:
        """One date: x (B, C, ...), valid (B, ...)."""
        mask = valid.unsqueeze(1)
        complete = bool(mask.all())
        after: list[State] = []
        for depth, cell in enumerate(self.layers()):
            before = state[depth] if state is not None else cell.initial_state(x)
            proposal = cell.advance(cell.project(x), before)
            after.append(proposal if complete else _keep_where_invalid(mask, proposal, before))
            x = nn.functional.dropout(after[-1][0], self.dropout, self.training)
        return tuple(after)


def _run_layer(cell: Cell, sequence: Tensor, mask: Tensor, complete: list[bool]) -> tuple[Tensor, State]:
    """One layer over all dates: (T, B, C, ...) in, (T, B, H, ...) and the final state out."""
    length, batch = sequence.shape[:2]
    projected = [part.unflatten(0, (length, batch)) for part in cell.project(sequence.flatten(0, 1))]
    # unbind, not indexing: its backward stacks all dates once instead of adding T full-size gradients.
    dates = list(zip(*(part.unbind(0) for part in projected), strict=True))
    state = cell.initial_state(sequence[0])
    outputs = []
    for t in range(length):
        proposal = cell.advance(dates[t], state)
        state = proposal if complete[t] else _keep_where_invalid(mask[t], proposal, state)
        outputs.append(state[0])
    return torch.stack(outputs), state


def _keep_where_invalid(mask: Tensor, proposal: State, before: State) -> State:
    return tuple(torch.where(mask, new, old) for new, old in zip(proposal, before, strict=True))
