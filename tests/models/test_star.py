"""The STAR cell against its equations, its initialisation, its variants and how far it looks."""

from __future__ import annotations

import math

import pytest
import torch

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.cells.cell import CellOptions
from cropstar.models.cells.star import StarCell
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from tests.models.test_counts import build


def test_one_step_by_hand() -> None:
    """Numbers worked out from the three equations, not from the code."""
    cell = StarCell(1, 1, spatial=False).double()
    with torch.no_grad():
        cell.input_value.weight.fill_(0.5)
        cell.input_value.bias.fill_(0.1)  # type: ignore[union-attr]
        cell.input_gate.weight.fill_(-0.3)
        cell.input_gate.bias.fill_(0.2)  # type: ignore[union-attr]
        cell.state_gate.weight.fill_(0.7)
    x, h = 2.0, -0.4
    z = math.tanh(0.5 * x + 0.1)
    k = 1 / (1 + math.exp(-(-0.3 * x + 0.7 * h + 0.2)))
    expected = math.tanh((1 - k) * h + k * z)
    inputs = torch.tensor([[x]], dtype=torch.float64)
    (state,) = cell.advance(cell.project(inputs), (torch.tensor([[h]], dtype=torch.float64),))
    assert float(state.detach()) == pytest.approx(expected, abs=1e-15)


def test_the_outer_tanh_is_there() -> None:
    """Without it a gate of one half and z = 1 would hold the state at (0 + 1) / 2 after one step."""
    cell = StarCell(1, 1, spatial=False)
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.input_value.bias.fill_(20.0)  # type: ignore[union-attr]
    (state,) = cell.advance(cell.project(torch.zeros(1, 1)), (torch.zeros(1, 1),))
    assert float(state.detach()) == pytest.approx(math.tanh(0.5))


@pytest.mark.parametrize("variant", StarCell.variants)
def test_variants_by_hand(variant: str) -> None:
    """With W_z x = 2, a gate argument of 0.5 and h = 0.8."""
    cell = StarCell(1, 1, spatial=False, options=CellOptions(variant)).double()
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.input_value.bias.fill_(2.0)  # type: ignore[union-attr]
        cell.input_gate.bias.fill_(0.5)  # type: ignore[union-attr]
    (state,) = cell.advance(cell.project(torch.zeros(1, 1).double()), (torch.full((1, 1), 0.8).double(),))
    z, gate, shifted = math.tanh(2.0), 1 / (1 + math.exp(-0.5)), 1 / (1 + math.exp(0.5))
    expected = {
        "paper": math.tanh((1 - gate) * 0.8 + gate * z),
        "no-outer-tanh": (1 - gate) * 0.8 + gate * z,
        "janet": math.tanh(gate * 0.8 + (1 - shifted) * z),
    }
    assert float(state.detach()) == pytest.approx(expected[variant], abs=1e-7)


def test_janet_keeps_with_a_positive_bias() -> None:
    cell = StarCell(2, 50, spatial=False, options=CellOptions("janet"))
    cell.initialise(20)
    assert cell.input_gate.bias is not None
    assert float(cell.input_gate.bias.detach().min()) >= 0


def test_janet_has_no_time_between_dates() -> None:
    """Its two gates have no one k to stretch: refused, not ignored."""
    with pytest.raises(UsageError, match="time"):
        build_model(ModelConfig(name="star", variant="janet", revisit=5.0), Shape(4, 3, 10))


def test_chrono_bias_remembers() -> None:
    """k updates, so a long memory needs a negative bias: between -log T and 0."""
    torch.manual_seed(0)
    cell = StarCell(4, 300, spatial=False)
    cell.initialise(50)
    bias = cell.input_gate.bias
    assert bias is not None
    bias = bias.detach()
    assert float(bias.max()) <= 0
    assert float(bias.min()) >= -math.log(50)
    assert float(bias.neg().exp().mean()) == pytest.approx(25.5, rel=0.1)  # the mean of U(1, 50)
    assert cell.input_value.bias is not None
    assert not cell.input_value.bias.any()


@pytest.mark.parametrize(("layers", "length"), [(1, 1), (2, 3), (4, 2)])
def test_radius_is_exactly_how_far_a_pixel_looks(layers: int, length: int) -> None:
    """A change just inside the radius reaches the centre, one just outside does not."""
    torch.manual_seed(0)
    model = build("convstar", 2, 3, layers, 6).double()
    radius = model.radius(length)
    size = 2 * radius + 5
    middle = size // 2
    x = torch.randn(1, length, 2, size, size, dtype=torch.float64, requires_grad=True)
    valid = torch.ones(1, length, size, size, dtype=torch.bool)
    model(x, valid, torch.zeros(1, length))[0, :, middle, middle].sum().backward()
    assert x.grad is not None
    reached = x.grad.abs().sum(dim=(0, 1, 2)).nonzero()
    distance = (reached - middle).abs().max()
    assert int(distance) == radius
    assert model.radius(length) == layers + length - 1 + 2
    assert build("star", 2, 3, layers, 6).radius(length) == 0
