"""The gradient lattice, `cropstar gradients`: the size of the gradient at every layer and step of a deep network.

The network is unrolled to a lattice of layers x steps, and every place of it gets a copy of its layer's parameters. The
magnitude there is the Frobenius norm of dL/d(copy) over all parameters of the cell, weights and biases together. Runs
are independent networks, each with weights and an input of its own, computed side by side.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cropstar import __version__
from cropstar.benchmarks.lattice_plot import Pattern, cell_title, draw_lattice
from cropstar.benchmarks.tasks.digits import read_images
from cropstar.errors import InputError, UsageError
from cropstar.models.cells.cell import CELLS, Cell, State
from cropstar.runtime import event, progress_bar
from cropstar.store.files import atomic_path, write_json, write_text

LOSSES = ("last", "all")
PICTURE, TABLE, SUMMARY = "lattice.png", "lattice.csv", "lattice.json"
# A place keeps its part of the graph, some 100 kB; 12 layers of MNIST's 784 pixels are half of this.
MAXIMUM_PLACES = 20_000
# Doubles of the inputs and of the result.
MAXIMUM_VALUES = 50_000_000


@dataclass(frozen=True)
class GradientOptions:
    cells: tuple[str, ...] = ("rnn", "lstm", "lstm_forget", "gru", "star")
    layers: int = 10
    steps: int = 10  # of noise; images have theirs
    hidden: int = 64
    alpha: float = 0.5
    runs: int = 100
    losses: tuple[str, ...] = LOSSES
    seed: int = 0
    images: Path | None = None


def gradients(folder: Path, options: GradientOptions, *, overwrite: bool = False) -> list[Pattern]:
    """Measure and write the picture, the long table and the summary; one pattern per cell and loss."""
    _require_new(folder, overwrite)
    for name in options.cells:
        CELLS[name]  # an unknown name is refused before any compute
    inputs = _inputs(options)
    runs, steps, _ = inputs.shape
    started = time.monotonic()
    patterns = []
    ways = 1 + len(options.losses)
    with progress_bar(len(options.cells) * ways * options.layers * steps * runs, "gradients", "", scale=True) as bar:
        for name in options.cells:
            found = measure(
                name,
                inputs,
                layers=options.layers,
                hidden=options.hidden,
                losses=options.losses,
                seed=options.seed,
                done=bar.update,
            )
            patterns += [pattern_of(name, loss, magnitudes) for loss, magnitudes in found.items()]
    seconds = time.monotonic() - started
    event(f"{runs} runs of {options.layers} layers x {steps} steps in {seconds:.1f} s", runs=runs, seconds=seconds)
    _write(folder, options, steps, patterns)
    return patterns


def _inputs(options: GradientOptions) -> Tensor:
    if options.images is not None:
        inputs = pixel_by_pixel(options.images, options.runs, options.seed)
        _require_bounded(options, inputs.shape[1])
        return inputs
    _require_bounded(options, options.steps)
    return smooth_noise(options.runs, options.steps, options.hidden, options.alpha, options.seed)


def _require_bounded(options: GradientOptions, steps: int) -> None:
    if options.layers * steps > MAXIMUM_PLACES:
        why = f"{options.layers} layers x {steps} steps, at most {MAXIMUM_PLACES:,} places"
        raise UsageError("too large a lattice", why=why, remedy="give fewer layers or shorter inputs")
    if options.runs * steps * max(options.layers, options.hidden) > MAXIMUM_VALUES:
        why = f"{options.runs} runs of {steps} steps, {options.layers} layers and width {options.hidden}"
        raise UsageError("too many runs to hold", why=why, remedy="give fewer --runs")


def _require_new(folder: Path, overwrite: bool) -> None:
    if folder.exists() and not folder.is_dir():
        raise UsageError("the output is a file", path=folder, remedy="give a folder with -o")
    existing = [folder / name for name in (PICTURE, TABLE, SUMMARY) if (folder / name).exists()]
    if existing and not overwrite:
        raise UsageError("the output exists", path=existing[0], remedy="choose another with -o, or give --overwrite")


def _write(folder: Path, options: GradientOptions, steps: int, patterns: list[Pattern]) -> None:
    settings: dict[str, Any] = {**asdict(options), "steps": steps, "input": "noise" if not options.images else "images"}
    if options.images is not None:
        settings |= {"images": str(options.images), "alpha": None}
    document = {
        "cropstar": __version__,
        "settings": settings,
        "definitions": DEFINITIONS,
        "table": table_rows(patterns),
    }
    write_text(folder / TABLE, long_table(patterns))
    with atomic_path(folder / PICTURE) as partial:
        partial.write_bytes(draw_lattice(patterns, _caption(options, steps), panel_notes(patterns)))
    write_json(folder / SUMMARY, document)  # last: where it is, the others are


def _caption(options: GradientOptions, steps: int) -> str:
    source = (
        "images pixel by pixel" if options.images else f"smooth noise, \N{GREEK SMALL LETTER ALPHA} = {options.alpha:g}"
    )
    size = f"{options.layers} layers x {steps} steps, width {options.hidden}"
    return f"{size}; {source}; {options.runs} runs, each with new orthogonal weights"


# --- inputs: smooth noise, or images pixel by pixel


def smooth_noise(runs: int, steps: int, width: int, alpha: float, seed: int) -> Tensor:
    """x_t = alpha x_{t-1} + (1 - alpha) z_t with z standard normal and x_0 = 0: (R, T, C) in double.

    Drawn run by run: more runs leave the first ones as they were.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.stack(
        [torch.randn(steps, width, generator=generator, dtype=torch.float64) for _ in range(runs)]
    )  # (R, T, C)
    x = torch.zeros(runs, width, dtype=torch.float64)
    series = []
    for z in noise.unbind(1):
        x = alpha * x + (1 - alpha) * z
        series.append(x)
    return torch.stack(series, dim=1)


def pixel_by_pixel(path: Path, runs: int, seed: int) -> Tensor:
    """Images drawn at random, row after row, as (R, T, 1) in double between 0 and 1."""
    images = read_images(path)
    if len(images) < runs:
        raise InputError("too few images", path=path, why=f"{len(images)} for {runs} runs", remedy="give fewer --runs")
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))[:runs]
    pixels = torch.from_numpy(images[chosen.numpy()]).double() / 255
    return pixels.flatten(1).unsqueeze(2)


# --- measuring

Parameters = dict[str, Tensor]  # (R, ...) each: a row a run
Magnitudes = NDArray[np.float64]

NO_MEMORY = 1.0  # chrono initialisation for one step: biases of zero
# Of a batch of runs, in doubles. A few dozen networks fill the products of one step; more only leave the caches.
BATCH_PARAMETERS = 2**23
BATCH_ACTIVATIONS = 2**26
ACTIVATIONS = 16  # kept for the way back at each place, in units of the hidden width


class OneStep(nn.Module):
    """A cell's transition as one call, for `functional_call`."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor, *state: Tensor) -> State:
        return self.cell.advance(self.cell.project(x), state)


def new_cells(name: str, layers: int, inputs: int, hidden: int) -> list[Cell]:
    widths = [inputs] + [hidden] * (layers - 1)
    return [CELLS[name](width, hidden, spatial=False).double() for width in widths]


def measure(
    name: str,
    inputs: Tensor,
    *,
    layers: int,
    hidden: int,
    losses: Sequence[str] = LOSSES,
    seed: int = 0,
    done: Callable[[int], Any] = lambda places: None,
) -> dict[str, Magnitudes]:
    """Gradient magnitudes (R, L, T) under each loss, for inputs (R, T, C).

    `last`: the loss is the sum of the units of the top layer's last state; `all`: of its states at all steps. Its
    gradient is one in every unit, so all spread comes from weights and inputs. `done` hears of places finished.
    """
    steps, width = inputs.shape[1:]
    norms: dict[str, list[Tensor]] = {loss: [] for loss in losses}
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        stack = new_cells(name, layers, width, hidden)
        torch.manual_seed(seed)  # weights are drawn run by run, so the batch changes nothing
        for part in inputs.double().split(runs_at_once(stack, steps)):
            weights = draw_weights(stack, len(part))
            for loss, magnitudes in backwards(stack, weights, part, losses, done):
                norms[loss].append(magnitudes)
    return {loss: torch.cat(parts).numpy() for loss, parts in norms.items()}


def runs_at_once(stack: Sequence[Cell], steps: int) -> int:
    parameters = sum(weight.numel() for cell in stack for weight in cell.parameters())
    activations = len(stack) * steps * stack[0].hidden * ACTIVATIONS
    return max(1, min(BATCH_PARAMETERS // parameters, BATCH_ACTIVATIONS // activations))


def draw_weights(stack: Sequence[Cell], runs: int) -> list[Parameters]:
    """Orthogonal weights and zero biases: one entry per layer."""
    drawn: list[list[Parameters]] = [[] for _ in stack]
    for _run in range(runs):
        for layer, cell in zip(drawn, stack, strict=True):
            cell.initialise(NO_MEMORY)
            layer.append({key: weight.detach().clone() for key, weight in cell.named_parameters(prefix="cell")})
    return [{key: torch.stack([run[key] for run in layer]) for key in layer[0]} for layer in drawn]


def backwards(
    stack: Sequence[Cell],
    weights: Sequence[Parameters],
    inputs: Tensor,
    losses: Sequence[str],
    done: Callable[[int], Any] = lambda places: None,
) -> Iterator[tuple[str, Tensor]]:
    """One way through the lattice, and for each loss one way back: magnitudes (R, L, T)."""
    runs, steps, _ = inputs.shape
    magnitudes = inputs.new_zeros(len(stack), steps, runs)
    sequence = [x.unsqueeze(1) for x in inputs.unbind(1)]  # (R, 1, C) each: a batch of one in every run
    for layer, (cell, parameters) in enumerate(zip(stack, weights, strict=True)):
        advance = _transition(cell)
        state = tuple(part.unsqueeze(1) for part in cell.initial_state(sequence[0].squeeze(1)))
        outputs = []
        for step, x in enumerate(sequence):
            state = advance(_copy(parameters, magnitudes[layer, step]), x, *state)
            outputs.append(state[0])
        sequence = outputs
        done(runs * steps)
    for number, loss in enumerate(losses):
        magnitudes.zero_()
        kept = sequence[-1:] if loss == "last" else sequence
        total = torch.stack([state.sum() for state in kept]).sum()
        total.backward(retain_graph=number + 1 < len(losses))
        done(runs * steps * len(stack))
        yield loss, magnitudes.permute(2, 0, 1).clone()


def _transition(cell: Cell) -> Callable[..., State]:
    """The cell's step for many runs at once, each with its own parameters."""
    step = OneStep(cell)

    def one_run(parameters: Parameters, x: Tensor, *state: Tensor) -> State:
        result: State = functional_call(step, parameters, (x, *state))
        return result

    batched: Callable[..., State] = vmap(one_run)
    return batched


def norm_of_runs(gradient: Tensor) -> Tensor:
    """(R, ...) to (R,), without squares of what has nearly vanished: 0.5 ** 784 is a double, its square is none."""
    values = gradient.flatten(1).abs()
    largest = values.amax(1)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, torch.ones_like(largest))
    return (values / scale.unsqueeze(1)).square().sum(1).sqrt() * scale


def _copy(parameters: Parameters, magnitudes: Tensor) -> Parameters:
    """A place's own leaves, on the memory of all; each gradient is added to the norms (R,) and dropped at once.

    A whole gradient a place would take layers x steps times the memory of the network.
    """

    def sum_up(leaf: Tensor) -> None:
        assert leaf.grad is not None
        magnitudes.copy_(torch.hypot(magnitudes, norm_of_runs(leaf.grad)))
        leaf.grad = None

    leaves = {key: weight.detach().requires_grad_() for key, weight in parameters.items()}
    for leaf in leaves.values():
        leaf.register_post_accumulate_grad_hook(sum_up)
    return leaves


# --- tables

DEFINITIONS = {
    "magnitude": "Frobenius norm of dL/dw over all parameters w of the copy of the cell at one layer and step",
    "mean": "over runs, each with new weights and input",
    "spread": "standard deviation over runs divided by the mean; in the table averaged over the lattice",
    "per_layer": "factor from a layer to the one below: geometric mean over layers of the ratio of layer magnitudes, "
    "a layer's magnitude being the root of the sum over steps of squared means",
    "per_step": "the same from a step to the one before, with the sum over layers",
    "straight_down": "the same as per_layer at the last step alone: the path that never goes back in time",
    "straight_back": "the same as per_step in the top layer alone: the path that never goes down",
}


@dataclass(frozen=True)
class Factors:
    """The factors by which a gradient changes from one layer to the one below, and from one step to the one before."""

    per_layer: float
    per_step: float
    straight_down: float
    straight_back: float
    spread: float


def pattern_of(cell: str, loss: str, magnitudes: NDArray[np.float64]) -> Pattern:
    """From magnitudes (R, L, T) of two runs at least; the spread is not a number where no gradient arrives."""
    mean = magnitudes.mean(axis=0)
    # Of ratios to the mean, since squares of vanished gradients are nothing.
    ratios = np.divide(magnitudes, mean, out=np.full_like(magnitudes, np.nan), where=mean > 0)
    return Pattern(cell, loss, mean, ratios.std(axis=0, ddof=1))


def factors_of(pattern: Pattern) -> Factors:
    mean, known = pattern.mean, pattern.spread[np.isfinite(pattern.spread)]
    # hypot keeps what squares of vanished gradients would lose.
    return Factors(
        per_layer=mean_ratio(np.hypot.reduce(mean, axis=1)),
        per_step=mean_ratio(np.hypot.reduce(mean, axis=0)),
        straight_down=mean_ratio(mean[:, -1]),
        straight_back=mean_ratio(mean[-1]),
        spread=float(known.mean()) if known.size else math.nan,
    )


def mean_ratio(magnitudes: NDArray[np.float64]) -> float:
    """The geometric mean of all magnitude[i] / magnitude[i + 1]; the inner ones cancel."""
    first, last = float(magnitudes[0]), float(magnitudes[-1])
    if len(magnitudes) < 2 or first <= 0 or last <= 0:
        return math.nan
    return math.exp((math.log(first) - math.log(last)) / (len(magnitudes) - 1))


def table_text(patterns: Sequence[Pattern]) -> str:
    """The factors as a text table."""
    head = ("cell", "loss", "per layer", "per step", "straight down", "straight back", "spread")
    rows = [head]
    for pattern in patterns:
        factors = factors_of(pattern)
        numbers = (factors.per_layer, factors.per_step, factors.straight_down, factors.straight_back, factors.spread)
        rows.append((cell_title(pattern.cell), pattern.loss, *(f"{number:.3f}" for number in numbers)))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def table_rows(patterns: Sequence[Pattern]) -> list[dict[str, str | float | None]]:
    """The factors as JSON rows; what is not finite is null."""
    rows: list[dict[str, str | float | None]] = []
    for pattern in patterns:
        factors = {key: value if math.isfinite(value) else None for key, value in vars(factors_of(pattern)).items()}
        rows.append({"cell": pattern.cell, "loss": pattern.loss, **factors})
    return rows


def long_table(patterns: Sequence[Pattern]) -> str:
    """CSV, one row per place; layers and steps count from one, layer 1 reads the input."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("cell", "loss", "layer", "step", "mean", "spread"))
    for pattern in patterns:
        for (layer, step), mean in np.ndenumerate(pattern.mean):
            spread = pattern.spread[layer, step]
            shown = f"{spread:.6g}" if np.isfinite(spread) else ""
            writer.writerow((pattern.cell, pattern.loss, layer + 1, step + 1, f"{mean:.9g}", shown))
    return text.getvalue()


def panel_notes(patterns: Sequence[Pattern]) -> dict[tuple[str, str, str], str]:
    """The headline of every heat map."""
    notes = {}
    for pattern in patterns:
        factors = factors_of(pattern)
        if math.isfinite(factors.per_layer):
            notes[pattern.cell, pattern.loss, "mean"] = f"{factors.per_layer:.2f} per layer"
        if math.isfinite(factors.spread):
            notes[pattern.cell, pattern.loss, "spread"] = f"{factors.spread:.2f} on average"
    return notes
