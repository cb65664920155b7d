"""Training that cannot go well: one line with the reason and the remedy, the exit code, the last good state kept."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import geopandas
import pytest

from cropstar.config import resolve_config
from cropstar.store.model_file import read_tensors
from cropstar.store.store import Store
from cropstar.training.runs import Run
from tests.cli.test_bad_input import Cli, assert_refused
from tests.examples import a_raster_tile, store_of

SMALL = ["--layers", "1", "--hidden", "4", "--set", "split.validation=0.3", "--set", "split.test=0.3"]


class Malicious:
    """Unpickled, it makes a file."""

    def __init__(self, trap: Path) -> None:
        self.trap = trap

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.trap),)


@pytest.fixture
def stopped(run_cli: Cli, small_store: Path, tmp_path: Path) -> Run:
    """A run of three epochs that ended before its report, with two checkpoints."""
    often = ("--checkpoint-seconds", "0")  # else epochs of less than two seconds share a checkpoint
    answer = run_cli("train", "--store", small_store, *SMALL, "--epochs", "3", *often, "--runs", "runs", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    (folder / "result.json").unlink()
    return Run(folder)


def test_a_split_that_leaves_nothing(run_cli: Cli, small_store: Path, tmp_path: Path) -> None:
    command = ["train", "--store", small_store, "--set", "split.by=scene", "--set", "split.test=[nowhere]"]
    assert_refused(run_cli(*command, cwd=tmp_path), 2, "nowhere")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("setting", ["compile=true", "precision=float16"])
def test_kernels_that_would_not_be_used_are_refused(
    setting: str, run_cli: Cli, small_store: Path, tmp_path: Path
) -> None:
    command = ["train", "--store", small_store, *SMALL, "--device", "cpu", "--backend", "native", "--set", setting]
    assert_refused(run_cli(*command, cwd=tmp_path), 2, "--backend native cannot train this")
    assert not (tmp_path / "data").exists()


def test_a_class_that_training_lacks_is_a_warning(run_cli: Cli, tmp_path: Path) -> None:
    tiles = {"a": a_raster_tile(scene="east"), "b": a_raster_tile(scene="west", seed=1)}
    only = a_raster_tile(scene="north", seed=2)
    only.labels[only.labels == 1] = 0  # maize alone
    only.table.labels[:] = 0
    store_of(tmp_path / "store", {**tiles, "c": only})
    named = ["--set", "split.by=scene", "--set", "split.train=[north]", "--set", "split.validation=[east]"]
    command = ["train", "--store", "store", *SMALL[:4], "--epochs", "1", *named, "--set", "split.test=[west]"]
    answer = run_cli(*command, "--set", "loss.balance=1", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "warning: no training parcel of 'wheat': the model cannot learn this class" in answer.stderr


def test_resumed_on_another_store(run_cli: Cli, stopped: Run, small_scene: Path, tmp_path: Path) -> None:
    """The folder that the run was trained on now holds other classes."""
    store = tmp_path / "other"
    crops = geopandas.read_file(small_scene / "parcels.gpkg")
    crops["crop"] = crops["crop"].where(crops["crop"] != crops["crop"].iloc[0], "triticale")
    crops.to_file(tmp_path / "parcels.gpkg")
    made = run_cli("ingest", small_scene / "tile.tif", "--parcels", "parcels.gpkg", "-o", store, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    old = resolve_config(stopped.config, {}).store
    stopped.config.write_text(stopped.config.read_text().replace(str(old), str(store)))
    before = [path.read_bytes() for path in stopped.checkpoints()]
    assert_refused(run_cli("train", "--resume", stopped.folder, cwd=tmp_path), 5, stopped.name, "other data")
    assert [path.read_bytes() for path in stopped.checkpoints()] == before
    Store.open(store).close()


@pytest.mark.slow
def test_checkpoints_that_are_damaged(run_cli: Cli, stopped: Run, tmp_path: Path) -> None:
    newest, previous = stopped.checkpoints()
    trap = tmp_path / "trap"
    newest.write_bytes(pickle.dumps(Malicious(trap)))
    answer = run_cli("train", "--resume", stopped.folder, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert f"{newest}: it is not a safetensors file" in answer.stderr
    assert "using the one before" in answer.stderr
    assert "resuming from epoch 3, batch " in answer.stderr
    assert not trap.exists()

    stopped.result.unlink()
    for path in stopped.checkpoints():
        path.write_bytes(b"rubbish")
    answer = run_cli("train", "--resume", stopped.folder, cwd=tmp_path)
    assert_refused(answer, 4, stopped.name, "no checkpoint can be read", "--fresh")
    assert previous.read_bytes() == b"rubbish"


def test_a_pickle_is_no_model(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    trap, model = tmp_path / "trap", tmp_path / "model.safetensors"
    model.write_bytes(pickle.dumps(Malicious(trap)))
    answer = run_cli("predict", small_scene / "tile.tif", "--model", model, "-o", "map.tif", cwd=tmp_path)
    assert_refused(answer, 4, "model.safetensors", "not a safetensors file")
    assert not trap.exists()
    pickle.loads(model.read_bytes())  # what it would have done
    assert trap.exists()


def test_unknown_keys(run_cli: Cli, small_store: Path, tmp_path: Path) -> None:
    command = ["train", "--store", small_store, "--set"]
    assert_refused(run_cli(*command, "optimiser.microbatch=4", cwd=tmp_path), 2, "optimiser.micro_batch")
    assert_refused(run_cli(*command, "precision=float8", cwd=tmp_path), 2, "'precision'", "bfloat16")
    assert_refused(run_cli(*command, "precision=float16", "--device", "cpu", cwd=tmp_path), 2, "float16 needs CUDA")
    assert not (tmp_path / "data").exists()


def test_a_loss_that_is_no_number(run_cli: Cli, small_store: Path, tmp_path: Path) -> None:
    """Steps so long that scores overflow: the batch is named, and the checkpoint before it is whole."""
    command = ["train", "--store", small_store, *SMALL, "--epochs", "50", "--checkpoint-seconds", "0"]
    wild = ["--learning-rate", "1e30", "--set", "optimiser.warmup=0", "--set", "optimiser.schedule=constant"]
    answer = run_cli(*command, *wild, cwd=tmp_path)
    assert_refused(answer, 1, "the loss became", "in epoch 1, batch ", "the last good checkpoint is kept")
    (folder,) = (tmp_path / "data" / "runs").iterdir()
    batch = int(answer.stderr.splitlines()[-1].partition("batch ")[2].partition(";")[0])
    header, _ = read_tensors(Run(folder).checkpoints()[0], "checkpoint")
    assert header["progress"]["step"] == batch - 1
    shutil.rmtree(folder)
