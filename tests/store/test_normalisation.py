"""Normalisation against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.store.fingerprint import Normalisation, measure_normalisation
from tests.examples import a_fingerprint

SCALE, OFFSET = 1e-4, -0.1


def measured(pieces: list[NDArray[np.uint16]], bands: int) -> Normalisation:
    data = a_fingerprint(tuple(f"B{number}" for number in range(bands)), scale=SCALE, offset=OFFSET)
    return measure_normalisation(((piece, np.zeros(len(piece), dtype=np.int64)) for piece in pieces), data)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 50), min_size=1, max_size=5), st.integers(1, 4))
def test_measured_in_pieces_as_in_one(seed: int, lengths: list[int], bands: int) -> None:
    random = np.random.default_rng(seed)
    pieces = [random.integers(0, 65_536, (length, bands)).astype(np.uint16) for length in lengths]
    whole = np.concatenate(pieces)
    if len(whole) == 0:
        with pytest.raises(InputError, match="no clear observation"):
            measured(pieces, bands)
        return
    reflectance = whole.astype(np.float64) * SCALE + OFFSET
    spread = reflectance.std(axis=0)
    found = measured(pieces, bands)
    assert found.mean == pytest.approx(reflectance.mean(axis=0).tolist(), rel=1e-9, abs=1e-9)
    assert found.deviation == pytest.approx(np.where(spread < 1e-12, SCALE, spread).tolist(), rel=1e-6)


@pytest.mark.parametrize("shape", [(5, 3), (5, 3, 4, 2)])
def test_applied_as_the_formula_says(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).integers(0, 12_000, shape).astype(np.uint16)
    mean, deviation = np.array([0.1, 0.2, 0.35]), np.array([0.01, 0.05, 0.2])
    normalised = Normalisation(tuple(mean), tuple(deviation)).apply(values, SCALE, OFFSET)
    by_band = (3, *(1,) * (values.ndim - 2))
    expected = (values * SCALE + OFFSET - mean.reshape(by_band)) / deviation.reshape(by_band)
    assert normalised.dtype == np.float32
    assert normalised.shape == shape
    assert normalised == pytest.approx(expected, abs=2e-5)


def test_what_was_measured_comes_out_with_zero_mean_and_unit_spread() -> None:
    values = np.random.default_rng(1).integers(200, 6_000, (2_000, 4)).astype(np.uint16)
    normalised = measured([values], values.shape[1]).apply(values, SCALE, OFFSET)
    assert normalised.mean(axis=0) == pytest.approx(np.zeros(4), abs=1e-4)
    assert normalised.std(axis=0) == pytest.approx(np.ones(4), abs=1e-4)


def test_a_band_that_never_changes_is_zero() -> None:
    values = np.full((1_000, 2), 3_333, dtype=np.uint16)
    values[:, 1] = np.arange(1_000)
    normalised = measured([values], values.shape[1]).apply(values, SCALE, OFFSET)
    assert np.isfinite(normalised).all()
    assert normalised[:, 0] == pytest.approx(np.zeros(1_000), abs=1e-3)


def test_nothing_observed_is_said() -> None:
    with pytest.raises(InputError, match="no clear observation of a training parcel"):
        measured([], 3)


def test_json_and_back() -> None:
    mine = Normalisation((0.1, 0.30000000000000004), (1e-9, 2.0))
    assert Normalisation.from_json(mine.to_json()) == mine
