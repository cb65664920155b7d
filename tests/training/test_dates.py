"""Every date with a class of its own: scored, judged, trained, and refused where a model cannot."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.config import TrainConfig
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from cropstar.training.evaluation import evaluate, score
from cropstar.training.setup import Setup
from cropstar.training.train import TrainOptions, train
from tests.datasets.dated import CLOUD, a_dated_store, a_dated_tile
from tests.examples import store_of

CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(a_dated_store(tmp_path / "store"))
    yield opened
    opened.close()


def config(store: Store, name: str = "star", **changes: Any) -> TrainConfig:
    usual = {"store": store.folder, "model": {"name": name, "layers": 1, "hidden": 16}, "target": "date"}
    return TrainConfig.model_validate({**usual, **changes})


def a_model(store: Store, name: str = "star") -> Classifier:
    torch.manual_seed(0)
    return build_model(config(store, name).model, Shape(2, 3, 12)).eval()


def required(store: Store, own: TrainConfig, model: Classifier) -> str:
    setup = Setup.of(store, own, CPU)
    setup.require(own, model)
    return setup.target


def part(store: Store, name: str = "train") -> Any:
    split = split_parcels(store, config(store).split, 0, target="date")
    return open_parts(store, split, config(store), spatial=False)[0][name]


@torch.no_grad()
def test_the_score_of_a_date_is_what_is_said_after_it(store: Store) -> None:
    model, batch = a_model(store), part(store).batch([0, 1, 2, 3])
    scored = score(model, batch, CPU)
    places = torch.nonzero(batch.labels != UNLABELLED)
    assert len(scored.labels) == len(places)
    for row, (sample, date) in enumerate(places.tolist()):
        until = slice(sample, sample + 1), slice(0, date + 1)
        expected = model(batch.x[until], batch.valid[until], batch.days[until])[0]
        assert scored.scores[row].numpy() == pytest.approx(expected.numpy(), abs=1e-5)
        assert int(scored.labels[row]) == int(batch.labels[sample, date])
        assert int(scored.parcels[row]) == int(batch.parcels[sample])
        assert bool(scored.seen[row]) == bool(batch.valid[sample, date])


def test_figures_are_those_of_a_plain_count(store: Store) -> None:
    model, dataset = a_model(store), part(store)
    found = evaluate(model, dataset, 3, CPU)
    assert found.unit == found.to_json()["unit"] == "date"
    batch = dataset.batch(list(range(len(dataset))))
    with torch.no_grad():
        said = model.by_date(batch.x, batch.valid, batch.days).double().softmax(dim=2).numpy()
    by_date, by_parcel = np.zeros((3, 3), dtype=int), np.zeros((3, 3), dtype=int)
    for row in range(len(batch.labels)):
        whole = np.zeros(3)
        for date in np.flatnonzero((batch.valid[row] & (batch.labels[row] != UNLABELLED)).numpy()):
            by_date[batch.labels[row, date], said[row, date].argmax()] += 1
            whole += said[row, date] * bool(batch.shows[row, date])
        truth = set(batch.labels[row][batch.shows[row]].tolist())
        assert len(truth) == 1
        by_parcel[truth.pop(), whole.argmax()] += 1
    assert found.pixel.tolist() == by_date.tolist()
    assert found.parcel.tolist() == by_parcel.tolist()


def test_labels_of_hidden_dates_are_none(store: Store, tmp_path: Path) -> None:
    tile = a_dated_tile()
    assert tile.date_labels is not None
    other = np.where(tile.valid, tile.date_labels, UNLABELLED).astype(np.int16)
    assert (other != tile.date_labels).any()
    bare = Store.open(store_of(tmp_path / "bare", {"dated-n0": replace(tile, date_labels=other)}))
    model = a_model(store)
    first, second = (evaluate(model, part(each), 3, CPU).pixel for each in (store, bare))
    assert first.tolist() == second.tolist()
    assert part(store).class_counts(3).tolist() == part(bare).class_counts(3).tolist()
    bare.close()


def test_clouds_are_learnt_date_by_date(store: Store, tmp_path: Path) -> None:
    """Of the crops no more is asked than to beat the most frequent class: before they are green nothing tells them."""
    changes: dict[str, Any] = {
        "epochs": 25,
        "series_batch": 8,
        "optimiser": {"learning_rate": 0.01},
        "loss": {"balance": 0.5},
    }
    run, result = train(config(store, **changes), TrainOptions(tmp_path / "runs", CPU))
    test, tile = result["test"], a_dated_tile()
    assert tile.date_labels is not None
    counted = tile.valid & (tile.date_labels != UNLABELLED)
    numbers = result["split"]["parcels"]["test"]["dated"]
    rows = np.concatenate([np.arange(*tile.starts[number - 1 : number + 1]) for number in numbers])
    shares = np.bincount(tile.date_labels[rows[counted[rows]]], minlength=3)
    assert test["unit"] == "date"
    assert np.array(test["pixel"]["confusion"]).sum(axis=1).tolist() == shares.tolist()
    assert np.array(test["parcel"]["confusion"]).sum() == len(numbers)
    assert test["pixel"]["classes"][CLOUD]["f1"] > 0.9
    assert test["pixel"]["overall_accuracy"] > shares.max() / shares.sum()
    assert result["calibration"]["part"] == "test"
    assert 0 <= result["sets"]["test"]["coverage"] <= 1
    assert "earliness" not in result
    assert run.report.exists()


@pytest.mark.parametrize("name", ["star", "tcn"])
def test_models_that_read_date_after_date_are_taken(store: Store, name: str) -> None:
    model = a_model(store, name).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert required(store, config(store, name), model) == "date"
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["bistar", "transformer", "ltae", "tempcnn", "inceptiontime", "rf"])
def test_models_that_read_series_as_a_whole_are_refused(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="one class to a whole series") as caught:
        required(store, config(store, name), a_model(store, name))
    assert "--model star" in str(caught.value)
    assert required(store, config(store, name, target=None), a_model(store, name)) == "parcel"


def test_what_else_cannot_be_learnt_is_refused(store: Store) -> None:
    clips = config(store, model={"name": "convstar", "layers": 1, "hidden": 4, "head": "video"})
    with pytest.raises(UsageError, match="whole clip"):
        required(store, clips, build_model(clips.model, Shape(2, 3, 12)))
    with pytest.raises(UsageError, match="convstar wants images"):
        required(store, config(store, "convstar"), a_model(store, "convstar"))
    with pytest.raises(UsageError, match="have no levels"):
        required(store, config(store, loss={"levels": 0.5}), a_model(store))
