"""The temporal convolutional network: causality, how far it looks, and torch's own weight normalisation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from cropstar.config import ModelConfig
from cropstar.models.contract import Shape
from cropstar.models.networks.tcn import CausalConvolution, TemporalConvolutionalNetwork, dilations_of, kernel_to_cover
from tests.models.networks.building import CLASSES, complete, count, inputs, make


def build(layers: int, hidden: int, kernel: int, *, bands: int = 2, pool: str = "last") -> TemporalConvolutionalNetwork:
    torch.manual_seed(0)
    settings = {"layers": layers, "hidden": hidden, "kernel": kernel, "pool": pool, "day_encoding": "none"}
    config = ModelConfig.model_validate({"name": "tcn", **settings})
    return TemporalConvolutionalNetwork(config, Shape(bands, CLASSES, 10)).double().eval()


@pytest.mark.parametrize(("kernel", "dilation"), [(1, 1), (3, 1), (4, 4)])
def test_a_convolution_equals_torch_weight_norm_with_gradients(kernel: int, dilation: int) -> None:
    torch.manual_seed(0)
    ours = CausalConvolution(3, 5, kernel, dilation).double()
    theirs = weight_norm(nn.Conv1d(3, 5, kernel, dilation=dilation, padding=(kernel - 1) * dilation).double())
    with torch.no_grad():
        ours.length.mul_(1.7)
        ours.bias.normal_()
        theirs.parametrizations.weight.original0.copy_(ours.length)
        theirs.parametrizations.weight.original1.copy_(ours.direction)
        theirs.bias.copy_(ours.bias)
    x = torch.randn(2, 3, 9, dtype=torch.float64)
    expected = theirs(x)[:, :, :9]  # what is padded at the end falls off: the usual way to be causal
    torch.testing.assert_close(ours(x), expected, rtol=0, atol=1e-12)
    ours(x).square().sum().backward()
    expected.square().sum().backward()
    assert ours.direction.grad is not None
    torch.testing.assert_close(ours.direction.grad, theirs.parametrizations.weight.original1.grad, rtol=0, atol=1e-10)


def test_a_new_filter_is_its_direction() -> None:
    """The lengths begin as those of the directions, so that the initial scale is that of the directions."""
    layer = CausalConvolution(4, 64, 3, 1)
    impulse = torch.zeros(1, 4, 5)
    impulse[0, 1, 2] = 1.0
    torch.testing.assert_close(layer(impulse)[0, :, 2], layer.direction[:, 1, -1])


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_nothing_looks_ahead(pool: str) -> None:
    model = build(3, 6, 3, pool=pool)
    x, valid, days = complete(batch=1, length=12, bands=2)
    x.requires_grad_()
    for date in range(12):
        (gradient,) = torch.autograd.grad(model.by_date(x, valid, days)[:, date].sum(), x)
        assert not gradient[:, date + 1 :].any()
        assert gradient[:, date].any()


@pytest.mark.parametrize(("layers", "kernel"), [(1, 2), (2, 3), (3, 2), (3, 4)])
def test_receptive_field_is_exactly_how_far_it_looks(layers: int, kernel: int) -> None:
    """1 + 2 (k - 1) (2^L - 1): two convolutions a block, dilations 1, 2, 4, ..."""
    model = build(layers, 8, kernel)
    field = 1 + 2 * (kernel - 1) * (2**layers - 1)
    x, valid, days = complete(batch=8, length=field + 4, bands=2)
    x.requires_grad_()
    model(x, valid, days).sum().backward()
    assert x.grad is not None
    reached = x.grad.abs().sum(dim=(0, 2)).nonzero().flatten()
    assert int(reached.min()) == 4


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_scores_by_date_are_those_of_the_season_so_far(pool: str) -> None:
    model = build(2, 6, 3, pool=pool)
    x, valid, days = inputs(bands=2)
    valid[1, :4] = False  # nothing seen for a while
    dated = model.by_date(x, valid, days)
    assert dated.shape == (3, 9, CLASSES)
    for date in range(9):
        so_far: Tensor = model(x[:, : date + 1], valid[:, : date + 1], days[:, : date + 1])
        torch.testing.assert_close(dated[:, date], so_far, rtol=0, atol=1e-12)
    assert isinstance(model.scores, nn.Linear)
    torch.testing.assert_close(dated[1, 0], model.scores.bias, rtol=0, atol=0)


@pytest.mark.parametrize("length", [1, 2, 24, 61, 62, 140, 500])
@pytest.mark.parametrize("layers", [1, 2, 4, 8])
def test_default_kernel_just_covers_the_season(length: int, layers: int) -> None:
    kernel = kernel_to_cover(length, layers)
    reach = 2 * sum(dilations_of(layers))
    assert 3 <= kernel <= 64
    assert 1 + (kernel - 1) * reach >= length or kernel == 64
    assert kernel == 3 or 1 + (kernel - 2) * reach < length


def test_depth_does_not_blow_up_the_dilation() -> None:
    assert dilations_of(10) == [1, 2, 4, 8, 16, 32, 64, 128, 1, 2]
    scores = make("tcn", layers=64, hidden=2)(*inputs(batch=1))
    assert scores.isfinite().all()


@pytest.mark.parametrize(("bands", "hidden", "kernel", "layers"), [(4, 8, 3, 1), (13, 32, 7, 4), (8, 8, 2, 3)])
def test_parameter_count_by_formula(bands: int, hidden: int, kernel: int, layers: int) -> None:
    """A filter has a weight a tap and a channel, a length and a bias; a change of width costs a product."""
    shortcut = (bands + 1) * hidden if bands != hidden else 0
    first = (bands * kernel + 2) * hidden + (hidden * kernel + 2) * hidden + shortcut
    deeper = 2 * (hidden * kernel + 2) * hidden
    head = (hidden + 1) * CLASSES
    assert count(build(layers, hidden, kernel, bands=bands)) == first + (layers - 1) * deeper + head
