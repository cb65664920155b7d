"""Which recurrent cells still learn when twelve layers are stacked.

    OMP_NUM_THREADS=1 python benchmarks/depth.py -o data/depth
    OMP_NUM_THREADS=1 python benchmarks/depth.py -o data/short --length 12
    OMP_NUM_THREADS=1 python benchmarks/depth.py -o data/depth --steps 20 --layers 2

The task is recall: fifty random symbols, one of the first five is marked, and after the last the marked one is to be
named; chance is one in eight. Every cell has the same width, batches, number of steps, Adam, bound of the gradient's
norm, and its own initialisation for the same time scales. Learning rates come from one small grid: for each cell and
depth the rate with the smallest validation loss at the end, averaged over the seeds, is taken; the table shows it on
sequences drawn afterwards. Shallow stacks show whether a cell can do the task at all, and a
shorter series whether it is depth or time that it fails at: at fifty symbols the vanilla cell fails at any depth.

All rates and seeds of a cell are trained side by side as one batch of networks; each has its own weights, sequences,
Adam moments and bound of the gradient's norm.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from cropstar.benchmarks.lattice_plot import cell_title
from cropstar.models.cells.cell import CELLS
from cropstar.models.stack import RecurrentStack
from cropstar.reports.drawing import HAIRLINE, INK, MUTED, encode, house_style, new_figure
from cropstar.store.files import atomic_path, write_json

SYMBOLS = 8
EARLY = 5  # the marked symbol is one of the first
RATES = (3e-4, 1e-3, 3e-3)
BATCH, VALIDATION, TEST = 32, 128, 1024
BOUND = 1.0  # of the gradient's norm
EVERY = 25  # steps between two looks at the validation sequences
COLOURS = ("#c8701b", "#3b6fb6", "#2f6f4e", "#8a4f9e", "#67726b")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1, 1.5)), "-")


@dataclass(frozen=True)
class Job:
    cell: str
    layers: int
    hidden: int
    length: int
    steps: int
    seeds: int


class Network(nn.Module):
    def __init__(self, job: Job) -> None:
        super().__init__()
        widths = [SYMBOLS + 1] + [job.hidden] * (job.layers - 1)
        self.stack = RecurrentStack([CELLS[job.cell](width, job.hidden, spatial=False) for width in widths])
        self.stack.initialise(max(1.0, job.length / job.layers))  # as cropstar train does
        self.head = nn.Linear(job.hidden, SYMBOLS)

    def forward(self, x: Tensor) -> Tensor:
        everything = torch.ones(x.shape[:2], dtype=torch.bool)
        outputs, _ = self.stack(x, everything, torch.zeros(x.shape[:2]))
        scores: Tensor = self.head(outputs[-1])
        return scores


def recall(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences (N, T, symbols + 1), the last channel being the mark, and the marked symbols (N,)."""
    symbols = torch.randint(SYMBOLS, (count, length), generator=generator)
    marked = torch.randint(min(EARLY, length), (count,), generator=generator)
    x = nn.functional.one_hot(symbols, SYMBOLS + 1).float()
    rows = torch.arange(count)
    x[rows, marked, SYMBOLS] = 1.0
    return x, symbols[rows, marked]


class Adam:
    """Of networks side by side: the first axis is the network, each with a rate and a bound of its own."""

    def __init__(self, parameters: list[Tensor], rates: Tensor) -> None:
        self.parameters, self.rates, self.count = parameters, rates, 0
        self.first = [torch.zeros_like(part) for part in parameters]
        self.second = [torch.zeros_like(part) for part in parameters]

    @torch.no_grad()
    def step(self) -> None:
        self.count += 1
        gradients = [part.grad for part in self.parameters if part.grad is not None]
        norms = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0).sqrt()
        shrink = (BOUND / (norms + 1e-6)).clamp(max=1.0)
        for part, gradient, first, second in zip(self.parameters, gradients, self.first, self.second, strict=True):
            shape = (-1, *(1,) * (part.dim() - 1))
            bounded = gradient * shrink.reshape(shape)
            first.lerp_(bounded, 0.1)
            second.lerp_(bounded.square(), 0.001)
            scale = (second / (1 - 0.999**self.count)).sqrt_().add_(1e-8)
            part.sub_(self.rates.reshape(shape) * first / (1 - 0.9**self.count) / scale)
            part.grad = None


def train(job: Job) -> dict[str, Any]:
    """Every rate and seed: validation loss and accuracy over the steps, and accuracy on test sequences."""
    torch.set_num_threads(1)
    networks, rates, generators = [], [], []
    for rate in RATES:
        for seed in range(job.seeds):
            torch.manual_seed(seed)  # a seed's weights and sequences are the same at every rate
            networks.append(Network(job))
            rates.append(rate)
            generators.append(torch.Generator().manual_seed(1000 + seed))
    parameters, _ = stack_module_state(networks)
    model = networks[0]
    predict = vmap(lambda weights, x: functional_call(model, weights, (x,)))
    shared = vmap(lambda weights, x: functional_call(model, weights, (x,)), in_dims=(0, None))
    optimiser = Adam(list(parameters.values()), torch.tensor(rates))
    validation = recall(VALIDATION, job.length, torch.Generator().manual_seed(1))
    started = time.monotonic()
    seen, curves = [], []
    for step in range(job.steps + 1):
        if step % EVERY == 0 or step == job.steps:
            seen.append(step)
            curves.append(judge(shared, parameters, *validation))
        if step == job.steps:
            break
        drawn = [recall(BATCH, job.length, generator) for generator in generators]
        x, y = torch.stack([x for x, _ in drawn]), torch.stack([y for _, y in drawn])
        scores = predict(parameters, x)  # (networks, batch, symbols)
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction="sum") / BATCH
        loss.backward()
        optimiser.step()
    tested = judge(shared, parameters, *recall(TEST, job.length, torch.Generator().manual_seed(2)))
    shape = (len(seen), len(RATES), job.seeds)
    return {
        "cell": job.cell,
        "layers": job.layers,
        "steps": seen,
        "loss": torch.stack([loss for loss, _ in curves]).reshape(shape).tolist(),
        "accuracy": torch.stack([accuracy for _, accuracy in curves]).reshape(shape).tolist(),
        "test_accuracy": tested[1].reshape(shape[1:]).tolist(),
        "parameters": sum(part.numel() for part in model.parameters()),
        "seconds": time.monotonic() - started,
    }


@torch.no_grad()
def judge(predict: Any, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and accuracy of every network; a network that diverged has an infinite loss."""
    scores = torch.cat([predict(parameters, part) for part in x.split(VALIDATION)], dim=1)
    losses = nn.functional.cross_entropy(scores.transpose(1, 2), y.expand(len(scores), -1), reduction="none").mean(1)
    return losses.nan_to_num(nan=1e9, posinf=1e9), (scores.argmax(2) == y).float().mean(1)


def best_rate(result: dict[str, Any]) -> int:
    """By the last validation loss, averaged over seeds; the test sequences have no say."""
    final = torch.tensor(result["loss"][-1]).mean(1)
    return int(final.argmin())


def report(results: list[dict[str, Any]]) -> None:
    print("| layers | cell | parameters | rate | validation loss | test accuracy of each seed | seconds |")
    print("| --: | --- | --: | --: | --: | --- | --: |")
    for result in results:
        chosen = best_rate(result)
        loss = sum(result["loss"][-1][chosen]) / len(result["loss"][-1][chosen])
        seeds = ", ".join(f"{value:.3f}" for value in result["test_accuracy"][chosen])
        name, size = cell_title(result["cell"]), f"{result['parameters']:,}"
        row = (result["layers"], name, size, f"{RATES[chosen]:g}", f"{loss:.3f}", seeds, f"{result['seconds']:.0f}")
        print("| " + " | ".join(map(str, row)) + " |")
    print(f"chance: loss {math.log(SYMBOLS):.3f}, accuracy {1 / SYMBOLS:.3f}")


def draw(results: list[dict[str, Any]], cells: list[str], layers: list[int]) -> bytes:
    """Validation accuracy over training, a panel a depth, a line a seed, at the rate chosen for the cell."""
    with house_style():
        width = 0.55 + 3.75 * len(layers)
        figure = new_figure(width, 3.2)
        for panel, depth in enumerate(layers):
            axes = figure.add_axes(((0.65 + 3.75 * panel) / width, 0.15, 3.4 / width, 0.68))
            for result in (found for found in results if found["layers"] == depth):
                place, chosen = cells.index(result["cell"]), best_rate(result)
                style: dict[str, Any] = {"color": COLOURS[place % 5], "linestyle": DASHES[place % 5]}
                for seed in range(len(result["accuracy"][0][chosen])):
                    values = [row[chosen][seed] for row in result["accuracy"]]
                    label = f"{cell_title(result['cell'])}, rate {RATES[chosen]:g}" if seed == 0 else None
                    axes.plot(result["steps"], values, linewidth=1.4, label=label, **style)
            axes.axhline(1 / SYMBOLS, color=MUTED, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
            axes.set_title("1 layer" if depth == 1 else f"{depth} layers", loc="left", fontsize=10, pad=22)
            axes.set_ylim(0.0, 1.03)
            axes.set_xlabel("step", fontsize=8, color=MUTED)
            axes.tick_params(length=0, labelsize=8, labelcolor=MUTED)
            axes.grid(axis="y", color=HAIRLINE, linewidth=0.6)
            axes.spines[["top", "right", "left"]].set_visible(False)
            axes.spines["bottom"].set_color(HAIRLINE)
            axes.legend(
                loc="lower left", bbox_to_anchor=(-0.03, 0.99), ncols=3, frameon=False, fontsize=6.8, handlelength=1.9,
                columnspacing=0.9, handletextpad=0.4, labelcolor=INK,
            )  # fmt: skip
            if panel == 0:
                axes.set_ylabel("validation accuracy (dashed: chance)", fontsize=8, color=MUTED)
        return encode(figure, "png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a folder for depth.png and depth.json")
    parser.add_argument("--cells", nargs="+", default=["rnn", "lstm", "star"])
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 12])
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="processes, each with one thread")
    parser.add_argument("--overwrite", action="store_true")
    choices = parser.parse_args()
    picture, table = choices.output / "depth.png", choices.output / "depth.json"
    if not choices.overwrite and (picture.exists() or table.exists()):
        raise SystemExit(f"{choices.output} has results already: choose another folder, or give --overwrite")
    jobs = [
        Job(cell, layers, choices.hidden, choices.length, choices.steps, choices.seeds)
        for layers in choices.layers
        for cell in choices.cells
    ]
    started = time.monotonic()
    # The slowest first: deep stacks, and of these the cells with most products.
    order = sorted(
        jobs, key=lambda job: (-job.layers, -sum(1 for _ in CELLS[job.cell](1, 1, spatial=False).parameters()))
    )
    with ProcessPoolExecutor(choices.jobs, mp_context=get_context("spawn")) as pool:
        found = {}
        for job, result in zip(order, pool.map(train, order), strict=True):
            found[job] = result
            print(f"{job.cell}, {job.layers} layers: {result['seconds']:.0f} s", file=sys.stderr, flush=True)
    results = [found[job] for job in jobs]
    report(results)
    print(f"all in {time.monotonic() - started:.0f} s with {choices.jobs} processes")
    write_json(table, {"rates": RATES, "hidden": choices.hidden, "length": choices.length, "results": results})
    with atomic_path(picture) as partial:
        partial.write_bytes(draw(results, choices.cells, choices.layers))


if __name__ == "__main__":
    main()
