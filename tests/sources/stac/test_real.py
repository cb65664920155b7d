"""The real products of 2018 over T31TEJ served by a STAC API: the values that the files have."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import rasterio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cropstar.geo.windows import Window
from cropstar.sources.base import Observations, RasterScene, recipe_of
from cropstar.sources.ingest import ingest
from cropstar.sources.labels import read_parcels
from cropstar.sources.sentinel2 import open_sentinel2
from cropstar.sources.sentinel2.series import DEFAULT_BANDS
from cropstar.sources.stac import StacOptions, StacSeries, lonlat_extent, open_stac
from cropstar.store.store import Store
from tests.sources.examples.safe import Pixels
from tests.sources.examples.stac_api import COLLECTION, Api

SHAPE = (353, 232)
WHOLE = Window(0, 0, *SHAPE)
YEAR: dict[str, Any] = {"collection": COLLECTION, "start": date(2018, 1, 1), "end": date(2018, 12, 31)}
AREA = (3.2, 43.5, 3.4, 43.8)
DAYS = ["01-23", "01-28", "04-18", "06-27", "07-07", "08-06", "08-26", "09-20", "10-05"]


@pytest.fixture(scope="module")
def series(real_api: Api) -> Iterator[StacSeries]:
    (opened,) = open_stac(real_api.address, StacOptions(bbox=AREA, **YEAR))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def whole(series: StacSeries) -> Observations:
    return series.read(WHOLE)


def test_dates_grid_and_bands(series: StacSeries, real_api: Api) -> None:
    assert series.dates == tuple(date.fromisoformat(f"2018-{day}") for day in DAYS)
    assert series.bands == DEFAULT_BANDS
    assert (series.scale, series.offset) == (1e-4, 0.0)
    assert series.grid.shape == SHAPE
    assert series.grid.transform == (10, 0, 523_560, 0, -10, 4_832_780)
    assert series.grid.rasterio_crs.to_epsg() == 32631
    assert series.name == "sentinel-2-l2a-32631-523560-4832780-2018"
    assert any("1 of 10 dates left out, without any data: 2018-02-12" in note for note in series.notes)
    assert series.provenance["baselines"] == ["02.06"] * 2 + ["02.07"] + ["02.08"] * 6
    assert real_api.asked.count("POST /search") == 3  # all pages


def test_values_are_those_of_the_files(whole: Observations, real_products: list[Path]) -> None:
    random = np.random.default_rng(0)
    rows, columns = random.integers(0, SHAPE[0], 500), random.integers(0, SHAPE[1], 500)
    days = [path for path in real_products if "20180212" not in path.name]
    for number, product in enumerate(days):
        files = {path.name[-11:-8]: path for path in product.rglob("*_??m.jp2")}
        numbers = {band: _numbers(path)[rows, columns] for band, path in files.items()}
        clear = np.isin(numbers["SCL"], (2, 4, 5, 6, 7))
        expected = clear & np.all([numbers[band] != 0 for band in DEFAULT_BANDS], axis=0)
        valid = whole.valid[number, rows, columns]
        np.testing.assert_array_equal(valid, expected)
        for band in ("B02", "B03", "B04", "B08"):
            own = whole.values[number, DEFAULT_BANDS.index(band), rows, columns]
            np.testing.assert_array_equal(own, np.where(valid, numbers[band], 0))
    assert 0.5 < whole.valid.mean() < 0.99


def _numbers(path: Path) -> Pixels:
    """The file as rasterio reads it; coarse pixels repeated."""
    with rasterio.open(path) as dataset:
        pixels = dataset.read(1)
    ratio = round(dataset.transform.a / 10)
    return np.kron(pixels, np.ones((ratio, ratio), dtype=pixels.dtype))


def test_the_same_as_the_products_on_the_disk(whole: Observations, real_data: Path) -> None:
    (local,) = open_sentinel2(real_data / "sentinel2-t31tej" / "safe")
    expected = local.read(WHOLE)
    local.close()
    np.testing.assert_array_equal(whole.valid, expected.valid)
    np.testing.assert_array_equal(whole.values, expected.values)


@given(data=st.data())
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_window_is_a_part_of_the_whole(series: StacSeries, whole: Observations, data: st.DataObject) -> None:
    top = data.draw(st.integers(0, SHAPE[0] - 1))
    left = data.draw(st.integers(0, SHAPE[1] - 1))
    height, width = (data.draw(st.integers(1, side)) for side in (SHAPE[0] - top, SHAPE[1] - left))
    rows, columns = Window(top, left, height, width).slices
    part = series.read(Window(top, left, height, width))
    np.testing.assert_array_equal(part.valid, whole.valid[:, rows, columns])
    np.testing.assert_array_equal(part.values, whole.values[:, :, rows, columns])


def test_a_smaller_area_is_a_part_of_the_whole(series: StacSeries, whole: Observations, real_api: Api) -> None:
    options = StacOptions(bbox=(3.30, 43.63, 3.305, 43.635), bands=("B04", "B05"), **YEAR)
    (small,) = open_stac(real_api.address, options)
    left = round((small.grid.transform[2] - series.grid.transform[2]) / 10)
    top = round((series.grid.transform[5] - small.grid.transform[5]) / 10)
    height, width = small.grid.shape
    assert left > 0
    assert top > 0
    assert 40 < width < 50
    rows, columns = Window(top, left, height, width).slices
    part = small.read(Window(0, 0, height, width))
    small.close()
    chosen = [DEFAULT_BANDS.index(band) for band in ("B04", "B05")]
    both = part.valid & whole.valid[:, rows, columns]  # fewer bands, fewer that can lack a pixel
    assert both.any()
    expected = np.moveaxis(whole.values[:, chosen, rows, columns], 1, -1)
    np.testing.assert_array_equal(np.moveaxis(part.values, 1, -1)[both], expected[both])


def test_a_copy_in_another_process_reads_the_same(series: StacSeries, whole: Observations) -> None:
    copy = pickle.loads(pickle.dumps(series))
    part = copy.read(Window(100, 50, 40, 30))
    copy.close()
    np.testing.assert_array_equal(part.values, whole.values[:, :, 100:140, 50:80])


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_what_odc_stac_reads(whole: Observations, real_api: Api) -> None:
    """An independent reader of the very items: bands of 10 m and the scene classes are equal pixel by pixel."""
    odc_stac = pytest.importorskip("odc.stac", reason="odc-stac is not installed")
    import pystac

    items = [pystac.Item.from_dict(item) for item in real_api.items if "20180212" not in item["id"]]
    loaded = odc_stac.load(
        items,
        bands=["B04", "SCL"],
        x=(523_560, 523_560 + 2320),
        y=(4_832_780 - 3530, 4_832_780),
        crs="EPSG:32631",
        resolution=10,
        dtype="uint16",
        nodata=0,
        groupby="id",
        patch_url=lambda href: str(real_api.files[urlsplit(href).path]),
    )
    clear = np.isin(loaded["SCL"].values, (2, 4, 5, 6, 7))
    assert clear.shape == whole.valid.shape
    assert not (whole.valid & ~clear).any()
    red = whole.values[:, DEFAULT_BANDS.index("B04")]
    np.testing.assert_array_equal(red[whole.valid], loaded["B04"].values[whole.valid])


def test_the_area_of_real_parcels(real_data: Path) -> None:
    path = real_data / "sentinel2-t31tej" / "parcels" / "france_data_2018.shp"
    west, south, east, north = lonlat_extent(path)
    assert 3 < west < east < 4
    assert 43 < south < north < 44


def test_the_recipe_names_what_was_read(series: StacSeries) -> None:
    material = series.recipe_material()
    assert len(material["items"]) == 9
    assert len(material["items"][0]["assets"]) == len(DEFAULT_BANDS) + 1
    assert [name[:4] for name in material["without_data"]] == ["S2B_"]
    assert material == pickle.loads(pickle.dumps(series)).recipe_material()


def test_tiles_are_made_of_it(series: StacSeries, whole: Observations, real_data: Path, tmp_path: Path) -> None:
    path = real_data / "sentinel2-t31tej" / "parcels" / "france_data_2018.shp"
    parcels = read_parcels(path, series.grid, label_column="EC_hcat_n")
    scene = RasterScene(series, parcels, 240, recipe_of([], series.recipe_material()))
    assert ingest([scene], tmp_path / "store").written == 2
    store = Store.open(tmp_path / "store")
    first = min(store.tiles, key=lambda tile: -tile.grid.transform[5])
    np.testing.assert_array_equal(first.values(Window(0, 0, 240, SHAPE[1])), whole.values[:, :, :240])
    assert (first.labels() >= 0).any()
    store.close()
