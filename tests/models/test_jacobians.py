"""The Jacobians in time, J = dh_t/dh_{t-1}, and in depth, H = dh_t/dx_t, against closed forms.

The forms follow from the cells' equations by hand, with D(v) the diagonal matrix of v; the paper's argument about
gradients that vanish or explode over depth rests on them.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

from cropstar.models.cells.cell import Cell, Gate
from cropstar.models.cells.gru import GruCell
from cropstar.models.cells.lstm import LstmCell
from cropstar.models.cells.lstm_forget import LstmForgetCell
from cropstar.models.cells.star import StarCell
from tests.models.test_cells import make, one_date

HIDDEN = 6
diagonal = torch.diag


def vector(seed: int) -> Tensor:
    return torch.rand(HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def derivative(cell: Cell, output: int, argument: int, *values: Tensor) -> Tensor:
    """d(state part `output`) / d(values[argument]) with values = (x, *state)."""

    def function(*given: Tensor) -> Tensor:
        x, *state = (value.unsqueeze(0) for value in given)
        return one_date(cell, x, *state)[output].squeeze(0)

    result = jacobian(function, values)
    part: Tensor = result[argument]
    return part


def slope(gate: Tensor) -> Tensor:
    """Of the sigmoid, at the value it gave."""
    return gate * (1 - gate)


def values_of(gate: Gate, x: Tensor, h: Tensor, nonlinearity: Callable[[Tensor], Tensor]) -> Tensor:
    assert gate.input.bias is not None
    return nonlinearity(gate.input.weight @ x + gate.state.weight @ h + gate.input.bias).detach()


def same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.detach(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_star(seed: int) -> None:
    """J = D(1 - h'^2) (D(1 - k) + D((z - h) k (1 - k)) W_h); H = D(1 - h'^2) (D(k (1 - z^2)) W_z + ... W_x)."""
    cell = make("star", HIDDEN, HIDDEN)
    assert isinstance(cell, StarCell)
    assert cell.input_gate.bias is not None
    x, h = vector(seed), vector(seed + 10)
    w_z, w_x, w_h = cell.input_value.weight, cell.input_gate.weight, cell.state_gate.weight
    z = torch.tanh(w_z @ x)
    k = torch.sigmoid(w_x @ x + w_h @ h + cell.input_gate.bias)
    outer = diagonal(1 - torch.tanh((1 - k) * h + k * z) ** 2)
    gate = diagonal((z - h) * slope(k))
    same(derivative(cell, 0, 1, x, h), outer @ (diagonal(1 - k) + gate @ w_h))
    same(derivative(cell, 0, 0, x, h), outer @ (diagonal(k * (1 - z**2)) @ w_z + gate @ w_x))


def test_star_without_state_and_input_keeps_orthogonal_directions() -> None:
    """At x = h = 0 the gate does not look: J = D(1 - k) and H = D(k) W_z, whose rows stay orthogonal."""
    cell = make("star", HIDDEN, HIDDEN)
    assert isinstance(cell, StarCell)
    assert cell.input_gate.bias is not None
    zero = torch.zeros(HIDDEN, dtype=torch.float64)
    k = torch.sigmoid(cell.input_gate.bias)
    same(derivative(cell, 0, 1, zero, zero), diagonal(1 - k))
    deep = derivative(cell, 0, 0, zero, zero)
    same(deep, diagonal(k) @ cell.input_value.weight)
    same(deep @ deep.T, diagonal(k**2))


@pytest.mark.parametrize("seed", range(3))
def test_lstm(seed: int) -> None:
    cell = make("lstm", HIDDEN, HIDDEN)
    assert isinstance(cell, LstmCell)
    x, h, c = (vector(seed + shift) for shift in (0, 10, 20))
    f, i, o = (values_of(g, x, h, torch.sigmoid) for g in (cell.forget_gate, cell.input_gate, cell.output_gate))
    z = values_of(cell.value, x, h, torch.tanh)
    after = torch.tanh(f * c + i * z)

    def form(side: str) -> Tensor:
        """D(tanh(c) o') W_o + D(o (1 - tanh(c)^2)) (D(c f') W_f + D(z i') W_i + D(i (1 - z^2)) W_z)."""
        names = ("forget_gate", "input_gate", "output_gate", "value")
        w_f, w_i, w_o, w_z = (cell.get_parameter(f"{name}.{side}.weight") for name in names)
        into_memory = diagonal(c * slope(f)) @ w_f + diagonal(z * slope(i)) @ w_i + diagonal(i * (1 - z**2)) @ w_z
        return diagonal(after * slope(o)) @ w_o + diagonal(o * (1 - after**2)) @ into_memory

    same(derivative(cell, 0, 0, x, h, c), form("input"))
    same(derivative(cell, 0, 1, x, h, c), form("state"))
    same(derivative(cell, 0, 2, x, h, c), diagonal(o * (1 - after**2) * f))
    same(derivative(cell, 1, 2, x, h, c), diagonal(f))  # the carousel


@pytest.mark.parametrize("seed", range(3))
def test_lstm_forget(seed: int) -> None:
    cell = make("lstm_forget", HIDDEN, HIDDEN)
    assert isinstance(cell, LstmForgetCell)
    x, h, c = (vector(seed + shift) for shift in (0, 10, 20))
    f, z = values_of(cell.forget_gate, x, h, torch.sigmoid), values_of(cell.value, x, h, torch.tanh)
    outer = diagonal(1 - torch.tanh(f * c + (1 - f) * z) ** 2)

    def form(side: str) -> Tensor:
        w_f, w_z = cell.get_parameter(f"forget_gate.{side}.weight"), cell.get_parameter(f"value.{side}.weight")
        return outer @ (diagonal((c - z) * slope(f)) @ w_f + diagonal((1 - f) * (1 - z**2)) @ w_z)

    same(derivative(cell, 0, 0, x, h, c), form("input"))
    same(derivative(cell, 0, 1, x, h, c), form("state"))
    same(derivative(cell, 0, 2, x, h, c), outer @ diagonal(f))


@pytest.mark.parametrize("seed", range(3))
def test_gru(seed: int) -> None:
    """The reset gate acts before the product, so U_z meets D(r) + D(h r') U_r."""
    cell = make("gru", HIDDEN, HIDDEN)
    assert isinstance(cell, GruCell)
    x, h = vector(seed), vector(seed + 10)
    r, u = values_of(cell.reset_gate, x, h, torch.sigmoid), values_of(cell.keep_gate, x, h, torch.sigmoid)
    z = values_of(cell.value, x, r * h, torch.tanh)
    u_r, u_u, u_z = (gate.state.weight for gate in (cell.reset_gate, cell.keep_gate, cell.value))
    w_r, w_u, w_z = (gate.input.weight for gate in (cell.reset_gate, cell.keep_gate, cell.value))
    gate, value = diagonal((h - z) * slope(u)), diagonal((1 - u) * (1 - z**2))
    inner = diagonal(h * slope(r))
    same(derivative(cell, 0, 1, x, h), diagonal(u) + gate @ u_u + value @ u_z @ (diagonal(r) + inner @ u_r))
    same(derivative(cell, 0, 0, x, h), gate @ w_u + value @ (w_z + u_z @ inner @ w_r))
