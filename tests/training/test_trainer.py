"""The loop: which epoch is kept, and batches that are read ahead."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from cropstar.config import AugmentationConfig, resolve_config
from cropstar.datasets.batches import Batch
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.datasets.transforms import Draw
from cropstar.errors import ArtifactError
from cropstar.models.zoo import restore_model
from cropstar.sources.ingest import ingest
from cropstar.sources.table import open_table
from cropstar.store.model_file import read_model, read_tensors, write_tensors
from cropstar.store.store import Store
from cropstar.training.accuracy import evaluate
from cropstar.training.distributed import ALONE, Processes
from cropstar.training.runs import Run
from cropstar.training.train import TrainOptions, train
from cropstar.training.trainer import read_batch, read_epoch
from tests.training.stepping import Cut, watched_steps

# --- which epoch is the best: by macro-F1 and, where several reach the same, by the loss on validation


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


def test_small_steps_take_one_thread_and_leave_the_others_as_they_were(easy: Path, tmp_path: Path) -> None:
    usual, seen = torch.get_num_threads(), []

    def look(*_: Any) -> None:
        seen.append(torch.get_num_threads())
        raise Cut

    torch.set_num_threads(2)
    try:
        with watched_steps(look), pytest.raises(Cut):
            run_of(easy, tmp_path)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(usual)


def test_a_run_killed_among_equal_epochs_ends_as_the_unbroken_one(easy: Path, tmp_path: Path) -> None:
    whole, expected = run_of(easy, tmp_path / "whole")

    def cut(_: Any, progress: Any, __: int) -> None:
        if progress.epoch == 4 and progress.batch == 2:
            assert progress.best_score == 1.0
            raise Cut

    with watched_steps(cut), pytest.raises(Cut):
        run_of(easy, tmp_path / "killed")
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
    config = resolve_config(run.config, {})
    store = Store.open(easy)
    parts, _ = open_parts(store, split_parcels(store, config.split, config.seed), config, spatial=False)
    model = restore_model(card.model, card.shape, weights, run.model)
    with torch.no_grad():
        for own in model.parameters():
            own.fill_(torch.nan)
    assert evaluate(model, parts["validation"], 2, CPU).loss is None
    store.close()


# --- batches read ahead in a thread: the same ones in the same order, errors in their turn, nobody left reading


class Samples:
    """Ten samples of one number; sample 7 cannot be read."""

    batch_size = 3

    def __init__(self) -> None:
        self.read: list[tuple[list[int], list[int], bool]] = []

    def __len__(self) -> int:
        return 10

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        aside = threading.current_thread() is not threading.main_thread()
        self.read.append((indexes, list(draw.places), aside))
        if 7 in indexes:
            raise ArtifactError("a tile cannot be read")
        values = torch.tensor(indexes)
        return Batch(values, values, values, values, values)


def a_task(samples: Samples, processes: Processes = ALONE) -> Any:
    return SimpleNamespace(
        training=samples,
        batches=4,
        processes=processes,
        config=SimpleNamespace(seed=5, augmentation=AugmentationConfig()),
    )


def test_the_order_is_kept_and_the_next_is_read_ahead() -> None:
    samples = Samples()
    order = [9, 8, 0, 1, 2, 3, 4, 5, 6, 7]
    batches = read_epoch(a_task(samples), order, epoch=0, first=1)
    found = [next(batches), next(batches)]
    assert [batch.x.tolist() for batch in found if batch is not None] == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ArtifactError, match="cannot be read"):
        next(batches)
    assert samples.read == [([1, 2, 3], [3, 4, 5], True), ([4, 5, 6], [6, 7, 8], True), ([7], [9], True)]


def test_closing_waits_for_the_thread() -> None:
    batches = read_epoch(a_task(Samples()), list(range(10)), epoch=0, first=0)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "reader"]


def test_shares_draw_what_the_whole_batch_draws() -> None:
    """A sample's place in the epoch's order decides its random changes, whichever process reads it."""
    order = [9, 8, 6, 5, 4, 3, 2, 1, 0, 0]
    whole, shares = Samples(), Samples()
    read_batch(a_task(whole), order, 0, 0)
    for rank in range(2):
        read_batch(a_task(shares, Processes(rank, 2)), order, 0, 0)
    ((indexes, places, _),) = whole.read
    assert [index for part in shares.read for index in part[0]] == indexes
    assert [place for part in shares.read for place in part[1]] == places
    assert read_batch(a_task(shares, Processes(0, 2)), order, 0, 3) is None  # one sample left, for the second process
