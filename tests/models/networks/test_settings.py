"""Settings of some networks only: used where they are asked for, refused where they would do nothing."""

from __future__ import annotations

from typing import Any

import pytest

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.zoo import build_model, known_models


def build(name: str, **settings: Any) -> Classifier:
    config = ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 16, **settings})
    return build_model(config, Shape(4, 3, 12))


def count(model: Classifier) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_networks_are_in_the_zoo() -> None:
    assert {"tcn", "transformer", "tempcnn", "ltae", "inceptiontime"} == set(NETWORKS)
    assert set(NETWORKS) < set(known_models())


@pytest.mark.parametrize("name", ["tcn", "tempcnn", "inceptiontime"])
def test_a_longer_kernel_has_more_weights(name: str) -> None:
    assert count(build(name, kernel=11)) > count(build(name, kernel=5))


def test_heads_share_the_width() -> None:
    assert count(build("transformer", heads=4)) == count(build("transformer", heads=8))
    with pytest.raises(UsageError, match="16 channels cannot be shared by 5 heads"):
        build("transformer", heads=5)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("star", {"heads": 2}),
        ("convgru", {"kernel": 5}),
        ("tempcnn", {"heads": 2}),
        ("ltae", {"kernel": 5}),
        ("transformer", {"pool": "mean"}),
        ("inceptiontime", {"revisit": 5.0}),
        ("tcn", {"variant": "janet"}),
        ("gru", {"variant": "janet"}),
        ("lstm", {"revisit": 5.0}),
        ("star", {"bins": 4}),
        ("tcn", {"pool": "season"}),
    ],
)
def test_settings_without_effect_are_refused(name: str, setting: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        build(name, **setting)
