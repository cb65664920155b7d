"""The random forest through the real training: scikit-learn's answers, the usual files, one look at the test part."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestClassifier

from cropstar.cli.main import cropstar
from cropstar.config import TrainConfig, resolve_config
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.datasets.transforms import Draw
from cropstar.errors import UsageError
from cropstar.geo.windows import Window, split
from cropstar.models.contract import Shape
from cropstar.models.networks import forest as growing
from cropstar.models.networks.forest import Forest, forest_arrays
from cropstar.models.networks.trees import DayGrid, Trees
from cropstar.models.zoo import restore_model
from cropstar.prediction.predictor import Predictor
from cropstar.sources.stack import StackSeries
from cropstar.store.classes import UNLABELLED
from cropstar.store.model_file import read_model
from cropstar.store.store import Store
from cropstar.training.fitting import ForestTeacher, gather, soften_labels
from cropstar.training.runs import Run
from cropstar.training.small_data import advise_trees
from cropstar.training.train import TrainOptions, train
from tests.examples import a_series_tile, store_of

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred take seconds; twenty are grown in steps as well, the last of them a small one."""
    monkeypatch.setattr(growing.Forest, "usual_trees", 20)
    monkeypatch.setattr(growing, "AT_ONCE", 8)


def a_config(store: Path, **changes: Any) -> TrainConfig:
    return TrainConfig.model_validate({"store": store, "model": {"name": "rf"}, "patch": 24, **changes})


def trained(store: Path, runs: Path, **changes: Any) -> tuple[Run, dict[str, Any]]:
    return train(a_config(store, **changes), TrainOptions(runs, CPU))


def asked(trees: Trees, features: NDArray[Any]) -> NDArray[Any]:
    mean: NDArray[Any] = np.mean([trees.leaf_of(features, tree) for tree in range(len(trees))], axis=0)
    return mean


def test_the_arrays_answer_as_scikit_learn_does() -> None:
    random = np.random.default_rng(0)
    features = np.round(random.standard_normal((600, 7)), 2).astype(np.float32)  # rounded: values on the thresholds
    labels = np.array([0, 2, 5])[(features[:, 0] > 0).astype(int) + (features[:, 3] + random.normal(size=600) > 0)]
    features[-50:], labels[-50:] = features[:50], 2  # alike, and not of one class: leaves that are not pure
    grown = RandomForestClassifier(30, random_state=1, n_jobs=1).fit(features, labels)
    trees = forest_arrays(grown, 6)
    trees.check(7, 6)
    assert len(trees) == 30
    unseen = np.concatenate([features, np.round(random.standard_normal((600, 7)), 2).astype(np.float32)])
    answer = asked(trees, unseen)
    assert answer[:, [0, 2, 5]] == pytest.approx(grown.predict_proba(unseen), abs=1e-6)
    assert not answer[:, [1, 3, 4]].any()  # classes that training never saw
    thresholds = np.concatenate([each.tree_.threshold for each in grown.estimators_])
    exact = np.repeat(np.unique(thresholds)[:, None], 7, axis=1).astype(np.float32)  # the hardest questions
    assert asked(trees, exact)[:, [0, 2, 5]] == pytest.approx(grown.predict_proba(exact), abs=1e-6)


def test_growing_in_steps_gives_the_same_forest(small_store: Path, tmp_path: Path) -> None:
    """And the model file answers as one scikit-learn forest on the same samples."""
    run, _ = trained(small_store, tmp_path, target="parcel", seed=3)
    card, arrays, _ = read_model(run.model)
    model = restore_model(card.model, card.shape, arrays, run.model)
    assert isinstance(model, Forest)
    store = Store.open(small_store)
    config = a_config(small_store, target="parcel", seed=3)
    parts, _ = open_parts(store, split_parcels(store, config.split, 3), config, spatial=False)
    grid = DayGrid(store.fingerprint.season.start, store.fingerprint.season.length)
    classes = len(store.fingerprint.classes)
    samples = gather({part: parts[part] for part in ("train", "validation")}, classes, grid, seed=3)
    grown = RandomForestClassifier(20, random_state=3).fit(samples.features, samples.labels)
    test = gather({"test": parts["test"]}, classes, grid, seed=3)
    batch = parts["test"].batch(list(range(len(parts["test"]))))
    found = torch.softmax(model(batch.x, batch.valid, batch.days), dim=1)[batch.valid.any(dim=1)]
    assert found.numpy()[:, grown.classes_] == pytest.approx(grown.predict_proba(test.features), abs=1e-6)
    store.close()


@pytest.mark.parametrize("target", ["parcel", "pixel"])
def test_a_run_leaves_what_every_run_leaves(target: str, small_store: Path, tmp_path: Path) -> None:
    run, result = trained(small_store, tmp_path, target=target)
    assert json.loads(run.result.read_text()) == result
    assert run.report.read_text(encoding="utf-8").startswith("<!doctype html>")
    counts = sum(result["split"]["counts"]["test"])
    assert sum(map(sum, result["test"]["parcel"]["confusion"])) <= counts
    low, high = result["test"]["parcel"]["intervals"]["overall_accuracy"]
    assert low <= result["test"]["parcel"]["overall_accuracy"] <= high
    assert target == "parcel" or result["test"]["pixel"]["overall_accuracy"] > 0.5  # of nine crops; parcels are few
    assert "earliness" not in result
    card, arrays, _ = read_model(run.model)
    assert card.model["name"] == "rf"
    assert card.calibration is not None
    assert len(arrays["trees.offsets"]) == 21


def test_the_same_seed_gives_the_same_bytes(small_store: Path, tmp_path: Path) -> None:
    first, second, other = (
        trained(small_store, tmp_path / str(place), target="parcel", split={"test": 0.5}, seed=seed)[0].model
        for place, seed in enumerate((1, 1, 2))
    )
    assert first.read_bytes() == second.read_bytes() != other.read_bytes()


def test_a_map_has_no_seams(small_store: Path, small_scene: Path, tmp_path: Path) -> None:
    run, _ = trained(small_store, tmp_path)
    predictor = Predictor(run.model, CPU)
    series = StackSeries(small_scene / "tile.tif")
    try:
        whole, seen = predictor.probabilities(series, Window(0, 0, *series.grid.shape))
        assert whole.sum(axis=0) == pytest.approx(1, abs=1e-5)
        for window in split(series.grid.shape, 61):
            part, clear = predictor.probabilities(series, window)
            assert np.abs(part - whole[:, *window.slices]).max() <= 1e-6
            assert np.array_equal(clear, seen[window.slices])
    finally:
        series.close()


@pytest.mark.parametrize("model", [{"name": "rf"}, {"name": "hgb", "trees": 3, "leaf": 2}])
def test_a_store_of_series(model: dict[str, Any], tmp_path: Path) -> None:
    tile = a_series_tile([5 + number % 7 for number in range(40)])
    tile.days[:] = 19_100 + np.concatenate([11 * np.arange(5 + number % 7) for number in range(40)])
    odd = np.repeat(np.arange(1, 41) % 2 == 1, np.diff(tile.starts))
    tile.values[odd] //= 4  # dark, and another class: there is something to learn
    store = store_of(tmp_path / "store", {"table": tile})
    _, result = trained(store, tmp_path / "runs", model=model)
    assert result["test"]["parcel"]["overall_accuracy"] == 1


def test_out_of_bag_is_by_field() -> None:
    """Labels by the field alone: trees that saw another pixel of the field know it, those that did not can only guess.

    Of samples that are all the fields there are, the forest is scikit-learn's own.
    """
    random = np.random.default_rng(0)
    features = np.repeat(random.standard_normal((60, 7)), 50, axis=0).astype(np.float32)
    features += random.normal(scale=0.01, size=features.shape).astype(np.float32)
    labels, fields = np.repeat(random.integers(0, 2, 60), 50), np.repeat(np.arange(60), 50)
    model = Forest(a_config(Path("store")).model, Shape(1, 2, 4))
    grid = DayGrid(1, 30)  # four days: four values and three differences
    by_field = model.fit(features, labels, grid, 0, lambda *_: None, fields)
    assert model.ask(features).argmax(axis=1) == pytest.approx(labels)  # the forest itself knows them all
    by_pixel = model.fit(features, labels, grid, 0, lambda *_: None)
    assert by_field is not None
    assert by_pixel is not None
    asked = ~np.isnan(by_field[:, 0])
    assert np.array_equal(np.bincount(fields[asked]), np.full(60, 32))  # of every field as many as calibrate
    assert (by_pixel.argmax(axis=1) == labels).mean() > 0.95
    assert (by_field[asked].argmax(axis=1) == labels[asked]).mean() < 0.75
    alone = model.fit(features, labels, grid, 0, lambda *_: None, np.arange(3000))
    assert np.array_equal(by_pixel, np.asarray(alone), equal_nan=True)


def test_too_many_pixels_are_drawn_by_the_seed(small_store: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Store.open(small_store)
    config = a_config(small_store)
    parts, _ = open_parts(store, split_parcels(store, config.split, 0), config, spatial=False)
    grid = DayGrid(store.fingerprint.season.start, store.fingerprint.season.length)
    classes = len(store.fingerprint.classes)
    everything = gather({"train": parts["train"]}, classes, grid, seed=0)
    some, same, others = (gather({"train": parts["train"]}, classes, grid, seed=seed, most=300) for seed in (0, 0, 1))
    store.close()
    assert 250 < len(some.labels) <= 300 < len(everything.labels)
    assert np.array_equal(some.features, same.features)
    assert not np.array_equal(some.features[:100], others.features[:100])
    rows = {row.tobytes() for row in everything.features}
    assert all(row.tobytes() in rows for row in some.features)
    assert set(some.labels.tolist()) == set(everything.labels.tolist())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimiser": {"learning_rate": 0.1}}, "'rf' does not use optimiser"),
        ({"augmentation": {"noise": 0.1}}, "'rf' does not use augmentation"),
        ({"model": {"name": "rf", "heads": 2}}, "'rf' does not use model.heads"),
        ({"model": {"name": "rff"}}, "did you mean 'rf'"),
    ],
)
def test_what_a_forest_has_no_use_for(changes: dict[str, Any], words: str, small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        trained(small_store, tmp_path / "runs", **changes)
    assert not (tmp_path / "runs").exists()


def test_a_forest_has_no_layers_to_diagnose(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no layers"):
        train(a_config(small_store), TrainOptions(tmp_path / "runs", CPU, diagnose=True))


def test_without_scikit_learn(small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finder = "importlib.util.find_spec"
    monkeypatch.setattr(finder, lambda name, *rest: None if name == "sklearn" else sys.modules[name].__spec__)
    with pytest.raises(UsageError, match="pip install scikit-learn"):
        trained(small_store, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# --- soft labels


@pytest.fixture
def doubtful(tmp_path: Path) -> Path:
    """Series of two classes that one number tells apart; the labels of three are wrong."""
    random = np.random.default_rng(0)
    wrong = {3, 40, 77}
    lines = ["id,date,crop,b1,b2"]
    for field in range(90):
        crop = field % 2 if field not in wrong else 1 - field % 2
        for month in range(4, 10):
            values = 0.2 + 0.5 * (field % 2) + 0.05 * random.standard_normal(2)
            lines.append(f"{field},2021-{month:02}-01,{'ab'[crop]},{values[0]:.3f},{values[1]:.3f}")
    table = tmp_path / "fields.csv"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    store = tmp_path / "store"
    done = CliRunner().invoke(cropstar, ["ingest", str(table), "-o", str(store), "--workers", "1"])
    assert done.exit_code == 0, done.output
    return store


def test_wrong_labels_are_softened_and_right_ones_kept(doubtful: Path) -> None:
    config = TrainConfig.model_validate({"store": doubtful, "model": {"name": "star"}, "split": {"test": 0.1}})
    store = Store.open(doubtful)
    try:
        learnt = split_parcels(store, config.split, 0).with_validation()
        parts, _ = open_parts(store, learnt, config, spatial=False)
        taught = ForestTeacher(Shape(2, 2, 6)).teach(parts["train"], learnt, config)
        every = list(range(len(taught)))
        batch = taught.augmented(every, config.augmentation, Draw(0, 0, every))
    finally:
        store.close()
    assert batch.taught.sum(dim=1).numpy() == pytest.approx(1)
    told = batch.taught.gather(1, batch.labels[:, None])[:, 0].numpy()  # what is left of each label
    known = ((batch.x.mean(dim=(1, 2)) > 0) != batch.labels.bool()).numpy()  # that the label is wrong
    assert known.any()
    assert told[known].max() < told[~known].min()
    assert told[~known].mean() > 0.97  # a forest that is nearly always right changes little


@pytest.mark.parametrize("soft_labels", ["mixes", "both"])
def test_mixes_are_taught_by_both_labels_and_the_forest(soft_labels: str, doubtful: Path) -> None:
    given = {"store": doubtful, "model": {"name": "star"}, "split": {"test": 0.1}, "soft_labels": soft_labels}
    config = TrainConfig.model_validate(given)
    store = Store.open(doubtful)
    try:
        learnt = split_parcels(store, config.split, 0).with_validation()
        parts, _ = open_parts(store, learnt, config, spatial=False)
        taught = ForestTeacher(Shape(2, 2, 6)).teach(parts["train"], learnt, config)
        every = list(range(len(taught)))
        own = parts["train"].batch(every)
        batch, again, later = (taught.augmented(every, config.augmentation, Draw(0, e, every)) for e in (0, 0, 1))
        one = taught.augmented(every[7:8], config.augmentation, Draw(0, 0, every[7:8]))
    finally:
        store.close()
    assert torch.equal(batch.x, again.x)
    assert not torch.equal(batch.x, later.x)
    assert torch.equal(one.x[0], batch.x[7])  # whatever batch it is in
    assert torch.equal(one.taught[0], batch.taught[7])
    kept = batch.labels != UNLABELLED
    assert torch.equal(batch.labels[kept], own.labels[kept])
    assert torch.equal(batch.x[kept], own.x[kept])
    assert (0.3 < kept.float().mean() < 0.7) if soft_labels == "both" else not kept.any()
    assert torch.equal(batch.valid, own.valid)
    assert batch.x.min() >= own.x.min()
    assert batch.x.max() <= own.x.max()
    assert batch.taught.sum(dim=1).numpy() == pytest.approx(1)
    level = batch.x.mean(dim=(1, 2))  # low fields are of the first class, high ones of the second, but for three
    assert batch.taught[level < -0.8, 0].mean() > 0.9
    assert batch.taught[level > 0.8, 1].mean() > 0.9
    between = batch.taught[(level > -0.3) & (level < 0.3)]
    assert 0.3 < between[:, 0].mean() < 0.7


def test_a_forest_that_is_better_is_recommended(caplog: pytest.LogCaptureFixture) -> None:
    advise_trees({"overall_accuracy": 0.6, "fields": 30}, 0.62)
    advise_trees({"overall_accuracy": 0.6, "fields": 30}, None)
    assert not caplog.records
    advise_trees({"overall_accuracy": 0.6, "fields": 30}, 0.8)
    assert "'--model rf', or '--model auto'" in caplog.text


@pytest.mark.parametrize("errors", [0.0, 0.1, 0.3, 0.6])
def test_the_share_of_the_forest_grows_with_its_errors(errors: float) -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, 400)
    answers = np.where(random.random(400) < errors, (labels + 1) % 3, labels)
    unseen = np.full((400, 3), 0.1)
    unseen[np.arange(400), answers] = 0.8
    share = min(1.0, float((answers != labels).mean()) / 0.3)
    softened = soften_labels(unseen, labels)
    rest = softened - (1 - share) * np.eye(3)[labels]  # the forest's part
    assert rest.sum(axis=1) == pytest.approx(share)
    assert softened.min() >= 0
    if errors:
        assert (rest.argmax(axis=1) == answers).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"target": "pixel"}, "it is for series, and pixels have a class"),
        ({"target": "parcel", "loss.name": "dice"}, "dice cannot be combined with soft_labels"),
        ({"target": "parcel", "distil": "elsewhere"}, "cannot be combined with --distil"),
        ({"model.name": "rf"}, "'rf' does not use soft_labels"),
    ],
)
def test_where_labels_cannot_be_softened(
    changes: dict[str, Any], words: str, small_store: Path, tmp_path: Path
) -> None:
    config = resolve_config(None, {"store": small_store, "model.name": "star", "soft_labels": "forest", **changes})
    with pytest.raises(UsageError, match=words):
        train(config, TrainOptions(tmp_path / "runs", CPU))
    assert not (tmp_path / "runs").exists()
