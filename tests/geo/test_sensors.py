"""Sentinel-2's bands by any usual spelling; which pixels are observations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.geo.sensors import COMMON_NAMES, SENTINEL2, band_name, clear_sky, in_order, observed, sentinel2_band


@st.composite
def spellings(draw: st.DrawFn) -> tuple[str, str]:
    """A band, and one of the ways in which files, tables, catalogues and users write it."""
    band = draw(st.sampled_from([*SENTINEL2, "SCL"]))
    word = band if band == "SCL" else f"B{'0' * draw(st.integers(0, 2))}{band[1:].lstrip('0')}"
    sensor = draw(st.sampled_from(["", "S2-L2A-", "S2_", "Sentinel-2 ", "S2A_", "S2-L1C-", "s2b.", "sentinel2_l2a_"]))
    ending = draw(st.sampled_from(["", "_10m", "_mean", "-jp2", "_20m-cog", ".strip"])).replace(".strip", " ")
    text = sensor + word + ending
    return draw(st.sampled_from([text, text.lower(), text.upper(), f" {text}"])), band


@given(spellings())
def test_every_spelling_is_one_band(case: tuple[str, str]) -> None:
    text, band = case
    assert sentinel2_band(text) == band
    assert band_name(text) == band
    assert sentinel2_band(text, common_names=True) == band


@given(st.text(max_size=12))
def test_a_name_has_its_name(text: str) -> None:
    name = band_name(text)
    assert name == (sentinel2_band(text) or text.strip().upper())
    if name in (*SENTINEL2, "SCL"):
        assert band_name(name) == name


@pytest.mark.parametrize(
    "text",
    ["B0", "B00", "B13", "B1A", "B9A", "B0008", "B", "8A", "XY", "band_1", "NDVI", "B2_std", "S1-VV", "SB04", "B02.1"],
)
def test_what_is_no_band_is_kept_in_capitals(text: str) -> None:
    assert sentinel2_band(text) is None
    assert sentinel2_band(text, common_names=True) is None
    assert band_name(text) == text.upper()
    assert band_name(text.lower()) == text.upper()


def test_common_names_count_where_they_are_asked_for() -> None:
    for name, band in COMMON_NAMES.items():
        assert sentinel2_band(name) is None
        assert band_name(name) == name.upper()
        assert sentinel2_band(f"{name.upper()}-jp2", common_names=True) == band
    assert sentinel2_band("rededge", common_names=True) is None


def test_a_long_text_is_no_work() -> None:
    for text in ("S2" + "-" * 200_000 + "B02", "B02" + "_10m" * 50_000 + "x", "B" + "0" * 200_000 + "2"):
        assert sentinel2_band(text) is None


def test_bands_in_the_order_of_their_ids() -> None:
    assert in_order(["NDVI", "B11", "B8A", "B08", "B09", "B01", "B11"]) == ["B01", "B08", "B8A", "B09", "B11", "NDVI"]
    assert in_order(["VV", "B12", "VH"]) == ["B12", "VV", "VH"]


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
