"""`cropstar tune` as a user runs it: to the end, killed and gone on with, and with wrong input."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cropstar.config import load_yaml, resolve_config
from cropstar.training.recipes import with_recipe
from cropstar.training.search_space import parse_space
from cropstar.training.tuning import TuneOptions, tune
from tests.faults.killing import start
from tests.training.tunings import CPU, a_store, table

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ["--model", "star", "--epochs", "2", "--split", "published", "--set", "series_batch=16"]
SPACE = "optimiser.learning_rate: {log: [1e-3, 1e-1]}\nmodel.hidden: {int: [2, 8]}\nmodel.layers: [1, 2]\n"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    a_store(tmp_path)
    (tmp_path / "space.yaml").write_text(SPACE)
    return tmp_path


def command(output: str, trials: int) -> list[str]:
    more = ["--store", "store", "--space", "space.yaml", "--trials", str(trials), "-o", output]
    return ["tune", *SMALL, *more]


def test_killed_and_gone_on_with(run_cli: Cli, place: Path) -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    process = start(command("killed", 3), place)
    journal = place / "killed" / "study.journal"
    while process.poll() is None and not (journal.exists() and journal.read_bytes().count(b"\n") > 10):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    answer = run_cli(*command("killed", 3), cwd=place)
    assert answer.returncode == 0, answer.stderr
    assert "resuming after" in answer.stderr
    assert "trial 3/3" in answer.stderr
    assert "epoch" not in answer.stderr
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("best: macro-F1 0.")
    assert last.endswith("now: cropstar train --config killed/best.yaml")

    options = {"store": place / "store", "model.name": "star", "epochs": 2, "split.name": "published"}
    config, _ = with_recipe(resolve_config(None, options, ("series_batch=16",)))
    space = parse_space(load_yaml(SPACE, "space.yaml"), config, Path("space.yaml"))
    unbroken = tune(config, space, TuneOptions(place, CPU, place / "unbroken", 3))
    assert table(place / "killed") == table(unbroken.folder)
    best = resolve_config(place / "killed" / "best.yaml", {"store": place})
    assert best == resolve_config(unbroken.best, {"store": place})
    assert (best.model.pool, best.soft_labels, best.cross_fit) == ("season", "mixes", 3), "what train would use"
    assert {row["best_epochs"] for row in table(place / "killed") if row["state"] == "complete"} == {"2 2 2"}


def test_wrong_spaces_leave_nothing(run_cli: Cli, place: Path) -> None:
    (place / "space.yaml").write_text("model.layer: [1, 2]\n")
    answer = run_cli(*command("out", 2), cwd=place)
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: unknown key 'model.layer' in space.yaml; did you mean 'model.layers'?")
    assert not (place / "out").exists()


def test_without_optuna_the_extra_is_named(run_cli: Cli, place: Path) -> None:
    (place / "shadow").mkdir()
    (place / "shadow" / "optuna.py").write_text("raise ImportError('not here')\n")
    answer = run_cli(*command("out", 2), cwd=place, env={"PYTHONPATH": str(place / "shadow")})
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert line == "error: tuning cannot be used: optuna is not installed; pip install 'cropstar[tune]'"
    assert not (place / "out").exists()
