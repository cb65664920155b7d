"""STAR with gates that follow the time between valid dates, k' = 1 - (1 - k) ** (days / revisit)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.models.cells.cell import CellOptions
from cropstar.models.cells.star import StarCell
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape
from cropstar.models.stack import BidirectionalStack, RecurrentStack
from cropstar.models.zoo import build_model

REVISIT = 5.0


def model(name: str = "star", *, revisit: float | None = REVISIT, pool: str = "last") -> RecurrentClassifier:
    torch.manual_seed(0)
    settings = {"name": name, "layers": 2, "hidden": 4, "day_encoding": "none", "revisit": revisit, "pool": pool}
    built = build_model(ModelConfig.model_validate(settings), Shape(3, 5, 12)).double().eval()
    assert isinstance(built, RecurrentClassifier)
    return built


def inputs(name: str, length: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    space = (3, 4) if "conv" in name else ()
    x = torch.randn(2, length, 3, *space, dtype=torch.float64, generator=generator)
    return x, torch.rand(2, length, *space, generator=generator) > 0.4


def days(*gaps: float) -> Tensor:
    return (19_000 + torch.tensor([0.0, *gaps]).cumsum(0)).expand(2, -1)


IRREGULAR = (3, 5, 10, 1, 30)


@pytest.mark.parametrize("name", ["star", "convstar", "bistar"])
def test_usual_gaps_make_the_plain_cell(name: str) -> None:
    x, _ = inputs(name)
    valid = torch.ones_like(x[:, :, 0], dtype=torch.bool)
    torch.testing.assert_close(
        model(name)(x, valid, days(*[REVISIT] * 5)), model(name, revisit=None)(x, valid, days(*IRREGULAR))
    )
    assert not torch.allclose(model(name)(x, valid, days(*IRREGULAR)), model(name)(x, valid, days(*[REVISIT] * 5)))


def test_twice_the_gap_is_two_usual_dates() -> None:
    """With a constant gate and value; without the outer tanh, which would act twice instead of once."""
    torch.manual_seed(0)
    cell = StarCell(2, 4, spatial=False, options=CellOptions("no-outer-tanh", REVISIT)).double()
    cell.initialise(10)
    with torch.no_grad():
        cell.state_gate.weight.zero_()
    stack = RecurrentStack([cell])
    start, x = torch.randn(1, 1, 2).double(), torch.randn(1, 1, 2).double()
    every, some = torch.ones(1, 3, dtype=torch.bool), torch.ones(1, 2, dtype=torch.bool)
    twice, _ = stack(torch.cat([start, x, x], dim=1), every, torch.tensor([[0, REVISIT, 2 * REVISIT]]))
    once, _ = stack(torch.cat([start, x], dim=1), some, torch.tensor([[0, 2 * REVISIT]]))
    torch.testing.assert_close(once[-1], twice[-1], rtol=0, atol=1e-12)


def test_gate_by_its_definition() -> None:
    """One step of two days, from the formula as it is written."""
    torch.manual_seed(0)
    cell = StarCell(2, 4, spatial=False, options=CellOptions("paper", REVISIT)).double()
    cell.initialise(10)
    x, h = torch.randn(3, 2).double(), torch.randn(3, 4).double().tanh()
    day, seen = torch.full((3, 1), 102.0).double(), torch.full((3, 1), 100.0).double()
    found, date = cell.advance((*cell.project(x), day), (h, seen))
    z, k = torch.tanh(cell.input_value(x)), torch.sigmoid(cell.input_gate(x) + cell.state_gate(h))
    stretched = 1 - (1 - k) ** (2 / REVISIT)
    torch.testing.assert_close(found, torch.tanh((1 - stretched) * h + stretched * z), rtol=0, atol=1e-12)
    assert torch.equal(date, day)


@pytest.mark.parametrize("argument", [-30.0, -12.0, 30.0, 200.0])
def test_extreme_gates_stay_finite_and_exact(argument: float) -> None:
    """In single precision 1 - (1 - k) ** 2 loses a small k, and (1 - k) ** 2 has no slope at k = 1."""
    cell = StarCell(1, 1, spatial=False, options=CellOptions("no-outer-tanh", REVISIT))
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.zero_()
        cell.input_value.bias.fill_(20.0)  # type: ignore[union-attr]  # z = 1, so that the state is k'
        cell.input_gate.bias.fill_(argument)  # type: ignore[union-attr]
    state = cell.advance((*cell.project(torch.zeros(1, 1)), torch.full((1, 1), 10.0)), (torch.zeros(1, 1),) * 2)
    k = torch.sigmoid(torch.tensor(argument, dtype=torch.float64))
    expected = float(2 * k - k**2)
    assert float(state[0].detach()) == pytest.approx(expected, rel=1e-5)
    state[0].sum().backward()
    assert all(bool(weight.grad.isfinite().all()) for weight in cell.parameters() if weight.grad is not None)


@pytest.mark.parametrize("name", ["star", "convstar"])
def test_time_counts_from_the_last_valid_date(name: str) -> None:
    """Invalid dates in between, on whatever day, are as if they were not there."""
    net = model(name)
    x, _ = inputs(name)
    valid = torch.ones_like(x[:, :, 0], dtype=torch.bool)
    dates = days(*IRREGULAR)
    chosen = [0, 2, 5]
    valid[:, [1, 3, 4]] = False
    expected = net(x[:, chosen], valid[:, chosen], dates[:, chosen])
    torch.testing.assert_close(net(x, valid, dates), expected, rtol=0, atol=1e-12)
    moved = dates.clone()
    moved[:, 3] += 1
    torch.testing.assert_close(net(x, valid, moved), expected, rtol=0, atol=1e-12)
    valid[:, 3] = True
    assert not torch.allclose(net(x, valid, dates), expected)


@pytest.mark.parametrize("name", ["star", "convstar"])
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_forward_equals_steps_and_the_last_date(name: str, pool: str) -> None:
    net = model(name, pool=pool)
    x, valid = inputs(name)
    dates = days(*IRREGULAR)
    state = None
    for t in range(x.shape[1]):
        state = net.step(x[:, t], valid[:, t], dates[:, t], state)
        torch.testing.assert_close(net.classify(state), net.by_date(x, valid, dates)[:, t], rtol=0, atol=1e-12)
    torch.testing.assert_close(net.by_date(x, valid, dates)[:, -1], net(x, valid, dates), rtol=0, atol=1e-12)


def test_a_series_read_backwards_has_the_same_gaps() -> None:
    """Time runs backwards in one half of a bidirectional model; a negative gap would turn its gates inside out."""
    torch.manual_seed(0)
    cells = [StarCell(3, 4, spatial=False, options=CellOptions("paper", REVISIT)).double() for _ in range(2)]
    cells[0].initialise(10)
    cells[1].load_state_dict(cells[0].state_dict())
    stack = BidirectionalStack(cells[:1], cells[1:])
    x, valid = inputs("bistar")
    outputs, _ = stack(x, valid, days(*IRREGULAR))
    mirrored, _ = stack(x.flip(1), valid.flip(1), days(*IRREGULAR[::-1]))
    ahead, behind = outputs.chunk(2, dim=2)
    torch.testing.assert_close(mirrored.flip(0), torch.cat([behind, ahead], dim=2), rtol=0, atol=1e-12)
