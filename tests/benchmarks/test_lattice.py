"""The gradient lattice: measured as by hand, its tables, and `cropstar gradients`."""

from __future__ import annotations

import copy
import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cropstar.benchmarks import lattice
from cropstar.benchmarks.lattice import (
    LOSSES,
    PICTURE,
    SUMMARY,
    TABLE,
    draw_weights,
    factors_of,
    long_table,
    mean_ratio,
    measure,
    new_cells,
    norm_of_runs,
    panel_notes,
    pattern_of,
    smooth_noise,
    table_rows,
    table_text,
)
from cropstar.benchmarks.lattice_plot import Pattern
from cropstar.cli.gradients import gradients
from cropstar.errors import InputError, UsageError
from cropstar.models.cells.cell import CELLS, Cell
from tests.benchmarks.digits import idx_bytes
from tests.cli.invoking import InProcess

# --- measuring

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


# --- tables


def geometric(layers: int, steps: int, down: float, back: float) -> np.ndarray:
    """A lattice whose magnitude changes by `down` to the layer below and by `back` to the step before."""
    return np.array(
        [
            [down ** (layers - layer) * back ** (steps - step) for step in range(1, steps + 1)]
            for layer in range(1, layers + 1)
        ]
    )


@pytest.mark.parametrize(("down", "back"), [(0.5, 0.9), (1.1, 0.7), (1.0, 1.0), (1e-30, 1e-30)])
def test_factors_of_a_geometric_lattice(down: float, back: float) -> None:
    pattern = Pattern("star", "last", geometric(5, 4, down, back), np.full((5, 4), 0.25))
    found = factors_of(pattern)
    assert found.per_layer == pytest.approx(down)
    assert found.straight_down == pytest.approx(down)
    assert found.per_step == pytest.approx(back)
    assert found.straight_back == pytest.approx(back)
    assert found.spread == pytest.approx(0.25)


def test_a_layers_magnitude_is_the_norm_over_its_steps() -> None:
    mean = np.array([[3.0, 4.0], [0.0, 10.0]])  # norms 5 and 10
    assert factors_of(Pattern("star", "last", mean, np.ones((2, 2)))).per_layer == pytest.approx(0.5)


def test_the_mean_ratio_is_that_of_all_ratios() -> None:
    values = np.array([2.0, 8.0, 1.0, 3.0])
    ratios = values[:-1] / values[1:]
    assert mean_ratio(values) == pytest.approx(math.exp(np.log(ratios).mean()))


@pytest.mark.parametrize("values", [[1.0], [0.0, 1.0], [1.0, 0.0]])
def test_no_ratio_without_two_magnitudes(values: list[float]) -> None:
    assert math.isnan(mean_ratio(np.array(values)))


def test_mean_and_spread_over_runs() -> None:
    magnitudes = np.array([[[1.0, 0.0]], [[3.0, 0.0]]])
    pattern = pattern_of("gru", "all", magnitudes)
    np.testing.assert_array_equal(pattern.mean, [[2.0, 0.0]])
    assert pattern.spread[0, 0] == pytest.approx(math.sqrt(2) / 2)
    assert math.isnan(pattern.spread[0, 1])


def test_what_is_not_a_number_is_empty_or_null() -> None:
    patterns = [pattern_of("gru", "all", np.array([[[1.0, 0.0]], [[3.0, 0.0]]]))]
    rows = list(csv.DictReader(io.StringIO(long_table(patterns))))
    assert [(row["layer"], row["step"], row["mean"]) for row in rows] == [("1", "1", "2"), ("1", "2", "0")]
    assert float(rows[0]["spread"]) == pytest.approx(0.707107)
    assert rows[1]["spread"] == ""
    assert table_rows(patterns)[0]["per_layer"] is None
    assert ("gru", "all", "mean") not in panel_notes(patterns)
    assert "nan" in table_text(patterns)


def test_the_table_for_people_lines_up() -> None:
    patterns = [Pattern(cell, "last", geometric(3, 3, 0.5, 1), np.ones((3, 3))) for cell in ("star", "lstm_forget")]
    lines = table_text(patterns).splitlines()
    assert lines[1].split()[0] == "STAR"
    assert lines[2].startswith("LSTM w/f")
    assert len({len(line) for line in lines}) == 1


def test_what_the_paper_shows() -> None:
    """Of fewer runs than the command's 100, which the bounds are wide enough for.

    The vanilla cell amplifies from layer to layer, the LSTM swallows, STAR keeps; STAR's spread is the smallest.
    """
    inputs = smooth_noise(6, 10, 64, 0.5, seed=0)
    found = {
        name: factors_of(
            pattern_of(name, "last", measure(name, inputs, layers=10, hidden=64, losses=("last",))["last"])
        )
        for name in ("rnn", "lstm", "lstm_forget", "gru", "star")
    }
    assert found["rnn"].per_layer > 1
    assert found["lstm"].per_layer < 0.6
    assert 0.8 < found["star"].per_layer < 1.05
    assert found["star"].spread < 0.7 * min(found[name].spread for name in ("rnn", "lstm", "lstm_forget", "gru"))


# --- command line

SMALL = ["--layers", "3", "--steps", "4", "--hidden", "5", "--runs", "3", "--quiet"]


command = InProcess(gradients)
refusal = command.refusal


def test_three_files_and_a_table(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "lattice"
    answer = command("-o", folder, *SMALL)
    assert answer.exit_code == 0, answer.exception
    assert sorted(path.name for path in folder.iterdir()) == sorted([PICTURE, TABLE, SUMMARY])
    assert (folder / PICTURE).read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader((folder / TABLE).open()))
    assert list(rows[0]) == ["cell", "loss", "layer", "step", "mean", "spread"]
    assert len(rows) == 5 * 2 * 3 * 4
    assert len({(row["cell"], row["loss"], row["layer"], row["step"]) for row in rows}) == len(rows)
    document: dict[str, Any] = json.loads((folder / SUMMARY).read_text())
    assert document["settings"]["runs"] == 3
    assert "Frobenius" in document["definitions"]["magnitude"]
    table = {(row["cell"], row["loss"]): row for row in document["table"]}
    assert next(iter(table)) == ("rnn", "last")
    assert len(answer.stdout.splitlines()) == 1 + 10
    # The summary follows from the long table.
    mean = np.zeros((3, 4))
    for row in rows:
        if (row["cell"], row["loss"]) == ("star", "last"):
            mean[int(row["layer"]) - 1, int(row["step"]) - 1] = float(row["mean"])
    norms = np.sqrt((mean**2).sum(axis=1))
    assert table["star", "last"]["per_layer"] == pytest.approx((norms[0] / norms[2]) ** 0.5, rel=1e-6)
    assert table["star", "last"]["straight_down"] == pytest.approx((mean[0, 3] / mean[2, 3]) ** 0.5, rel=1e-6)


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        assert (
            command("-o", tmp_path / name, *SMALL, "--cells", "star", "--loss", "last", "--seed", seed).exit_code == 0
        )
    files = {name: [(tmp_path / name / part).read_bytes() for part in (PICTURE, TABLE)] for name in "abc"}
    assert files["a"] == files["b"]
    assert files["a"][1] != files["c"][1]


def test_a_cell_does_not_depend_on_its_company(tmp_path: Path) -> None:
    command("-o", tmp_path / "alone", *SMALL, "--cells", "star")
    command("-o", tmp_path / "together", *SMALL, "--cells", "gru,star")
    alone = (tmp_path / "alone" / TABLE).read_text().splitlines()[1:]
    assert alone == [row for row in (tmp_path / "together" / TABLE).read_text().splitlines() if row.startswith("star")]


def test_images_for_input(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 5), dtype=np.uint8)
    (tmp_path / "digits").write_bytes(idx_bytes(images))
    options = ["--hidden", "4", "--runs", "3", "--layers", "2", "--cells", "star,indrnn", "--quiet"]
    answer = command("-o", tmp_path / "out", "--data", "mnist", tmp_path / "digits", *options)
    assert answer.exit_code == 0, answer.exception
    rows = list(csv.DictReader((tmp_path / "out" / TABLE).open()))
    assert max(int(row["step"]) for row in rows) == 15
    settings = json.loads((tmp_path / "out" / SUMMARY).read_text())["settings"]
    assert (settings["input"], settings["steps"]) == ("images", 15)


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    (tmp_path / TABLE).write_text("mine")
    failure = refusal("-o", tmp_path, *SMALL)
    assert isinstance(failure, UsageError)
    assert "lattice.csv" in str(failure)
    assert "--overwrite" in str(failure)
    assert [path.name for path in tmp_path.iterdir()] == [TABLE]
    assert (tmp_path / TABLE).read_text() == "mine"
    assert command("-o", tmp_path, *SMALL, "--cells", "rnn", "--overwrite").exit_code == 0
    assert (tmp_path / TABLE).read_text().startswith("cell,")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["--cells", "starr"], ["unknown cell 'starr'", "did you mean 'star'"]),
        (["--cells", ""], ["no cells"]),
        (["--data", "mnist", "absent", "--steps", "5"], ["--steps", "pixel"]),
        (["--layers", "100", "--steps", "5000"], ["too large a lattice", "500"]),
        (["--runs", "100000", "--steps", "1000", "--layers", "1"], ["too many runs", "--runs"]),
    ],
)
def test_wrong_wishes(arguments: list[str], parts: list[str], tmp_path: Path) -> None:
    failure = refusal("-o", tmp_path / "out", *arguments)
    assert isinstance(failure, UsageError)
    assert all(part in str(failure) for part in parts), failure
    assert not (tmp_path / "out").exists()


def test_the_output_is_a_file_or_the_images_are_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file" in str(refusal("-o", tmp_path / "file", *SMALL))
    failure = refusal("-o", tmp_path / "out", "--data", "mnist", tmp_path / "absent")
    assert isinstance(failure, InputError)
    assert "absent" in str(failure)
