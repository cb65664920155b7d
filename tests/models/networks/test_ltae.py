"""The lightweight temporal attention encoder: weights of dates, one head by hand, the published size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from cropstar.config import ModelConfig
from cropstar.models.contract import Shape
from cropstar.models.networks.ltae import LightweightTemporalAttention, MasterAttention
from tests.models.networks.building import CLASSES, count, inputs, make


def build(
    bands: int, classes: int, *, layers: int = 4, hidden: int = 128, heads: int = 16
) -> LightweightTemporalAttention:
    config = ModelConfig(name="ltae", layers=layers, hidden=hidden, heads=heads)
    return LightweightTemporalAttention(config, Shape(bands, classes, 24))


def test_weights_of_valid_dates_sum_to_one_and_masked_dates_have_none() -> None:
    model = make("ltae")
    assert isinstance(model, LightweightTemporalAttention)
    x, valid, days = inputs(batch=6)
    valid[3] = False
    dates, present = model.embed_dates(x, valid, days)
    weights = model.attention.weights(dates, present)
    assert weights.shape == (6, model.heads, present.shape[1])
    total = weights.sum(dim=2)
    torch.testing.assert_close(total, valid.any(dim=1, keepdim=True).double().expand_as(total), rtol=0, atol=1e-12)
    assert not weights.masked_select(~present.unsqueeze(1)).any()
    assert (weights >= 0).all()


def test_heads_differ_in_what_they_look_at() -> None:
    model = make("ltae", hidden=16)
    assert isinstance(model, LightweightTemporalAttention)
    weights = model.attention.weights(*model.embed_dates(*inputs(batch=1)))[0]
    assert (torch.cdist(weights, weights) + torch.eye(len(weights)) > 1e-3).all()


def test_two_heads_by_hand() -> None:
    """Each head: softmax(q · k_n / sqrt 8) over its dates, then the mean of its own half of the channels."""
    torch.manual_seed(0)
    attention = MasterAttention(6, 2, 0.0).double()
    x = torch.randn(1, 3, 6, dtype=torch.float64)
    present = torch.tensor([[True, True, False]])
    keys = (x[0] @ attention.key.weight.T).detach()  # (3, 16)
    query = attention.query.detach()
    expected = []
    for head in range(2):
        agreement = [float(keys[n, 8 * head : 8 * head + 8] @ query[head]) / math.sqrt(8) for n in range(2)]
        shares = [math.exp(value) for value in agreement]
        channels = x[0, :, 3 * head : 3 * head + 3]
        expected.append((shares[0] * channels[0] + shares[1] * channels[1]) / sum(shares))
    torch.testing.assert_close(attention(x, present)[0], torch.cat(expected), rtol=0, atol=1e-12)


def test_count_of_the_publication() -> None:
    """Its encoder of 128 channels and 24 dates has 112,000 parameters, its decoder for 20 classes 11,188.

    128 channels are normalised (256) and embedded in 256 (33,024), normalised over 24 dates (12,288); queries 16 8,
    keys 256 128 + 128; a dense layer 256 -> 128 with batch normalisation (33,152), normalised (256). Ours is
    normalised by date (512 in place of 12,288), and has neither the keys' bias (128) nor the pixel-set encoder.
    """
    encoder = 256 + 33_024 + 12_288 + 16 * 8 + (256 * 128 + 128) + 33_152 + 256
    decoder = (128 * 64 + 64 + 128) + (64 * 32 + 32 + 64) + (32 * 20 + 20)
    assert (encoder, decoder) == (112_000, 11_188)
    model = build(10, 20)
    assert count(model) - count(model.spectrum) == encoder - 12_288 + 512 - 128 + decoder
    assert count(model.spectrum) == 11 * 128


@pytest.mark.parametrize(
    ("hidden", "layers", "widths"),
    [(128, 4, [256, 128, 64, 32]), (128, 6, [256, 128, 64, 32, 32, 32]), (128, 1, [256]), (8, 3, [16, 8, 8])],
)
def test_dense_layers_halve_down_to_32(hidden: int, layers: int, widths: list[int]) -> None:
    model = build(4, CLASSES, hidden=hidden, layers=layers)
    inputs_of = [dense.linear.in_features for dense in model.dense]  # type: ignore[union-attr]
    assert isinstance(model.scores, nn.Linear)
    assert [*inputs_of, model.scores.in_features] == widths


def test_heads_share_the_channels() -> None:
    for hidden, heads in ((128, 16), (8, 16), (5, 10), (1, 2), (17, 2)):
        model = make("ltae", hidden=hidden)
        assert isinstance(model, LightweightTemporalAttention)
        assert model.heads == heads
