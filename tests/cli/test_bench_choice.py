"""`cropstar bench`: which weights are chosen, and what is looked at for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cropstar.benchmarks import recurrence, running
from cropstar.benchmarks.tasks.base import SequenceObjective
from tests.cli.test_bench import DIGITS, SHORT, TINY, refusal, result_of, write_digits
from tests.training.stepping import watched_steps


@pytest.mark.parametrize("better", [True, False])
def test_what_a_budget_ended_is_chosen_where_it_is_the_best(
    better: bool, tmp_path: Path, an_hour_a_batch: Callable[[], None]
) -> None:
    """After the epoch a small step is taken downhill, or a wild one: validation tells them apart."""

    def worsen(task: Any, _: Any, number: int) -> None:
        if number == 6 and not better:
            with torch.no_grad():
                for parameter in task.model.parameters():
                    parameter.add_(3.0)

    an_hour_a_batch()
    with watched_steps(after=worsen):
        result = result_of(tmp_path, "adding", *TINY, *SHORT, "--learning-rate", "0.01", "--budget", "360")
    (first,) = result["history"]
    chosen, reached = result["chosen"], first["validation"]["mean_squared_error"]
    if better:
        assert (chosen["step"], chosen["weights"]) == (6, running.STOPPED)
        assert chosen["validation"]["mean_squared_error"] < reached
    else:
        assert (chosen["epoch"], chosen["weights"]) == (1, "model.safetensors")
        assert chosen["validation"]["mean_squared_error"] == reached


@pytest.mark.parametrize(("task", "best_of"), [("adding", min), ("copy", min), ("mnist", max)])
def test_the_best_epoch_by_validation_is_taken(
    task: str, best_of: Callable[[list[float]], float], tmp_path: Path
) -> None:
    digits = ["--data", write_digits(tmp_path / "digits", 150), *DIGITS, "--epochs", "5", "--set", "task.validation=80"]
    result = result_of(
        tmp_path / "runs", task, *TINY, *(digits if task == "mnist" else SHORT), "--learning-rate", "0.3"
    )
    reached = [epoch["validation"][result["metric"]["name"]] for epoch in result["history"]]
    assert len(set(reached)) > 1
    assert result["chosen"]["validation"][result["metric"]["name"]] == best_of(reached)
    assert reached[result["chosen"]["epoch"] - 1] == best_of(reached)


def test_less_memory_gives_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = result_of(tmp_path / "plain", "copy", *TINY, *SHORT)
    stretches: list[int] = []
    follow = recurrence.follow_from

    def counted(stack: Any, x: torch.Tensor, *others: Any) -> Any:
        stretches.append(x.shape[1])
        return follow(stack, x, *others)

    monkeypatch.setattr(recurrence, "follow_from", counted)
    saving = result_of(tmp_path / "saving", "copy", *TINY, *SHORT, "--set", "task.checkpoint=5")
    assert saving["value"] == pytest.approx(plain["value"], rel=1e-4)
    assert set(stretches) == {5, 1}  # of 26 steps


def test_the_test_data_are_looked_at_once_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge, judged = SequenceObjective.validate, []

    def noting(self: SequenceObjective, model: Any, dataset: Any, device: Any) -> Any:
        judged.append(dataset.part)
        return judge(self, model, dataset, device)

    monkeypatch.setattr(SequenceObjective, "validate", noting)
    result_of(tmp_path / "looked", "adding", *TINY, *SHORT)
    assert judged == ["validation", "validation", "validation", "test"]
    judged.clear()
    result = result_of(tmp_path, "adding", *TINY, *SHORT, "--no-test")
    assert judged == ["validation", "validation", "validation"]
    assert result["test"] is None
    assert result["value"] is None
    assert result["chosen"]["validation"]
    assert "--no-test" in str(refusal(tmp_path, "breizhcrops", "--no-test"))
