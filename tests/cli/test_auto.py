"""`cropstar train --model auto`: candidates compared without the test, the best trained, the table everywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.config import TrainConfig
from cropstar.errors import UsageError
from cropstar.store.model_file import read_model
from cropstar.training import fitting, selection
from cropstar.training.runs import Run
from cropstar.training.train import TrainOptions, train
from tests.examples import a_series_tile, store_of

CPU = torch.device("cpu")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Forty-eight series; odd fields are dark and of another class."""
    tile = a_series_tile([6] * 48)
    tile.days[:] = np.tile(19_100 + 15 * np.arange(6), 48)
    tile.values[np.repeat(np.arange(1, 49) % 2 == 1, 6)] //= 100
    return store_of(tmp_path / "store", {"table": tile})


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten trees a second each is enough."""
    monkeypatch.setattr(selection, "OF_SERIES", ("rf", "tempcnn"))
    monkeypatch.setattr("cropstar.models.networks.forest.Forest.usual_trees", 10)


def chosen(store: Path, runs: Path, budget: float = 5, **changes: Any) -> tuple[Run, dict[str, Any]]:
    config = TrainConfig.model_validate({"store": store, "model": {"name": "auto"}, "epochs": 2, **changes})
    return train(config, TrainOptions(runs, CPU, budget=budget))


def test_the_best_candidate_is_trained(store: Path, tmp_path: Path) -> None:
    run, result = chosen(store, tmp_path / "runs")
    assert run.name == "auto-001"
    rows = {row["name"]: row for row in result["selection"]["candidates"]}
    assert set(rows) == {"rf", "tempcnn", "tempcnn & rf"}
    assert result["selection"]["folds"] == 3
    assert rows["rf"]["macro_f1"] == 1  # dark or not: one split of a tree
    assert [name for name, row in rows.items() if row["chosen"]] == ["rf"]
    assert rows["rf"]["macro_f1_spread"] == 0
    assert all(row["skipped"] is None for row in rows.values())
    assert rows["tempcnn"]["seconds"] > 0  # the forest of a dozen fields takes less than can be shown
    card, _, _ = read_model(run.model)
    assert card.model["name"] == result["model"]["name"] == "rf"
    page = run.report.read_text(encoding="utf-8")
    assert "Why this model" in page
    assert re.search(r"tempcnn &amp; rf</th>", page)
    assert result["test"]["parcel"]["overall_accuracy"] == 1


def test_no_fold_holds_a_test_parcel(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    wanted = selection.comparison_folds

    def noted(*arguments: Any) -> Any:
        splits = list(wanted(*arguments))
        seen.extend(splits)
        return splits

    monkeypatch.setattr(selection, "comparison_folds", noted)
    _, result = chosen(store, tmp_path / "runs")
    test = {(scene, number) for scene, own in result["split"]["parcels"]["test"].items() for number in own}
    rest = 48 - len(test)
    assert len(seen) == 3
    for split in seen:
        assert not test & set(split.part_of)
        assert len(split.part_of) == rest
        assert set(split.part_of.values()) == {"train", "validation", "test"}
    judged = [parcel for split in seen for parcel, part in split.part_of.items() if part == "test"]
    assert len(judged) == len(set(judged)) == rest  # every other parcel once


def test_finished_candidates_are_not_computed_again(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "fit", broken)  # of networks: the forest is done by then
        with pytest.raises(KeyboardInterrupt):
            chosen(store, tmp_path / "runs")
    folder = tmp_path / "runs" / "auto-001" / "candidates"
    before = {path: path.stat().st_mtime_ns for path in folder.glob("rf/*/scores.safetensors")}
    assert len(before) == 3
    run, result = chosen(store, tmp_path / "runs")
    assert run.name == "auto-001"
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert json.loads(run.result.read_text())["selection"] == result["selection"]


def test_what_does_not_fit_the_budget_is_skipped(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: Any) -> Any:
        raise selection.TooSlow(1000)

    monkeypatch.setattr(fitting, "fit", slow)
    _, result = chosen(store, tmp_path / "runs")
    rows = {row["name"]: row for row in result["selection"]["candidates"]}
    assert set(rows) == {"rf", "tempcnn"}
    assert rows["tempcnn"]["skipped"].startswith("would take about 1000 s")
    assert rows["tempcnn"]["macro_f1"] is None
    assert rows["rf"]["chosen"]


def test_a_pair_is_one_model_file(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection.FoldScores, "figures", lambda self, both=None: (0.5 if both is None else 0.6, 0.5))
    run, result = chosen(store, tmp_path / "runs")
    assert [row["name"] for row in result["selection"]["candidates"] if row["chosen"]] == ["tempcnn & rf"]
    card, _, _ = read_model(run.model)
    assert [member["name"] for member in card.model["members"]] == ["tempcnn", "rf"]


def test_a_budget_too_small_for_one(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs about .* min; give more with --budget"):
        chosen(store, tmp_path / "runs", budget=1e-6)
    assert not list((tmp_path / "runs").rglob("model.safetensors"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": {"name": "auto", "layers": 2}}, "'auto' does not use model.layers"),
        ({"beside": [{"name": "star"}]}, "'auto' does not use beside"),
    ],
)
def test_what_auto_has_no_use_for(changes: dict[str, Any], words: str, store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        chosen(store, tmp_path / "runs", **changes)
    assert not (tmp_path / "runs").exists()


def test_one_class_leaves_nothing_to_choose(tmp_path: Path) -> None:
    tile = a_series_tile([6] * 30)
    tile.days[:] = np.tile(19_100 + 15 * np.arange(6), 30)
    tile.table.labels[:] = 0
    with pytest.raises(UsageError, match="all training parcels are of one class") as refusal:
        chosen(store_of(tmp_path / "store", {"table": tile}), tmp_path / "runs")
    assert refusal.value.exit_code == 2
    assert not (tmp_path / "runs").exists()


def test_a_budget_is_for_auto_alone(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--budget is for --model auto"):
        chosen(store, tmp_path / "runs", model={"name": "rf"})
