"""Which pixels are observations of the ground."""

from __future__ import annotations

import numpy as np
import pytest

from cropstar.geo.radiometry import clear_sky, observed


def test_the_scene_classification_class_by_class() -> None:
    seen = clear_sky(np.arange(12).reshape(3, 4))
    assert seen.dtype == bool
    assert np.flatnonzero(seen).tolist() == [2, 4, 5, 6, 7]


def test_other_classes_can_be_called_clear() -> None:
    assert np.flatnonzero(clear_sky(np.arange(12), clear={11})).tolist() == [11]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int16])
def test_one_missing_band_hides_the_date(dtype: type[np.integer[np.typing.NBitBase]]) -> None:
    values = np.ones((2, 3, 2, 2), dtype=dtype)
    values[1, 2, 0, 1] = 0
    seen = observed(values, 0)
    assert seen.shape == (2, 2, 2)
    assert np.argwhere(~seen).tolist() == [[1, 0, 1]]


def test_without_nodata_black_in_all_bands_is_nothing() -> None:
    values = np.zeros((2, 3, 4, 5))
    assert not observed(values, None).any()
    values[1, 2, 0, 1] = 7
    seen = observed(values, None)
    assert seen.shape == (2, 4, 5)
    assert np.argwhere(seen).tolist() == [[1, 0, 1]]
    assert observed(np.zeros((2, 3, 4, 5)), -9999).all()
