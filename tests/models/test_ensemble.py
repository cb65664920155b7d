"""An ensemble is a model like any other: the mean of its members' probabilities, exact by date and by step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import Ensemble, build_ensemble, describe_model, restore_model, weights_of

SHAPE = Shape(bands=3, classes=4, length=5)
TEMPERATURES = (0.5, 2.0, 1.3)


def of(*names: str, **settings: object) -> Ensemble:
    torch.manual_seed(0)
    configs = [ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 5, **settings}) for name in names]
    built = build_ensemble(configs, SHAPE).eval()
    built.calibrate(TEMPERATURES[: len(names)])
    return built


def season(model: Classifier, batch: int = 2, dates: int = 5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    space = (7, 6) if model.spatial else ()
    x = torch.randn(batch, dates, SHAPE.bands, *space, generator=random)
    valid = torch.rand(batch, dates, *space, generator=random) < 0.7
    return x, valid, 19_000 + 9 * torch.arange(dates).expand(batch, -1)


@pytest.mark.parametrize(
    "names", [("star", "gru", "lstm"), ("convstar", "convstar"), ("star", "transformer"), ("tempcnn", "ltae", "bistar")]
)
@torch.no_grad()
def test_scores_are_the_mean_of_calibrated_probabilities(names: tuple[str, ...]) -> None:
    model = of(*names)
    inputs = season(model)
    mean = torch.stack([(own(*inputs) / t).softmax(1) for own, t in zip(model.classifiers, TEMPERATURES, strict=False)])
    scores = model(*inputs)
    torch.testing.assert_close(scores.softmax(1), mean.mean(0))
    torch.testing.assert_close(scores.exp(), mean.mean(0))
    assert model.radius(5) == max(own.radius(5) for own in model.classifiers)


@pytest.mark.parametrize("names", [("star", "gru", "lstm"), ("convstar", "convgru"), ("star", "star")])
@pytest.mark.parametrize("pool", ["last", "mean"])
@torch.no_grad()
def test_steps_and_dates_give_what_the_season_gives(names: tuple[str, ...], pool: str) -> None:
    model = of(*names, pool=pool)
    x, valid, days = season(model)
    assert model.streaming
    state = None
    by_date = model.by_date(x, valid, days)
    for t in range(x.shape[1]):
        state = model.step(x[:, t], valid[:, t], days[:, t], state)
        torch.testing.assert_close(model.classify(state), by_date[:, t])
    assert state is not None
    torch.testing.assert_close(model.classify(state), model(x, valid, days))
    half = model.advance(x[:, :3], valid[:, :3], days[:, :3])
    torch.testing.assert_close(model.classify(model.advance(x[:, 3:], valid[:, 3:], days[:, 3:], half)), by_date[:, -1])


def test_a_member_that_reads_the_whole_season_stops_streaming() -> None:
    assert not of("star", "bistar").streaming


def test_images_and_series_do_not_mix() -> None:
    with pytest.raises(UsageError, match=r"models that differ.*images.*series"):
        of("star", "convstar")


def test_a_file_tells_how_to_build_it_again(tmp_path: object) -> None:
    configs = [ModelConfig(name="star", layers=1, hidden=4), ModelConfig(name="tempcnn", layers=2, hidden=6)]
    model = build_ensemble(configs, SHAPE).eval()
    model.calibrate([0.7, 1.9])
    weights = weights_of(model)
    assert {name.split(".")[1] for name in weights if name.startswith("members.")} == {"0", "1"}
    again = restore_model(describe_model(configs), SHAPE.to_json(), weights, tmp_path)  # type: ignore[arg-type]
    inputs = season(model)
    with torch.no_grad():
        assert np.array_equal(model(*inputs), again(*inputs))
    assert describe_model(configs)["name"] == "star & tempcnn"
    assert describe_model(configs[:1] * 3)["name"] == "3 x star"
