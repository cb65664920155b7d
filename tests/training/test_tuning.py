"""Tuning on a small real store: what it finds, what it never sees, and how it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cropstar.config import resolve_config
from cropstar.errors import ArtifactError, CropstarError, MismatchError, ResourceError, UsageError
from cropstar.training.search_space import Categorical, Range
from cropstar.training.train import TrainOptions, train
from cropstar.training.trainer import fit
from cropstar.training.tuning import Journal, Trainer, TuneOptions, tune
from tests.training.tunings import CPU, SPACE, a_config, a_store, table, tuned

pytest.importorskip("optuna", reason="optuna is not installed")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return a_store(tmp_path_factory.mktemp("tuning"))


@pytest.fixture(scope="module")
def unbroken(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve trials in one go: some are pruned, and the last two are drawn by what the ten before them gave."""
    folder = tuned(store, tmp_path_factory.mktemp("runs") / "tune").folder
    rows = table(folder)
    assert {row["state"] for row in rows} == {"complete", "pruned"}  # else what is compared with it says little
    assert len({row["macro_f1"] for row in rows}) >= 6
    return folder


def test_the_best_configuration_trains_to_the_very_score(store: Path, unbroken: Path, tmp_path: Path) -> None:
    rows = table(unbroken)
    assert [row["trial"] for row in rows] == [str(number) for number in range(1, 13)]
    scores = {row["trial"]: float(row["macro_f1"]) for row in rows if row["state"] == "complete"}
    best = resolve_config(unbroken / "best.yaml", {})
    winner = rows[int(max(scores, key=lambda trial: scores[trial])) - 1]
    assert best.optimiser.learning_rate == float(winner["optimiser.learning_rate"])
    assert best.model.layers == int(winner["model.layers"])
    _, result = train(best, TrainOptions(tmp_path, CPU))
    reached = [line["validation"]["macro_f1"] for line in result["history"]]
    assert max(reached) == max(scores.values())
    assert str(result["best_epoch"]) == winner["best_epochs"]
    assert not list(unbroken.rglob("*.safetensors"))  # neither models nor checkpoints are left


def test_the_first_trial_is_the_configuration_itself(store: Path, unbroken: Path) -> None:
    config = a_config(store)
    first = table(unbroken)[0]
    assert float(first["optimiser.learning_rate"]) == config.optimiser.learning_rate
    assert int(first["model.layers"]) == config.model.layers


def test_no_trial_looks_at_the_test_part(unbroken: Path, tmp_path: Path) -> None:
    """Test series of another world change nothing: neither scores nor what is tried next."""
    other = a_store(tmp_path, noise_in_test=1e6)
    assert table(tuned(other, tmp_path / "tune").folder) == table(unbroken)


def test_no_part_of_a_trial_holds_test_parcels(store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[Any] = []

    def look(task: Any, save: Any) -> Any:
        seen.append(task)
        return fit(task, save)

    monkeypatch.setattr("cropstar.training.tuning.fit", look)
    tuned(store, tmp_path / "tune", trials=1)
    (task,) = seen
    assert len(task.training) + len(task.validation) == 90


class Power(BaseException):
    """A power cut, as far as a test in one process can have one."""


@pytest.mark.parametrize("cut", [23, 35])
def test_cut_off_at_any_epoch_it_comes_to_the_same_trials(
    store: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    """Where the sixth trial is found to be worse than the median, and amid the last."""
    calls = 0
    original = Journal.report

    def report(self: Journal, trial: Any, step: int, score: float) -> bool:
        nonlocal calls
        calls += 1
        decided = original(self, trial, step, score)
        if calls == cut:
            raise Power
        return decided

    monkeypatch.setattr(Journal, "report", report)
    folder = tmp_path / "tune"
    with pytest.raises(Power):
        tuned(store, folder)
    monkeypatch.undo()
    with (folder / "study.journal").open("ab") as handle:
        handle.write(b'{"op_code":5,"worker')  # half a line
    assert table(tuned(store, folder).folder) == table(unbroken)


def test_more_trials_are_added_to_those_that_are_there(store: Path, unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tune"
    tuned(store, folder, trials=3)
    assert len(table(folder)) == 3
    before = (folder / "study.journal").read_bytes()
    tuned(store, folder, trials=3)
    assert (folder / "study.journal").read_bytes() == before
    assert table(tuned(store, folder, trials=4).folder) == table(unbroken)[:4]


def test_another_seed_is_another_search(store: Path, unbroken: Path, tmp_path: Path) -> None:
    tuned(store, tmp_path / "tune", trials=2, seed=1)
    assert table(tmp_path / "tune")[1]["optimiser.learning_rate"] != table(unbroken)[1]["optimiser.learning_rate"]


def test_a_trial_that_fails_is_no_end(store: Path, tmp_path: Path) -> None:
    space = {"optimiser.learning_rate": Categorical((0.01, 3e37)), "model.heads": Categorical((None, 3))}
    found = tuned(store, tmp_path / "tune", space, trials=10, **{"optimiser.learning_rate": 0.01, "epochs": 2})
    rows = table(found.folder)
    failed = [row for row in rows if row["state"] == "failed"]
    reasons = " ".join(row["why"] for row in failed)
    assert len(rows) == 10
    assert "the loss became" in reasons
    assert "does not use model.heads" in reasons
    assert all(row["macro_f1"] == "" or float(row["macro_f1"]) <= 1 for row in failed)
    assert found.values == {"optimiser.learning_rate": 0.01, "model.heads": None}


def test_nothing_but_failures_is_an_error(store: Path, tmp_path: Path) -> None:
    with pytest.raises(CropstarError, match=r"no trial was completed.*the loss became"):
        tuned(store, tmp_path / "tune", {"optimiser.learning_rate": Categorical((3e37,))}, trials=2)
    assert not (tmp_path / "tune" / "best.yaml").exists()


def test_a_full_disk_ends_the_tuning_and_not_the_trial(
    store: Path, unbroken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> Any:
        raise ResourceError("cannot write", why="No space left on device")

    monkeypatch.setattr(Trainer, "fit", full)
    with pytest.raises(ResourceError):
        tuned(store, tmp_path / "tune")
    monkeypatch.undo()
    assert table(tuned(store, tmp_path / "tune", trials=2).folder) == table(unbroken)[:2]


def test_what_does_not_fit_the_folder(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "tune"
    tuned(store, folder, trials=1)
    with pytest.raises(MismatchError, match="started with another space"):
        tuned(store, folder, {"model.layers": Categorical((1, 2))})
    with pytest.raises(MismatchError, match="started with another config"):
        tuned(store, folder, epochs=5)
    with pytest.raises(MismatchError, match="started with another folds"):
        tuned(store, folder, folds=2)
    (folder / "study.journal").write_text('{"op_code": "nonsense"}\n')
    with pytest.raises(ArtifactError, match="the journal cannot be read"):
        tuned(store, folder)
    (folder / "tune.json").write_text("{")
    with pytest.raises(ArtifactError, match="not the settings of a tuning"):
        tuned(store, folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "photo.jpg").touch()
    with pytest.raises(UsageError, match="it holds other files"):
        tuned(store, tmp_path / "other")


def test_folders_by_number(store: Path, tmp_path: Path) -> None:
    options = TuneOptions(tmp_path, CPU, trials=1)
    assert tune(a_config(store), SPACE, options).folder.name == "tune-001"
    assert tune(a_config(store), SPACE, options).folder.name == "tune-001"  # goes on with its own
    assert tune(a_config(store, seed=2), SPACE, options).folder.name == "tune-002"
    settings = json.loads((tmp_path / "tune-002" / "tune.json").read_text())
    assert "seed: 2" in settings["config"]


def test_the_mean_over_folds(store: Path, tmp_path: Path) -> None:
    found = tuned(store, tmp_path / "tune", {"optimiser.learning_rate": Range(0.01, 0.1)}, trials=1, folds=3)
    reached = []
    for fold in (1, 2, 3):
        lines = (tmp_path / "tune" / "trials" / "001" / f"fold-{fold}" / "metrics.jsonl").read_text().splitlines()
        reached.append(max(json.loads(line)["validation"]["macro_f1"] for line in lines))
    assert len(reached) == len(set(reached))
    assert found.score == pytest.approx(sum(reached) / 3)
    assert table(found.folder)[0]["epochs"] == "12"


def test_a_forest_cannot_be_tuned(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'rf' cannot be tuned"):
        tune(a_config(store, **{"model.name": "rf"}), SPACE, TuneOptions(tmp_path, CPU, tmp_path / "tune"))
    assert not (tmp_path / "tune").exists()
