"""`--diagnose`: right numbers, the same weights with and without, and a kill in between."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from cropstar.config import ModelConfig
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.reports.figures import draw_diagnosis
from cropstar.training.monitoring import Diagnosis, read_rows
from cropstar.training.train import TrainOptions, train
from tests.training.stepping import Cut, watched_steps
from tests.training.test_train import tiny

CPU = torch.device("cpu")


def diagnosed(folder: Path, **changes: Any) -> TrainOptions:
    return TrainOptions(folder, CPU, diagnose=True, **changes)


def a_pass(model: nn.Module, *, seed: int = 0) -> None:
    torch.manual_seed(seed)
    scores = model(torch.randn(3, 5, 4), torch.ones(3, 5, dtype=torch.bool), torch.arange(5).expand(3, 5))
    scores.square().sum().backward()


@pytest.mark.parametrize(("name", "epochs"), [("convstar", 2), ("tcn", 1)])
@pytest.mark.slow
def test_the_weights_are_the_same_with_and_without(name: str, epochs: int, small_store: Path, tmp_path: Path) -> None:
    config = tiny(small_store, epochs=epochs, **{"model.name": name})
    plain, _ = train(config, TrainOptions(tmp_path / "plain", CPU))
    watched, _ = train(config, diagnosed(tmp_path / "watched"))
    assert watched.model.read_bytes() == plain.model.read_bytes()
    assert watched.metrics.exists()
    assert not list(plain.folder.glob("diagnosis*"))
    rows = read_rows(watched.folder / "diagnosis.jsonl")
    batches = [row["step"] for row in rows]
    assert batches == list(range(1, len(rows) + 1))  # of the first epoch, also where there were two
    assert len(rows) > 1
    assert (watched.folder / "diagnosis.png").read_bytes().startswith(b"\x89PNG")


def test_the_numbers_are_those_of_the_layers(tmp_path: Path) -> None:
    model = build_model(ModelConfig(name="lstm+star", layers=3, hidden=6), Shape(4, 2, 5))
    assert isinstance(model, RecurrentClassifier)
    diagnosis = Diagnosis(model, tmp_path)
    diagnosis.begin(0, 0)
    a_pass(model)
    diagnosis.record(1)
    (row,) = read_rows(diagnosis.file)
    assert row["layers"] == ["layer 1", "layer 2", "layer 3"]
    for depth, cell in enumerate(model.stack.layers()):
        gradients = torch.cat([each.grad.flatten() for each in cell.parameters() if each.grad is not None])
        assert row["gradient_norm"][depth] == pytest.approx(float(gradients.norm()), rel=1e-5)
        weights = nn.utils.parameters_to_vector(cell.parameters())
        assert row["weight_norm"][depth] == pytest.approx(float(weights.detach().norm()), rel=1e-5)
    torch.manual_seed(0)
    outputs, _ = model.stack(
        model.prepare(torch.randn(3, 5, 4), torch.ones(3, 5, dtype=torch.bool), torch.arange(5).expand(3, 5)),
        torch.ones(3, 5, dtype=torch.bool),
        torch.arange(5).expand(3, 5),
    )
    assert row["mean_state"][2] == pytest.approx(float(outputs.detach().abs().mean()), rel=1e-6)


def test_a_finished_diagnosis_lets_go_of_the_model(tmp_path: Path) -> None:
    for name in ("star", "tcn"):
        model = build_model(ModelConfig(name=name, layers=2, hidden=4), Shape(4, 2, 5))
        before = [sorted(part.__dict__) for part in model.modules()]
        diagnosis = Diagnosis(model, tmp_path)
        diagnosis.begin(0, 0)
        a_pass(model)
        diagnosis.record(1)
        diagnosis.end()
        diagnosis.record(2)
        assert len(read_rows(diagnosis.file)) == 1
        assert [sorted(part.__dict__) for part in model.modules()] == before
        assert not any(part._forward_hooks for part in model.modules())


def test_validation_is_not_mixed_in(tmp_path: Path) -> None:
    model = build_model(ModelConfig(name="star", layers=1, hidden=4), Shape(4, 2, 5))
    diagnosis = Diagnosis(model, tmp_path)
    diagnosis.begin(0, 0)
    a_pass(model)
    diagnosis.record(1)
    with torch.no_grad():
        model(torch.randn(1, 5, 4) * 100, torch.ones(1, 5, dtype=torch.bool), torch.arange(5).expand(1, 5))
    diagnosis.record(2)
    first, second = read_rows(diagnosis.file)
    assert first["mean_state"] == second["mean_state"]


def test_a_killed_run_has_every_batch_once(small_store: Path, tmp_path: Path) -> None:
    """Checkpoints after every batch; the process dies in the middle of the one that follows, with half a line out."""
    config = tiny(small_store, batch=4, epochs=1)
    whole, _ = train(config, diagnosed(tmp_path / "whole"))
    expected = read_rows(whole.folder / "diagnosis.jsonl")
    assert len(expected) > 4

    def cut(task: Any, progress: Any, _: int) -> None:
        if progress.step == 4:  # recorded, not yet in a checkpoint
            with task.diagnosis.file.open("a") as lines:
                lines.write('{"step": 5, "lay')
            raise Cut

    with watched_steps(after=cut), pytest.raises(Cut):
        train(config, diagnosed(tmp_path / "killed", checkpoint_seconds=0.0))
    killed, _ = train(config, diagnosed(tmp_path / "killed"))
    assert read_rows(killed.folder / "diagnosis.jsonl") == expected
    assert (killed.folder / "diagnosis.png").read_bytes() == (whole.folder / "diagnosis.png").read_bytes()
    assert killed.model.read_bytes() == whole.model.read_bytes()


def test_after_the_first_epoch_nothing_is_touched(tmp_path: Path) -> None:
    model = build_model(ModelConfig(name="star", layers=1, hidden=4), Shape(4, 2, 5))
    diagnosis = Diagnosis(model, tmp_path)
    diagnosis.file.write_text('{"step": 1}\n')
    diagnosis.begin(1, 40)
    a_pass(model)
    diagnosis.record(41)
    diagnosis.end()
    assert diagnosis.file.read_text() == '{"step": 1}\n'
    assert not diagnosis.figure.exists()


def test_gaps_and_many_layers_can_be_drawn(tmp_path: Path) -> None:
    """Gradients that exploded are no numbers in JSON: a gap, not an error."""
    names = [f"layer {depth}" for depth in range(1, 41)]
    rows = [
        {
            "step": step,
            "layers": names,
            "gradient_norm": [None] * 40,
            "weight_norm": [0.0] * 40,
            "mean_state": [0.0] * 40,
        }
        for step in (1, 2)
    ]
    draw_diagnosis(tmp_path / "flat.png", rows)
    rows[1]["gradient_norm"] = [10.0**-depth for depth in range(40)]
    draw_diagnosis(tmp_path / "steep.png", rows)
    draw_diagnosis(tmp_path / "one.png", rows[1:])
    pictures = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert set(pictures) == {"flat.png", "steep.png", "one.png"}
    assert len(set(pictures.values())) == 3
    model = build_model(ModelConfig(name="star", layers=1, hidden=4), Shape(4, 2, 5))
    diagnosis = Diagnosis(model, tmp_path)
    diagnosis.begin(0, 0)
    a_pass(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, torch.inf)
    diagnosis.record(1)
    assert json.loads(diagnosis.file.read_text())["gradient_norm"] == [None]
