"""The layer of STAR in PyTorch with its hand-written backward pass: against numbers and against the plain loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.models.cells.star import StarCell
from cropstar.models.cells.star_layer import can_run_layer, run_layer
from cropstar.native.tensors import Weights


def make(inputs: int, hidden: int, *, spatial: bool, seed: int = 0) -> tuple[StarCell, Weights]:
    torch.manual_seed(seed)
    cell = StarCell(inputs, hidden, spatial=spatial).double()
    cell.initialise(6.0)
    value, gate, state = cell.input_value, cell.input_gate, cell.state_gate
    assert value.bias is not None
    assert gate.bias is not None
    with torch.no_grad():
        value.bias.normal_()
    return cell, Weights(value.weight, value.bias, gate.weight, gate.bias, state.weight)


def plain(cell: StarCell, x: Tensor, mask: Tensor | None, initial: Tensor | None) -> tuple[Tensor, Tensor]:
    state = cell.initial_state(x[0])[0] if initial is None else initial
    outputs = []
    for t in range(len(x)):
        (proposal,) = cell.reference(x[t], (state,))
        state = proposal if mask is None else torch.where(mask[t], proposal, state)
        outputs.append(state)
    return torch.stack(outputs), state


@pytest.mark.parametrize("space", [(), (2, 1)], ids=["series", "images"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_are_those_of_finite_differences(space: tuple[int, ...], masked: bool) -> None:
    _, weights = make(2, 3, spatial=bool(space))
    x = torch.randn(2, 2, 2, *space, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 2, 1, *space) > 0.4 if masked else None
    initial = torch.randn(2, 3, *space, dtype=torch.float64).tanh().requires_grad_()
    parts = tuple(part.detach().requires_grad_() for part in weights)
    assert torch.autograd.gradcheck(
        lambda x, initial, *w: run_layer(x, mask, Weights(*w), initial), (x, initial, *parts)
    )


@settings(max_examples=10)
@given(
    spatial=some.booleans(),
    masked=some.booleans(),
    begun=some.booleans(),
    sizes=some.tuples(*[some.integers(1, 5)] * 4),
    seed=some.integers(0, 1000),
)
def test_it_equals_the_equations_with_gradients(
    spatial: bool, masked: bool, begun: bool, sizes: tuple[int, int, int, int], seed: int
) -> None:
    length, batch, inputs, hidden = sizes
    cell, weights = make(inputs, hidden, spatial=spatial, seed=seed)
    space = (3, 4) if spatial else ()
    x = torch.randn(length, batch, inputs, *space, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(length, batch, 1, *space) > 0.4 if masked else None
    initial = torch.randn(batch, hidden, *space, dtype=torch.float64).tanh().requires_grad_() if begun else None
    learnt = [x, *weights, *([] if initial is None else [initial])]
    weight = torch.randn(length, batch, hidden, *space, dtype=torch.float64)
    found = []
    for outputs, final in (run_layer(x, mask, weights, initial), plain(cell, x, mask, initial)):
        loss = (outputs * weight).sum() + final.square().sum()
        found.append([outputs, final, *torch.autograd.grad(loss, learnt)])
    for fast, slow in zip(*found, strict=True):
        torch.testing.assert_close(fast, slow, rtol=0, atol=1e-11)


def test_only_what_is_wanted_gets_a_gradient() -> None:
    cell, weights = make(2, 3, spatial=False)
    cell.state_gate.requires_grad_(False)
    outputs, _ = run_layer(torch.randn(4, 2, 2).double(), None, weights)
    outputs[-1].sum().backward()
    assert cell.state_gate.weight.grad is None
    assert cell.input_gate.weight.grad is not None


def test_a_second_derivative_is_refused() -> None:
    _, weights = make(2, 3, spatial=False)
    x = torch.randn(3, 2, 2, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(run_layer(x, None, weights)[0].sum(), x, create_graph=True)


def test_mixed_precision_is_left_to_the_plain_loop() -> None:
    _, weights = make(2, 3, spatial=False)
    assert can_run_layer(torch.zeros(1, 1, 2).double(), weights)
    assert not can_run_layer(torch.zeros(1, 1, 2), weights)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not can_run_layer(torch.zeros(1, 1, 2).double(), weights)
