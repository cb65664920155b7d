"""The STAR cell against its equations, its initialisation and the paper's parameter counts."""

from __future__ import annotations

import math

import pytest
import torch

from cropstar.config import ModelConfig
from cropstar.models.cells.star import StarCell
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.stack import RecurrentStack
from cropstar.models.zoo import Shape, build_model


def build(name: str, bands: int, classes: int, layers: int, hidden: int) -> RecurrentClassifier:
    config = ModelConfig(name=name, layers=layers, hidden=hidden, day_encoding="none")
    model = build_model(config, Shape(bands, classes, 30))
    assert isinstance(model, RecurrentClassifier)
    return model


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


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


@pytest.mark.parametrize("spatial", [False, True])
def test_each_product_is_orthogonal_by_itself(spatial: bool) -> None:
    cell = StarCell(16, 16, spatial=spatial)
    cell.initialise(30)
    for layer in (cell.input_value, cell.input_gate, cell.state_gate):
        singular = torch.linalg.svdvals(layer.weight.detach().flatten(1))
        torch.testing.assert_close(singular, torch.ones_like(singular), rtol=0, atol=1e-5)


def test_chrono_bias_remembers() -> None:
    """k updates, so a long memory needs a negative bias: between -log T and 0."""
    torch.manual_seed(0)
    cell = StarCell(4, 2000, spatial=False)
    cell.initialise(50)
    bias = cell.input_gate.bias
    assert bias is not None
    bias = bias.detach()
    assert float(bias.max()) <= 0
    assert float(bias.min()) >= -math.log(50)
    assert float(bias.neg().exp().mean()) == pytest.approx(25.5, rel=0.05)  # the mean of U(1, 50)
    assert cell.input_value.bias is not None
    assert not cell.input_value.bias.any()


def test_a_shared_layer_is_refused() -> None:
    cell = StarCell(4, 4, spatial=False)
    with pytest.raises(ValueError, match="own"):
        RecurrentStack([cell, cell])


@pytest.mark.parametrize(("inputs", "hidden"), [(4, 32), (13, 7), (1, 1)])
@pytest.mark.parametrize("spatial", [False, True])
def test_parameter_count_by_formula(inputs: int, hidden: int, spatial: bool) -> None:
    taps = 9 if spatial else 1
    first = taps * (2 * inputs * hidden + hidden**2) + 2 * hidden
    deeper = taps * 3 * hidden**2 + 2 * hidden
    assert count(StarCell(inputs, hidden, spatial=spatial)) == first
    assert count(StarCell(hidden, hidden, spatial=spatial)) == deeper


def test_counts_of_the_paper() -> None:
    """TUM pixel-wise (124k), BreizhCrops with 4 and 6 layers (167k, 266k)."""
    assert count(build("convstar", 4, 18, 4, 32)) == pytest.approx(124_000, rel=0.01)
    assert count(build("star", 4, 9, 4, 128)) == pytest.approx(167_000, rel=0.01)
    assert count(build("star", 4, 9, 6, 128)) == pytest.approx(266_000, rel=0.01)


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
