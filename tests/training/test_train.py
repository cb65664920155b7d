"""The real training on a small store: its files, its seeds, its targets and losses."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.config import TrainConfig, resolve_config
from cropstar.errors import ArtifactError, MismatchError, UsageError
from cropstar.geo.windows import Window
from cropstar.models.zoo import restore_model
from cropstar.prediction.predictor import Predictor
from cropstar.reports.record import TestRecord
from cropstar.sources.stack import StackSeries
from cropstar.store.model_file import read_model, read_tensors
from cropstar.training.runs import Run, claim_run, newest_model, open_run
from cropstar.training.train import TrainOptions, train

# --- training on a small real store, from the configuration to the report


CPU = torch.device("cpu")
DATA = {"scenes": {"scene": "recipe"}}


def tiny(store: Path, **changes: object) -> TrainConfig:
    options = {
        "store": store,
        "model.name": "convstar",
        "model.layers": 2,
        "model.hidden": 6,
        "epochs": 2,
        "batch": 8,
        "optimiser.warmup": 2,
        "split.validation": 0.3,
        "split.test": 0.3,
    }
    return resolve_config(None, options | changes)


def options(folder: Path, **changes: object) -> TrainOptions:
    return TrainOptions(folder, CPU, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["convstar", "star"])
def test_a_run_leaves_all_it_promises(name: str, small_store: Path, tmp_path: Path) -> None:
    run, result = train(tiny(small_store, **{"model.name": name}), options(tmp_path))
    assert run.name == f"{name}-2x6-001"
    assert resolve_config(run.config, {}).model.name == name
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [1, 2]
    assert lines[1]["loss"] < lines[0]["loss"]
    assert json.loads(run.result.read_text()) == result
    assert run.report.read_text().startswith("<!doctype html>")
    assert 1 <= len(run.checkpoints()) <= 2  # epochs of less than a second share one
    assert newest_model(tmp_path) == run.model
    assert not list(tmp_path.rglob("*.partial"))

    counts = result["split"]["counts"]
    assert sum(map(sum, result["test"]["parcel"]["confusion"])) <= sum(counts["test"])
    best = max(lines, key=lambda line: (line["validation"]["macro_f1"], -line["validation"]["loss"]))
    assert result["best_epoch"] == best["epoch"]


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(small_store: Path, tmp_path: Path) -> None:
    first, _ = train(tiny(small_store), options(tmp_path / "a"))
    second, _ = train(tiny(small_store), options(tmp_path / "b"))
    other, _ = train(tiny(small_store, seed=1), options(tmp_path / "c"))
    assert first.model.read_bytes() == second.model.read_bytes()
    assert first.model.read_bytes() != other.model.read_bytes()


def test_a_finished_run_is_left_alone(small_store: Path, tmp_path: Path) -> None:
    first, _ = train(tiny(small_store, epochs=1), options(tmp_path))
    before = first.model.read_bytes(), first.result.stat().st_mtime_ns
    second, _ = train(tiny(small_store, epochs=1), options(tmp_path))
    assert second.folder != first.folder
    assert (first.model.read_bytes(), first.result.stat().st_mtime_ns) == before
    with pytest.raises(UsageError, match="finished"):
        train(tiny(small_store, epochs=1), options(tmp_path, resume=first.folder))


def test_a_damaged_checkpoint_falls_back_to_the_one_before(small_store: Path, tmp_path: Path) -> None:
    config = tiny(small_store, epochs=3)
    whole, _ = train(config, options(tmp_path / "whole", checkpoint_seconds=0.0))
    broken, _ = train(config, options(tmp_path / "broken", checkpoint_seconds=0.0))
    # As a kill after the last epoch would leave it, with the newest checkpoint cut in half.
    broken.result.unlink()
    newest = broken.checkpoints()[0]
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    again, _ = train(config, options(tmp_path / "broken"))
    assert again.folder == broken.folder
    _, expected = read_tensors(whole.checkpoints()[0], "checkpoint")
    _, found = read_tensors(again.checkpoints()[0], "checkpoint")
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert again.model.read_bytes() == whole.model.read_bytes()


def test_the_model_file_alone_is_enough(small_store: Path, tmp_path: Path) -> None:
    run, _ = train(tiny(small_store, epochs=1), options(tmp_path))
    card, weights, _ = read_model(run.model)
    model = restore_model(card.model, card.shape, weights, run.model)
    assert len(card.normalisation.mean) == len(card.fingerprint.bands) == card.shape["bands"]
    scores = model(torch.zeros(1, 2, len(card.fingerprint.bands), 3, 3), torch.ones(1, 2, 3, 3) > 0, torch.zeros(1, 2))
    assert scores.shape == (1, len(card.fingerprint.classes), 3, 3)


def test_a_run_in_use_is_not_touched(small_store: Path, tmp_path: Path) -> None:
    """A second training of the same configuration starts a run of its own."""
    config = tiny(small_store)
    with ExitStack() as first, ExitStack() as second:
        held = claim_run(tmp_path, config, DATA, first, fresh=False)
        other = claim_run(tmp_path, config, DATA, second, fresh=False)
        assert held.folder != other.folder
    with ExitStack() as third:
        assert claim_run(tmp_path, config, DATA, third, fresh=False) == Run(other.folder)
    with ExitStack() as fourth:
        assert claim_run(tmp_path, config, DATA, fourth, fresh=True).folder not in (held.folder, other.folder)


def test_a_run_that_was_killed_before_it_began_leaves_its_number(small_store: Path, tmp_path: Path) -> None:
    config = tiny(small_store)
    with ExitStack() as first:
        run = claim_run(tmp_path, config, DATA, first, fresh=False)
    for lost in ([run.config], [run.config, run.data]):  # the power failed before they were on the disk
        for path in lost:
            path.unlink()
        with ExitStack() as again:
            assert claim_run(tmp_path, config, DATA, again, fresh=True) == run
    run.model.touch()
    run.config.unlink()
    (tmp_path / f"{run.name[:-1]}2").symlink_to("nowhere")
    with ExitStack() as other:
        assert claim_run(tmp_path, config, DATA, other, fresh=True).name == f"{run.name[:-1]}3"


def test_a_run_with_links_in_it_does_not_go_on(small_store: Path, tmp_path: Path) -> None:
    """Its checkpoints would be written, and old ones removed, wherever the links lead."""
    config = tiny(small_store)
    with ExitStack() as first:
        run = claim_run(tmp_path / "runs", config, DATA, first, fresh=False)
    (tmp_path / "elsewhere").mkdir()
    (run.folder / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with ExitStack() as again:
        assert claim_run(tmp_path / "runs", config, DATA, again, fresh=False) != run
        with pytest.raises(ArtifactError, match=r"leads elsewhere.*checkpoints"):
            open_run(run.folder, DATA, again)


def test_a_run_does_not_go_on_with_other_data(small_store: Path, tmp_path: Path) -> None:
    config = tiny(small_store)
    with ExitStack() as first:
        started = claim_run(tmp_path, config, DATA, first, fresh=False)
    with ExitStack() as second:
        assert claim_run(tmp_path, config, {"scenes": {"scene": "another"}}, second, fresh=False) != started
    with ExitStack() as third, pytest.raises(MismatchError, match="other data"):
        open_run(started.folder, {"scenes": {"scene": "another"}}, third)


@pytest.mark.parametrize(("model", "warns"), [("tempcnn", True), ("star", False)])
def test_batch_statistics_of_a_micro_batch_are_warned_of(
    model: str, warns: bool, small_store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tiny(small_store, epochs=1, **{"model.name": model, "optimiser.micro_batch": 4})
    with caplog.at_level("WARNING", logger="cropstar"):
        train(config, options(tmp_path))
    assert ("statistics of each micro-batch" in caplog.text) == warns


# --- parcels as target, stopping early, regular dates: through the real training


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
    with pytest.raises(UsageError, match="convstar needs images"):
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


def test_steps_keep_nothing_for_devices_that_are_not_in_use(small_store: Path, tmp_path: Path) -> None:
    """PyTorch queues a traceback for each seed that it cannot give to a GPU yet: memory and time of every step."""
    before = len(torch.cuda._queued_calls)
    _, result = train(tiny(small_store, epochs=20), options(tmp_path))
    assert len(result["history"]) == 20
    assert len(torch.cuda._queued_calls) - before < 10


def test_patience_ends_a_run(small_store: Path, tmp_path: Path) -> None:
    frozen = {"learning_rate": 1e-12, "schedule": "constant"}
    _, result = trained(small_store, tmp_path, epochs=9, patience=2, optimiser=frozen)
    assert result["best_epoch"] == 1
    assert len(result["history"]) == 3


def test_a_model_of_regular_dates_maps_the_same_dates(small_store: Path, small_scene: Path, tmp_path: Path) -> None:
    run, result = trained(small_store, tmp_path, regular={"every": 20, "fill": "linear"})
    card, _, _ = read_model(run.model)
    assert card.provenance["regular"] == {"every": 20, "fill": "linear", "join": False}
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
    low, high = result["test"]["parcel"]["intervals"]["overall_accuracy"]
    record = TestRecord.from_json(card.provenance["record"])
    assert record is not None
    assert f"{low:.2f} to {high:.2f} at 95 % confidence" in record.headline()  # what `predict` says
    days, accuracy = result["earliness"]["days"], result["earliness"]["accuracy"]
    assert len(days) == len(accuracy)
    assert accuracy[-1] == pytest.approx(result["test"]["pixel"]["overall_accuracy"], abs=0.05)
    page = run.report.read_text(encoding="utf-8")
    assert "Calibration of the confidence" in page
    assert "How early each crop is recognised" in page
