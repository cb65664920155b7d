"""Cells run by their naive references, and models step by step, one date after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.cell import Cell, State
from cropstar.models.classifier import RecurrentClassifier


def run_reference(cell: Cell, x: Tensor, valid: Tensor) -> tuple[Tensor, State]:
    """x (B, T, C, ...), valid (B, T, ...): outputs of all dates (T, B, H, ...) and the last state."""
    state = cell.initial_state(x[:, 0])
    outputs = []
    for t in range(x.shape[1]):
        proposal = cell.reference(x[:, t], state)
        mask = valid[:, t].unsqueeze(1)
        state = tuple(torch.where(mask, new, old) for new, old in zip(proposal, state, strict=True))
        outputs.append(state[0])
    return torch.stack(outputs), state


def run_steps(model: RecurrentClassifier, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
    """The scores after all dates, one step after the other."""
    state = None
    for t in range(x.shape[1]):
        state = model.step(x[:, t], valid[:, t], days[:, t], state)
    assert state is not None
    return model.classify(state)
