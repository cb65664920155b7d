"""The factors and tables of a lattice, and what the paper's five cells show."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import pytest

from cropstar.benchmarks.lattice import measure
from cropstar.benchmarks.lattice_findings import (
    factors_of,
    long_table,
    mean_ratio,
    notes,
    pattern_of,
    table_rows,
    table_text,
)
from cropstar.benchmarks.lattice_inputs import smooth_noise
from cropstar.reports.lattice import Pattern


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
    assert ("gru", "all", "mean") not in notes(patterns)
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
