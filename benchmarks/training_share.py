"""Which share of a training step is the model's work, against waiting for the batch.

    OMP_NUM_THREADS=2 python benchmarks/training_share.py
    OMP_NUM_THREADS=2 python benchmarks/training_share.py --store data/stores/mine --model ltae

Takes the demonstration store (made where it is missing) with an image model (convstar 4x32), a series model on its
pixels (star 4x128) and one on its parcels (star 4x128). Each goes through the same batches twice: read in turn, and
read ahead by a thread as training does. Seconds of the clock are what counts, but only on a machine that has nothing
else to do; the last column, processor time of reading as a share of all processor time, holds on a busy one as well:
1 minus it is what a machine with one core would reach.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from cropstar.config import TrainConfig, resolve_config
from cropstar.datasets.batches import Batch, epoch_order
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model
from cropstar.runtime import choose_device, keep_large_buffers
from cropstar.store.store import Store
from cropstar.training.losses import CrossEntropy
from cropstar.training.optimisation import Engine, Precision
from cropstar.training.runs import Run
from cropstar.training.trainer import Crops, Progress, StepTools, Task, read_batch, read_epoch, train_step

GOAL = 0.90
CASES = {
    "convstar 4x32, patches": {"model.name": "convstar"},
    "star 4x128, pixels": {"model.name": "star"},
    "star 4x128, parcels": {"model.name": "star", "target": "parcel"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("data/stores/demo"))
    parser.add_argument("--model", help="another model instead of the three")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--device", default="auto")
    choices = parser.parse_args()
    keep_large_buffers()
    if not (choices.store / "manifest.json").exists():
        subprocess.run([sys.executable, "-m", "cropstar", "ingest", "-o", str(choices.store)], check=True)
    cases = {choices.model: {"model.name": choices.model}} if choices.model else CASES
    print(f"{'':24}  batches in turn  read ahead  processor time of reading")
    for name, options in cases.items():
        config = resolve_config(None, {"store": choices.store, **options})
        with tempfile.TemporaryDirectory() as folder, ExitStack() as hold:
            task = open_task(config, Path(folder), choose_device(choices.device), hold)
            in_turn, reading = measure(task, choices.steps, ahead=False)
            ahead, _ = measure(task, choices.steps, ahead=True)
        verdict = "" if ahead >= GOAL else f"   below the goal of {GOAL:.0%}"
        print(f"{name:24}  {in_turn:15.1%}  {ahead:10.1%}  {reading:25.1%}{verdict}", flush=True)


def open_task(config: TrainConfig, folder: Path, device: torch.device, hold: ExitStack) -> Task:
    store = hold.enter_context(Store.open(config.store))
    bands, classes = store.fingerprint.bands, store.fingerprint.classes
    longest = max(reader.length for _, reader in store.readers())
    torch.manual_seed(0)
    model = build_model(config.model, Shape(len(bands), len(classes), longest)).to(device)
    split = split_parcels(store, config.split, config.seed)
    parts, _ = open_parts(store, split, config, spatial=model.spatial)
    return Task(config, Run(folder), model, parts["train"], parts["validation"], len(classes), device, 1e9)


def measure(task: Task, steps: int, *, ahead: bool) -> tuple[float, float]:
    """The model's share of the clock, and reading's share of the processor (where it is done in turn)."""
    objective = Crops(CrossEntropy(task.config.loss, None), task.classes)
    engine = Engine(task.model, objective.forward, objective.loss, Precision("float32", task.device), task.device)
    tools = StepTools(engine, torch.optim.Adam(task.model.parameters()))
    progress = Progress()
    waited = worked = read = computed = 0.0
    batches = _batches(task, ahead=ahead)
    for number in range(steps + 2):
        clock, processor = time.perf_counter(), time.process_time()
        batch = next(batches)
        middle, between = time.perf_counter(), time.process_time()
        train_step(task, tools, False, batch, progress, 10 * steps)
        if number >= 2:  # the first ones warm up
            waited += middle - clock
            worked += time.perf_counter() - middle
            read += between - processor
            computed += time.process_time() - between
    batches.close()  # type: ignore[attr-defined]
    return worked / (waited + worked), read / (read + computed)


def _batches(task: Task, *, ahead: bool) -> Iterator[Batch | None]:
    """Epoch after epoch, as many as are asked for."""
    epoch = 0
    while True:
        order = epoch_order(len(task.training), task.config.seed, epoch, task.config.sampling).tolist()
        if ahead:
            yield from read_epoch(task, order, epoch, 0)
        else:
            yield from (read_batch(task, order, epoch, number) for number in range(task.batches))
        epoch += 1


if __name__ == "__main__":
    main()
