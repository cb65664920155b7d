"""TensorBoard's event files: the curves of a run, each step once, also where it was stopped and went on."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from cropstar.errors import UsageError
from cropstar.training.train import train
from tests.training.stepping import Cut, cut_before, watched_steps
from tests.training.test_train import options, tiny


def curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    return {name: [(each.step, each.value) for each in reader.Scalars(name)] for name in reader.Tags()["scalars"]}


@pytest.mark.slow
def test_a_stopped_run_has_the_curves_of_a_whole_one(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="the extra 'tensorboard' is not installed")
    config = tiny(small_store, batch=4, epochs=2, **{"model.layers": 1, "model.hidden": 4})
    whole, result = train(config, options(tmp_path / "whole", tensorboard=True))
    expected = curves(whole.folder)
    assert {"train/loss", "train/learning_rate", "epoch/loss", "validation/macro_f1"} <= set(expected)
    steps = [step for step, _ in expected["train/loss"]]
    assert steps == list(range(1, len(steps) + 1))
    rows = result["history"]
    assert [value for _, value in expected["epoch/loss"]] == pytest.approx([row["loss"] for row in rows])
    last_step, last_score = expected["validation/macro_f1"][-1]
    assert last_step == len(steps)
    assert last_score == pytest.approx(rows[-1]["validation"]["macro_f1"])

    # The event of the third step is out, the checkpoint is of the one before.
    with watched_steps(after=cut_before(3)), pytest.raises(Cut):
        train(config, options(tmp_path / "killed", tensorboard=True, checkpoint_seconds=0.0))
    killed, _ = train(config, options(tmp_path / "killed", tensorboard=True))
    found = curves(killed.folder)
    assert found["train/loss"] == expected["train/loss"]
    assert killed.model.read_bytes() == whole.model.read_bytes()


def test_without_the_package_nothing_is_begun(
    small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "tensorboard" else find(name, *rest)
    )
    with pytest.raises(UsageError, match=r"pip install 'cropstar\[tensorboard\]'"):
        train(tiny(small_store), options(tmp_path, tensorboard=True))
    assert not list(tmp_path.iterdir())
