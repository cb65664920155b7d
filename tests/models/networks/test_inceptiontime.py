"""InceptionTime: the published size, the published network in plain torch layers, and maxima under masks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from cropstar.config import ModelConfig
from cropstar.models.contract import Shape
from cropstar.models.networks.inceptiontime import InceptionModule, InceptionTime, Shortcut, running_maximum
from cropstar.models.normalisation import MaskedBatchNorm
from tests.models.networks.building import CLASSES, complete, count, make


def build(bands: int, layers: int, hidden: int, kernel: int) -> InceptionTime:
    config = ModelConfig(name="inceptiontime", layers=layers, hidden=hidden, kernel=kernel, day_encoding="none")
    return InceptionTime(config, Shape(bands, CLASSES, 10))


def test_count_of_the_publication() -> None:
    """One series of one channel, six modules of four times 32 filters, without the head.

    First module 32 (40 + 20 + 10) + 32 + 256, each further one 128 32 + 32² 70 + 128 32 + 256, shortcuts 128 + 256 and
    128² + 256. Ismail-Fawaz et al. (2023) call their 9,814 parameters 2.34 % of it.
    """
    model = build(1, 6, 128, 40)
    body = count(model) - count(model.scores)
    assert body == 2_528 + 5 * 80_128 + 384 + 16_640 == 420_192
    assert round(100 * 9_814 / body, 2) == 2.34


@pytest.mark.parametrize(("bands", "layers", "hidden", "kernel"), [(4, 1, 8, 8), (13, 4, 6, 10), (2, 9, 16, 4)])
def test_parameter_count_by_formula(bands: int, layers: int, hidden: int, kernel: int) -> None:
    filters = -(-hidden // 4)
    width, taps = 4 * filters, kernel + kernel // 2 + kernel // 4
    total = 0
    for depth in range(layers):
        inputs = bands if depth == 0 else width
        total += 2 * inputs * filters + filters**2 * taps + 2 * width
        if depth % 3 == 2:
            total += (bands if depth == 2 else width) * width + 2 * width
    assert count(build(bands, layers, hidden, kernel)) == total + (width + 1) * CLASSES


def normalised(x: Tensor, norm: MaskedBatchNorm) -> Tensor:
    return functional.batch_norm(x, None, None, norm.scale, norm.shift, training=True)


def plain_module(module: InceptionModule, x: Tensor) -> Tensor:
    narrow = module.bottleneck(x)
    branches = [functional.conv1d(narrow, part.weight, padding="same") for part in module.convolutions]  # type: ignore[arg-type]
    branches.append(module.maximum(functional.max_pool1d(x, 3, stride=1, padding=1)))
    return functional.relu(normalised(torch.cat(branches, dim=1), module.norm))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_a_complete_season_passes_as_published() -> None:
    model = make("inceptiontime", layers=4, day_encoding="none").train()
    assert isinstance(model, InceptionTime)
    x, valid, days = complete(batch=4)
    first = x.transpose(1, 2)
    features = first
    for depth, module in enumerate(model.inceptions):
        assert isinstance(module, InceptionModule)
        features = plain_module(module, features)
        if depth == 2:
            (shortcut,) = model.shortcuts
            assert isinstance(shortcut, Shortcut)
            features = functional.relu(features + normalised(shortcut.product(first), shortcut.norm))
    expected = model.scores(features.mean(dim=2))
    torch.testing.assert_close(model(x, valid, days), expected, rtol=0, atol=1e-11)


def test_a_running_maximum_ignores_what_is_masked() -> None:
    """All values are negative: a zero from the mask or from the border would win."""
    x = -torch.arange(1.0, 7.0).reshape(1, 1, 6)
    mask = torch.tensor([[[True, True, True, True, False, False]]])
    x[0, 0, 4:] = 0.0
    assert running_maximum(x, mask).flatten().tolist() == [-1, -1, -2, -3, 0, 0]


@pytest.mark.parametrize(("length", "kernels"), [(100, [40, 20, 10]), (24, [24, 12, 6]), (1, [4, 2, 1])])
def test_default_kernels_fit_the_season(length: int, kernels: list[int]) -> None:
    model = make("inceptiontime", length=length)
    assert isinstance(model, InceptionTime)
    module = model.inceptions[0]
    assert isinstance(module, InceptionModule)
    assert [part.weight.shape[2] for part in module.convolutions] == kernels  # type: ignore[index]
