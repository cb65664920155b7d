"""The gradient lattice against a plain one: a module at every place, the cells' written-out equations, one run."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cropstar.benchmarks import lattice
from cropstar.benchmarks.lattice import LOSSES, draw_weights, measure, new_cells, norm_of_runs
from cropstar.benchmarks.lattice_findings import factors_of, pattern_of
from cropstar.benchmarks.lattice_inputs import smooth_noise
from cropstar.models.cells.cell import CELLS, Cell

EVERY_CELL = pytest.mark.parametrize("name", sorted(CELLS))


def plain_lattice(stack: list[Cell], series: Tensor, loss: str) -> np.ndarray:
    """Magnitudes (L, T) for one series (T, C): every place is a deep copy, so autograd keeps places apart."""
    places = [[copy.deepcopy(cell) for _ in series] for cell in stack]
    sequence = list(series.unsqueeze(1))
    for row in places:
        state = row[0].initial_state(sequence[0])
        outputs = []
        for cell, x in zip(row, sequence, strict=True):
            state = cell.reference(x, state)
            outputs.append(state[0])
        sequence = outputs
    total = sequence[-1].sum() if loss == "last" else torch.cat(sequence).sum()
    total.backward()

    def norm(cell: Cell) -> float:
        # What lies beside every path from the loss, such as the top layer's later steps, has no gradient at all.
        parts = [weight.grad.flatten() for weight in cell.parameters() if weight.grad is not None]
        return float(torch.cat(parts).norm()) if parts else 0.0

    return np.array([[norm(cell) for cell in row] for row in places])


def plain_stacks(name: str, runs: int, layers: int, inputs: int, hidden: int, seed: int) -> list[list[Cell]]:
    """The networks that `measure` draws, one by one."""
    stacks = []
    with torch.random.fork_rng(devices=[]):
        stack = new_cells(name, layers, inputs, hidden)
        torch.manual_seed(seed)
        for _ in range(runs):
            for cell in stack:
                cell.initialise(1.0)
            stacks.append(copy.deepcopy(stack))
    return stacks


@EVERY_CELL
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("width", [1, 5], ids=["pixels", "as wide as the layers"])
def test_equals_separate_copies_of_the_parameters(name: str, loss: str, width: int) -> None:
    runs, steps = 3, 4
    inputs = smooth_noise(runs, steps, width, 0.5, seed=7)
    found = measure(name, inputs, layers=3, hidden=5, losses=(loss,), seed=11)[loss]
    stacks = plain_stacks(name, runs, 3, width, 5, seed=11)
    expected = np.stack([plain_lattice(stack, series, loss) for stack, series in zip(stacks, inputs, strict=True)])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    assert (expected > 0).mean() > 0.5


@EVERY_CELL
def test_both_losses_in_one_pass_are_those_of_two(name: str) -> None:
    inputs = smooth_noise(2, 3, 4, 0.5, seed=0)
    both = measure(name, inputs, layers=2, hidden=4)
    for loss in LOSSES:
        np.testing.assert_array_equal(both[loss], measure(name, inputs, layers=2, hidden=4, losses=(loss,))[loss])


def test_the_batch_of_runs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = smooth_noise(5, 3, 4, 0.5, seed=0)
    whole = measure("star", inputs, layers=2, hidden=4)["last"]
    monkeypatch.setattr(lattice, "runs_at_once", lambda stack, steps: 2)
    np.testing.assert_allclose(measure("star", inputs, layers=2, hidden=4)["last"], whole, rtol=1e-12)
    # Fewer runs are the first of many.
    few = measure("star", smooth_noise(3, 3, 4, 0.5, seed=0), layers=2, hidden=4)["last"]
    np.testing.assert_allclose(few, whole[:3], rtol=1e-12)


def test_large_lattices_are_cut_into_batches() -> None:
    small, large = new_cells("lstm", 2, 4, 4), new_cells("lstm", 12, 1, 64)
    assert lattice.runs_at_once(small, 10) > 100
    assert 4 <= lattice.runs_at_once(large, 784) < 10
    assert lattice.runs_at_once(large, 10**6) == 1


@EVERY_CELL
def test_weights_are_orthogonal_and_biases_zero(name: str) -> None:
    drawn = draw_weights(new_cells(name, 2, 6, 6), 3)
    matrices = 0
    for layer in drawn:
        for key, weight in layer.items():
            assert weight.shape[0] == 3
            if key.endswith("bias"):
                assert not weight.any()
            elif weight.dim() == 3:
                matrices += 1
                torch.testing.assert_close(weight @ weight.transpose(1, 2), torch.eye(6).double().expand(3, 6, 6))
                assert not torch.equal(weight[0], weight[1])
    assert matrices >= 2


def test_the_users_random_numbers_are_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    measure("star", smooth_noise(2, 2, 3, 0.5, seed=1), layers=1, hidden=3)
    assert torch.equal(torch.rand(2), expected)


def test_progress_counts_every_place_forwards_and_backwards() -> None:
    heard: list[int] = []
    measure("gru", smooth_noise(3, 4, 5, 0.5, seed=0), layers=2, hidden=5, done=heard.append)
    assert sum(heard) == 3 * 4 * 2 * (1 + len(LOSSES))


@settings(max_examples=15)
@given(alpha=st.floats(0, 0.95), seed=st.integers(0, 2**31), steps=st.integers(1, 6))
def test_noise_follows_its_recurrence(alpha: float, seed: int, steps: int) -> None:
    inputs = smooth_noise(2, steps, 3, alpha, seed)
    plain = smooth_noise(2, steps, 3, 0.0, seed)  # alpha = 0 leaves z itself
    x = torch.zeros(2, 3, dtype=torch.float64)
    for step in range(steps):
        x = alpha * x + (1 - alpha) * plain[:, step]
        torch.testing.assert_close(inputs[:, step], x, rtol=1e-12, atol=1e-14)


def test_noise_is_standard_normal() -> None:
    z = smooth_noise(50, 20, 64, 0.0, seed=5)
    assert abs(float(z.mean())) < 0.02
    assert abs(float(z.std()) - 1) < 0.02


def test_gradients_far_below_one_are_kept() -> None:
    """A STAR layer keeps half of the gradient a step: after 700 steps 1e-211 are left, whose square is no double."""
    inputs = smooth_noise(2, 700, 2, 0.0, seed=0) * 1e-3
    found = measure("star", inputs, layers=1, hidden=2, losses=("last",))["last"]
    assert 1e-215 < found[0, 0, 0] < 1e-205
    assert (found > 0).all()
    pattern = pattern_of("star", "last", found)
    assert factors_of(pattern).per_step == pytest.approx(0.5, abs=0.01)
    expected = np.abs(found[0] - found[1]) / np.sqrt(2) / pattern.mean
    np.testing.assert_allclose(pattern.spread, expected, rtol=1e-9)


def test_norms() -> None:
    gradients = torch.tensor([[[3.0, 4.0]], [[0.0, 0.0]], [[3e-200, 4e-200]], [[3e200, 4e200]]], dtype=torch.float64)
    np.testing.assert_allclose(norm_of_runs(gradients), [5, 0, 5e-200, 5e200], rtol=1e-12)


def test_of_one_place_both_losses_are_the_same() -> None:
    found = measure("rnn", smooth_noise(2, 1, 4, 0.5, seed=0), layers=1, hidden=4)
    np.testing.assert_array_equal(found["last"], found["all"])
    assert (found["last"] > 0).all()
