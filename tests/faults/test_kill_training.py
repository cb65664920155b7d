"""Signals during training: the run stays readable, goes on, and ends with the weights of an unbroken run."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import pytest

from cropstar.store.model_file import read_model, read_tensors
from cropstar.training.runs import Run
from tests.faults.killing import kill_repeatedly, run_to_the_end, start

SETTINGS = ["--layers", "2", "--hidden", "8", "--batch", "2", "--checkpoint-seconds", "0"]
SPLIT = ["--set", "split.validation=0.3", "--set", "split.test=0.3", "--set", "patch=12"]


def command(store: Path, epochs: int = 3) -> list[str]:
    return ["train", "--store", str(store), "--epochs", str(epochs), *SETTINGS, *SPLIT]


def only_run(folder: Path) -> Run:
    (run,) = (folder / "data" / "runs").iterdir()
    return Run(run)


@pytest.mark.parametrize(
    ("kills", "epochs"), [(2, 3), pytest.param(50, 8, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_killed_training_ends_with_the_same_weights(kills: int, epochs: int, small_store: Path, tmp_path: Path) -> None:
    for place in ("unbroken", "killed"):
        (tmp_path / place).mkdir()
    _, seconds = run_to_the_end(command(small_store, epochs), tmp_path / "unbroken")
    steps: list[int] = []

    def still_readable() -> None:
        runs = tmp_path / "killed" / "data" / "runs"
        for folder in runs.iterdir() if runs.exists() else ():
            run = Run(folder)
            for path in run.checkpoints():
                header, _ = read_tensors(path, "checkpoint")
                steps.append(header["progress"]["step"])
            if run.model.exists():
                read_model(run.model)
            if run.finished:  # hit on its way out: the same command would begin another run
                start_over()

    def start_over() -> None:
        shutil.rmtree(tmp_path / "killed" / "data", ignore_errors=True)
        steps.clear()

    kill_repeatedly(
        command(small_store, epochs),
        tmp_path / "killed",
        kills=kills,
        seconds=seconds,
        seed=kills,
        after_each=still_readable,
        start_over=start_over,
    )
    said, _ = run_to_the_end(command(small_store, epochs), tmp_path / "killed")
    unbroken, killed = only_run(tmp_path / "unbroken"), only_run(tmp_path / "killed")
    assert killed.model.read_bytes() == unbroken.model.read_bytes()
    if steps and max(steps) > 0:
        assert "resuming from epoch" in said or "all epochs are done" in said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_killed_ensemble_with_a_refit_ends_with_the_same_weights(small_store: Path, tmp_path: Path) -> None:
    wanted = [*command(small_store, 2), "--ensemble", "2", "--refit"]
    for place in ("unbroken", "killed"):
        (tmp_path / place).mkdir()
    _, seconds = run_to_the_end(wanted, tmp_path / "unbroken")
    runs = tmp_path / "killed" / "data"

    def start_over_if_finished() -> None:
        if any(Run(folder).finished for folder in (runs / "runs").glob("*")):
            shutil.rmtree(runs)

    kill_repeatedly(
        wanted,
        tmp_path / "killed",
        kills=8,
        seconds=seconds,
        seed=8,
        after_each=start_over_if_finished,
        start_over=lambda: shutil.rmtree(runs, ignore_errors=True),
    )
    run_to_the_end(wanted, tmp_path / "killed")
    unbroken, killed = only_run(tmp_path / "unbroken"), only_run(tmp_path / "killed")
    assert killed.model.read_bytes() == unbroken.model.read_bytes()
    assert killed.before_refit.read_bytes() == unbroken.before_refit.read_bytes()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_polite_signal_saves_and_says_so(number: int, code: int, small_store: Path, tmp_path: Path) -> None:
    process = start([*command(small_store), "--set", "epochs=500", "--checkpoint-seconds", "1000"], tmp_path)
    runs = tmp_path / "data" / "runs"
    deadline = time.monotonic() + 120
    # The first metrics show that training is on its way.
    while not list(runs.glob("*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    last = said.strip().splitlines()[-1]
    assert last.startswith("error: stopped by a signal: the state after batch")
    assert "Traceback" not in said
    header, _ = read_tensors(only_run(tmp_path).checkpoints()[0], "checkpoint")
    assert f"batch {header['progress']['step']} of" in last
