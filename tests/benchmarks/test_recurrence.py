"""States carried on and gradients with less memory: the same numbers as the stack in one go."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cropstar.benchmarks.recurrence import follow_from, require_carrying, save_memory
from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier, Shape
from cropstar.models.stack import StackState
from cropstar.models.zoo import build_model

LENGTH = 13


def a_model(name: str, dropout: float = 0.0) -> Classifier:
    torch.manual_seed(3)
    return build_model(
        ModelConfig(name=name, layers=2, hidden=6, day_encoding="none", dropout=dropout), Shape(3, 4, LENGTH)
    )


def inputs(*size: int) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    x = torch.randn(5, LENGTH, 3, *size, generator=random)
    valid = torch.rand(5, LENGTH, *size, generator=random) > 0.2
    return x, valid, torch.zeros(5, LENGTH, dtype=torch.int32)


def gradients(model: Classifier, *size: int) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(7)  # dropout
    x, valid, days = inputs(*size)
    (model.by_date(x, valid, days).square().sum() + model(x, valid, days).sum()).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("name", ["star", "lstm", "gru", "lstm_forget+star"])
def test_less_memory_and_the_same_gradients(name: str, steps: int) -> None:
    expected = gradients(a_model(name))
    model = a_model(name)
    save_memory(model, steps)
    for one, other in zip(gradients(model), expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-5)
        assert other.abs().max() > 0


def test_images_too() -> None:
    expected = gradients(a_model("convstar"), 4, 5)
    model = a_model("convstar")
    save_memory(model, 4)
    for one, other in zip(gradients(model, 4, 5), expected, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-4)


def test_dropout_is_drawn_once_and_not_again_on_the_way_back() -> None:
    """With one stretch as long as the sequence but for its last step, a second draw would give other gradients."""
    model = a_model("star", dropout=0.5)
    stack = require_carrying(model, "a test")
    x, valid, days = inputs()

    def by_hand() -> list[Tensor]:
        model.zero_grad()
        torch.manual_seed(7)
        first, state = follow_from(stack, x[:, :8], valid[:, :8], days[:, :8], None)
        second, _ = follow_from(stack, x[:, 8:], valid[:, 8:], days[:, 8:], state)
        (first.square().sum() + second.square().sum()).backward()
        return [each.grad.clone() for each in stack.parameters() if each.grad is not None]

    expected = by_hand()
    save_memory(model, 8)
    model.zero_grad()
    torch.manual_seed(7)
    outputs, _ = stack(x, valid, days)
    outputs.square().sum().backward()
    for parameter, other in zip(stack.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["star", "lstm", "gru", "rnn"])
@pytest.mark.parametrize("cuts", [(1,), (5, 6), (3, 7, 12)])
def test_carried_on_it_is_one_sequence(name: str, cuts: tuple[int, ...]) -> None:
    stack = require_carrying(a_model(name), "a test")
    x, valid, days = inputs()
    with torch.no_grad():
        expected, last = stack(x, valid, days)
        state: StackState | None = None
        pieces = []
        for start, end in zip((0, *cuts), (*cuts, LENGTH), strict=True):
            outputs, state = follow_from(stack, x[:, start:end], valid[:, start:end], days[:, start:end], state)
            pieces.append(outputs)
    assert state is not None
    assert torch.allclose(torch.cat(pieces), expected, atol=1e-6)
    for one, other in zip(state, last, strict=True):
        for part, wanted in zip(one, other, strict=True):
            assert torch.allclose(part, wanted, atol=1e-6)


@pytest.mark.parametrize("name", ["tcn", "bistar"])
def test_who_has_no_state_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="recurrent"):
        save_memory(a_model(name), 4)
