"""Which epoch is the best: by macro-F1 and, where several reach the same, by the loss on validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from cropstar.config import resolve_config
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.models.zoo import restore_model
from cropstar.sources.ingest import ingest
from cropstar.sources.table import open_table
from cropstar.store.model_file import read_model, read_tensors, write_tensors
from cropstar.store.store import Store
from cropstar.training import trainer as loop
from cropstar.training.evaluation import evaluate
from cropstar.training.runs import Run
from cropstar.training.train import TrainOptions, train
from cropstar.training.trainer import StepOutcome

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def easy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty fields of two crops that anyone can tell apart."""
    folder = tmp_path_factory.mktemp("easy")
    rows = [
        (f"f{field}", f"2021-0{month}-01", ["maize", "wheat"][field % 2], 1000 + 3000 * (field % 2) + 7 * field)
        for field in range(60)
        for month in range(4, 8)
    ]
    pd.DataFrame(rows, columns=["field_id", "date", "crop", "B4"]).to_csv(folder / "easy.csv", index=False)
    ingest(open_table(folder / "easy.csv"), folder / "store")
    return folder / "store"


def run_of(store: Path, folder: Path, **changes: Any) -> tuple[Run, dict[str, Any]]:
    small = {"model.name": "star", "model.layers": 1, "model.hidden": 8, "series_batch": 8, "epochs": 6}
    fast = {"optimiser.learning_rate": 0.02, "optimiser.schedule": "constant", "seed": 1}
    return train(
        resolve_config(None, {"store": store, **small, **fast, **changes}),
        TrainOptions(folder, CPU, checkpoint_seconds=0.0),
    )


def test_the_loss_decides_where_validation_is_solved(
    easy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="cropstar"):
        run, result = run_of(easy, tmp_path)
    rows = [json.loads(line)["validation"] for line in run.metrics.read_text().splitlines()]
    assert [row["macro_f1"] for row in rows[-3:]] == [1.0] * 3
    solved = [epoch for epoch, row in enumerate(rows, start=1) if row["macro_f1"] == 1.0]
    best = min(solved, key=lambda epoch: rows[epoch - 1]["loss"])
    assert result["best_epoch"] == best > solved[0]
    assert f"macro-F1 1.000, loss {rows[-1]['loss']:.3f}" in caplog.text
    # The model that was kept is the one of that epoch, and its loss the plain cross-entropy.
    config = resolve_config(run.config, {})
    store = Store.open(easy)
    split = split_parcels(store, config.split, config.seed)
    parts, _ = open_parts(store, split, config, spatial=False)
    card, weights, _ = read_model(run.model)
    model = restore_model(card.model, card.shape, weights, run.model).eval()
    batch = parts["validation"].batch(list(range(len(parts["validation"]))))
    with torch.no_grad():
        scores = model(batch.x, batch.valid, batch.days).double()
    expected = float(torch.nn.functional.cross_entropy(scores, batch.labels))
    assert rows[best - 1]["loss"] == pytest.approx(expected, rel=1e-5)
    assert evaluate(model, parts["validation"], 2, CPU).loss == pytest.approx(expected, rel=1e-5)
    store.close()


def test_patience_waits_for_the_loss_too(easy: Path, tmp_path: Path) -> None:
    run, result = run_of(easy, tmp_path, patience=2)
    solved = [row["validation"]["macro_f1"] for row in result["history"]].index(1.0) + 1
    assert solved + 2 < 6 == len(result["history"])  # the score alone would have ended it
    assert run.model.exists()


def test_a_run_killed_among_equal_epochs_ends_as_the_unbroken_one(
    easy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, expected = run_of(easy, tmp_path / "whole")
    step = loop.train_step

    def dying(task: Any, tools: Any, stop: bool, batch: Any, progress: Any, total: int) -> StepOutcome:
        if progress.epoch == 4 and progress.batch == 2:
            assert progress.best_score == 1.0
            raise KeyboardInterrupt
        return step(task, tools, stop, batch, progress, total)

    monkeypatch.setattr(loop, "train_step", dying)
    with pytest.raises(KeyboardInterrupt):
        run_of(easy, tmp_path / "killed")
    monkeypatch.undo()
    killed, result = run_of(easy, tmp_path / "killed")
    assert killed.model.read_bytes() == whole.model.read_bytes()
    assert result["best_epoch"] == expected["best_epoch"]
    headers = [read_tensors(run.checkpoints()[0], "checkpoint")[0]["progress"] for run in (whole, killed)]
    assert (
        headers[0]["best_loss"]
        == headers[1]["best_loss"]
        == min(row["validation"]["loss"] for row in expected["history"] if row["validation"]["macro_f1"] == 1.0)
    )


def test_a_checkpoint_of_an_older_version_goes_on(easy: Path, tmp_path: Path) -> None:
    """It knows no loss: the score alone decides, as it did, until a better one comes."""
    run, _ = run_of(easy, tmp_path)
    run.result.unlink()
    newest, before = run.checkpoints()
    newest.unlink()
    header, tensors = read_tensors(before, "checkpoint")
    assert header["progress"]["epoch"] == 5
    assert header["progress"].pop("best_loss") > 0
    write_tensors(before, "checkpoint", header, tensors)
    again, result = run_of(easy, tmp_path)
    assert again.folder == run.folder
    assert len(result["history"]) == 6
    assert result["best_epoch"] == header["progress"]["best_epoch"]


def test_a_loss_that_is_not_finite_is_not_written_down(easy: Path, tmp_path: Path) -> None:
    run, _ = run_of(easy, tmp_path, epochs=1)
    card, weights, _ = read_model(run.model)
    broken = {name: np.full_like(array, np.nan) for name, array in weights.items()}
    config = resolve_config(run.config, {})
    store = Store.open(easy)
    parts, _ = open_parts(store, split_parcels(store, config.split, config.seed), config, spatial=False)
    model = restore_model(card.model, card.shape, broken, run.model)
    assert evaluate(model, parts["validation"], 2, CPU).loss is None
    store.close()
