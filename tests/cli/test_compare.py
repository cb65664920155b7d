"""`cropstar compare`: real runs side by side, the picture, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from cropstar.cli.compare import compare
from cropstar.config import resolve_config
from cropstar.errors import ArtifactError, UsageError
from cropstar.training.runs import Run
from cropstar.training.train import TrainOptions, train
from tests.cli.invoking import InProcess

TINY = {"model.layers": 1, "model.hidden": 6, "epochs": 2, "split.validation": 0.3, "split.test": 0.3}


@pytest.fixture(scope="module")
def home(small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data/runs: two models on the same parcels, one on others."""
    home = tmp_path_factory.mktemp("home")
    options = TrainOptions(home / "data" / "runs", torch.device("cpu"))
    for name, seed in (("star", 0), ("gru", 0), ("rnn", 1)):
        config = resolve_config(
            None, {"store": small_store, **TINY, "model.name": name, "seed": seed, "target": "parcel"}
        )
        train(config, options)
    return home


def runs_of(home: Path) -> dict[str, Path]:
    return {folder.name.partition("-")[0]: folder for folder in (home / "data" / "runs").iterdir()}


run_command = InProcess(compare)
facts, refusal = run_command.facts, run_command.refusal


def test_all_finished_runs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    found = facts()
    assert {row["model"] for row in found["runs"]} == {"star", "gru", "rnn"}
    scores = [row["parcel"]["macro_f1"] for row in found["runs"]]
    assert scores == sorted(scores, reverse=True)
    for row in found["runs"]:
        result = json.loads(Run(Path(row["folder"])).result.read_text())
        assert row["parcel"]["macro_f1"] == result["test"]["parcel"]["macro_f1"]
        assert row["parcel"]["macro_f1_interval"] == result["test"]["parcel"]["intervals"]["macro_f1"]
        assert row["ece"] == result["calibration"]["after"]["ece"]
        assert row["parameters"] == result["model"]["parameters"]
        assert row["seconds"] == result["throughput"]["seconds"]
        assert row["validation"] == [epoch["validation"]["macro_f1"] for epoch in result["history"]]
        assert row["pixel"] is None  # of pooled parcels there are no pixels to count
    letters = {row["model"]: row["tested_alike"] for row in found["runs"]}
    assert letters["star"] == letters["gru"] != letters["rnn"]
    assert not found["comparable"]


def test_runs_that_do_not_compare_are_told(home: Path) -> None:
    runs = runs_of(home)
    alike = run_command(runs["star"], runs["gru"])
    assert alike.stderr == ""
    assert alike.stdout.splitlines()[0].split() == ["run", "macro-F1", "accuracy", "ECE", "parcels"]
    unlike = run_command(runs["star"], runs["rnn"])
    assert "their test parcels differ" in unlike.stderr
    assert unlike.stdout.splitlines()[0].endswith("tested")
    assert "star-1x6-001" in unlike.stdout
    assert "parcel, seed 1" in unlike.stdout
    assert len(facts(runs["star"], runs["star"])["runs"]) == 1


def test_the_picture(home: Path, tmp_path: Path) -> None:
    runs, picture = runs_of(home), tmp_path / "compare.png"
    assert run_command(*runs.values(), "-o", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    drawn = picture.read_bytes()
    assert isinstance(refusal(*runs.values(), "-o", picture), UsageError)
    assert run_command(*runs.values(), "-o", picture, "--overwrite").exit_code == 0
    assert picture.read_bytes() == drawn
    assert isinstance(refusal(*runs.values(), "-o", tmp_path / "compare.svg"), UsageError)


def test_what_is_refused(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs_of(home)["star"]
    unfinished = Path(shutil.copytree(run, tmp_path / "data" / "runs" / "unfinished"))
    (unfinished / "result.json").unlink()
    failure = refusal(run, unfinished)
    assert isinstance(failure, ArtifactError)
    assert "not finished" in str(failure)
    monkeypatch.chdir(tmp_path)
    assert "no finished run" in str(refusal())
    for text in ("{", "[]", "{}", '{"test": 1}', "[" * 100_000):
        (unfinished / "result.json").write_text(text)
        assert isinstance(refusal(unfinished), ArtifactError)
    result = json.loads((run / "result.json").read_text())
    for key in ("test", "split", "model", "history", "throughput", "data"):
        (unfinished / "result.json").write_text(json.dumps({**result, key: ["nonsense"]}))
        assert isinstance(refusal(unfinished), ArtifactError)
    assert isinstance(refusal(tmp_path), ArtifactError)
