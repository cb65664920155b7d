"""What a map says beside the class, from probabilities by hand and from any."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.prediction.layers import (
    CONFIDENCE,
    ENTROPY,
    LAYERS,
    MARGIN,
    PROBABILITIES,
    VALID_DATES,
    PixelResults,
    compute_layers,
    likeliest,
    stored_probabilities,
)
from tests.prediction.maps import CLASSES

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
