"""A recurrent stack over long sequences: starting from a given state, and with less memory for the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from cropstar.errors import UsageError
from cropstar.models.cells.cell import Cell, State
from cropstar.models.cells.star import StarCell
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier
from cropstar.models.stack import RecurrentStack, StackState, in_time
from cropstar.native import available
from cropstar.native.star import run_star
from cropstar.native.tensors import Weights, fits


def follow_from(
    stack: RecurrentStack, x: Tensor, valid: Tensor, days: Tensor, state: StackState | None
) -> tuple[Tensor, StackState]:
    """As `stack(x, valid, days)`, but from a state: the outputs of all steps (T, B, H, ...) and the last state."""
    sequence, mask, complete, day = in_time(x, valid, days)
    after: list[State] = []
    for depth, cell in enumerate(stack.layers()):
        if depth:
            sequence = nn.functional.dropout(sequence, stack.dropout, stack.training)
        before = cell.initial_state(sequence[0]) if state is None else state[depth]
        sequence, end = _layer_from(cell, sequence, mask, complete, day, before)
        after.append(end)
    return sequence, tuple(after)


def save_memory(model: Classifier, steps: int) -> None:
    """Keep only every n-th state during training; the others are computed again in the backward pass.

    The gradients stay what they are; memory goes with T / steps + steps instead of T. The function is put on the
    stack rather than around it: weights keep their names.
    """
    stack = require_carrying(model, "task.checkpoint")
    plain = stack.forward

    def forward(x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, StackState]:
        if not torch.is_grad_enabled() or x.shape[1] <= steps:
            return plain(x, valid, days)
        state: StackState | None = None
        outputs = []
        for start in range(0, x.shape[1], steps):
            stretch = slice(start, start + steps)
            found: tuple[Tensor, StackState] = checkpoint(
                follow_from, stack, x[:, stretch], valid[:, stretch], days[:, stretch], state, use_reentrant=False
            )
            outputs.append(found[0])
            state = found[1]
        assert state is not None
        return torch.cat(outputs), state

    stack.__dict__["forward"] = forward


def require_carrying(model: Classifier, asked: str) -> RecurrentStack:
    """The stack of a model that reads step after step; others have no state that could be carried on."""
    if not isinstance(model, RecurrentClassifier) or not isinstance(model.stack, RecurrentStack):
        why = "the model does not read step after step"
        raise UsageError(f"{asked} needs a recurrent model", why=why, remedy="use one such as --model star")
    if model.stack.norms is not None:
        why = "batch normalisation takes its statistics over all steps at once"
        raise UsageError(f"{asked} cannot be used with model.normalise", why=why, remedy="leave one of them out")
    return model.stack


def _layer_from(
    cell: Cell, sequence: Tensor, mask: Tensor, complete: list[bool], day: Tensor, before: State
) -> tuple[Tensor, State]:
    weights = _kernel_weights(cell)
    if weights is not None and fits(sequence, before[0], *weights):
        outputs, final = run_star(sequence, None if all(complete) else mask.squeeze(2), weights, before[0])
        return outputs, (final,)
    length, batch = sequence.shape[:2]
    projected: Any = tuple(part.unflatten(0, (length, batch)) for part in cell.project(sequence.flatten(0, 1)))
    return cell.run(cell.with_day(projected, day), mask, complete, before)


def _kernel_weights(cell: Cell) -> Weights | None:
    """The weights of a series layer that the compiled kernel computes."""
    if not isinstance(cell, StarCell) or cell.options.variant != "paper" or cell.dated or cell.spatial:
        return None
    if not available():
        return None
    value, gate, state = cell.input_value, cell.input_gate, cell.state_gate
    assert value.bias is not None
    assert gate.bias is not None
    return Weights(value.weight, value.bias, gate.weight, gate.bias, state.weight)
