"""Files of one run in the folder of another: its model may have learnt from what the other is tested on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cropstar
from cropstar.errors import ArtifactError, MismatchError

SMALL: Any = {"model": "star", "layers": 1, "hidden": 4, "epochs": 1, "recipe": "paper", "checkpoint_seconds": 0}


def write_table(path: Path, seed: int) -> Path:
    """Thirty fields of three crops."""
    random, rows = np.random.default_rng(seed), ["field_id,date,crop,B04,B08"]
    for field in range(30):
        for month in range(4, 8):
            red, infrared = random.integers(500, 3000, size=2) + 100 * (field % 3)
            rows.append(f"f{field},2021-0{month}-11,crop {(field + seed) % 3},{red},{infrared}")
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of one store with two seeds, `a` and `b`, and of two stores in folds, `c` and `d`."""
    folder = tmp_path_factory.mktemp("runs")
    stores = [cropstar.ingest(write_table(folder / f"{seed}.csv", seed), output=folder / f"s{seed}") for seed in (0, 1)]
    (folder / "runs").mkdir()
    for name, store, seed, folds in (("a", 0, 0, None), ("b", 0, 1, None), ("c", 0, 0, 2), ("d", 1, 0, 2)):
        made = cropstar.train(store=stores[store].path, seed=seed, folds=folds, runs=folder / name, **SMALL)
        shutil.move(made.folder, folder / "runs" / name)
    return folder / "runs"


@pytest.fixture
def mixed(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "runs"))


def unfinished(run: Path) -> Path:
    (run / "result.json").unlink()
    return run


@pytest.mark.parametrize("name", ["model.safetensors", "result.json"])
def test_a_model_is_not_evaluated_on_what_it_learnt_from(name: str, mixed: Path) -> None:
    assert cropstar.evaluate(mixed / "a").seen_in_training == 0
    shutil.copy(mixed / "b" / name, mixed / "a" / name)
    with pytest.raises(MismatchError, match="the model is not of this run"):
        cropstar.evaluate(mixed / "a")


def test_the_split_of_another_run(mixed: Path) -> None:
    shutil.copy(mixed / "b" / "config.yaml", mixed / "a" / "config.yaml")
    with pytest.raises(MismatchError, match="the configuration is not of this run"):
        cropstar.evaluate(mixed / "a")


def test_a_checkpoint_of_another_run(mixed: Path) -> None:
    run = unfinished(mixed / "a")
    shutil.rmtree(run / "checkpoints")
    shutil.copytree(mixed / "b" / "checkpoints", run / "checkpoints")
    with pytest.raises(MismatchError, match="a checkpoint of another run"):
        cropstar.train(resume=run)


@pytest.mark.parametrize(("place", "other"), [("a/model.safetensors", "b"), ("c/fold-1/model.safetensors", "d")])
def test_a_model_of_another_run(place: str, other: str, mixed: Path) -> None:
    run = unfinished(mixed / place.partition("/")[0])
    shutil.copy(mixed / other / place.partition("/")[2], mixed / place)
    with pytest.raises(MismatchError, match="a model of another run"):
        cropstar.train(resume=run)


def test_probabilities_of_another_store(mixed: Path) -> None:
    shutil.copy(mixed / "d" / "out-of-fold.safetensors", mixed / "c" / "out-of-fold.safetensors")
    with pytest.raises(MismatchError, match="the probabilities are not of this store"):
        cropstar.check(mixed / "c", output=mixed / "fields.csv")


def test_a_fold_whose_result_is_damaged(mixed: Path) -> None:
    run = unfinished(mixed / "c")
    path = run / "fold-1" / "result.json"
    content = json.loads(path.read_text())
    content["progress"]["history"] = "x"
    path.write_text(json.dumps(content))
    with pytest.raises(ArtifactError, match="the result of a member cannot be used"):
        cropstar.train(resume=run)
