"""The real products of 2018 over T31TEJ: what GDAL reads, by any window, with the real parcels on the grid."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT

from cropstar.geo.windows import Window
from cropstar.sources.base import Observations
from cropstar.sources.labels import read_parcels
from cropstar.sources.sentinel2 import Product, Sentinel2Options, Sentinel2Series, find_products, open_sentinel2
from cropstar.sources.sentinel2.series import DEFAULT_BANDS

SHAPE = (353, 232)
WHOLE = Window(0, 0, *SHAPE)
DAYS = ["01-23", "01-28", "04-18", "06-27", "07-07", "08-06", "08-26", "09-20", "10-05"]
EVERYTHING = tuple(range(1, 12))  # so that clouds hide no value from the comparison


@pytest.fixture(scope="module")
def folder(real_data: Path) -> Path:
    return real_data / "sentinel2-t31tej"


@pytest.fixture(scope="module")
def series(folder: Path) -> Iterator[Sentinel2Series]:
    (opened,) = open_sentinel2(folder / "safe")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def whole(series: Sentinel2Series) -> Observations:
    return series.read(WHOLE)


@pytest.fixture(scope="module")
def products(folder: Path) -> dict[date, Product]:
    return {product.day: product for product in find_products(folder / "safe")}


def test_dates_grid_and_bands(series: Sentinel2Series, products: dict[date, Product], whole: Observations) -> None:
    assert len(products) == 10
    assert series.dates == tuple(date.fromisoformat(f"2018-{day}") for day in DAYS)
    assert series.bands == DEFAULT_BANDS
    assert series.grid.shape == SHAPE
    assert series.grid.transform == (10, 0, 523_560, 0, -10, 4_832_780)
    assert series.grid.rasterio_crs == CRS.from_epsg(32631)
    assert any("1 of 10 dates left out, without any data: 2018-02-12" in note for note in series.notes)
    assert series.provenance["baselines"] == ["02.06"] * 2 + ["02.07"] + ["02.08"] * 6
    assert whole.values.shape == (9, 10, *SHAPE)
    assert (whole.valid.mean(axis=(1, 2)) > 0.75).all()


def test_ten_random_points_a_band_are_what_gdal_reads(folder: Path, products: dict[date, Product]) -> None:
    (series,) = open_sentinel2(folder / "safe", Sentinel2Options(resampling="nearest", clear=EVERYTHING))
    observations = series.read(WHOLE)
    generator = np.random.default_rng(2018)
    compared = 0
    for number, day in enumerate(series.dates):
        for index, band in enumerate(series.bands):
            rows, columns = generator.integers(2, SHAPE[0] - 2, 10), generator.integers(2, SHAPE[1] - 2, 10)
            points = list(zip(523_565 + 10 * columns, 4_832_775 - 10 * rows, strict=True))  # centres
            with rasterio.open(products[day].files[band].file) as dataset:
                wanted = [int(value[0]) for value in dataset.sample(points)]
            valid = observations.valid[number, rows, columns]
            read = observations.values[number, index, rows, columns]
            assert read[valid].tolist() == [value for value, there in zip(wanted, valid, strict=True) if there]
            compared += int(valid.sum())
    series.close()
    assert compared > 850  # of 900; the others lie in nodata of some band


def test_validity_is_scene_class_and_data(
    whole: Observations, series: Sentinel2Series, products: dict[date, Product]
) -> None:
    for number, day in enumerate(series.dates):
        files = products[day].files
        with rasterio.open(files["SCL"].file) as dataset:
            classes = dataset.read(1).repeat(2, axis=0).repeat(2, axis=1)[: SHAPE[0]]
        wanted = np.isin(classes, [2, 4, 5, 6, 7])
        for band in series.bands:
            with rasterio.open(files[band].file) as dataset:
                pixels = dataset.read(1)
            wanted &= (pixels if pixels.shape == SHAPE else pixels.repeat(2, axis=0).repeat(2, axis=1)[: SHAPE[0]]) != 0
        assert np.array_equal(whole.valid[number], wanted)
        assert (whole.values[number][:, ~wanted] == 0).all()


@pytest.mark.parametrize("resampling", ["bilinear", "cubic"])
def test_resampling_is_gdals(folder: Path, products: dict[date, Product], resampling: str) -> None:
    day = date(2018, 7, 7)
    place = products[day].metadata.container
    options = Sentinel2Options(bands=("B02", "B05", "B11"), resampling=resampling, clear=EVERYTHING)
    (series,) = open_sentinel2(place, options)
    observations = series.read(WHOLE)
    series.close()
    inner = (slice(8, -8), slice(8, -8))  # away from the nodata along the cut-out's edge
    for index, band in ((1, "B05"), (2, "B11")):
        with (
            rasterio.open(products[day].files[band].file) as dataset,
            WarpedVRT(
                dataset,
                crs=dataset.crs,
                transform=series.grid.affine,
                height=SHAPE[0],
                width=SHAPE[1],
                resampling=Resampling[resampling],
            ) as warped,
        ):
            wanted = warped.read(1).astype(int)[inner]
        values = observations.values[0, index].astype(int)[inner]
        valid = observations.valid[0][inner]
        assert valid.mean() > 0.99
        assert np.abs(values - wanted)[valid].max() <= 1  # GDAL rounds intermediate values


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_window_is_the_part_of_the_whole(series: Sentinel2Series, whole: Observations, data: st.DataObject) -> None:
    top, left = data.draw(st.integers(0, SHAPE[0] - 1)), data.draw(st.integers(0, SHAPE[1] - 1))
    height = data.draw(st.integers(1, min(60, SHAPE[0] - top)))
    width = data.draw(st.integers(1, min(60, SHAPE[1] - left)))
    part, (rows, columns) = series.read(Window(top, left, height, width)), Window(top, left, height, width).slices
    assert np.array_equal(part.values, whole.values[:, :, rows, columns])
    assert np.array_equal(part.valid, whole.valid[:, rows, columns])


def test_the_parcels_on_the_grid(folder: Path, series: Sentinel2Series) -> None:
    path = folder / "parcels" / "france_data_2018.shp"
    parcels = read_parcels(path, series.grid, label_column="EC_hcat_n")
    labels, numbers = parcels.burn(series.grid)
    assert len(parcels.table.keys) == 120
    assert len(parcels.classes) == 8
    assert int((labels >= 0).sum()) == 16_017
    assert len(np.unique(labels[labels >= 0])) == 8
    assert np.array_equal(labels >= 0, numbers > 0)


def test_vegetation_looks_like_vegetation(whole: Observations, series: Sentinel2Series) -> None:
    """Spring fields are greener than bare autumn ones: bands and dates are where they belong."""
    red, infrared = (whole.values[:, series.bands.index(band)].astype(float) for band in ("B04", "B8A"))
    index = np.where(whole.valid, (infrared - red) / np.maximum(infrared + red, 1), np.nan)
    median = np.nanmedian(index, axis=(1, 2))
    assert median[DAYS.index("04-18")] > 0.5
    assert median[DAYS.index("04-18")] > median[DAYS.index("10-05")] + 0.1
