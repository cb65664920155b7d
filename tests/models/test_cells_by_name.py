"""Single cells against torch's own, against other definitions of the same thing, and their time scales."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor, nn

from cropstar.models.cells.cell import Cell, Gate
from cropstar.models.cells.gru import GruCell
from cropstar.models.cells.indrnn import IndRnnCell
from cropstar.models.cells.lstm import LstmCell
from cropstar.models.cells.lstm_forget import LstmForgetCell
from cropstar.models.cells.mingru import LARGE_DATE, MinGruCell, scan
from cropstar.models.cells.rhn import RhnCell
from cropstar.models.cells.rnn import RnnCell
from cropstar.models.stack import RecurrentStack
from tests.models.references import run_reference
from tests.models.test_cells import make, one_date

INPUTS, HIDDEN, BATCH, LENGTH = 3, 5, 2, 6


def outputs_of(cell: Cell, x: Tensor) -> Tensor:
    """(B, T, H) of a series of which every date is valid."""
    outputs, _ = RecurrentStack([cell])(x, torch.ones(x.shape[:2], dtype=torch.bool), torch.zeros(x.shape[:2]))
    result: Tensor = outputs.transpose(0, 1)
    return result


def series(length: int = LENGTH) -> Tensor:
    return torch.randn(BATCH, length, INPUTS, dtype=torch.float64)


def copy_into(module: nn.RNNBase, gates: list[Gate]) -> dict[str, Tensor]:
    """Our gates in torch's order, its second bias zero; the parameters by name, to be changed further."""
    theirs = {name.removesuffix("_l0"): parameter.detach() for name, parameter in module.named_parameters()}
    theirs["weight_ih"].copy_(torch.cat([gate.input.weight for gate in gates]).detach())
    theirs["weight_hh"].copy_(torch.cat([gate.state.weight for gate in gates]).detach())
    biases = [gate.input.bias.detach() for gate in gates if gate.input.bias is not None]
    theirs["bias_ih"].copy_(torch.cat(biases))
    theirs["bias_hh"].zero_()
    return theirs


def shake(cell: Cell) -> None:
    """Weights with nothing special about them, biases too."""
    with torch.no_grad():
        for parameter in cell.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))


def test_rnn_equals_torch() -> None:
    cell = make("rnn", INPUTS, HIDDEN)
    assert isinstance(cell, RnnCell)
    shake(cell)
    theirs = nn.RNN(INPUTS, HIDDEN, batch_first=True).double()
    copy_into(theirs, [cell.value])
    x = series()
    torch.testing.assert_close(outputs_of(cell, x), theirs(x)[0], rtol=0, atol=1e-12)


def test_lstm_equals_torch() -> None:
    cell = make("lstm", INPUTS, HIDDEN)
    assert isinstance(cell, LstmCell)
    shake(cell)
    theirs = nn.LSTM(INPUTS, HIDDEN, batch_first=True).double()
    copy_into(theirs, [cell.input_gate, cell.forget_gate, cell.value, cell.output_gate])
    x = series()
    expected, (_, memory) = theirs(x)
    torch.testing.assert_close(outputs_of(cell, x), expected, rtol=0, atol=1e-12)
    _, state = RecurrentStack([cell])(x, torch.ones(x.shape[:2], dtype=torch.bool), torch.zeros(x.shape[:2]))
    torch.testing.assert_close(state[0][1], memory[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("alike", "agree"), [(True, True), (False, False)])
def test_gru_equals_torch_where_the_place_of_the_reset_gate_does_not_matter(alike: bool, agree: bool) -> None:
    """r * (U h) = U (r * h) if all units have the same r; otherwise the original and torch's form differ."""
    cell = make("gru", INPUTS, HIDDEN)
    assert isinstance(cell, GruCell)
    shake(cell)
    if alike:
        with torch.no_grad():
            for parameter in cell.reset_gate.parameters():
                parameter.copy_(parameter[:1].clone().expand_as(parameter))
    theirs = nn.GRU(INPUTS, HIDDEN, batch_first=True).double()
    copy_into(theirs, [cell.reset_gate, cell.keep_gate, cell.value])
    x = series()
    assert torch.allclose(outputs_of(cell, x), theirs(x)[0], rtol=0, atol=1e-12) is agree


def test_gru_that_resets_after_the_product_equals_torch() -> None:
    cell = make("gru", INPUTS, HIDDEN, variant="reset-after")
    assert isinstance(cell, GruCell)
    shake(cell)
    theirs = nn.GRU(INPUTS, HIDDEN, batch_first=True).double()
    copied = copy_into(theirs, [cell.reset_gate, cell.keep_gate, cell.value])
    assert cell.value.state.bias is not None
    copied["bias_hh"][2 * HIDDEN :].copy_(cell.value.state.bias.detach())
    x = series()
    torch.testing.assert_close(outputs_of(cell, x), theirs(x)[0], rtol=0, atol=1e-12)


def test_lstm_forget_is_an_lstm_with_two_gates_tied() -> None:
    """i = 1 - f, o = 1: torch's LSTM with minus the forget gate's weights in i, and o saturated."""
    cell = make("lstm_forget", INPUTS, HIDDEN)
    assert isinstance(cell, LstmForgetCell)
    shake(cell)
    theirs = nn.LSTM(INPUTS, HIDDEN, batch_first=True).double()
    copied = copy_into(theirs, [cell.forget_gate, cell.forget_gate, cell.value, cell.forget_gate])
    for parameter in copied.values():
        parameter[:HIDDEN].neg_()
        parameter[3 * HIDDEN :].zero_()
    copied["bias_ih"][3 * HIDDEN :].fill_(50.0)
    x = series()
    torch.testing.assert_close(outputs_of(cell, x), theirs(x)[0], rtol=0, atol=1e-12)


def test_rhn_of_depth_one_is_a_gru_without_reset() -> None:
    """t = 1 - u: torch's GRU with its reset gate held open and minus the transform gate's weights in u."""
    cell = make("rhn", INPUTS, HIDDEN)
    assert isinstance(cell, RhnCell)
    shake(cell)
    theirs = nn.GRU(INPUTS, HIDDEN, batch_first=True).double()
    copied = copy_into(theirs, [cell.value, cell.transform_gate, cell.value])
    for parameter in copied.values():
        parameter[:HIDDEN].zero_()
        parameter[HIDDEN : 2 * HIDDEN].neg_()
    copied["bias_ih"][:HIDDEN].fill_(50.0)
    x = series()
    torch.testing.assert_close(outputs_of(cell, x), theirs(x)[0], rtol=0, atol=1e-12)


class DeepRhnCell(RhnCell):
    depth = 3


@pytest.mark.parametrize("spatial", [False, True])
def test_rhn_with_a_deep_transition(spatial: bool) -> None:
    torch.manual_seed(0)
    cell = DeepRhnCell(INPUTS, HIDDEN, spatial=spatial).double()
    cell.initialise(10)
    space = (4, 3) if spatial else ()
    x = torch.randn(BATCH, LENGTH, INPUTS, *space, dtype=torch.float64)
    valid = torch.rand(BATCH, LENGTH, *space) > 0.3
    fast, _ = RecurrentStack([cell])(x, valid, torch.zeros(BATCH, LENGTH))
    torch.testing.assert_close(fast, run_reference(cell, x, valid)[0], rtol=0, atol=1e-12)
    taps = 9 if spatial else 1
    first = 2 * (taps * (INPUTS * HIDDEN + HIDDEN**2) + HIDDEN)
    assert sum(weight.numel() for weight in cell.parameters()) == first + 2 * 2 * (taps * HIDDEN**2 + HIDDEN)
    assert cell.state_reach == 3


def test_indrnn_is_a_diagonal_relu_network_of_torch() -> None:
    cell = make("indrnn", INPUTS, HIDDEN)
    assert isinstance(cell, IndRnnCell)
    shake(cell)
    theirs = nn.RNN(INPUTS, HIDDEN, nonlinearity="relu", batch_first=True).double()
    whole = Gate(INPUTS, HIDDEN, spatial=False).double()
    whole.input = cell.input_value
    with torch.no_grad():
        whole.state.weight.copy_(torch.diag(cell.recurrence))
    copy_into(theirs, [whole])
    x = series()
    torch.testing.assert_close(outputs_of(cell, x), theirs(x)[0], rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(length=some.integers(1, 40), seed=some.integers(0, 1000))
def test_scan_equals_one_date_after_the_other(length: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    keep, add = (torch.rand(length, 2, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    keep = torch.where(keep < 0.1, torch.zeros_like(keep), keep)  # a gate that forgets all must not divide by zero
    start = torch.rand(2, 3, dtype=torch.float64, generator=generator)
    state, expected = start, []
    for t in range(length):
        state = keep[t] * state + add[t]
        expected.append(state)
    torch.testing.assert_close(scan(keep, add, start), torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("batch", [2, LARGE_DATE])
def test_mingru_scanned_or_looped_is_the_same(batch: int) -> None:
    cell = make("mingru", 2, 3)
    assert isinstance(cell, MinGruCell)
    x = torch.randn(batch, 7, 2, dtype=torch.float64)
    valid = torch.rand(batch, 7) > 0.4
    valid[0] = False
    fast, state = RecurrentStack([cell])(x, valid, torch.zeros(batch, 7))
    torch.testing.assert_close(fast, run_reference(cell, x, valid)[0], rtol=0, atol=1e-12)
    assert not state[0][0][0].any()


@pytest.mark.parametrize(
    ("name", "bias", "sign"),
    [
        ("lstm", "forget_gate.input.bias", 1),
        ("lstm_forget", "forget_gate.input.bias", 1),
        ("gru", "keep_gate.input.bias", 1),
        ("rhn", "transform_gate.input.bias", -1),
        ("mingru", "update_gate.bias", -1),
    ],
)
def test_chrono_bias_has_the_sign_of_what_the_gate_does(name: str, bias: str, sign: int) -> None:
    """Plus where the gate keeps, minus where it updates."""
    cell = make(name, 4, 300, memory=50)
    logarithms = sign * dict(cell.named_parameters())[bias].detach()
    assert float(logarithms.min()) >= 0
    assert float(logarithms.max()) <= math.log(50)
    assert float(logarithms.exp().mean()) == pytest.approx(25.5, rel=0.1)  # the mean of U(1, 50)


def test_indrnn_keeps_what_a_gate_of_the_same_time_scale_would() -> None:
    cell = make("indrnn", 4, 300, memory=50)
    assert isinstance(cell, IndRnnCell)
    kept = cell.recurrence.detach()
    assert float(kept.min()) >= 0.5
    assert float(kept.max()) <= 50 / 51
    assert float((kept / (1 - kept)).mean()) == pytest.approx(25.5, rel=0.1)


def test_lstm_writes_what_it_forgets_at_first_and_its_other_biases_are_zero() -> None:
    cell = make("lstm", 4, 50, memory=50)
    assert isinstance(cell, LstmCell)
    assert cell.forget_gate.input.bias is not None
    assert torch.equal(cell.forget_gate.input.bias, -cell.input_gate.input.bias)  # type: ignore[operator]
    for gate in (cell.output_gate, cell.value):
        assert gate.input.bias is not None
        assert not gate.input.bias.any()


@pytest.mark.parametrize("name", ["lstm", "lstm_forget", "gru", "rhn", "mingru", "star", "indrnn"])
def test_long_memory_remembers(name: str) -> None:
    """What a new cell holds after thirty empty dates; a gate bias of the wrong sign holds nothing."""

    def left(memory: float) -> float:
        cell = make(name, 2, 100, memory=memory)
        state = [torch.full((1, 100), 0.1, dtype=torch.float64)] * cell.state_parts
        with torch.no_grad():
            for label, weight in cell.named_parameters():
                if label.endswith("weight"):
                    weight.zero_()  # gates by their biases alone
            for _ in range(30):
                state = list(one_date(cell, torch.zeros(1, 2, dtype=torch.float64), *state))
        return float(state[-1].mean()) / 0.1  # of LSTMs the memory, not what they show of it

    assert left(1000) > 0.6
    assert left(1) < 1e-6
