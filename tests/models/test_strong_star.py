"""What a STAR stack can have below and above it: a stem, normalisation that is folded away, the season in bins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.models.backends import use_backend
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape
from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.models.pooling import YEAR, SeasonState
from cropstar.models.stem import Stem
from cropstar.models.zoo import build_model
from cropstar.native import available


def make(name: str, **settings: object) -> RecurrentClassifier:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"name": name, "layers": 3, "hidden": 8, "normalise": True, **settings})
    model = build_model(config, Shape(4, 3, 9, season=(80, 200)))
    assert isinstance(model, RecurrentClassifier)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, MaskedBatchNorm):
                for tensor, low, high in (
                    (module.running_mean, -0.5, 0.5),
                    (module.running_variance, 0.3, 2.0),
                    (module.scale, 0.2, 1.5),
                    (module.shift, -0.7, 0.7),
                ):
                    tensor.uniform_(low, high)
    return model.eval()


def season(spatial: bool, length: int = 9, batch: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    space = (7, 6) if spatial else ()
    x = torch.randn(batch, length, 4, *space, generator=generator)
    valid = torch.rand(batch, length, *space, generator=generator) > 0.4
    return x, valid, (19_100 + 21 * torch.arange(length)).expand(batch, length)


@pytest.mark.parametrize("name", ["star", "convstar"])
def test_folded_normalisation_gives_the_scores_of_the_plain_path(name: str) -> None:
    if not available():
        pytest.skip("the kernels are not built")
    model = make(name, stem=1, pool="season", bins=4)
    inputs = season(model.spatial)
    found = {}
    for backend in ("naive", "native"):
        use_backend(model, backend, torch.device("cpu"))
        with torch.inference_mode():
            state = model.advance(*inputs)
            found[backend] = model(*inputs), model.classify(state)
    for fast, slow in zip(found["native"], found["naive"], strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*found["native"], rtol=1e-4, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(
    kernel=some.integers(1, 5),
    layers=some.integers(1, 3),
    length=some.integers(1, 8),
    centred=some.booleans(),
    seed=some.integers(0, 1000),
)
def test_a_stem_reads_the_valid_observations_alone(
    kernel: int, layers: int, length: int, centred: bool, seed: int
) -> None:
    """Whatever is masked can be left out of the series altogether."""
    torch.manual_seed(seed)
    stem = Stem(3, 5, layers, kernel, centred=centred).double().eval()
    x, valid = torch.randn(1, length, 3, dtype=torch.float64), torch.rand(1, length) > 0.4
    valid[0, seed % length] = True
    clean = torch.where(valid.unsqueeze(2), x, 0.0)
    whole = stem(clean, valid)
    alone = stem(x[:, valid[0]], torch.ones(1, int(valid.sum()), dtype=torch.bool))
    torch.testing.assert_close(whole[:, valid[0]], alone)
    assert not whole[:, ~valid[0]].any()
    if not centred:
        torch.testing.assert_close(stem.follow(clean, valid, None)[0], whole)


@settings(max_examples=50, deadline=None)
@given(
    start=some.integers(1, 366),
    length=some.integers(1, 365),
    bins=some.integers(2, 16),
    day=some.integers(0, 364),
    year=some.integers(0, 60),
)
def test_bins_follow_the_season_in_every_year(start: int, length: int, bins: int, day: int, year: int) -> None:
    pool = SeasonState(start, length, bins)
    since = min(day, length)
    found = int(pool.bin_of(torch.tensor([start - 1 + since + round(year * YEAR)]))[0])
    exact = since * bins / (length + 1)
    # Years have whole days: a date may fall into the bin beside its own by the day that a leap year adds.
    slack = bins / (length + 1)
    assert int(max(exact - slack, 0)) <= found <= min(int(exact + slack), bins - 1)


def test_dates_just_outside_the_season_go_to_its_ends() -> None:
    pool = SeasonState(100, 150, 5)
    days = torch.tensor([90, 98, 99, 249, 260]) + round(50 * YEAR)
    assert pool.bin_of(days).tolist() == [0, 0, 0, 4, 4]


def test_series_of_more_than_a_year_have_no_bin_twice() -> None:
    """September of the sowing year and of the harvest year are two bins, in one pass and step by step."""
    pool = SeasonState(245, 480, 16)
    first = 18_871  # 2021-09-01
    days = (first + 30 * torch.arange(17)).expand(2, 17) + torch.tensor([[0], [365]])
    bins = pool.bin_of(days, days[:, :1])
    assert bins[:, 12].tolist() != bins[:, 0].tolist()  # a year later
    assert bins[0].tolist() == [30 * month * 16 // 481 for month in range(17)] == bins[1].tolist()
    outputs, valid = torch.randn(17, 2, 3), torch.rand(2, 17) > 0.3
    state = None
    for t in range(17):
        state = pool.add(state, outputs[t], valid[:, t], days[:, t])
    assert state is not None
    torch.testing.assert_close(pool.read(state, outputs[-1]), pool.features(outputs, outputs[-1], valid, days))


def test_an_empty_bin_has_the_mean_of_the_season() -> None:
    pool = SeasonState(1, 100, 4)
    outputs = torch.tensor([[[1.0]], [[3.0]], [[8.0]]])  # (T, B, H)
    days = torch.tensor([[0, 10, 99]])
    features = pool.features(outputs, outputs[-1], torch.ones(1, 3, dtype=torch.bool), days)
    torch.testing.assert_close(features, torch.tensor([[2.0, 4.0, 4.0, 8.0]]))


def test_both_directions_can_be_normalised_and_have_a_stem() -> None:
    model = make("bistar", stem=2, pool="season")
    assert not model.streaming
    model.train()
    x, valid, days = season(spatial=False)
    model(x, valid, days).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
