"""The running mean of the weights against its definition, and through a killed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.store.model_file import read_tensors
from cropstar.training import trainer as loop
from cropstar.training.optimisation import WeightAverage
from cropstar.training.train import train
from cropstar.training.trainer import StepOutcome
from tests.training.test_train import options, tiny


def test_the_mean_is_what_it_says() -> None:
    """Statistics of batches are averaged as the weights are; a short past is not mixed with the beginning."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), MaskedBatchNorm(2))
    average = WeightAverage(model, keep=0.5)
    expected = {name: tensor.clone().double() for name, tensor in model.state_dict().items()}
    for step in range(1, 20):
        with torch.no_grad():
            for tensor in model.state_dict().values():
                tensor.normal_()
        average.update(step)
        keep = min(0.5, (1 + step) / (10 + step))
        expected = {
            name: keep * mean + (1 - keep) * model.state_dict()[name].double() for name, mean in expected.items()
        }
    trained = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with average.applied():
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-5, atol=1e-6)
    assert all(torch.equal(tensor, trained[name]) for name, tensor in model.state_dict().items())


def test_the_weights_come_back_when_judging_fails() -> None:
    model = torch.nn.Linear(2, 2)
    average = WeightAverage(model, keep=0.9)
    with torch.no_grad():
        model.weight.add_(1)
    trained = model.weight.detach().clone()
    with pytest.raises(RuntimeError), average.applied():
        raise RuntimeError
    assert torch.equal(model.weight, trained)


@pytest.mark.parametrize("decoupled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_killed_run_goes_on_with_its_mean(
    decoupled: bool, small_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"optimiser.decoupled": decoupled, "optimiser.weight_decay": 0.01}
    config = tiny(small_store, epochs=2, **{"optimiser.average": 0.9}, **changes)
    whole, _ = train(config, options(tmp_path / "whole"))
    plain, _ = train(tiny(small_store, epochs=2, **changes), options(tmp_path / "plain"))
    step = loop.train_step

    def dying(task: Any, tools: Any, stop: bool, batch: Any, progress: Any, total: int) -> StepOutcome:
        if progress.step == 4:
            raise KeyboardInterrupt
        return step(task, tools, stop, batch, progress, total)

    monkeypatch.setattr(loop, "train_step", dying)
    with pytest.raises(KeyboardInterrupt):
        train(config, options(tmp_path / "killed", checkpoint_seconds=0.0))
    monkeypatch.undo()
    killed, _ = train(config, options(tmp_path / "killed"))
    assert killed.model.read_bytes() == whole.model.read_bytes()
    _, last = read_tensors(whole.checkpoints()[0], "checkpoint")
    _, same = read_tensors(plain.checkpoints()[0], "checkpoint")
    name = next(name for name in same if name.startswith("model.head"))
    assert np.array_equal(last[name], same[name]), "the mean is beside the training, not in it"
    assert not np.array_equal(last[name], last[name.replace("model.", "average.", 1)])


def test_decoupled_decay_leaves_biases_alone(small_store: Path, tmp_path: Path) -> None:
    """With a huge decay the matrices vanish; what has one axis is trained as without."""
    changes: dict[str, Any] = {"optimiser.weight_decay": 900.0, "optimiser.learning_rate": 1e-3, "epochs": 1}
    run, _ = train(tiny(small_store, **changes, **{"optimiser.decoupled": True}), options(tmp_path))
    _, tensors = read_tensors(run.checkpoints()[0], "checkpoint")
    weights = {name: array for name, array in tensors.items() if name.startswith("model.")}
    assert max(float(np.abs(array).max()) for array in weights.values() if array.ndim > 1) < 0.1
    assert max(float(np.abs(array).max()) for array in weights.values() if array.ndim == 1) > 0.3
