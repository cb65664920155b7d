"""What a space may say, what it may not, and that all that is drawn from it is a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cropstar.config import TrainConfig, load_yaml, resolve_config
from cropstar.errors import UsageError
from cropstar.training.search_space import (
    Categorical,
    Range,
    current_values,
    default_space,
    option_keys,
    parse_space,
    with_values,
)

PATH = Path("space.yaml")


def base(**options: Any) -> TrainConfig:
    return resolve_config(None, {"store": "store", "model.name": "star", **options})


def parsed(text: str, **options: Any) -> dict[str, Categorical | Range]:
    return parse_space(load_yaml(text, PATH), base(**options), PATH)


def test_all_forms() -> None:
    space = parsed("""
optimiser.learning_rate: {log: [1e-4, 1e-2]}
model.dropout: {uniform: [0, 0.5]}
model.hidden: {int: [32, 250], step: 32}
model.memory: [null, 10.0]
series_batch: {int: [8, 512], log: true}
model.normalise: [false, true]
""")
    assert space == {
        "optimiser.learning_rate": Range(1e-4, 1e-2, log=True),
        "model.dropout": Range(0, 0.5),
        "model.hidden": Range(32, 224, whole=True, step=32),
        "model.memory": Categorical((None, 10.0)),
        "series_batch": Range(8, 512, log=True, whole=True),
        "model.normalise": Categorical((False, True)),
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("optimiser.learning_rat: {log: [1e-4, 1e-2]}", "did you mean 'optimiser.learning_rate'?"),
        ("model: {layers: [1, 2]}", "unknown key 'model'"),
        ("1: [1, 2]", "unknown key '1'"),
        ("split.validation: [0.1, 0.2]", "'split.validation' cannot be tuned"),
        ("seed: [1, 2]", "'seed' cannot be tuned"),
        ("model.layers: []", "an empty range of 'model.layers'"),
        ("model.dropout: {uniform: [0.5, 0.5]}", "an empty range of 'model.dropout'"),
        ("model.dropout: {uniform: [0.5, 0.1]}", "nothing to choose between 0.5 and 0.1"),
        ("model.hidden: {int: [32, 40], step: 16}", "an empty range of 'model.hidden'"),
        ("model.hidden: {int: [32.5, 40]}", "the ends are not whole numbers"),
        ("model.hidden: {int: [32, 64], step: 0}", "step a whole number above zero"),
        ("model.hidden: {int: [32, 64], step: 8, log: true}", "not both at once"),
        ("model.hidden: {uniform: [32, 64]}", "write {int: [...]}"),
        ("model.hidden: {log: [32, 64]}", "write {int: [...]}"),
        ("optimiser.learning_rate: {log: [0, 1]}", "magnitudes are above zero"),
        ("optimiser.learning_rate: {log: [1e-4]}", "are not two numbers"),
        ("optimiser.learning_rate: {log: [a, b]}", "are not two numbers"),
        ("optimiser.learning_rate: {uniform: [0.1, .inf]}", "are not two numbers"),
        ("optimiser.learning_rate: {uniform: [0.1, 0.2], step: 0.1}", "'step' does not go with 'uniform'"),
        ("optimiser.learning_rate: 0.1", "no range of 'optimiser.learning_rate'"),
        ("optimiser.learning_rate: {normal: [0, 1]}", "no range of 'optimiser.learning_rate'"),
        ("model.layers: [1, two]", "wrong value of 'model.layers'"),
        ("model.layers: [1, 1]", "a value is repeated"),
        ("model.layers: [1, [2]]", "choices are plain values"),
        ("model.layers: [0, 1]", "wrong value of 'model.layers'"),
        ("model.dropout: {uniform: [0, 1]}", "wrong value of 'model.dropout'"),
        ("model.day_encoding: [sincos, cosine]", "wrong value of 'model.day_encoding'"),
        ("{}", "an empty space"),
        ("[model.layers]", "an empty space"),
    ],
)
def test_what_is_refused(text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        parsed(text)
    assert expected in str(caught.value)
    assert "space.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_options_that_only_go_together_are_left_to_the_trials() -> None:
    space = parsed("{regular.every: [10, 20], regular.fill: [none, linear]}")
    assert with_values(base(), {"regular.every": 10, "regular.fill": "linear"}).regular.fill == "linear"
    assert set(space) == {"regular.every", "regular.fill"}


def test_every_option_can_be_set_to_what_it_is() -> None:
    config = base()
    for key in option_keys():
        value: Any = config.model_dump(mode="json")
        for part in key.split("."):
            value = value[part]
        assert with_values(config, {key: value}) == config
    assert {"model.layers", "epochs", "augmentation.noise"} <= set(option_keys())
    assert not any(key.startswith(("split", "store")) for key in option_keys())


def test_null_is_a_value_like_any_other() -> None:
    assert with_values(base(**{"model.memory": 5.0, "patience": 3}), {"model.memory": None, "patience": None}) == base()


@pytest.mark.parametrize("model", ["star", "convstar", "transformer", "bigru"])
def test_the_default_space_holds_the_configuration_itself(model: str) -> None:
    config = base(**{"model.name": model})
    values = current_values(config, default_space(config))
    assert values is not None
    assert with_values(config, values) == config


def test_own_values_that_lie_outside() -> None:
    config = base(**{"model.hidden": 100})
    assert current_values(config, {"model.hidden": Range(32, 256, whole=True, step=32)}) is None
    assert current_values(config, {"model.hidden": Categorical((True, 99))}) is None
    assert current_values(config, {"model.hidden": Range(99, 101, whole=True)}) == {"model.hidden": 100}


def test_all_that_is_drawn_is_a_configuration() -> None:
    optuna = pytest.importorskip("optuna", reason="optuna is not installed")
    text = "{model.hidden: {int: [8, 64], step: 8}, model.dropout: {uniform: [0, 0.9]}, model.memory: [null, 3.0], "
    space = parsed(text + "optimiser.learning_rate: {log: [1e-5, 1]}, model.layers: [1, 2], batch: {int: [1, 64]}}")
    distributions = {key: entry.distribution(optuna) for key, entry in space.items()}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(60):
        values = study.ask(distributions).params
        config = with_values(base(), json.loads(json.dumps(values)))
        assert current_values(config, space) == values
