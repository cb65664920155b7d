"""The drawing of the gradient lattice: what is shown where, and that odd lattices can be drawn."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.image import imread

from cropstar.benchmarks.lattice_plot import MOST_COLUMNS, Pattern, cell_title, draw_lattice, thin_steps
from cropstar.reports.drawing import DPI


def pattern(cell: str, loss: str, layers: int, steps: int, seed: int = 0) -> Pattern:
    generator = np.random.default_rng(seed)
    return Pattern(
        cell, loss, 10 ** generator.uniform(-3, 1, (layers, steps)), generator.uniform(0.02, 0.3, (layers, steps))
    )


def drawn(patterns: list[Pattern]) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = draw_lattice(patterns, "how it was made", {("star", "last", "mean"): "0.96 per layer"})
    pixels: np.ndarray = imread(io.BytesIO(data), format="png")[..., :3]
    return pixels


def grey_area(pixels: np.ndarray) -> int:
    """Pixels of the colour for places without a gradient; the edges of letters have a few."""
    grey = np.array((0xE4, 0xE7, 0xE4)) / 255
    return int((np.abs(pixels - grey).max(axis=2) < 0.01).sum())


def test_layer_one_is_at_the_bottom_and_time_runs_to_the_right() -> None:
    """One place alone is large: the brightest colour is where it belongs."""
    mean = np.full((4, 4), 1e-3)
    mean[0, 3] = 1.0  # the first layer, the last step
    pixels = drawn([Pattern("star", "last", mean, np.ones((4, 4)))])
    brightest = np.array(colormaps["viridis"](1.0)[:3])
    rows, columns = np.nonzero(np.abs(pixels - brightest).max(axis=2) < 0.01)
    darkest = np.array(colormaps["viridis"](0.0)[:3])
    dark_rows, dark_columns = np.nonzero(np.abs(pixels - darkest).max(axis=2) < 0.01)
    panel = columns < dark_columns.max() - 0.3 * DPI  # without the colour bar
    assert np.median(rows[panel]) > np.median(dark_rows)
    assert np.median(columns[panel]) > np.median(dark_columns)


def test_a_column_a_cell_a_row_a_quantity() -> None:
    cells = ["rnn", "lstm", "star"]
    one = drawn([pattern(cell, "last", 5, 5) for cell in cells])
    both = drawn([pattern(cell, loss, 5, 5) for cell in cells for loss in ("last", "all")])
    more = drawn([pattern(cell, "last", 5, 5) for cell in (*cells, "gru", "mingru")])
    assert both.shape[1] == one.shape[1]
    assert both.shape[0] > 1.6 * one.shape[0]
    assert more.shape[0] == one.shape[0]
    assert more.shape[1] > one.shape[1]


def test_long_lattices_lie() -> None:
    standing, lying = drawn([pattern("star", "last", 12, 12)]), drawn([pattern("star", "last", 12, 784)])
    assert standing.shape[0] > standing.shape[1] * 0.7
    assert lying.shape[1] > 2 * lying.shape[0]


@pytest.mark.parametrize(
    "odd",
    [
        np.zeros((3, 3)),
        np.full((3, 3), 0.7),
        np.full((3, 3), np.nan),
        np.array([[1e-300, 1.0, 1e200]]),
        np.array([[5.0]]),
    ],
    ids=["nothing", "all the same", "not a number", "beyond all colours", "one place"],
)
def test_odd_lattices(odd: np.ndarray) -> None:
    picture = drawn([Pattern("star", "last", odd, odd), Pattern("unheard-of", "last", odd, odd)])
    usual = drawn([pattern("star", "last", 3, 3), pattern("unheard-of", "last", 3, 3)])
    for side, expected in zip(picture.shape[:2], usual.shape[:2], strict=True):
        assert 0.5 * expected < side < 2 * expected  # whatever the numbers, the page keeps its measure
    assert (picture.max(axis=2) < 0.3).sum() > 500  # and its words are there


def test_places_without_a_gradient_are_grey() -> None:
    full = pattern("star", "last", 4, 4)
    holed = Pattern("star", "last", np.where(np.eye(4), 0.0, full.mean), full.spread)
    added = grey_area(drawn([holed])) - grey_area(drawn([full]))
    assert added == pytest.approx(4 * (1.45 * DPI / 4) ** 2, rel=0.1)  # four of the sixteen places


def test_thinning_keeps_means() -> None:
    values = np.arange(2 * 784, dtype=float).reshape(2, 784)
    thinned = thin_steps(values)
    assert thinned.shape == (2, MOST_COLUMNS)
    assert thinned.mean(axis=1) == pytest.approx(values.mean(axis=1), rel=0.01)
    assert (np.diff(thinned) > 0).all()
    values[0, :100] = np.nan
    thinned = thin_steps(values)
    assert np.isnan(thinned[0, 0])
    assert np.isfinite(thinned[1]).all()
    short = np.ones((2, 10))
    assert thin_steps(short) is short


def test_the_same_drawing_is_the_same_bytes() -> None:
    patterns = [pattern("gru", "all", 3, 3)]
    assert draw_lattice(patterns, "caption") == draw_lattice(patterns, "caption")


def test_names_of_the_paper() -> None:
    assert [cell_title(cell) for cell in ("rnn", "lstm_forget", "star", "other")] == [
        "vRNN",
        "LSTM w/f",
        "STAR",
        "other",
    ]


def test_one_cell_that_explodes_leaves_the_others_their_colours() -> None:
    """A gradient of 1e12 beside one around one: the calm map still shows more than one colour."""
    calm = Pattern("star", "last", np.array([[0.5, 1.0], [1.0, 2.0]]), np.full((2, 2), 0.1))
    wild = Pattern("rnn", "last", np.full((2, 2), 1e12), np.full((2, 2), 0.1))
    pixels = drawn([wild, calm])
    right = pixels[int(1.3 * DPI) : int(2.3 * DPI), int(2.8 * DPI) : int(4.0 * DPI)].reshape(-1, 3)
    assert len(np.unique(right.round(3), axis=0)) >= 3


def test_no_spread_at_all_is_no_hole() -> None:
    still = Pattern("star", "last", np.ones((4, 4)), np.zeros((4, 4)))
    assert grey_area(drawn([still])) < 1000
