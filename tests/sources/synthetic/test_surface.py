"""What the embedded scene looks like from above: crops through the season, and the textures it is made of."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest
from numpy.typing import NDArray

from cropstar.sources.synthetic import SceneOptions, SyntheticScene
from cropstar.sources.synthetic.landscape import BANDS, CROPS, make_landscape
from cropstar.sources.synthetic.reflectance import (
    coarsen,
    draw_traits,
    ground_cover,
    make_surface,
    reflectance_on,
    smooth_field,
)

CLEAR = (4, 5, 6)


# --- phenology


def greenness(crop_name: str, month: int, day: int) -> float:
    """The mean green cover of many fields of a crop."""
    crop = next(crop for crop in CROPS if crop.name == crop_name)
    traits = draw_traits(np.random.default_rng(0), [crop_name] * 200)
    ground = ground_cover(crop, traits, float(date(2023, month, day).timetuple().tm_yday))
    return float((ground.green + ground.flower).mean())


def test_winter_crops_are_green_in_april_and_summer_crops_in_august() -> None:
    for winter in ("rapeseed", "winter wheat", "winter barley"):
        for summer in ("maize", "soybeans", "sunflower", "sugar beet", "potatoes"):
            assert greenness(winter, 4, 20) > greenness(summer, 4, 20) + 0.4
            assert greenness(summer, 8, 1) > greenness(winter, 8, 1) + 0.4


def test_barley_ripens_before_wheat_and_beet_stays_green_longest() -> None:
    assert greenness("winter barley", 7, 1) < greenness("winter wheat", 7, 1) - 0.2
    assert greenness("sugar beet", 9, 25) > greenness("maize", 9, 25) + 0.3
    assert greenness("grassland", 3, 10) > 0.4
    assert greenness("grassland", 10, 10) > 0.4


def test_shares_of_the_ground_never_exceed_the_whole() -> None:
    for crop in CROPS:
        traits = draw_traits(np.random.default_rng(1), [crop.name] * 100)
        for day in range(60, 310, 10):
            ground = ground_cover(crop, traits, float(day))
            parts = np.stack([ground.green, ground.flower, ground.dry, ground.stubble])
            assert parts.min() >= 0.0
            assert parts.sum(axis=0).max() <= 1.0 + 1e-6


def vegetation_index(values: NDArray[np.float64]) -> NDArray[np.float64]:
    red, infrared = values[BANDS.index("B04")], values[BANDS.index("B08")]
    return np.asarray((infrared - red) / (infrared + red))


def test_rapeseed_flowers_yellow_and_headlands_are_thinner() -> None:
    options = SceneOptions(seed=1, size=200)
    surface = make_surface(options, make_landscape(options))
    names = [crop.name for crop in CROPS]
    rapeseed, wheat = (surface.classes == names.index(name) + 1 for name in ("rapeseed", "winter wheat"))
    may = reflectance_on(surface, 121.0, 0.3)
    green, blue = may[BANDS.index("B03")], may[BANDS.index("B02")]
    assert (green - blue)[rapeseed].mean() > 1.5 * (green - blue)[wheat].mean()
    inner = np.zeros_like(wheat)
    inner[2:-2, 2:-2] = True
    for rows in (-2, 0, 2):
        for columns in (-2, 0, 2):
            inner &= np.roll(surface.parcel_ids, (rows, columns), (0, 1)) == surface.parcel_ids
    index = vegetation_index(may.astype(np.float64))
    assert index[wheat & inner].mean() > index[wheat & ~inner].mean() + 0.03


def test_maize_and_wheat_as_seen_from_above(season: SyntheticScene) -> None:
    names = season.class_names
    maize, wheat = (season.classes == names.index(name) + 1 for name in ("maize", "winter wheat"))
    for day, codes, values in zip(season.dates, season.classification, season.values, strict=True):
        clear = np.isin(codes, CLEAR)
        if clear.mean() < 0.5:
            continue
        index = vegetation_index(values.astype(np.float64) + 1e-9)
        if day.month == 8:
            assert index[maize & clear].mean() > index[wheat & clear].mean() + 0.2
        if day.month in (4, 5):
            assert index[wheat & clear].mean() > index[maize & clear].mean() + 0.2


# --- noise


def test_smooth_fields_are_smooth_and_standard() -> None:
    field = smooth_field(np.random.default_rng(0), (61, 90), 10.0)
    assert field.shape == (61, 90)
    assert float(field.mean()) == pytest.approx(0.0, abs=1e-5)
    assert float(field.std()) == pytest.approx(1.0, abs=1e-5)
    assert np.abs(np.diff(field, axis=0)).mean() < 0.3


def test_coarsening_keeps_block_means_and_odd_shapes() -> None:
    values = np.arange(15, dtype=np.float32).reshape(3, 5)
    coarse = coarsen(values)
    assert coarse.shape == values.shape
    np.testing.assert_allclose(coarse[:2, :2], values[:2, :2].mean())
    assert coarse[2, 4] == values[2, 4]
