"""The real products of 2018 over T31TEJ as dated GeoTIFFs: the values of the files, the mask of their classes."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from cropstar.geo.windows import Window
from cropstar.sources.sentinel2 import find_products, open_series
from cropstar.sources.stack import DatedSeries, open_stack
from tests.sources.examples.dated import open_one

SHAPE = (353, 232)
WHOLE = Window(0, 0, *SHAPE)
FINE = ("B02", "B03", "B04", "B08")
BANDS = (*FINE, "B11", "SCL")
MASKED = (2, 4, 5, 6, 7)


@pytest.fixture(scope="module")
def products(real_data: Path) -> dict[date, dict[str, Any]]:
    """Of each date and band the profile and the pixels, as rasterio reads them."""
    read: dict[date, dict[str, Any]] = {}
    for product in find_products(real_data / "sentinel2-t31tej" / "safe"):
        for band in BANDS:
            with rasterio.open(product.files[band].file) as dataset:
                profile = {"crs": dataset.crs, "transform": dataset.transform}
                read.setdefault(product.day, {})[band] = (profile, dataset.read(1))
    assert len(read) == 10
    return read


def write(path: Path, profile: dict[str, Any], pixels: Any, **options: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    _, height, width = pixels.shape
    kind = {"driver": "GTiff", "count": len(pixels), "height": height, "width": width, "dtype": pixels.dtype}
    with rasterio.open(path, "w", **kind, **profile, **options) as dataset:
        dataset.write(pixels)
        dataset.descriptions = FINE if len(pixels) > 1 else (None,)


@pytest.fixture(scope="module")
def single(products: dict[date, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One int16 file a band and date, nodata -9999, at each band's own resolution."""
    folder = tmp_path_factory.mktemp("single")
    for day, bands in products.items():
        for band, (profile, pixels) in bands.items():
            signed = pixels.astype(np.int16)
            signed[signed == 0] = 0 if band == "SCL" else -9999
            write(folder / f"SENTINEL-2_MSI_T31TEJ_{band}_{day}.tif", profile, signed[None], nodata=-9999)
    return folder


@pytest.fixture(scope="module")
def several(products: dict[date, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of the 10 m bands a date, and one of the scene classification, in a folder a date."""
    folder = tmp_path_factory.mktemp("several")
    for day, bands in products.items():
        pixels = np.stack([bands[band][1] for band in FINE])
        write(
            folder / f"{day:%Y%m%d}" / "S2_10m.tif", bands["B02"][0], pixels, nodata=0, compress="deflate", tiled=True
        )
        write(folder / f"{day:%Y%m%d}" / "SCL.tif", bands["SCL"][0], bands["SCL"][1][None])
    return folder


def expected(products: dict[date, dict[str, Any]], series: DatedSeries) -> tuple[Any, Any]:
    """The 10 m bands and their mask by plain indexing; each pixel of 20 m covers four."""
    values = np.stack([[products[day][band][1] for band in FINE] for day in series.dates])
    classes = np.stack([products[day]["SCL"][1] for day in series.dates]).repeat(2, axis=1).repeat(2, axis=2)
    valid = np.isin(classes[:, : SHAPE[0], : SHAPE[1]], MASKED) & (values != 0).all(axis=1)
    return np.where(valid[:, None], values, 0), valid


@pytest.mark.parametrize("layout", ["single", "several"])
def test_values_and_mask_are_those_of_the_files(
    products: dict[date, dict[str, Any]], layout: str, request: pytest.FixtureRequest
) -> None:
    series = open_one(request.getfixturevalue(layout), bands=FINE)
    values, valid = expected(products, series)
    observations = series.read(WHOLE)
    series.close()
    assert len(series.dates) == 9  # 2018-02-12 is nodata throughout
    assert series.provenance["without_data"] == ["2018-02-12"]
    assert series.tile == ("T31TEJ" if layout == "single" else None)
    assert 0.75 < valid.mean() < 1
    assert np.array_equal(observations.valid, valid)
    assert np.array_equal(observations.values, values)


def test_the_same_series_as_the_products_give(real_data: Path, single: Path) -> None:
    """The 20 m band too: by default bilinear, from a grid that ends 10 m below the other."""
    from cropstar.sources.sentinel2 import Sentinel2Options

    bands = (*FINE, "B11")
    (wanted,) = open_series(real_data / "sentinel2-t31tej" / "safe", Sentinel2Options(bands))
    (found,) = open_stack(single)
    assert (found.bands, found.dates, found.grid, found.scale) == (bands, wanted.dates, wanted.grid, wanted.scale)
    for window in (WHOLE, Window(100, 31, 57, 64)):
        one, other = found.read(window), wanted.read(window)
        assert np.array_equal(one.valid, other.valid)
        assert np.array_equal(one.values, other.values)
    for series in (found, wanted):
        series.close()
