"""Composed models: several kinds of cells in one stack, both directions of time, normalised layers, mean pooling."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape
from cropstar.models.stack import RecurrentStack
from cropstar.models.zoo import build_model
from tests.models.references import run_reference, run_steps


def build(name: str, **settings: object) -> RecurrentClassifier:
    torch.manual_seed(0)
    described = {"name": name, "layers": 3, "hidden": 4, "day_encoding": "none", **settings}
    model = build_model(ModelConfig.model_validate(described), Shape(3, 5, 12)).double().eval()
    assert isinstance(model, RecurrentClassifier)
    return model


def inputs(model: RecurrentClassifier, batch: int = 2, length: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    space = (4, 3) if model.spatial else ()
    x = torch.randn(batch, length, 3, *space, dtype=torch.float64, generator=generator)
    valid = torch.rand(batch, length, *space, generator=generator) > 0.3
    return x, valid, (19_000 + 5 * torch.arange(length)).expand(batch, length)


@pytest.mark.parametrize("name", ["lstm_forget+star", "convlstm_forget+star", "indrnn+lstm+gru"])
@pytest.mark.parametrize("pool", ["last", "mean"])
def test_mixed_stacks_equal_their_layers_references(name: str, pool: str) -> None:
    model = build(name, pool=pool)
    x, valid, days = inputs(model)
    names = [type(cell).__name__.removesuffix("Cell").lower() for cell in model.stack.layers()]
    given = [part.replace("_", "") for part in name.removeprefix("conv").split("+")]
    assert names == (given + [given[-1]] * 3)[:3]
    sequence = torch.where(valid.unsqueeze(2), x, torch.zeros_like(x))
    for cell in model.stack.layers():
        outputs, _ = run_reference(cell, sequence, valid)
        sequence = outputs.transpose(0, 1)
    weight = valid.unsqueeze(2).double()
    mean = (sequence * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1)
    expected = model.head(mean if pool == "mean" else sequence[:, -1])
    torch.testing.assert_close(model(x, valid, days), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(run_steps(model, x, valid, days), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(model.by_date(x, valid, days)[:, -1], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["biconvgru", "bilstm", "bimingru"])
def test_both_directions_equal_two_references(name: str) -> None:
    model = build(name, layers=2)
    x, valid, days = inputs(model)
    sequence = torch.where(valid.unsqueeze(2), x, torch.zeros_like(x))
    layers = model.stack.layers()
    for onward, back in zip(layers[:2], layers[2:], strict=True):
        ahead, end = run_reference(onward, sequence, valid)
        behind, start = run_reference(back, sequence.flip(1), valid.flip(1))
        sequence = torch.cat([ahead, behind.flip(0)], dim=2).transpose(0, 1)
    expected = model.head(torch.cat([end[0], start[0]], dim=1))
    torch.testing.assert_close(model(x, valid, days), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["star", "indrnn", "convstar", "convindrnn"])
def test_normalised_layers_learn_and_stream(name: str) -> None:
    model = build(name, normalise=True)
    x, valid, days = inputs(model)
    model.train()
    model(x, valid, days).square().sum().backward()
    assert isinstance(model.stack, RecurrentStack)
    assert model.stack.norms is not None
    assert len(model.stack.norms) == 2
    for label, parameter in model.named_parameters():
        assert parameter.grad is not None, label
    means = [norm.running_mean for norm in model.stack.norms]
    assert all(bool(mean.any()) for mean in means)  # type: ignore[operator]
    model.eval()
    torch.testing.assert_close(run_steps(model, x, valid, days), model(x, valid, days), rtol=0, atol=1e-12)


def test_normalised_layers_do_not_see_padding() -> None:
    """In training, where the statistics are the batch's own."""
    model = build("star", normalise=True).train()
    x, valid, days = inputs(model)
    longer = torch.cat([x, torch.full_like(x, 9.0)], dim=1)
    padded = model(longer, torch.cat([valid, torch.zeros_like(valid)], dim=1), torch.cat([days, days], dim=1))
    torch.testing.assert_close(padded, model(x, valid, days), rtol=0, atol=1e-12)


def test_mean_pooling_ignores_invalid_dates_and_survives_none() -> None:
    model = build("gru", pool="mean")
    x, valid, days = inputs(model)
    valid[0] = False
    scores = model(x, valid, days)
    assert bool(scores.isfinite().all())
    torch.testing.assert_close(scores[0], model.head(torch.zeros(1, 4, dtype=torch.float64))[0])


@pytest.mark.parametrize("name", ["rnn", "lstm", "gru", "star"])
def test_the_first_layer_is_not_the_second(name: str) -> None:
    """One layer object shared across depth, the known mistake, would run every layer with the weights of one."""
    model = build(name, layers=2)
    x, valid, days = inputs(model)
    lower, upper = model.stack.layers()
    outputs, _ = model.stack(x, valid, days)
    mask, complete, day = valid.transpose(0, 1).unsqueeze(2), [False] * 6, days.transpose(0, 1).unsqueeze(2).double()
    below, _ = lower.follow(x.transpose(0, 1), mask, complete, day)
    above, _ = upper.follow(below, mask, complete, day)
    torch.testing.assert_close(outputs, above, rtol=0, atol=1e-12)
    assert not {id(weight) for weight in lower.parameters()} & {id(weight) for weight in upper.parameters()}
