"""Layers beside the class, and smoothing: by hand, and against the naive way."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.errors import UsageError
from cropstar.geo.windows import Window, split
from cropstar.prediction.layers import (
    CONFIDENCE,
    ENTROPY,
    LAYERS,
    LEAST,
    MARGIN,
    PROBABILITIES,
    VALID_DATES,
    PixelResults,
    Smoothing,
    bayesian,
    compute_layers,
    likeliest,
    majority,
    stored_probabilities,
)
from cropstar.prediction.outputs import smoothed_block
from cropstar.prediction.request import MapOptions
from tests.prediction.maps import CLASSES, Landscape, a_landscape, write

Probabilities = NDArray[np.float32]


def results(
    probabilities: Any, seen: NDArray[np.bool_], counts: NDArray[np.int64], names: Iterable[str]
) -> dict[str, NDArray[Any]]:
    """Layers of a map that shows the likeliest class."""
    return compute_layers(PixelResults(probabilities, likeliest(probabilities, seen), seen, counts), list(names))


@st.composite
def some_probabilities(draw: st.DrawFn) -> tuple[Probabilities, NDArray[np.bool_]]:
    """(K, h, w) that sum to one, some of them exactly 0 or 1, and what was seen."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4)))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = random.normal(0, draw(st.sampled_from([0.0, 1.0, 30.0, 300.0])), shape)
    powers = np.exp(scores - scores.max(axis=0))
    return (powers / powers.sum(axis=0)).astype(np.float32), random.random(shape[1:]) < 0.8


def test_values_by_hand() -> None:
    probabilities = np.array([[[0.7, 1.0, 0.25]], [[0.2, 0.0, 0.25]], [[0.1, 0.0, 0.25]], [[0.0, 0.0, 0.25]]])
    seen, counts = np.array([[True, True, True]]), np.array([[3, 300, 1]])
    made = results(probabilities, seen, counts, LAYERS)
    assert list(made) == list(LAYERS)
    assert made[CONFIDENCE].tolist() == [[[70, 100, 25]]]
    assert made[MARGIN].tolist() == [[[50, 0, 100]]]
    # -(0.7 ln 0.7 + 0.2 ln 0.2 + 0.1 ln 0.1) / ln 4 = 0.5784
    assert made[ENTROPY].tolist() == [[[58, 0, 100]]]
    assert made[PROBABILITIES][:, 0, 0].tolist() == [7000, 2000, 1000, 0]
    assert made[VALID_DATES].tolist() == [[[3, 300, 1]]]


@given(some_probabilities())
def test_layers_are_bounded_and_nodata_where_nothing_was_seen(example: tuple[Probabilities, NDArray[np.bool_]]) -> None:
    probabilities, seen = example
    made = results(probabilities, seen, seen.astype(np.int64), LAYERS)
    for name, layer in LAYERS.items():
        values = made[name]
        assert values.dtype == layer.dtype
        assert values.shape[1:] == seen.shape
        if layer.nodata is not None:
            assert (values[:, ~seen] == layer.nodata).all()
            assert (values[:, seen] * layer.scale <= (1 if name == PROBABILITIES else 100)).all()
    back = stored_probabilities(made[PROBABILITIES])
    assert np.abs(back - probabilities)[:, seen].max(initial=0) <= 0.51e-4
    assert (back[:, ~seen] == 0).all()
    # Sure of one class is unsure of none, by either measure.
    sure = seen & (probabilities.max(axis=0) == 1)
    assert not made[ENTROPY][0][sure].any()
    assert not made[MARGIN][0][sure].any()


def test_confidence_is_that_of_the_class_on_the_map() -> None:
    probabilities = np.array([[[0.6, 0.6]], [[0.4, 0.4]]])
    seen, chosen = np.array([[True, False]]), np.array([[1, 255]], dtype=np.uint8)
    pixels = PixelResults(probabilities, chosen, seen, np.zeros((1, 2), dtype=np.int64))
    made = compute_layers(pixels, [CONFIDENCE])
    assert made[CONFIDENCE].tolist() == [[[40, 255]]]


def test_numbers_that_are_none_do_not_matter_where_nothing_was_seen() -> None:
    probabilities = np.full((2, 1, 2), np.nan)
    probabilities[:, 0, 0] = (0.9, 0.1)
    with np.errstate(invalid="ignore"):
        made = results(probabilities, np.array([[True, False]]), np.zeros((1, 2), dtype=np.int64), [CONFIDENCE])
    assert made[CONFIDENCE].tolist() == [[[90, 255]]]


@pytest.mark.parametrize("name", LAYERS)
def test_bands_have_names(name: str) -> None:
    bands = LAYERS[name].bands(CLASSES)
    assert bands == CLASSES.names if name == PROBABILITIES else len(bands) == 1


# --- smoothing


Map = NDArray[np.uint8]


def around(row: int, column: int, window: int, shape: tuple[int, ...]) -> tuple[slice, slice]:
    half = window // 2
    return (
        slice(max(row - half, 0), min(row + half + 1, shape[0])),
        slice(max(column - half, 0), min(column + half + 1, shape[1])),
    )


def naive_majority(classes: Map, window: int) -> Map:
    result = classes.copy()
    for row, column in np.argwhere(classes != 255):
        near = classes[around(row, column, window, classes.shape)]
        votes = {int(number): int((near == number).sum()) for number in np.unique(near[near != 255])}
        winners = [number for number, count in votes.items() if count == max(votes.values())]
        own = int(classes[row, column])
        result[row, column] = own if own in winners else min(winners)
    return result


def naive_bayesian(
    probabilities: NDArray[np.float64], seen: NDArray[np.bool_], window: int, smoothness: float
) -> NDArray[np.float64]:
    result = np.zeros_like(probabilities)
    for row, column in np.argwhere(seen):
        part = around(row, column, window, seen.shape)
        odds = []
        for share in probabilities:
            logits = [math.log(p / (1 - p)) for p in np.clip(share[part][seen[part]], LEAST, 1 - LEAST)]
            own = math.log((p := min(max(share[row, column], LEAST), 1 - LEAST)) / (1 - p))
            mean, variance = float(np.mean(logits)), float(np.var(logits))
            total = variance + smoothness
            odds.append((variance * own + smoothness * mean) / total if total else own)
        raw = 1 / (1 + np.exp(-np.array(odds)))
        result[:, row, column] = raw / raw.sum()
    return result


@st.composite
def maps(draw: st.DrawFn) -> Map:
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    values = st.sampled_from([0, 1, 2, 254, 255])
    rows = draw(st.lists(st.lists(values, min_size=width, max_size=width), min_size=height, max_size=height))
    return np.array(rows, dtype=np.uint8)


@given(maps(), st.sampled_from([1, 3, 5, 9]))
def test_majority_is_what_its_definition_says(classes: Map, window: int) -> None:
    smoothed = majority(classes, window)
    np.testing.assert_array_equal(smoothed, naive_majority(classes, window))
    np.testing.assert_array_equal(smoothed == 255, classes == 255)


@given(maps(), st.sampled_from([1, 3, 5]), st.sampled_from([0.0, 0.5, 20.0]), st.integers(0, 99))
def test_bayesian_is_what_its_definition_says(classes: Map, window: int, smoothness: float, seed: int) -> None:
    seen = classes != 255
    scores = np.random.default_rng(seed).normal(0, 4, (3, *classes.shape))
    powers = np.exp(scores)
    probabilities = powers / powers.sum(axis=0)
    found = bayesian(probabilities, seen, window, smoothness)
    np.testing.assert_allclose(found, naive_bayesian(probabilities, seen, window, smoothness), atol=1e-9)
    assert (found[:, ~seen] == 0).all()
    np.testing.assert_allclose(found.sum(axis=0)[seen], 1)


def stored(landscape: Landscape) -> NDArray[np.uint16]:
    layers = compute_layers(landscape.pixels, [PROBABILITIES])
    return layers[PROBABILITIES].astype(np.uint16)


@pytest.mark.parametrize("size", [5, 16, 33])
@pytest.mark.parametrize(
    "smoothing",
    [
        Smoothing(method="majority", window=5),
        Smoothing(method="bayesian", window=7),
        Smoothing(method="bayesian", window=3, smoothness=0.5),
    ],
)
def test_blocks_give_the_very_numbers_of_the_whole(smoothing: Smoothing, size: int) -> None:
    landscape = a_landscape(21, 33)
    classes, probabilities = landscape.classes, stored(landscape)
    names = (CONFIDENCE, PROBABILITIES, ENTROPY)
    height, width = classes.shape
    everything = Window(0, 0, height, width).slices
    whole, layers = smoothed_block(classes, probabilities, everything, smoothing, names)
    assert (whole != classes).any()
    for window in split(classes.shape, size):
        outer = window.expand(smoothing.margin, classes.shape)
        inner = window.relative_to(outer).slices
        part, of_part = smoothed_block(classes[outer.slices], probabilities[:, *outer.slices], inner, smoothing, names)
        np.testing.assert_array_equal(part, whole[window.slices])
        for name in names:
            np.testing.assert_array_equal(of_part[name], layers[name][:, *window.slices])


def test_a_margin_too_small_would_leave_seams() -> None:
    """The test above can fail."""
    landscape, smoothing = a_landscape(21, 33), Smoothing(method="majority", window=5)
    whole = majority(landscape.classes, smoothing.window)
    parts = [majority(landscape.classes[window.slices], 5) for window in split(whole.shape, 7)]
    wanted = [whole[window.slices] for window in split(whole.shape, 7)]
    assert any((part != want).any() for part, want in zip(parts, wanted, strict=True))


@pytest.mark.parametrize("method", ["majority", "bayesian"])
def test_the_files_are_the_smoothed_ones(method: str, tmp_path: Path) -> None:
    landscape = a_landscape()
    smoothing = Smoothing(method="majority" if method == "majority" else "bayesian", window=5)
    wanted = MapOptions(layers=(CONFIDENCE, VALID_DATES), smoothing=smoothing, picture=False)
    assert wanted.layers_of_blocks == (PROBABILITIES, VALID_DATES)
    finished = write(tmp_path, landscape, wanted)
    height, width = landscape.classes.shape
    whole = Window(0, 0, height, width).slices
    classes, layers = smoothed_block(landscape.classes, stored(landscape), whole, smoothing, (CONFIDENCE,))
    with rasterio.open(finished.files.map) as dataset:
        assert dataset.tags()["CROPSTAR_SMOOTHING"] == str(smoothing)
        np.testing.assert_array_equal(dataset.read(1), classes)
    with rasterio.open(finished.files.layer(CONFIDENCE)) as dataset:
        np.testing.assert_array_equal(dataset.read(), layers[CONFIDENCE])
    with rasterio.open(finished.files.layer(VALID_DATES)) as dataset:
        np.testing.assert_array_equal(dataset.read(1), landscape.counts)
    np.testing.assert_array_equal(finished.counts, np.bincount(classes.ravel(), minlength=256))


def test_specks_go_and_edges_stay() -> None:
    classes = np.zeros((20, 20), dtype=np.uint8)
    classes[:, 10:] = 1
    spotted = classes.copy()
    spotted[[3, 8, 15], [4, 15, 2]] = [1, 0, 2]
    np.testing.assert_array_equal(majority(spotted, 3), classes)


@pytest.mark.parametrize(
    ("window", "smoothness"), [(4, 20.0), (0, 20.0), (-3, 20.0), (101, 20.0), (3, -1.0), (3, math.nan)]
)
def test_what_cannot_be_smoothed_with_is_refused(window: int, smoothness: float) -> None:
    with pytest.raises(UsageError, match="cannot smooth"):
        Smoothing(method="bayesian", window=window, smoothness=smoothness)


def test_a_majority_alone_needs_no_probabilities() -> None:
    assert MapOptions(layers=(), smoothing=Smoothing(method="majority")).layers_of_blocks == ()
    assert MapOptions(layers=(CONFIDENCE,), smoothing=Smoothing(method="majority")).layers_of_blocks == (PROBABILITIES,)
    assert MapOptions(layers=(), smoothing=Smoothing(method="bayesian")).layers_of_blocks == (PROBABILITIES,)
    assert MapOptions(layers=(VALID_DATES,), smoothing=Smoothing(method="majority")).layers_of_blocks == (VALID_DATES,)
    assert MapOptions(layers=(CONFIDENCE,), smoothing=None).layers_of_blocks == (CONFIDENCE,)
