"""The random forest when it is asked: gap-filled features, trees as arrays, and files that hold no forest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.errors import ArtifactError
from cropstar.models.contract import Shape
from cropstar.models.networks.forest import Forest
from cropstar.models.networks.trees import LEAST, DayGrid, Trees, features_of
from cropstar.models.zoo import restore_model, weights_of

GRID = DayGrid(start=80, length=125, every=10)
OLD = DayGrid(start=80, length=125, every=10, differences=False)  # as older model files have it
FIRST = 17_246  # 2017-03-21, day 80 of its year
BANDS, CLASSES = 2, 3
SHAPE = Shape(BANDS, CLASSES, 5)


def some_series(count: int, dates: int, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    random = np.random.default_rng(seed)
    x = random.standard_normal((count, dates, BANDS)).astype(np.float32)
    days = FIRST + np.stack([random.choice(126, dates, replace=False) for _ in range(count)])
    return x, random.random((count, dates)) < 0.6, np.sort(days, axis=1)


def naive(x: NDArray[Any], valid: NDArray[Any], days: NDArray[Any], *, old: bool) -> NDArray[Any]:
    """One series, one band and one day after the other; then changes, or of old files distances to a clear date."""
    seen = days[valid] - FIRST
    values = [[np.interp(day, seen, x[valid, band]) for band in range(BANDS)] for day in range(0, 126, 10)]
    if not old:
        for place, day in enumerate(range(0, 126, 10)):
            near = (seen >= day - 5) & (seen < day + 5)
            if near.any():
                values[place] = list(x[valid][near].mean(axis=0))
        return np.array([*np.ravel(values), *np.ravel(np.diff(values, axis=0))])
    distances = [np.abs(seen - day).min() for day in range(0, 126, 10)]
    return np.array([*np.ravel(values), *distances])


@given(st.integers(1, 30), st.integers(0, 2**32 - 1))
def test_features_are_those_of_the_naive_way(dates: int, seed: int) -> None:
    x, valid, days = some_series(4, dates, seed)
    valid[:, 0] = True
    for grid in (GRID, OLD):
        found = features_of(x, valid, days, grid)
        assert found.shape == (4, grid.features(BANDS))
        for row in range(4):
            expected = naive(x[row], valid[row], days[row], old=grid is OLD)
            assert found[row] == pytest.approx(expected, abs=1e-5)


@given(st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_hidden_dates_order_and_year_change_nothing(dates: int, seed: int) -> None:
    x, valid, days = some_series(3, dates, seed)
    plain = features_of(x, valid, days, GRID)
    assert np.array_equal(plain, features_of(np.where(valid[:, :, None], x, 9e9), valid, days, GRID))
    order = np.random.default_rng(seed).permutation(dates)
    assert np.array_equal(plain, features_of(x[:, order], valid[:, order], days[:, order], GRID))
    longer, hidden, later = (np.concatenate([part, part[:, -1:]], axis=1) for part in (x, valid, days))
    hidden[:, -1] = False
    assert np.array_equal(plain, features_of(longer, hidden, later, GRID))
    assert np.array_equal(plain, features_of(x, valid, days + 365, GRID))  # 2018


def test_a_series_that_no_date_saw_has_the_means_of_the_training() -> None:
    x, valid, days = some_series(2, 6, seed=1)
    valid[1] = False
    means = np.arange(len(GRID.offsets) * BANDS, dtype=np.float32)
    seen, unseen = features_of(x, valid, days, GRID, means)
    assert np.array_equal(unseen, [*means, *[BANDS] * (len(means) - BANDS)])  # and how they change
    assert np.array_equal(features_of(x, valid, days, OLD, means)[1], [*means, *[OLD.length] * len(OLD.offsets)])
    assert np.array_equal(seen, features_of(x[:1], valid[:1], days[:1], GRID)[0])


def test_a_season_over_new_year_is_one() -> None:
    grid = DayGrid(start=300, length=200, every=10)  # from October on
    x = np.arange(3, dtype=np.float32).reshape(1, 3, 1)
    days = np.array([["2016-10-26", "2017-01-04", "2017-05-14"]], dtype="datetime64[D]").astype(np.int64)
    found = features_of(x, np.ones((1, 3), dtype=bool), days, grid)[0]
    assert found[0] == 0  # day 300 of 2016
    assert found[7] == 1  # 70 days later
    assert found[20] == 2


def two_trees() -> dict[str, NDArray[Any]]:
    """A fork on feature 0 at 0.5, its right side forked again on feature 3; and a tree of one leaf."""
    return {
        "season": np.array([80, 125, 10, 1], dtype=np.int64),
        "means": np.zeros(13 * BANDS, dtype=np.float32),
        "trees.offsets": np.array([0, 5, 6], dtype=np.int64),
        "trees.left": np.array([1, -1, 3, -1, -1, -1], dtype=np.int32),
        "trees.right": np.array([2, 0, 4, 1, 2, 2], dtype=np.int32),
        "trees.feature": np.array([0, -1, 3, -1, -1, -1], dtype=np.int32),
        "trees.threshold": np.array([0.5, 0, -1, 0, 0, 0], dtype=np.float32),
        "trees.leaves": np.array([[1, 0, 0], [0, 1, 0], [0, 0.25, 0.75]], dtype=np.float32),
    }


def restored(arrays: dict[str, NDArray[Any]]) -> Forest:
    config = {"name": "rf", "layers": 4, "hidden": 128}
    model = restore_model(config, vars(SHAPE), arrays, Path("model.safetensors"))
    assert isinstance(model, Forest)
    return model


def test_trees_are_walked_as_they_stand() -> None:
    arrays = two_trees()
    trees = Trees(*(arrays[f"trees.{name}"] for name in Trees.__dataclass_fields__))
    features = np.array([[0.5, 9, 9, 9], [0.6, 9, 9, -1], [0.6, 9, 9, -0.9]], dtype=np.float32)
    expected = [[0.5, 0.125, 0.375], [0, 0.625, 0.375], [0, 0.25, 0.75]]
    found = np.mean([trees.leaf_of(features, tree) for tree in range(2)], axis=0)
    assert found == pytest.approx(np.array(expected))
    assert len(trees) == 2


def test_a_forest_keeps_the_contract_of_a_model() -> None:
    model = restored(two_trees())
    again = weights_of(model)
    assert again.keys() == two_trees().keys()
    assert all(np.array_equal(again[name], array) for name, array in two_trees().items())
    assert (model.spatial, model.streaming, model.radius(5), list(model.parameters())) == (False, False, 0, [])
    x, valid, days = (torch.from_numpy(part) for part in some_series(5000, 6, seed=2))
    scores = model(x, valid, days.int())
    assert scores.shape == (5000, CLASSES)
    assert scores.dtype == torch.float32
    assert torch.isfinite(scores).all()
    whole = model.probabilities(x.numpy(), valid.numpy(), days.numpy())
    assert torch.softmax(scores, dim=1).numpy() == pytest.approx(whole, abs=1e-6)
    assert scores.min() >= np.log(LEAST) - 1e-4
    for place in (0, 2047, 2048, 4999):
        assert torch.equal(scores[place : place + 1], model(*(each[place : place + 1] for each in (x, valid, days))))


def test_a_file_with_distances_among_its_features_is_read() -> None:
    """Forests were told how far each day is from a clear date once, and their season had three numbers."""
    arrays = two_trees() | {"season": np.array([80, 125, 10], dtype=np.int64)}
    arrays["trees.feature"][2] = 38  # the last of 13 distances
    model = restored(arrays)
    assert model.grid == OLD
    x, valid, days = some_series(20, 6, seed=3)
    valid[:, 0] = True
    features = features_of(x, valid, days, OLD)
    expected = np.where(features[:, 0] <= 0.5, 0.5, 0)
    assert model.probabilities(x, valid, days)[:, 0] == pytest.approx(expected)
    again = weights_of(model)
    assert np.array_equal(again["season"], [80, 125, 10])


@pytest.mark.parametrize(
    ("name", "place", "value", "why"),
    [
        ("trees.left", 2, 2, "does not come after it"),  # a circle
        ("trees.left", 2, 1, "does not come after it"),
        ("trees.right", 0, 5, "does not come after it in its tree"),  # the next tree's
        ("trees.right", 2, 2**31 - 1, "does not come after it"),
        ("trees.right", 0, -1, "does not come after it"),
        ("trees.left", 1, -2, "neither a fork nor a leaf"),
        ("trees.right", 1, 3, "a leaf has no values"),
        ("trees.right", 5, -1, "a leaf has no values"),
        ("trees.feature", 0, 13 * 2 + 12 * 2, "beyond the 50"),
        ("trees.feature", 2, -1, "beyond the 50"),
        ("trees.threshold", 0, np.nan, "a threshold is not a number"),
        ("trees.leaves", (0, 0), 0.5, "sum to one"),
        ("trees.leaves", (0, 1), np.nan, "a leaf is not a number"),
        ("trees.leaves", (2, 0), -0.5, "sum to one"),
        ("trees.offsets", 0, 1, "do not share its nodes"),
        ("trees.offsets", 1, 6, "do not share its nodes"),
        ("trees.offsets", 2, 2**60, "do not share its nodes"),
        ("means", 3, np.inf, "means is not a number"),
        ("season", 0, 0, "from day 0"),
        ("season", 1, 2**60, "days from day 80"),
        ("season", 1, 200, "means are not those"),
        ("season", 2, 0, "every 0"),
        ("season", 3, 2, "a season of 125 days"),
    ],
)
def test_a_file_that_holds_no_forest_is_refused(name: str, place: Any, value: Any, why: str) -> None:
    arrays = two_trees()
    arrays[name][place] = value
    with pytest.raises(ArtifactError, match=why) as refusal:
        restored(arrays)
    assert len(str(refusal.value).splitlines()) == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("means"),
        lambda arrays: arrays.update(extra=np.zeros(1)),
        lambda arrays: arrays.update({"trees.left": arrays["trees.left"].astype(np.int64)}),
        lambda arrays: arrays.update({"trees.left": arrays["trees.left"][:-1]}),
        lambda arrays: arrays.update({"trees.leaves": arrays["trees.leaves"][:, :2]}),
        lambda arrays: arrays.update({"trees.leaves": arrays["trees.leaves"][0]}),
        lambda arrays: arrays.update({"trees.offsets": arrays["trees.offsets"][:0]}),
        lambda arrays: arrays.update(season=arrays["season"][:2]),
        lambda arrays: arrays.update(means=arrays["means"].astype(np.float64)),
    ],
)
def test_arrays_of_another_shape_are_refused(change: Any) -> None:
    arrays = two_trees()
    change(arrays)
    with pytest.raises(ArtifactError, match="do not fit the model"):
        restored(arrays)


def test_settings_of_networks_are_refused() -> None:
    with pytest.raises(ArtifactError, match=r"'rf' does not use model\.kernel"):
        restore_model({"name": "rf", "kernel": 3}, vars(SHAPE), two_trees(), Path("model.safetensors"))
