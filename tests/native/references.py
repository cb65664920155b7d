"""What the kernels must equal: the naive reference in double precision, and weights to give to both."""

from __future__ import annotations

import torch
from torch import Tensor

from cropstar.models.cells.star import StarCell
from cropstar.native.tensors import Weights

OUTPUTS = 2e-6
GRADIENTS = 1e-5  # relative
FLOOR = 1e-6  # of a gradient that happens to cancel to almost nothing


def make_cell(inputs: int, hidden: int, *, spatial: bool = False, seed: int = 0) -> StarCell:
    """Weights, and biases that are not zero, so that a forgotten one shows."""
    torch.manual_seed(seed)
    cell = StarCell(inputs, hidden, spatial=spatial)
    cell.initialise(10.0)
    assert cell.input_value.bias is not None
    with torch.no_grad():
        cell.input_value.bias.normal_()
    return cell


def weights_of(cell: StarCell) -> Weights:
    value_bias, gate_bias = cell.input_value.bias, cell.input_gate.bias
    assert value_bias is not None
    assert gate_bias is not None
    value, gate, state = cell.input_value.weight, cell.input_gate.weight, cell.state_gate.weight
    return Weights(value, value_bias, gate, gate_bias, state)


def in_double(cell: StarCell) -> StarCell:
    copy = StarCell(cell.inputs, cell.hidden, spatial=cell.spatial).double()
    copy.load_state_dict({name: part.double() for name, part in cell.state_dict().items()})
    return copy


def run_naively(cell: StarCell, x: Tensor, valid: Tensor | None, initial: Tensor | None = None) -> Tensor:
    """x (T, B, C, ...), valid (T, B, ...): the outputs of all dates."""
    state = cell.initial_state(x[0]) if initial is None else (initial,)
    outputs = []
    for t in range(x.shape[0]):
        (proposal,) = cell.reference(x[t], state)
        state = (proposal if valid is None else torch.where(valid[t].unsqueeze(1), proposal, state[0]),)
        outputs.append(state[0])
    return torch.stack(outputs)


def require_close(found: Tensor | None, expected: Tensor | None) -> None:
    """A gradient, relative to its size."""
    assert found is not None
    assert expected is not None
    error = (found.double() - expected).norm()
    assert error <= GRADIENTS * expected.norm() + FLOOR * expected.numel() ** 0.5
