"""Models of several sensors: flags and zeros are an input layer for each sensor; trees have features for each."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cropstar.config import ModelConfig
from cropstar.models.contract import Shape
from cropstar.models.networks.trees import DayGrid, features_of, sensor_features
from cropstar.models.zoo import build_model, known_models

SHAPE = Shape(bands=2 + 1 + 1 + 2, classes=3, length=8, sensors=(2, 1))


def inputs(size: int | None = None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    place = () if size is None else (size, size)
    owners = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1])
    present = torch.tensor([[1.0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 0, 1]])[owners]
    x = torch.randn(2, 8, 6, *place)
    x[:, :, 4:] = 1
    x = x * present.reshape(1, 8, 6, *(1,) * len(place))
    valid = torch.rand(2, 8, *place) < 0.8
    return x, valid, torch.arange(19_000, 19_080, 10).expand(2, -1).to(torch.int32)


@pytest.mark.parametrize("name", known_models())
def test_every_model_takes_several_sensors(name: str) -> None:
    torch.manual_seed(1)
    model = build_model(ModelConfig(name=name, layers=2, hidden=16), SHAPE).eval()
    x, valid, days = inputs(6 if model.spatial else None)
    with torch.inference_mode():
        scores = model(x, valid, days)
        assert torch.isfinite(scores).all()
        if model.streaming:
            state = model.advance(x, valid, days)
            assert torch.allclose(model.classify(state), scores, atol=1e-5)


def test_flags_and_zeros_are_an_input_layer_of_each_sensor() -> None:
    """The equations with matrices and biases that belong to the date's sensor, against the model on all channels."""
    torch.manual_seed(2)
    model = build_model(ModelConfig(name="star", layers=1, hidden=5, day_encoding="none"), SHAPE).eval()
    weights = {name: value.detach() for name, value in model.stack.layers()[0].named_parameters()}  # type: ignore[union-attr, operator]
    x, valid, days = inputs()
    bands, owners = {0: [0, 1, 3], 1: [2, 3]}, [0, 1, 1, 0, 1, 0, 0, 1]  # its own, and the context

    def product(layer: str, date: torch.Tensor, sensor: int) -> torch.Tensor:
        own_weight = weights[f"{layer}.weight"][:, bands[sensor]]
        own_bias = weights[f"{layer}.bias"] + weights[f"{layer}.weight"][:, 4 + sensor]
        found: torch.Tensor = date[:, bands[sensor]] @ own_weight.T + own_bias
        return found

    hidden = torch.zeros(2, 5)
    for date, sensor in enumerate(owners):
        value = torch.tanh(product("input_value", x[:, date], sensor))
        gate = torch.sigmoid(product("input_gate", x[:, date], sensor) + hidden @ weights["state_gate.weight"].T)
        after = torch.tanh((1 - gate) * hidden + gate * value)
        hidden = torch.where(valid[:, date, None], after, hidden)
    with torch.inference_mode():
        ((found,),) = model.advance(x, valid, days)
    assert torch.allclose(found, hidden, atol=1e-6)


def test_trees_have_features_of_each_sensor() -> None:
    x, valid, days = (tensor.numpy() for tensor in inputs())
    days = days.astype(np.int64)
    grid = DayGrid(start=1, length=80)
    found = sensor_features(x, valid, days, grid, (2, 1))
    count = len(grid.offsets)
    assert found.shape == (2, grid.features(4))
    owners = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    optical = features_of(x[:, :, :2], valid & (owners == 0), days, grid)
    radar = features_of(x[:, :, 2:3], valid & (owners == 1), days, grid)
    context = features_of(x[:, :, 3:4], valid, days, grid)
    parts = [(optical, 2), (radar, 1), (context, 1)]
    values = np.concatenate([part[:, : count * bands] for part, bands in parts], axis=1)
    changes = np.concatenate([part[:, count * bands :] for part, bands in parts], axis=1)
    assert np.array_equal(found, np.concatenate([values, changes], axis=1))
    unseen = valid & (owners == 0)  # no radar at all: the means of the training
    means = np.arange(grid.values(4), dtype=np.float32)
    missing = sensor_features(x, unseen, days, grid, (2, 1), means)
    assert np.array_equal(missing[0, 2 * count : 3 * count], means[2 * count : 3 * count])
    assert np.array_equal(missing[:, : 2 * count], found[:, : 2 * count])


def test_shapes_travel_as_json() -> None:
    assert Shape.from_json(SHAPE.to_json() | {"sensors": [2, 1]}) == SHAPE
    assert "sensors" not in Shape(2, 2, 2).to_json()
