"""Small granules behind an API: merging, mosaics, other zones and resolutions, offsets, nodata."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.enums import Resampling
from rasterio.vrt import WarpedVRT

from cropstar.errors import InputError
from cropstar.geo.windows import Window, split
from tests.sources.examples.safe import CORNER, HEIGHT, WIDTH, some_pixels
from tests.sources.examples.stac_api import Api
from tests.sources.examples.stac_catalogue import add_granule, constant, open_one, read_all

TWO = ("B02", "B05")


def test_neighbours_make_one_mosaic(api: Api, tmp_path: Path) -> None:
    east = (CORNER[0] + 10 * 2 * WIDTH, CORNER[1])
    left = add_granule(api, tmp_path, pixels={"B02": some_pixels("B02", 1), "SCL": constant("SCL", 4)})
    add_granule(api, tmp_path, pixels={"B02": some_pixels("B02", 2), "SCL": constant("SCL", 4)}, corner=east)
    series = open_one(api)
    whole = read_all(series)
    assert series.grid.shape == (HEIGHT, 3 * WIDTH)
    np.testing.assert_array_equal(whole.values[0, 0, :, :WIDTH], some_pixels("B02", 1))
    np.testing.assert_array_equal(whole.values[0, 0, :, 2 * WIDTH :], some_pixels("B02", 2))
    assert not whole.valid[0, :, WIDTH : 2 * WIDTH].any()
    assert left["id"] in series.provenance["products"]
    assert any("2 items merged" in note for note in series.notes)


def test_of_one_day_the_first_valid_pixel_counts(api: Api, tmp_path: Path) -> None:
    """Newer baselines first; under their clouds and nodata the older ones are asked, with all bands together."""
    clouds = constant("SCL", 4)
    clouds[:5] = 9
    gaps = constant("B05", 2000)
    gaps[6] = 0
    new = {"B02": constant("B02", 1200), "B05": gaps, "SCL": clouds}
    old = {"B02": constant("B02", 300), "B05": constant("B05", 400), "SCL": constant("SCL", 5)}
    add_granule(api, tmp_path, pixels=old, properties={"s2:processing_baseline": "03.01"})
    add_granule(api, tmp_path, pixels=new, properties={"s2:processing_baseline": "04.00"})
    whole = read_all(open_one(api, resampling="nearest"))
    assert whole.valid.all()
    from_old = np.zeros(HEIGHT, dtype=bool)
    from_old[:10] = from_old[12:14] = True
    np.testing.assert_array_equal(whole.values[0, 0, :, 0], np.where(from_old, 300, 200))
    np.testing.assert_array_equal(whole.values[0, 1, :, 0], np.where(from_old, 400, 1000))


@pytest.mark.parametrize(
    ("properties", "raster", "value"),
    [
        ({"s2:processing_baseline": "02.08"}, None, 1500),
        ({"s2:processing_baseline": "05.10"}, None, 500),
        ({"processing:version": "05.10"}, None, 500),
        ({"s2:product_uri": "S2B_MSIL2A_20230501T103029_N0509_R108_T32UPU_20230501T120000.SAFE"}, None, 500),
        ({"s2:processing_baseline": "05.10"}, {"scale": 0.0001, "offset": 0}, 1500),
        ({"s2:processing_baseline": "02.08"}, {"scale": 0.0001, "offset": -0.1}, 500),
        ({"earthsearch:boa_offset_applied": True}, {"scale": 0.0001, "offset": -0.1}, 1500),
        ({"earthsearch:boa_offset_applied": False}, {"scale": 0.0001, "offset": -0.1}, 500),
        ({"s2:processing_baseline": "05.10"}, {"raster:scale": 0.0002, "raster:offset": -0.05}, 2500),
        ({"s2:processing_baseline": "05.10"}, {"scale": 0.0001, "offset": -0.2}, 1),
    ],
)
def test_the_offset_is_what_the_item_says(
    api: Api, tmp_path: Path, properties: dict[str, Any], raster: dict[str, Any] | None, value: int
) -> None:
    item = add_granule(api, tmp_path, pixels={"B02": constant("B02", 1500)}, properties=properties)
    if raster:
        item["assets"]["B02"]["raster:bands"] = [{**raster, "nodata": 0}]
    series = open_one(api)
    assert (read_all(series).values == value).all()
    assert not any("assumed" in note for note in series.notes)


def test_silence_on_the_offset_is_told(api: Api, tmp_path: Path) -> None:
    item = add_granule(api, tmp_path, pixels={"B02": constant("B02", 1500)}, properties={"platform": "sentinel-2a"})
    series = open_one(api)
    assert (read_all(series).values == 1500).all()
    assert any(f"no offset is assumed: {item['id']}" in note for note in series.notes)
    assert any("clouds are not masked" in note for note in series.notes)


@pytest.mark.parametrize("name", ["scale", "offset", "nodata"])
def test_odd_reflectance_is_refused(api: Api, tmp_path: Path, name: str) -> None:
    item = add_granule(api, tmp_path)
    item["assets"]["B02"]["raster:bands"] = [{name: -9999 if name != "offset" else "much"}]
    with pytest.raises(InputError, match=rf"unclear reflectance in the item {item['id']}, asset B02: its {name} is"):
        open_one(api)


def test_a_missing_band_is_named_with_its_item(api: Api, tmp_path: Path) -> None:
    add_granule(api, tmp_path, "2023-05-01")
    item = add_granule(api, tmp_path, "2023-06-01", {"B02": some_pixels("B02"), "SCL": constant("SCL", 4)})
    with pytest.raises(InputError, match=f"the item {item['id']} of 2023-06-01 has no B05"):
        open_one(api)
    assert open_one(api, bands=("B02",)).bands == ("B02",)


def test_dates_without_data_are_dropped_and_named(api: Api, tmp_path: Path) -> None:
    add_granule(api, tmp_path, "2023-05-01")
    add_granule(api, tmp_path, "2023-06-01", {band: some_pixels(band) * 0 for band in (*TWO, "SCL")})
    series = open_one(api)
    assert [str(day) for day in series.dates] == ["2023-05-01"]
    assert any("1 of 2 dates left out, without any data: 2023-06-01" in note for note in series.notes)
    api.items.pop(0)
    with pytest.raises(InputError, match="no usable date"):
        open_one(api)


@pytest.mark.parametrize("without", [("proj:epsg",), ("proj:shape", "proj:transform")])
def test_a_catalogue_without_projections_is_read_by_headers(api: Api, tmp_path: Path, without: tuple[str, ...]) -> None:
    item = add_granule(api, tmp_path)
    expected = read_all(open_one(api))
    for place in (item["properties"], *item["assets"].values()):
        for name in without:
            place.pop(name, None)
    np.testing.assert_array_equal(read_all(open_one(api)).values, expected.values)


@pytest.mark.parametrize(("number", "change"), [(2, 100.0), (0, 0.005), (4, -0.005)])
def test_a_grid_that_is_not_the_file_s_is_refused(api: Api, tmp_path: Path, number: int, change: float) -> None:
    item = add_granule(api, tmp_path)
    item["assets"]["B02"]["proj:transform"][number] += change
    with pytest.raises(InputError, match="an asset is not what its item says"):
        read_all(open_one(api))


@pytest.mark.parametrize("changes", [{"resolution": 20.0}, {"crs": "EPSG:32633"}, {"resolution": 15.0}])
@pytest.mark.parametrize("resampling", ["nearest", "bilinear"])
def test_other_grids_are_warped_like_gdal_does(
    api: Api, tmp_path: Path, changes: dict[str, Any], resampling: str
) -> None:
    """Windows are parts of the whole, nodata mixes with nothing, and values are those of a plain warp."""
    holes = some_pixels("B02", 3)
    holes[8:12, 5:9] = 0
    item = add_granule(api, tmp_path, pixels={"B02": holes})
    series = open_one(api, resampling=resampling, **changes)
    whole = read_all(series)
    place = item["assets"]["B02"]["href"].removeprefix(api.address)
    with rasterio.open(api.files[place]) as dataset:
        grid = {"crs": series.grid.rasterio_crs, "transform": series.grid.affine}
        size = {"height": series.grid.height, "width": series.grid.width, "src_nodata": 0, "nodata": 0}
        with WarpedVRT(dataset, **grid, **size) as vrt:
            present = vrt.read(1) != 0
        with WarpedVRT(dataset, **grid, **size, resampling=Resampling[resampling]) as vrt:
            expected = vrt.read(1)
    assert 0 < present.mean() < 1
    np.testing.assert_array_equal(whole.valid[0], present)
    np.testing.assert_array_equal(whole.values[0, 0], np.where(present, expected, 0))
    for window in split(series.grid.shape, 7):
        rows, columns = window.slices
        np.testing.assert_array_equal(series.read(window).values, whole.values[:, :, rows, columns])
    assert any("warped by GDAL" in note for note in series.notes)


def test_items_of_another_zone_join_the_mosaic(api: Api, tmp_path: Path) -> None:
    """Two of zone 32 and one of zone 33 that shows the same place: the grid is of zone 32."""
    add_granule(api, tmp_path, "2023-05-01", {"B02": constant("B02", 700)})
    add_granule(api, tmp_path, "2023-05-11", {"B02": constant("B02", 800)})
    there = rasterio.warp.transform("EPSG:32632", "EPSG:32633", [CORNER[0]], [CORNER[1]])
    corner = (round(there[0][0], -1) - 50, round(there[1][0], -1) + 50)
    far = {"B02": np.full((40, 40), 900, dtype=np.uint16)}
    add_granule(api, tmp_path, "2023-05-21", far, corner=corner, epsg=32633)
    series = open_one(api, bbox=_box_of(api.items[0]))
    assert series.grid.rasterio_crs.to_epsg() == 32632
    whole = series.read(Window(0, 0, HEIGHT, WIDTH))
    centre = whole.values[:, 0, HEIGHT // 2, WIDTH // 2]
    assert centre.tolist() == [700, 800, 900]


def test_a_copy_in_another_zone_is_not_warped_in_vain(api: Api, tmp_path: Path) -> None:
    """Tiles of neighbouring zones show the same acquisition: where the grid's own zone covers all, one is enough."""
    add_granule(api, tmp_path, "2023-05-01", {"B02": constant("B02", 700)})
    add_granule(api, tmp_path, "2023-05-11", {"B02": constant("B02", 800)})
    there = rasterio.warp.transform("EPSG:32632", "EPSG:32633", [CORNER[0]], [CORNER[1]])
    far = {"B02": np.full((40, 40), 900, dtype=np.uint16)}
    corner = (there[0][0] - 50, there[1][0] + 50)
    add_granule(api, tmp_path, "2023-05-11", far, corner=corner, epsg=32633)
    west, south, east, north = api.items[0]["bbox"]
    inner = (west + 0.0005, south + 0.0005, east - 0.0005, north - 0.0005)
    series = open_one(api, bbox=inner)
    assert series.provenance["products"] == [item["id"] for item in api.items[:2]]
    assert (read_all(series).values[1] == 800).all()
    wide = open_one(api, bbox=(west - 0.001, south, east, north))
    assert wide.provenance["products"] == [item["id"] for item in api.items]  # there it shows more


def _box_of(item: dict[str, Any]) -> tuple[float, ...]:
    return tuple(json.loads(json.dumps(item["bbox"])))


HOSTILE: dict[str, tuple[tuple[str | int, ...], Any, str | None]] = {
    "properties that are a list": (("properties",), [1], "not a STAC item"),
    "a date beyond all dates": (("properties", "datetime"), "0001-01-01T00:00:00+14:00", "no date"),
    "a transform beyond all numbers": (("assets", "B02", "proj:transform", 2), 10**400, None),
    "a size beyond all numbers": (("assets", "B02", "gsd"), 10**400, None),
    "a scale next to nothing": (("assets", "B02", "scale"), 1e-320, "unclear reflectance"),
    "an offset beyond all numbers": (("assets", "B02", "offset"), 10**400, "unclear reflectance"),
    "half of a character": (("assets", "B02", "href"), "https://a/\ud800.tif", "refused address"),
    "cloud beyond all numbers": (("properties", "eo:cloud_cover"), 10**400, None),
}


@pytest.mark.parametrize(("place", "value", "what"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_item(
    place: tuple[str | int, ...],
    value: Any,
    what: str | None,
    api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused in one line, or read as if it had not said so."""
    monkeypatch.setattr("tests.sources.examples.stac_api._matches", lambda *_: True)
    item: Any = add_granule(api, tmp_path, pixels={"B02": some_pixels("B02", 1), "SCL": constant("SCL", 4)})
    expected = read_all(open_one(api)).values
    for key in place[:-1]:
        item = item[key]
    item[place[-1]] = value
    if what is None:
        np.testing.assert_array_equal(read_all(open_one(api)).values, expected)
        return
    with pytest.raises(InputError, match=what) as caught:
        open_one(api)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.remedy


def test_items_of_one_name_in_two_collections(api: Api, tmp_path: Path) -> None:
    """One of them was lost."""
    pixels = {"B02": some_pixels("B02", 1), "SCL": constant("SCL", 4)}
    first, second = (add_granule(api, tmp_path, day, pixels) for day in ("2023-05-01", "2023-06-01"))
    api.collections.append("sentinel-2-c1-l2a")
    second |= {"collection": "sentinel-2-c1-l2a", "id": first["id"]}
    assert len(open_one(api, collection="sentinel-2-l2a,sentinel-2-c1-l2a").dates) == 2
