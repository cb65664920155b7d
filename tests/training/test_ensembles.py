"""`--ensemble`, `--refit` and cross-fitting, from the configuration to the report, whole and interrupted."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.config import TrainConfig
from cropstar.errors import UsageError
from cropstar.execution.local import LocalPool
from cropstar.models.zoo import Ensemble, restore_model
from cropstar.store.model_file import read_model
from cropstar.store.store import Store, write_manifest
from cropstar.training import run_trainer
from cropstar.training.ensembles import member_configs
from cropstar.training.runs import Run
from cropstar.training.train import train
from tests.processes import run_process
from tests.training.stepping import Cut, cut_before, watched_steps
from tests.training.test_train import options, tiny


def small(store: Path, **changes: object) -> TrainConfig:
    settings: dict[str, object] = {
        "model.name": "star",
        "model.dropout": 0.2,
        "model.pool": "mean",
        "optimiser.average": 0.5,
        "epochs": 3,
        "target": "parcel",
        "series_batch": 4,
    }
    return tiny(store, **(settings | changes))


def test_an_ensemble_is_one_model_file(small_store: Path, tmp_path: Path) -> None:
    plain, _ = train(small(small_store), options(tmp_path))
    run, result = train(small(small_store, ensemble=2), options(tmp_path))
    assert run.name == "star-2x6-x2-001"
    card, weights, _ = read_model(run.model)
    model = restore_model(card.model, card.shape, weights, run.model)
    assert isinstance(model, Ensemble)
    assert card.calibration is not None

    _, alone, _ = read_model(plain.model)
    first, second = ({n: weights[f"members.{k}.{n}"] for n in alone} for k in (0, 1))
    assert all(np.array_equal(alone[name], first[name]) for name in alone)  # the first has the seed of the run
    assert any(not np.array_equal(alone[name], second[name]) for name in alone)

    members = result["ensemble"]["members"]
    assert [round(own["temperature"], 5) for own in members] == [round(float(t), 5) for t in model.temperatures]
    assert members[0]["seed"] == 0 != members[1]["seed"]
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    assert [(row["member"], row["epoch"]) for row in rows] == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3)]
    assert result["history"][0]["loss"] == pytest.approx(np.mean([rows[0]["loss"], rows[3]["loss"]]))
    report = run.report.read_text()
    assert "Members of the ensemble" in report
    assert "2: star" in report


def test_members_of_other_kinds(small_store: Path, tmp_path: Path) -> None:
    """The mean of a network and a forest, which does not use the network's settings."""
    pytest.importorskip("sklearn")
    config = small(small_store, beside=[{"name": "rf"}], epochs=1)
    assert [own.model.name for own in member_configs(config)] == ["star", "rf"]
    run, result = train(config, options(tmp_path))
    card, weights, _ = read_model(run.model)
    assert not restore_model(card.model, card.shape, weights, run.model).streaming
    assert result["model"]["name"] == "star & rf"
    with pytest.raises(UsageError, match="models that differ"):
        train(small(small_store, beside=[{"name": "convstar"}], target="pixel"), options(tmp_path / "other"))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({"ensemble": 2}, 0.3),
        ({"ensemble": 2}, 0.7),
        ({"refit": True}, 0.8),
        ({"ensemble": 2, "refit": True}, 0.9),
        ({"cross_fit": 2}, 0.4),
        ({"cross_fit": 2}, 0.9),
        ({"cross_fit": 2, "ensemble": 2}, 0.9),
        ({"cross_fit": 2, "soft_labels": "forest"}, 0.8),
        ({"cross_fit": 2, "soft_labels": "mixes"}, 0.5),
        ({"cross_fit": 2, "soft_labels": "both"}, 0.5),
        ({"cross_fit": 2, "beside": [{"name": "ltae", "layers": 1, "hidden": 16}]}, 0.6),
    ],
)
def test_a_run_cut_off_ends_with_the_bytes_of_an_unbroken_one(
    changes: dict[str, object], share: float, small_store: Path, tmp_path: Path
) -> None:
    config = small(small_store, **changes)
    with watched_steps() as steps:
        whole, expected = train(config, options(tmp_path / "whole"))
    with watched_steps(cut_before(math.ceil(share * len(steps)) + 1)), pytest.raises(Cut):
        train(config, options(tmp_path / "cut", checkpoint_seconds=0.0))
    (folder,) = (tmp_path / "cut").iterdir()
    first = folder / "member-1" / "result.json"
    finished = first.stat().st_mtime_ns if first.exists() else None
    run, result = train(config, options(tmp_path / "cut"))
    assert run.folder == folder
    assert run.model.read_bytes() == whole.model.read_bytes()
    if "refit" in changes:
        assert run.before_refit.read_bytes() == whole.before_refit.read_bytes()
    assert result["test"] == expected["test"]
    if finished is not None:  # a finished member is not touched again
        assert first.stat().st_mtime_ns == finished


def test_a_refit_keeps_the_figures_and_the_confidence_of_the_model_before(small_store: Path, tmp_path: Path) -> None:
    plain, judged = train(small(small_store), options(tmp_path / "plain"))
    run, result = train(small(small_store, refit=True), options(tmp_path / "refit"))
    assert result["test"] == judged["test"]
    (before, kept, _), (after, refitted, _) = read_model(run.before_refit), read_model(run.model)
    _, alone, _ = read_model(plain.model)
    assert all(np.array_equal(alone[name], kept[name]) for name in alone)
    assert any(not np.array_equal(kept[name], refitted[name]) for name in kept)
    assert after.calibration == before.calibration
    assert after.normalisation == before.normalisation
    assert after.provenance["refit"] == {"epochs": [result["best_epoch"]]} == {"epochs": result["refit"]["epochs"]}
    epochs = Run(run.folder / "refit").metrics.read_text().splitlines()
    assert len(epochs) == result["best_epoch"]
    assert "before the refit" in run.headline()
    assert "before the refit" in run.report.read_text()


def test_cross_fitting_learns_from_all_fields_and_judges_each_once(small_store: Path, tmp_path: Path) -> None:
    run, result = train(small(small_store, cross_fit=3), options(tmp_path / "crossed"))
    counts = result["split"]["counts"]
    fields = sum(counts["train"]) + sum(counts["validation"])
    assert result["cross_fit"]["fields"] == fields  # each is in one fold
    assert result["cross_fit"]["folds"] == 3
    assert result["calibration"]["temperature"] > 0
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    own = [json.loads(line) for fold in (1, 2, 3) for line in run.fold(fold).metrics.read_text().splitlines()]
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[2]["loss"] == pytest.approx(np.mean([row["loss"] for row in own if row["epoch"] == 3]))
    assert "3 models with the same settings" in run.report.read_text()
    # The model is that of a training on all fields: of a refit that got to the last epoch, with its normalisation.
    _, weights, _ = read_model(run.model)
    _, held_out, _ = read_model(run.fold(1).model)
    assert any(not np.array_equal(weights[name], held_out[name]) for name in weights)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"cross_fit": 1}, "one fold cannot be left out"),
        ({"cross_fit": 2, "refit": True}, "--refit cannot be combined"),
        ({"cross_fit": 2, "split.by": "pixel", "target": "pixel"}, "split.by=pixel cannot be combined"),
    ],
)
def test_what_cannot_be_cross_fitted_says_so(
    changes: dict[str, object], said: str, small_store: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=said):
        train(small(small_store, **changes), options(tmp_path / "runs"))
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def side_by_side(started: list[int], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """From now on small models are trained by two processes; the ids of those that were started."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr(run_trainer, "MANY_STEPS", 1)
    return started


def test_folds_side_by_side_are_those_one_after_the_other(
    small_store: Path, tmp_path: Path, side_by_side: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(small_store, cross_fit=3, ensemble=2)
    together, _ = train(config, options(tmp_path / "side-by-side"))
    assert len(side_by_side) == 2
    monkeypatch.setattr(run_trainer, "MANY_STEPS", math.inf)
    one_by_one, _ = train(config, options(tmp_path / "one-by-one"))
    assert len(side_by_side) == 2
    for name in ("model.safetensors", "out-of-fold.safetensors", "fold-2/model.safetensors"):
        assert (together.folder / name).read_bytes() == (one_by_one.folder / name).read_bytes()
    epochs = [[without_seconds(row) for row in rows_of(run)] for run in (together, one_by_one)]
    assert epochs[0] == epochs[1]


def rows_of(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def without_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def test_folds_that_a_kill_left_are_taken_up_again(
    small_store: Path, tmp_path: Path, side_by_side: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(small_store, cross_fit=4)
    with monkeypatch.context() as alone:
        alone.setattr(run_trainer, "MANY_STEPS", math.inf)
        whole, _ = train(config, options(tmp_path / "whole"))
        with watched_steps(cut_before(5)), pytest.raises(Cut):  # in the middle of the first fold
            train(config, options(tmp_path / "cut"))
    run, _ = train(config, options(tmp_path / "cut"))
    assert len(side_by_side) == 2
    assert run.model.read_bytes() == whole.model.read_bytes()


def test_a_killed_process_leaves_the_rest_to_this_one(
    small_store: Path,
    tmp_path: Path,
    side_by_side: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = small(small_store, cross_fit=3)

    def kill_one(items: Iterable[Any], *_: object) -> Iterator[Any]:
        for item in items:
            leftover = tmp_path / "runs" / "star-2x6-001" / "fold-1" / ".model.safetensors.elsewhere.1.ab.partial"
            leftover.parent.mkdir(exist_ok=True)
            leftover.touch()
            os.kill(side_by_side[0], signal.SIGKILL)
            yield item

    monkeypatch.setattr(run_trainer, "track", kill_one)
    with caplog.at_level("INFO", logger="cropstar"):
        run, _ = train(config, options(tmp_path / "runs"))
    assert "a worker was killed: the models are trained one after the other" in caplog.messages
    assert run.finished
    assert not list(run.folder.rglob("*.partial"))


def test_tiles_ingested_meanwhile_are_not_trained_on(
    small_store: Path, tmp_path: Path, side_by_side: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes see the tiles that the run began with: their folds would be others."""
    store = tmp_path / "store"
    shutil.copytree(small_store, store)
    config = small(store, cross_fit=3)
    with monkeypatch.context() as alone:
        alone.setattr(run_trainer, "MANY_STEPS", math.inf)
        whole, _ = train(config, options(tmp_path / "whole"))
    share = LocalPool.share

    def drop_a_tile(pool: LocalPool, content: object) -> None:
        manifest = Store.open(store).manifest
        write_manifest(store, replace(manifest, tiles=manifest.tiles[1:]))
        share(pool, content)

    monkeypatch.setattr(LocalPool, "share", drop_a_tile)
    run, _ = train(config, options(tmp_path / "meanwhile"))
    assert len(side_by_side) == 2
    assert run.model.read_bytes() == whole.model.read_bytes()


def test_a_script_without_a_main_guard_may_train(small_store: Path, tmp_path: Path) -> None:
    """Python's own pools import the script again in every process."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "print('once')\n"
        "from cropstar.training import run_trainer\n"
        "from tests.training.test_ensembles import small, options, train\n"
        "run_trainer.MANY_STEPS = 1\n"
        f"train(small({str(small_store)!r}, cross_fit=3), options(Path({str(tmp_path / 'runs')!r})))\n"
        "print('done')\n"
    )
    root = Path(__file__).parents[2]
    answer = run_process(sys.executable, script, env={"OMP_NUM_THREADS": "2", "PYTHONPATH": str(root)})
    assert answer.stdout.split() == ["once", "done"], answer.stderr


def test_a_refit_learns_from_validation_and_not_from_the_test(small_store: Path) -> None:
    from cropstar.datasets.splits import split_parcels
    from cropstar.store.store import Store

    store = Store.open(small_store)
    try:
        for by in ("parcel", "pixel"):
            config = small(small_store, target="pixel", **{"split.by": by})
            split = split_parcels(store, config.split, config.seed)
            merged = split.with_validation()
            for entry, reader in store.readers():
                masks = [split.tile_mask(entry.name, reader, part) for part in ("train", "validation", "test")]
                assert np.array_equal(masks[0] | masks[1], merged.tile_mask(entry.name, reader, "train"))
                assert not merged.tile_mask(entry.name, reader, "validation").any()
                assert np.array_equal(masks[2], merged.tile_mask(entry.name, reader, "test"))
    finally:
        store.close()


def test_what_cannot_be_refitted_says_so(small_store: Path, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    config = TrainConfig.model_validate({"store": small_store, "model": {"name": "rf"}, "refit": True})
    with pytest.raises(UsageError, match="'rf' does not use --refit"):
        train(config, options(tmp_path))
    with pytest.raises(UsageError, match="--refit needs validation parcels"):
        train(small(small_store, refit=True, **{"split.validation": 0.001}), options(tmp_path))
    assert not list(tmp_path.iterdir())
