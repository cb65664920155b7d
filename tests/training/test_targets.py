"""Parcels as target, stopping early, regular dates: through the real training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cropstar.config import TrainConfig
from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.prediction.predictor import Predictor
from cropstar.sources.stack import StackSeries
from cropstar.store.model_file import read_model
from cropstar.training.runs import Run
from cropstar.training.train import TrainOptions, train

CPU = torch.device("cpu")


def trained(store: Path, runs: Path, **changes: Any) -> tuple[Run, dict[str, Any]]:
    usual = {"model": {"name": "star", "layers": 1, "hidden": 8}, "epochs": 2, "patch": 24}
    config = TrainConfig.model_validate({"store": store, **usual, **changes})
    return train(config, TrainOptions(runs, CPU))


def test_parcels_of_images_as_target(small_store: Path, tmp_path: Path) -> None:
    _, result = trained(small_store, tmp_path, target="parcel")
    test = sum(result["split"]["counts"]["test"])
    assert sum(map(sum, result["test"]["pixel"]["confusion"])) == test  # one series a parcel
    assert sum(map(sum, result["test"]["parcel"]["confusion"])) == test


def test_an_image_model_has_no_parcels_as_target(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="convstar wants images"):
        trained(small_store, tmp_path, target="parcel", model={"name": "convstar", "layers": 1, "hidden": 4})


@pytest.mark.parametrize(("name", "target"), [("star", "pixel"), ("star", "parcel"), ("convstar", "pixel")])
def test_dice_trains_on_pixels_parcels_and_images(name: str, target: str, small_store: Path, tmp_path: Path) -> None:
    model = {"name": name, "layers": 1, "hidden": 8}
    optimiser = {"learning_rate": 0.01, "micro_batch": 5}
    _, result = trained(
        small_store, tmp_path, model=model, target=target, loss={"name": "dice"}, optimiser=optimiser, epochs=4
    )
    losses = [row["loss"] for row in result["history"]]
    assert 0 < losses[-1] < losses[0] < 1
    assert "name: dice" in result["config"]


def test_dice_is_not_for_a_teacher(small_store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="dice cannot be combined with --distil"):
        trained(small_store, tmp_path, loss={"name": "dice"}, distil=tmp_path / "teacher")


def test_patience_ends_a_run(small_store: Path, tmp_path: Path) -> None:
    frozen = {"learning_rate": 1e-12, "schedule": "constant"}
    _, result = trained(small_store, tmp_path, epochs=9, patience=2, optimiser=frozen)
    assert result["best_epoch"] == 1
    assert len(result["history"]) == 3


def test_a_model_of_regular_dates_maps_the_same_dates(small_store: Path, small_scene: Path, tmp_path: Path) -> None:
    run, result = trained(small_store, tmp_path, regular={"every": 20, "fill": "linear"})
    card, _, _ = read_model(run.model)
    assert card.provenance["regular"] == {"every": 20, "fill": "linear"}
    assert card.shape["length"] == card.fingerprint.season.length // 20 + 1
    series = StackSeries(small_scene / "tile.tif")
    probabilities, seen = Predictor(run.model, CPU).probabilities(series, Window(0, 0, 32, 32))
    series.close()
    assert probabilities.sum(axis=0) == pytest.approx(1, abs=1e-5)
    assert seen.any()
    assert result["test"]["pixel"]["overall_accuracy"] is not None


def test_the_model_knows_how_sure_it_may_be(small_store: Path, tmp_path: Path) -> None:
    run, result = trained(small_store, tmp_path)
    card, _, _ = read_model(run.model)
    assert card.calibration is not None
    assert card.calibration["temperature"]["temperature"] == result["calibration"]["temperature"]
    assert 0 <= result["sets"]["test"]["coverage"] <= 1
    low, high = result["test"]["pixel"]["intervals"]["overall_accuracy"]
    assert low <= result["test"]["pixel"]["overall_accuracy"] <= high
    days, accuracy = result["earliness"]["days"], result["earliness"]["accuracy"]
    assert len(days) == len(accuracy)
    assert accuracy[-1] == pytest.approx(result["test"]["pixel"]["overall_accuracy"], abs=0.05)
    page = run.report.read_text(encoding="utf-8")
    assert "Calibration of the confidence" in page
    assert "How early each crop is recognised" in page
