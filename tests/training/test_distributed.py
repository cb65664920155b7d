"""Several processes through torchrun on this machine: the losses of one process, one that dies, one that is stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.store.model_file import read_tensors
from cropstar.training.distributed import ALONE, Processes, require_shareable
from cropstar.training.runs import Run

SPLIT = ["--set", "split.validation=0.3", "--set", "split.test=0.3"]
# Recipes choose other settings for several processes: see recipes.py.
SMALL = ["train", "--recipe", "paper", "--layers", "1", "--hidden", "4", "--fresh", *SPLIT]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(arguments: list[str], cwd: Path, *, several: bool) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *(TORCHRUN if several else []), "-m", "cropstar", *arguments],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], seconds: float = 200) -> str:
    _, said = process.communicate(timeout=seconds)
    return said


def only_run(folder: Path) -> Run:
    (run,) = folder.iterdir()
    return Run(run)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(
            ["--model", "convstar", "--batch", "7", "--set", "loss.balance=1", "--set", "augmentation.flips=true"],
            id="images",
        ),
        pytest.param(
            ["--model", "star", "--target", "parcel", "--batch", "5", "--set", "augmentation.date_dropout=0.3"],
            id="series",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_processes_have_the_losses_of_one(model: list[str], small_store: Path, tmp_path: Path) -> None:
    command = [*SMALL, "--store", str(small_store), "--epochs", "2", *model, "--runs"]
    one = start([*command, "one"], tmp_path, several=False)
    two = start([*command, "two"], tmp_path, several=True)
    for process in (one, two):
        said = finished(process)
        assert process.returncode == 0, said
    assert said.count("report ") == 1  # the first process alone has something to say
    rows = [
        [json.loads(line) for line in only_run(tmp_path / name).metrics.read_text().splitlines()]
        for name in ("one", "two")
    ]
    assert [row["loss"] for row in rows[1]] == pytest.approx([row["loss"] for row in rows[0]], abs=1e-5)
    (_, expected), (_, found) = (
        read_tensors(only_run(tmp_path / name).checkpoints()[0], "checkpoint") for name in ("one", "two")
    )
    assert found.keys() == expected.keys()
    for name in (name for name in expected if name.startswith("model.")):
        assert abs(found[name] - expected[name]).max() < 1e-4, name


def worker(process: subprocess.Popen[str], rank: int) -> int:
    """The process of that rank among those that torchrun started."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise AssertionError(f"no process of rank {rank}")


def in_the_middle(store: Path, cwd: Path) -> subprocess.Popen[str]:
    command = [*SMALL, "--store", str(store), "--epochs", "5000", "--batch", "4", "--runs", "runs"]
    process = start([*command, "--checkpoint-seconds", "1000"], cwd, several=True)
    deadline = time.monotonic() + 120
    while not list(cwd.glob("runs/*/metrics.jsonl")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process.poll() is None, finished(process)
    return process


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_process_ends_all_with_one_line(rank: int, small_store: Path, tmp_path: Path) -> None:
    process = in_the_middle(small_store, tmp_path)
    os.kill(worker(process, rank), signal.SIGKILL)
    said = finished(process, 60)
    assert process.returncode != 0
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, said
    assert lines[0].startswith("error: the training lost one of its processes")
    assert lines[0].endswith("run the same command again to resume")


@pytest.mark.slow
def test_a_polite_signal_stops_all_and_saves(small_store: Path, tmp_path: Path) -> None:
    process = in_the_middle(small_store, tmp_path)
    process.send_signal(signal.SIGTERM)  # torchrun passes it on
    said = finished(process, 60)
    lines = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(lines) == 2, said
    header, _ = read_tensors(only_run(tmp_path / "runs").checkpoints()[0], "checkpoint")
    for line in lines:
        assert line.startswith(f"error: stopped by a signal: the state after batch {header['progress']['step']} of")


def test_shares_are_the_batch_in_order() -> None:
    for size in (1, 2, 3, 5):
        for length in (0, 1, 2, 7, 64):
            items = list(range(length))
            parts = [Processes(rank, size).share(items) for rank in range(size)]
            assert [item for _, part in parts for item in part] == items
            assert all(list(part) == items[offset : offset + len(part)] for offset, part in parts)
            assert max(len(part) for _, part in parts) - min(len(part) for _, part in parts) <= 1


def test_alone_nothing_is_changed() -> None:
    linear = nn.Linear(2, 1)
    linear.weight.grad = torch.ones(1, 2)
    ALONE.add_gradients(list(linear.parameters()))
    assert linear.bias.grad is None
    assert ALONE.broadcast({"a": (1,)}) == {"a": (1,)}


def test_batch_normalisation_is_for_one_process() -> None:
    model = build_model(ModelConfig(name="star", layers=2, hidden=4, normalise=True), Shape(2, 3, 4))
    require_shareable(model, ALONE)
    with pytest.raises(UsageError, match="without torchrun"):
        require_shareable(model, Processes(0, 2))
