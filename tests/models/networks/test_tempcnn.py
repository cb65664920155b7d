"""TempCNN against the published network of plain torch layers, and the stretching that frees it from fixed dates."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import nn

from cropstar.config import ModelConfig
from cropstar.models.contract import Shape
from cropstar.models.networks.tempcnn import Convolution, TemporalCNN, stretch
from cropstar.models.normalisation import MaskedBatchNorm
from tests.models.networks.building import CLASSES, complete, count, make


def plain_norm(norm: MaskedBatchNorm) -> nn.BatchNorm1d:
    plain = nn.BatchNorm1d(len(norm.scale)).double()
    weights = {"weight": norm.scale, "bias": norm.shift, "running_mean": norm.running_mean}
    plain.load_state_dict({**weights, "running_var": norm.running_variance}, strict=False)
    return plain


def plain(model: TemporalCNN, length: int) -> nn.Sequential:
    """Convolutions and a dense layer over all dates, with the weights of a model of ours."""
    parts: list[nn.Module] = []
    for layer in model.convolutions:
        assert isinstance(layer, Convolution)
        product = nn.Conv1d(layer.product.in_channels, layer.product.out_channels, 5, padding=2).double()
        product.load_state_dict(layer.product.state_dict())
        parts += [product, plain_norm(layer.norm), nn.ReLU()]
    assert isinstance(model.scores, nn.Linear)
    hidden = model.scores.in_features // 4
    dense, scores = nn.Linear(hidden * length, 4 * hidden).double(), nn.Linear(4 * hidden, CLASSES).double()
    dense.load_state_dict(model.dense.linear.state_dict())
    scores.load_state_dict(model.scores.state_dict())
    return nn.Sequential(*parts, nn.Flatten(), dense, plain_norm(model.dense.norm), nn.ReLU(), scores)


def test_a_complete_season_passes_as_published() -> None:
    """In training, so that the statistics of the batch enter, and then with the statistics that were kept."""
    model = make("tempcnn", day_encoding="none").train()
    assert isinstance(model, TemporalCNN)
    reference = plain(model, 9).train()
    x, valid, days = complete(batch=5)
    for _ in range(3):
        torch.testing.assert_close(model(x, valid, days), reference(x.transpose(1, 2)), rtol=0, atol=1e-11)
    torch.testing.assert_close(model.eval()(x, valid, days), reference.eval()(x.transpose(1, 2)), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("bands", "hidden", "layers", "length"), [(4, 8, 1, 5), (13, 64, 3, 45), (10, 64, 3, 400)])
def test_parameter_count_by_formula(bands: int, hidden: int, layers: int, length: int) -> None:
    """A filter: 5 taps a channel, bias, scale and shift; a dense unit: a weight a channel and date, and the same."""
    config = ModelConfig(name="tempcnn", layers=layers, hidden=hidden, day_encoding="none")
    model = TemporalCNN(config, Shape(bands, CLASSES, length))
    convolutions = (5 * bands + 3) * hidden + (layers - 1) * (5 * hidden + 3) * hidden
    dense = (hidden * min(length, 64) + 3) * 4 * hidden
    assert count(model) == convolutions + dense + (4 * hidden + 1) * CLASSES


def test_halves_are_means_of_halves() -> None:
    features = torch.tensor([[[1.0, 2.0, 3.0, 9.0]], [[1.0, 2.0, 6.0, 0.0]], [[5.0, 0.0, 0.0, 0.0]], [[0.0] * 4]])
    stretched = stretch(features, torch.tensor([4, 3, 1, 0]), 2)
    # of three observations the middle one counts half in each
    expected = torch.tensor([[[1.5, 6.0]], [[4 / 3, 14 / 3]], [[5.0, 5.0]], [[0.0, 0.0]]])
    torch.testing.assert_close(stretched, expected)


@settings(max_examples=50, deadline=None)
@given(counted=some.integers(1, 20), beyond=some.integers(0, 5), segments=some.integers(1, 25))
def test_stretching_keeps_the_mean_and_does_nothing_to_its_own_length(counted: int, beyond: int, segments: int) -> None:
    features = torch.randn(1, 3, counted + beyond, dtype=torch.float64)
    stretched = stretch(features, torch.tensor([counted]), segments)
    assert stretched.shape == (1, 3, segments)
    torch.testing.assert_close(stretched.mean(dim=2), features[:, :, :counted].mean(dim=2), rtol=0, atol=1e-12)
    if segments == counted:
        assert torch.equal(stretched, features[:, :, :counted])


def test_a_long_season_does_not_swell_the_dense_layer() -> None:
    model = make("tempcnn", length=100_000)
    assert count(model) == count(make("tempcnn", length=64))
