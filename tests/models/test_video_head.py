"""One class for a whole clip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.errors import InputError, UsageError
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape, require_maps
from cropstar.models.description import describe
from cropstar.models.heads import VideoHead
from cropstar.models.zoo import build_model


def make(name: str = "convstar", **settings: Any) -> RecurrentClassifier:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 5, "head": "video", **settings})
    model = build_model(config, Shape(3, 4, 6)).double().eval()
    assert isinstance(model, RecurrentClassifier)
    return model


def clip(height: int, width: int, *, batch: int = 2, length: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(batch, length, 3, height, width, generator=generator, dtype=torch.float64)
    valid = torch.rand(batch, length, height, width, generator=generator) > 0.2
    return x, valid, torch.arange(length).expand(batch, length)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (9, 15), (33, 8)])
@pytest.mark.parametrize("name", ["convstar", "biconvgru"])
def test_scores_of_a_clip(name: str, height: int, width: int) -> None:
    model = make(name)
    for batch, length in ((2, 6), (1, 1)):
        scores = model(*clip(height, width, batch=batch, length=length))
        assert scores.shape == (batch, 4)
        assert scores.isfinite().all()


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_repeated_step_equals_forward(pool: str) -> None:
    model = make(pool=pool)
    x, valid, days = clip(9, 8)
    dated = model.by_date(x, valid, days)
    assert dated.shape == (2, 6, 4)
    state = None
    for t in range(6):
        state = model.step(x[:, t], valid[:, t], days[:, t], state)
        torch.testing.assert_close(model.classify(state), dated[:, t], rtol=0, atol=1e-12)
    torch.testing.assert_close(model(x, valid, days), dated[:, -1], rtol=0, atol=1e-12)


def test_layers_by_hand() -> None:
    torch.manual_seed(0)
    head = VideoHead(5, Shape(3, 4, 6))
    state = torch.randn(2, 5, 17, 12)
    first, second, third, fourth = head.convolutions
    halve, rectify = nn.MaxPool2d(2), nn.ReLU()
    features = rectify(first(state))
    for convolution in (second, third, fourth):
        features = rectify(convolution(halve(features)))
    assert features.shape == (2, 64, 2, 1)
    assert isinstance(head.scores, nn.Linear)
    torch.testing.assert_close(head(state), head.scores(features.sum(dim=(2, 3)) / 2))


def test_every_parameter_learns_and_every_pixel_counts() -> None:
    model = make()
    x, valid, days = clip(8, 8)
    x.requires_grad_()
    model(x, torch.ones_like(valid), days).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
    assert x.grad is not None
    assert x.grad.abs().sum(dim=(1, 2)).gt(0).all()


@pytest.mark.parametrize(("height", "width"), [(7, 8), (30, 3), (1, 1)])
def test_a_clip_that_is_too_small(height: int, width: int) -> None:
    with pytest.raises(InputError, match=f"{width} x {height} pixels.*at least 8 x 8 pixels"):
        make()(*clip(height, width))


def test_it_makes_no_maps() -> None:
    model = make()
    assert not model.makes_maps
    assert model.radius(6) == 0
    with pytest.raises(UsageError, match="one class per clip"):
        require_maps(model)
    for name in ("convstar", "star", "tcn", "tempcnn"):
        require_maps(build_model(ModelConfig(name=name, layers=1, hidden=4), Shape(3, 4, 6)))


@pytest.mark.parametrize("name", ["star", "bigru", "tcn", "rf"])
def test_series_have_no_clips(name: str) -> None:
    with pytest.raises(UsageError, match=r"does not use model\.head"):
        build_model(ModelConfig.model_validate({"name": name, "head": "video"}), Shape(3, 4, 6))


@pytest.mark.parametrize(("name", "millions"), [("convstar", 1.26), ("convgru", 2.55)])
def test_the_recurrent_part_of_jester(name: str, millions: float) -> None:
    """Twelve layers of 64 filters on three colours: the published counts leave the head out."""
    with torch.device("meta"):
        config = ModelConfig(name=name, layers=12, hidden=64, head="video", day_encoding="none")
        model = build_model(config, Shape(3, 27, 32))
    assert isinstance(model, RecurrentClassifier)
    assert sum(each.numel() for each in model.stack.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)
    head = sum(each.numel() for each in model.head.parameters())
    assert head == 4 * (9 * 64 * 64 + 64) + 64 * 27 + 27


def test_what_it_costs() -> None:
    """A convolution over every pixel, then over a quarter, a sixteenth and a sixty-fourth of them."""
    config = ModelConfig(name="convstar", layers=2, hidden=16, head="video", day_encoding="none")
    facts = describe(config, Shape(3, 4, 6))
    head = facts.parts[-1]
    square = 9 * 64 * 64
    assert head.macs == 9 * 16 * 64 + square // 4 + square // 16 + square // 64 + 64 * 4 // 64
    assert (head.inputs, head.outputs, head.once) == (16, 4, True)
    assert [part.macs for part in facts.parts[:2]] == [6 * 9 * 16 * (2 * 3 + 16), 6 * 9 * 16 * 3 * 16]
    assert (facts.radius, facts.state_bytes) == (None, 4 * 2 * 16)
