"""The season as input: growing degree-days in the place of the day."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.encoding import EXTRA_CHANNELS, THERMAL_PERIODS, find_thermal, with_days
from cropstar.models.zoo import build_model, restore_model, weights_of

SHAPE = Shape(bands=4, classes=3, length=6, thermal=1)
MEMBERS = ["star", "convstar", "bigru", *sorted(NETWORKS)]


def make(name: str, shape: Shape = SHAPE, **settings: Any) -> Classifier:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 8, "day_encoding": "thermal", **settings})
    return build_model(config, shape).double().eval()


def season(model: Classifier) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    space = (3, 4) if model.spatial else ()
    x = torch.randn(2, 6, 4, *space, generator=generator, dtype=torch.float64)
    return x, torch.rand(2, 6, *space, generator=generator) > 0.3, 19_000 + 9 * torch.arange(6).expand(2, 6)


@pytest.mark.parametrize(
    ("bands", "place"),
    [
        (["B2", "B8", "thermal"], 2),
        (["GDD", "B8"], 0),
        (["B2", " Thermal_Time "], 1),
        (["B2", "thermal infrared", "TIR"], None),
        ([], None),
    ],
)
def test_the_band_is_known_by_its_name(bands: list[str], place: int | None) -> None:
    assert find_thermal(bands) == place


@pytest.mark.parametrize("space", [(), (2, 3)])
def test_channels_by_hand(space: tuple[int, ...]) -> None:
    x = torch.randn(2, 3, 4, *space, dtype=torch.float64)
    found = with_days(x, torch.zeros(2, 3), "thermal", 1)
    assert found.shape[2] == 4 + EXTRA_CHANNELS["thermal"]
    assert torch.equal(found[:, :, :3], x[:, :, [0, 2, 3]])
    warmth = float(x[1, 2, 1].flatten()[-1])
    angles = [2 * math.pi * warmth / period for period in THERMAL_PERIODS]
    expected = [*map(math.sin, angles), *map(math.cos, angles)]
    torch.testing.assert_close(
        found[1, 2, 3:].flatten(1)[:, -1] if space else found[1, 2, 3:], torch.tensor(expected).double()
    )


def test_no_warmth_of_a_season_looks_like_another() -> None:
    """Over all that normalised bands take, and well beyond: neighbours differ, and nothing comes again."""
    warmth = torch.linspace(-4, 4, 81, dtype=torch.float64).reshape(1, -1, 1)
    codes = with_days(warmth, torch.zeros(1, 81), "thermal", 0)[0]
    apart = torch.cdist(codes, codes) + 10 * torch.eye(81)
    assert apart.min() > 0.25


@pytest.mark.parametrize("name", MEMBERS)
def test_warmth_matters_and_the_day_does_not(name: str) -> None:
    model = make(name)
    x, valid, days = season(model)
    scores = model(x, valid, days)
    assert torch.equal(model(x, valid, days + 90), scores)
    warmer = x.clone()
    warmer[:, :, 1] += 0.5
    assert (model(warmer, valid, days) - scores).abs().max() > 1e-6
    beyond = x.clone()  # after whole waves all is as it was: the band enters by its waves alone
    beyond[:, :, 1] += THERMAL_PERIODS[0]
    torch.testing.assert_close(model(beyond, valid, days), scores, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.parametrize("rubbish", [1e6, float("nan")])
def test_what_lies_under_the_mask_does_not_matter(name: str, rubbish: float) -> None:
    model = make(name)
    x, valid, days = season(model)
    spoilt = torch.where(valid.unsqueeze(2), x, torch.full_like(x, rubbish))
    assert torch.equal(model(x, valid, days), model(spoilt, valid, days))


@pytest.mark.parametrize("name", ["star", "convstar"])
def test_repeated_step_equals_forward(name: str) -> None:
    model = make(name)
    x, valid, days = season(model)
    state = None
    for t in range(x.shape[1]):
        state = model.step(x[:, t], valid[:, t], days[:, t], state)
    assert state is not None
    torch.testing.assert_close(model.classify(state), model(x, valid, days), rtol=0, atol=1e-12)


def test_through_a_model_file() -> None:
    model = make("star")
    config = ModelConfig(name="star", layers=2, hidden=8, day_encoding="thermal").model_dump(mode="json")
    shape = json.loads(json.dumps(SHAPE.to_json()))
    assert shape["thermal"] == 1
    again = restore_model(config, shape, weights_of(model.float()), Path("model.safetensors"))
    x, valid, days = season(model)
    assert torch.equal(again(x.float(), valid, days), model(x.float(), valid, days))


@pytest.mark.parametrize("name", ["convstar", "tcn", "transformer"])
def test_files_from_before_are_read_as_they_were(name: str) -> None:
    """Their shape has three numbers, and their settings lack what is new; a thermal band changes nothing."""
    model = make(name, Shape(4, 3, 6), day_encoding="sincos").float()
    config = ModelConfig(name=name, layers=2, hidden=8).model_dump(mode="json")
    old = {key: value for key, value in config.items() if key not in ("head", "hierarchy")}
    assert Shape(4, 3, 6).to_json() == {"bands": 4, "classes": 3, "length": 6}
    x, valid, days = season(model)
    for shape in ({"bands": 4, "classes": 3, "length": 6}, SHAPE.to_json()):
        again = restore_model(old, shape, weights_of(model), Path("model.safetensors"))
        assert torch.equal(again(x.float(), valid, days), model(x.float(), valid, days))


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(4, 3, 6), "called thermal or gdd or thermal_time"),
        (Shape(4, 3, 6, thermal=4), "band 4 of 4"),
        (Shape(4, 3, 6, thermal=-1), "band -1 of 4"),
        (Shape(1, 3, 6, thermal=0), "alone show no crop"),
    ],
)
@pytest.mark.parametrize("name", ["star", "ltae"])
def test_data_without_the_band_are_refused(shape: Shape, words: str, name: str) -> None:
    with pytest.raises(UsageError, match=r"model\.day_encoding cannot be thermal") as refused:
        make(name, shape)
    assert words in str(refused.value)


def test_a_forest_needs_no_encoding() -> None:
    with pytest.raises(UsageError, match=r"does not use model\.day_encoding thermal"):
        make("rf")
