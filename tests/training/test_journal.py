"""The journal by itself: what is proposed, when a trial is worse than the others, and what a kill leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cropstar.training.search_space import Categorical, Range, Space
from cropstar.training.tuning import Journal

optuna = pytest.importorskip("optuna", reason="optuna is not installed")
SPACE: Space = {"optimiser.learning_rate": Range(1e-4, 1e-1, log=True), "model.layers": Categorical((1, 2, 4))}


def opened(folder: Path, seed: int = 0, warmup: int = 2) -> Journal:
    return Journal(folder / "study.journal", optuna, SPACE, seed, warmup)


def run(journal: Journal, count: int) -> list[dict[str, Any]]:
    values = []
    for _ in range(count):
        trial = journal.begin(None)
        values.append(dict(trial.params))
        journal.complete(trial, trial.params["optimiser.learning_rate"] * trial.params["model.layers"])
    return values


def test_proposals_depend_on_the_trials_before_and_not_on_starts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    unbroken = run(opened(tmp_path / "a"), 16)  # the sampler has learnt from the tenth on
    pieces = [entry for _ in range(8) for entry in run(opened(tmp_path / "b"), 2)]
    assert pieces == unbroken
    assert len({entry["optimiser.learning_rate"] for entry in unbroken}) == 16
    later = sum(entry["optimiser.learning_rate"] for entry in unbroken[10:]) / 6
    assert later > sum(entry["optimiser.learning_rate"] for entry in unbroken[:10]) / 10  # larger is better here


def test_a_trial_is_in_the_journal_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    first = opened(tmp_path).begin(None)
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    assert b"learning_rate" in whole[start:]  # one line holds the trial and its values
    for length in range(start, len(whole), 37):
        path.write_bytes(whole[:length])
        journal = opened(tmp_path)
        assert journal.unfinished() is None
        assert journal.begin(None).params == first.params
    path.write_bytes(whole)
    again = opened(tmp_path).unfinished()
    assert again is not None
    assert (again.number, again.params) == (first.number, first.params)


def test_worse_than_the_median_after_the_first_epochs(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for place in range(5):
        trial = journal.begin(None)
        for epoch in (1, 2, 3):
            assert not journal.report(trial, epoch, 0.5 + place / 100)
        journal.complete(trial, 0.5)
    good, bad = (0.9, False), (0.1, True)
    for score, expected in (good, bad):
        trial = journal.begin(None)
        assert not journal.report(trial, 1, score)  # too early to tell
        assert journal.report(trial, 2, score) is expected
        assert opened(tmp_path).report(opened(tmp_path).unfinished(), 2, score) is expected  # said again after a kill
        journal.prune(trial)
    assert [trial.state.name for trial in journal.trials()] == ["COMPLETE"] * 5 + ["PRUNED"] * 2


def test_failed_trials_keep_their_reason_and_do_not_guide(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.fail(journal.begin({"optimiser.learning_rate": 0.1, "model.layers": 4}), "the loss became nan")
    (trial,) = journal.trials()
    assert (trial.state.name, trial.user_attrs["why"]) == ("FAIL", "the loss became nan")
    assert journal.unfinished() is None
    assert optuna.load_study(
        study_name="tune",
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.journal"))
        ),
    ).trials[0].params == {"optimiser.learning_rate": 0.1, "model.layers": 4}
