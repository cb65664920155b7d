"""Boosted trees through the real training: scikit-learn's answers, the usual files, honest calibration."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from cropstar.config import ModelConfig, TrainConfig
from cropstar.errors import ArtifactError, UsageError
from cropstar.models.contract import Shape
from cropstar.models.networks.boosting import Boosting, boosting_arrays
from cropstar.models.networks.trees import DayGrid
from cropstar.models.zoo import restore_model, weights_of
from cropstar.store.model_file import read_model
from cropstar.training.fitting import FeatureTable, cross_fitted
from cropstar.training.runs import Run
from cropstar.training.train import TrainOptions, train

CPU = torch.device("cpu")
GRID = DayGrid(start=80, length=30, every=10)  # four days and three changes
SHAPE = Shape(1, 6, 5)
CONFIG = ModelConfig(name="hgb", trees=30, leaf=3)


def some_samples(classes: list[int], seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    random = np.random.default_rng(seed)
    features = np.round(random.standard_normal((400, 7)), 1).astype(np.float32)  # rounded: values on the thresholds
    scores = features[:, : len(classes)] + random.normal(size=(400, len(classes))) / 2
    return features, np.array(classes)[scores.argmax(axis=1)]


@cache
def fitted(*classes: int) -> Boosting:
    model = Boosting(CONFIG, SHAPE)
    assert model.fit(*some_samples(list(classes)), GRID, 1, lambda *_: None) is None
    return model


@pytest.mark.parametrize("classes", [[0, 2, 5], [1, 4], [3]])
def test_the_arrays_answer_as_scikit_learn_does(classes: list[int]) -> None:
    """Grown 20 rounds at a time, kept in float32 and asked with numpy; classes that training never saw get nothing."""
    model = fitted(*classes)
    features, labels = some_samples(classes)
    unseen = np.concatenate([features, some_samples(classes, seed=9)[0]])
    answer = model.ask(unseen)
    assert not np.delete(answer, classes, axis=1).any()
    if len(classes) == 1:
        assert (answer[:, classes] == 1).all()
        return
    grown = HistGradientBoostingClassifier(
        max_iter=30, min_samples_leaf=3, max_features=0.2, max_bins=63, early_stopping=False, random_state=1
    )
    grown.fit(features, labels)
    assert answer[:, classes] == pytest.approx(grown.predict_proba(unseen), abs=1e-6)
    at_thresholds = np.concatenate([tree.nodes["num_threshold"] for stage in grown._predictors for tree in stage])
    exact = np.repeat(np.unique(at_thresholds[np.isfinite(at_thresholds)])[:, None], 7, axis=1).astype(np.float32)
    assert model.ask(exact)[:, classes] == pytest.approx(grown.predict_proba(exact), abs=1e-6)


def test_a_model_file_gives_the_same_answers() -> None:
    model = fitted(0, 2, 5)
    again = restore_model(CONFIG.model_dump(), vars(SHAPE), weights_of(model), Path("model.safetensors"))
    assert isinstance(again, Boosting)
    features, _ = some_samples([0, 2, 5], seed=3)
    assert np.array_equal(again.ask(features), model.ask(features))
    x = torch.randn(3, 4, 1)
    days = 19_100 + torch.arange(4).repeat(3, 1) * 12
    scores = again(x, torch.ones(3, 4, dtype=torch.bool), days)
    assert torch.isfinite(scores).all()
    assert torch.softmax(scores, dim=1).sum(dim=1) == pytest.approx(1)


@pytest.mark.parametrize(
    ("name", "place", "value", "why"),
    [
        ("start", 0, np.nan, "scores that are not numbers"),
        ("start", slice(None), -np.inf, "scores that are not numbers"),
        ("adds_to", 3, 6, "a class beyond the 6"),
        ("adds_to", 0, -1, "a class beyond the 6"),
        ("trees.leaves", (0, 0), np.inf, "a leaf is not a number"),
        ("trees.feature", 0, 7, "beyond the 7"),
        ("trees.left", 0, 0, "does not come after it"),
    ],
)
def test_a_file_that_holds_no_trees_is_refused(name: str, place: Any, value: Any, why: str) -> None:
    arrays = {key: array.copy() for key, array in weights_of(fitted(0, 2, 5)).items()}
    arrays[name][place] = value
    with pytest.raises(ArtifactError, match=why):
        restore_model(CONFIG.model_dump(), vars(SHAPE), arrays, Path("model.safetensors"))


@pytest.mark.parametrize(
    "change",
    [
        lambda arrays: arrays.pop("start"),
        lambda arrays: arrays.update(start=arrays["start"][:5]),
        lambda arrays: arrays.update(adds_to=arrays["adds_to"][:-1]),
        lambda arrays: arrays.update({"trees.leaves": np.repeat(arrays["trees.leaves"], 2, axis=1)}),
    ],
)
def test_arrays_of_another_shape_are_refused(change: Any) -> None:
    arrays = dict(weights_of(fitted(0, 2, 5)))
    change(arrays)
    with pytest.raises(ArtifactError, match="do not fit the model"):
        restore_model(CONFIG.model_dump(), vars(SHAPE), arrays, Path("model.safetensors"))


def test_fields_are_scored_by_models_that_never_saw_them() -> None:
    """Labels by the field alone: whoever saw another pixel of the field knows it, whoever did not can only guess."""
    random = np.random.default_rng(0)
    features = np.repeat(random.standard_normal((60, 7)), 5, axis=0).astype(np.float32)
    labels, parcels = np.repeat(random.integers(0, 2, 60), 5), np.repeat(np.arange(60), 5)
    samples = FeatureTable(features, labels, parcels, np.zeros(300, dtype=bool))
    model = Boosting(CONFIG, SHAPE)
    by_field, by_pixel = (
        cross_fitted(CONFIG, model, samples, folds, GRID, 0)[1] for folds in (parcels % 3, np.arange(300) % 3)
    )
    assert (by_pixel.argmax(axis=1) == labels).mean() > 0.95
    assert (by_field.argmax(axis=1) == labels).mean() < 0.75
    held, found = cross_fitted(CONFIG, model, samples, np.where(parcels < 50, -1, 0), GRID, 0)
    assert len(held) == len(found) == 50  # the others are learnt from alone


def trained(store: Path, runs: Path, **changes: Any) -> tuple[Run, dict[str, Any]]:
    model = {"name": "hgb", "trees": 3, "leaf": 2}
    config = TrainConfig.model_validate({"store": store, "model": model, "patch": 24, **changes})
    return train(config, TrainOptions(runs, CPU))


@pytest.mark.parametrize("target", ["parcel", "pixel"])
def test_a_run_leaves_what_every_run_leaves(target: str, small_store: Path, tmp_path: Path) -> None:
    run, result = trained(small_store, tmp_path, target=target)
    assert run.name == "hgb-001"
    assert json.loads(run.result.read_text()) == result
    assert run.report.read_text(encoding="utf-8").startswith("<!doctype html>")
    card, arrays, _ = read_model(run.model)
    assert card.model["name"] == "hgb"
    assert card.calibration is not None
    learnt = sum(map(sum, (result["split"]["counts"][part] for part in ("train", "validation"))))
    assert card.calibration["sets"]["parcels"] <= learnt
    assert card.calibration["sets"]["parcels"] > sum(result["split"]["counts"]["validation"])
    assert len(arrays["adds_to"]) == len(arrays["trees.offsets"]) - 1


def test_settings_of_networks_are_refused(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'hgb' does not use model\.kernel"):
        trained(small_store, tmp_path, model={"name": "hgb", "kernel": 3})
    with pytest.raises(UsageError, match=r"'star' does not use model\.trees"):
        trained(small_store, tmp_path, model={"name": "star", "trees": 3})
    assert not list(tmp_path.iterdir())


def test_one_class_needs_no_trees() -> None:
    arrays = boosting_arrays(None, np.array([2]), 3)
    assert arrays["start"].tolist() == [-np.inf, -np.inf, 0]
