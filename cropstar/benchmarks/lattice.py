"""The gradient lattice: how large the gradient is at every layer and step of a deep recurrent network.

The network is unrolled to a lattice of layers x steps, and every place of it gets a copy of its layer's parameters. The
magnitude there is the Frobenius norm of dL/d(copy) over all parameters of the cell, weights and biases together. Runs
are independent networks, each with weights and an input of its own, computed side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, vmap

from cropstar.models.cells.cell import CELLS, Cell, State

Parameters = dict[str, Tensor]  # (R, ...) each: a row a run
Magnitudes = NDArray[np.float64]

LOSSES = ("last", "all")
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
    found: dict[str, list[Tensor]] = {loss: [] for loss in losses}
    with torch.random.fork_rng(devices=[]):  # the caller's random numbers stay as they were
        stack = new_cells(name, layers, width, hidden)
        torch.manual_seed(seed)  # weights are drawn run by run, so the batch changes nothing
        for part in inputs.double().split(runs_at_once(stack, steps)):
            weights = draw_weights(stack, len(part))
            for loss, magnitudes in backwards(stack, weights, part, losses, done):
                found[loss].append(magnitudes)
    return {loss: torch.cat(parts).numpy() for loss, parts in found.items()}


def runs_at_once(stack: Sequence[Cell], steps: int) -> int:
    parameters = sum(weight.numel() for cell in stack for weight in cell.parameters())
    activations = len(stack) * steps * stack[0].hidden * ACTIVATIONS
    return max(1, min(BATCH_PARAMETERS // parameters, BATCH_ACTIVATIONS // activations))


def draw_weights(stack: Sequence[Cell], runs: int) -> list[Parameters]:
    """Orthogonal weights and zero biases: one entry a layer."""
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
    """The cell's step for many runs, each with parameters of its own."""
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
