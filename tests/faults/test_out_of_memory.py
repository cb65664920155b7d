"""Memory that runs out in a training step, through the command line: smaller steps, or one line and the exit code."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cropstar.store.model_file import read_tensors
from cropstar.training.runs import Run
from tests.processes import run_python

# A GPU that has no room for more than so many patches, and after so many forward passes for none at all.
PROGRAM = """
import sys
import torch
from cropstar.models.classifier import RecurrentClassifier
from cropstar.cli.main import main

room, passes = int(sys.argv.pop(1)), int(sys.argv.pop(1))
forward, done = RecurrentClassifier.forward, []

def cramped(self, x, valid, days):
    if torch.is_grad_enabled():
        done.append(len(x))
        if len(x) > (room if len(done) <= passes else 0):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    return forward(self, x, valid, days)

RecurrentClassifier.forward = cramped
main()
"""
COMMAND = ["train", "--layers", "1", "--hidden", "4", "--epochs", "1", "--batch", "8", "--runs", "runs"]
SPLIT = ["--set", "split.validation=0.3", "--set", "split.test=0.3", "--checkpoint-seconds", "0"]


def run_with(room: int, passes: int, store: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_python(PROGRAM, str(room), str(passes), *COMMAND, *SPLIT, "--store", store, cwd=cwd)


@pytest.mark.slow
def test_smaller_steps_then_none(small_store: Path, tmp_path: Path) -> None:
    """The first start has no room left in its second step: after 8, 4 and four times 2 patches in the first one."""
    answer = run_with(2, 6, small_store, tmp_path)
    assert answer.returncode == 6, answer.stderr
    lines = answer.stderr.splitlines()
    said = [line for line in lines if line.startswith("warning: out of memory")]
    assert said == ["warning: out of memory with 8 samples at once: continuing with micro-batches of 2"]
    assert lines[-1].startswith("error: out of memory: a step with one sample at a time does not fit; ")
    assert lines[-1].endswith("the last checkpoint is kept")
    assert "Traceback" not in answer.stderr
    run = Run(tmp_path / "runs" / "convstar-1x4-001")
    (kept,) = run.checkpoints()
    header, _ = read_tensors(kept, "checkpoint")
    assert (header["progress"]["step"], header["progress"]["micro_batch"]) == (1, 2)
    assert not run.finished

    answer = run_with(2, 10**6, small_store, tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "resuming from epoch 1, batch 2" in answer.stderr
    assert "out of memory" not in answer.stderr  # what fits is remembered
    header, _ = read_tensors(run.checkpoints()[0], "checkpoint")
    assert header["progress"]["micro_batch"] == 2
    assert run.finished
