"""The transformer against torch's own encoder, and the codes of dates."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.models.contract import Shape
from cropstar.models.encoding import ObservedSeries, encode_positions, observe, with_days
from cropstar.models.networks.transformer import EncoderLayer, TransformerEncoder
from tests.models.networks.building import CLASSES, complete, count, make


def reference_of(layer: EncoderLayer, hidden: int, heads: int) -> nn.TransformerEncoderLayer:
    """torch's layer with the weights of ours; its bias of the keys is zero."""
    theirs = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, 0.0, norm_first=True, batch_first=True).double()
    attention = layer.attention
    with torch.no_grad():
        query, key, value = attention.query, attention.key, attention.value
        theirs.self_attn.in_proj_weight.copy_(torch.cat([query.weight, key.weight, value.weight]))
        theirs.self_attn.in_proj_bias.copy_(torch.cat([query.bias, torch.zeros_like(query.bias), value.bias]))
    theirs.self_attn.out_proj.load_state_dict(attention.out.state_dict())
    theirs.linear1.load_state_dict(layer.widen.state_dict())
    theirs.linear2.load_state_dict(layer.narrow.state_dict())
    theirs.norm1.load_state_dict(layer.attention_norm.state_dict())
    theirs.norm2.load_state_dict(layer.dense_norm.state_dict())
    return theirs


@pytest.mark.parametrize(("hidden", "heads", "length"), [(8, 1, 5), (12, 3, 1), (16, 8, 11)])
def test_a_layer_equals_that_of_torch_with_gradients(hidden: int, heads: int, length: int) -> None:
    torch.manual_seed(0)
    ours = EncoderLayer(hidden, heads, 0.0).double()
    theirs = reference_of(ours, hidden, heads)
    x = torch.randn(3, length, hidden, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, length, hidden, dtype=torch.float64)
    attended = torch.ones(3, length, dtype=torch.bool)
    torch.testing.assert_close(ours(x, attended), theirs(x), rtol=0, atol=1e-12)
    (quick,) = torch.autograd.grad((ours(x, attended) * weight).sum(), x)
    (slow,) = torch.autograd.grad((theirs(x) * weight).sum(), x)
    torch.testing.assert_close(quick, slow, rtol=0, atol=1e-11)


def test_masked_dates_equal_the_key_padding_of_torch() -> None:
    torch.manual_seed(0)
    ours = EncoderLayer(8, 2, 0.0).double()
    theirs = reference_of(ours, 8, 2)
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    attended = torch.tensor([[True] * 4 + [False] * 2, [True] * 6])
    expected = theirs(x, src_key_padding_mask=~attended)
    torch.testing.assert_close(ours(x, attended)[attended], expected[attended], rtol=0, atol=1e-12)


def test_the_whole_network_equals_one_built_of_torch_layers() -> None:
    model = make("transformer", layers=2, hidden=8)
    assert isinstance(model, TransformerEncoder)
    x, valid, days = complete()
    features: Tensor = model.embed(x) + encode_positions(observe(x, valid, days), 8, "sincos")
    for layer in model.layers:
        assert isinstance(layer, EncoderLayer)
        features = reference_of(layer, 8, layer.attention.heads)(features)
    expected = model.scores(model.norm(features).amax(dim=1))
    torch.testing.assert_close(model(x, valid, days), expected, rtol=0, atol=1e-12)


def test_heads_share_the_width() -> None:
    for hidden, heads in ((128, 8), (12, 6), (5, 5), (7, 7), (13, 1), (1, 1)):
        model = make("transformer", hidden=hidden, layers=1)
        assert isinstance(model, TransformerEncoder)
        layer = model.layers[0]
        assert isinstance(layer, EncoderLayer)
        assert layer.attention.heads == heads


@pytest.mark.parametrize(("bands", "hidden", "layers"), [(4, 8, 1), (13, 128, 4)])
def test_parameter_count_by_formula(bands: int, hidden: int, layers: int) -> None:
    """Attention 4H² + 3H, dense layers 8H² + 5H, two normalisations 4H; embedding, last normalisation and head."""
    config = ModelConfig(name="transformer", layers=layers, hidden=hidden, heads=4)
    model = TransformerEncoder(config, Shape(bands, CLASSES, 10))
    around = (bands + 1) * hidden + 2 * hidden + (hidden + 1) * CLASSES
    assert count(model) == layers * (12 * hidden**2 + 12 * hidden) + around


# --- the codes of dates


def on_days(*days: int) -> ObservedSeries:
    moments = torch.tensor([days])
    return ObservedSeries(torch.zeros(1, len(days), 1, dtype=torch.float64), moments, torch.ones_like(moments).bool())


def test_first_channels_of_a_code_are_those_of_other_models() -> None:
    observed = on_days(18_000, 18_100, 18_300)
    code = encode_positions(observed, 6, "sincos")
    expected = with_days(observed.values, observed.days, "sincos")[:, :, 1:]
    torch.testing.assert_close(code[:, :, :2], expected, rtol=0, atol=1e-12)
    double = with_days(observed.values, 2 * observed.days, "sincos")[:, :, 1:]
    torch.testing.assert_close(code[:, :, 2:4], double, rtol=0, atol=1e-9)


def test_codes_do_not_jump_at_the_new_year() -> None:
    """Days since 1970; 18261 to 18264 are the last two of 2019 and the first two of 2020."""
    code = encode_positions(on_days(*range(18_261, 18_265)), 16, "sincos")
    steps = (code[:, 1:] - code[:, :-1]).norm(dim=2).flatten()
    torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=1e-6, atol=0)


@pytest.mark.parametrize("encoding", ["none", "sincos"])
@pytest.mark.parametrize("width", [1, 2, 7, 200])
def test_codes_of_any_width_tell_dates_apart(encoding: str, width: int) -> None:
    code = encode_positions(on_days(18_020, 18_025, 18_040), width, encoding)
    assert code.shape == (1, 3, width)
    assert (code.abs() <= 1).all()
    distances = torch.cdist(code[0], code[0])
    assert (distances[~torch.eye(3, dtype=torch.bool)] > 0.01).all()
