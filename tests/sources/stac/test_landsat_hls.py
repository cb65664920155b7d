"""Landsat Collection 2 and HLS as public catalogues write their items: names, scales, masks of bits."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine
from rasterio.vrt import WarpedVRT
from shapely import box

import cropstar
from cropstar.errors import InputError
from cropstar.sources.stac.items import assets_by_band, product_of
from tests.sources.examples.stac_api import Api, Json
from tests.sources.examples.stac_catalogue import item_of, open_one, read_all

SHAPE, PIXEL, CORNER = (12, 10), 30, (600_000.0, 5_400_000.0)
CLEAR, CLOUD, SHADOW, FILL, WATER = 21824, 22280, 23888, 1, 21952  # QA_PIXEL of Landsat 8
Pixels = NDArray[Any]

OLI = {"coastal": "B1", "blue": "B2", "green": "B3", "red": "B4", "nir08": "B5", "swir16": "B6", "swir22": "B7"}
TM = {"blue": "B1", "green": "B2", "red": "B3", "nir08": "B4", "swir16": "B5", "swir22": "B7"}
S30 = {
    "B02": "blue",
    "B03": "green",
    "B04": "red",
    "B05": "rededge071",
    "B8A": "nir08",
    "B11": "swir16",
    "B12": "swir22",
}
L30 = {"B02": "blue", "B03": "green", "B04": "red", "B05": "nir", "B06": "swir16", "B07": "swir22"}
SHARED = ("B02", "B03", "B04", "B8A", "B11", "B12")


def write(path: Path, pixels: Pixels, nodata: float | None = None, **place: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    place = {"crs": "EPSG:32632", "transform": Affine(PIXEL, 0, CORNER[0], 0, -PIXEL, CORNER[1]), **place}
    size = {"height": pixels.shape[0], "width": pixels.shape[1], "count": 1, "dtype": pixels.dtype, "nodata": nodata}
    with rasterio.open(path, "w", driver="GTiff", **size, **place) as dataset:
        dataset.write(pixels, 1)
    return path


def numbers(seed: int, low: int, high: int, kind: type[np.integer[Any]]) -> Pixels:
    return np.random.default_rng(seed).integers(low, high, SHAPE).astype(kind)


def add(api: Api, item: Json, collection: str, *, projected: bool = True) -> Json:
    """List an item; catalogues of NASA say nothing of projections or types."""
    item["collection"] = collection
    if collection not in api.collections:
        api.collections.append(collection)
    if projected:  # of the item, not of each asset
        item["properties"] |= {name: item["assets"]["red" if "red" in item["assets"] else "B04"][name] for name in PROJ}
    for asset in item["assets"].values():
        for name in (*PROJ, *(() if projected else ("type", "roles"))):
            del asset[name]
    api.items.append(item)
    return item


PROJ = ("proj:shape", "proj:transform")


def add_landsat(
    api: Api,
    folder: Path,
    day: str = "2023-05-01",
    *,
    satellite: int = 8,
    spelling: str = "SR_{}",
    says_scale: bool = True,
    quality: Pixels | None = None,
    **place: Any,
) -> dict[str, Path]:
    """As stactools writes it (Planetary Computer, Earth Search), or as USGS does: bands B1 to B7, no scale."""
    bands = OLI if satellite in (8, 9) else TM
    name = f"L{'C' if satellite in (8, 9) else 'T'}0{satellite}_L2SP_193026_{day.replace('-', '')}_02_T1"
    quality = np.full(SHAPE, CLEAR, np.uint16) if quality is None else quality
    files = {
        common: write(folder / name / f"SR_{own}.TIF", numbers(place_of, 7000, 40_000, np.uint16), 0, **place)
        for place_of, (common, own) in enumerate(bands.items())
    }
    others = {
        "qa_pixel": write(folder / name / "QA_PIXEL.TIF", quality, 1, **place),
        "qa_radsat": write(folder / name / "QA_RADSAT.TIF", quality * 0, **place),
        "lwir11": write(folder / name / "ST_B10.TIF", quality, 0, **place),
    }
    said = {"platform": f"landsat-{satellite}", "landsat:correction": "L2SP", "eo:cloud_cover": 20.0}
    item = item_of(api, name, f"{day}T10:05:00Z", {**files, **others}, said)
    for common, own in (*bands.items(), ("lwir11", "B10")):
        asset = item["assets"][common]
        asset["eo:bands"] = [{"name": spelling.format(own), "common_name": common}]
        asset["roles"] = ["reflectance" if common != "lwir11" else "temperature"]
        if says_scale:
            asset["raster:bands"] = [{"data_type": "uint16", "nodata": 0, "scale": 2.75e-05, "offset": -0.2}]
    item["assets"]["qa_pixel"]["roles"] = ["cloud", "cloud-shadow", "snow-ice", "water-mask"]
    add(api, item, "landsat-c2-l2")
    return {**files, **others}


def add_hls(
    api: Api,
    folder: Path,
    part: str = "S",
    day: int = 121,
    *,
    pixels: Mapping[str, Pixels] | None = None,
    mask: Pixels | None = None,
    of_nasa: bool = True,
    **place: Any,
) -> dict[str, Path]:
    """Bare assets as of NASA's CMR-STAC, or described ones as of the Planetary Computer."""
    bands = S30 if part == "S" else L30
    name = f"HLS.{part}30.T32UPU.2023{day:03d}T101601.v2.0"
    pixels = pixels or {band: numbers(number, 1, 9000, np.int16) for number, band in enumerate(bands)}
    mask = np.zeros(SHAPE, np.uint8) if mask is None else mask
    files = {band: write(folder / f"{name}.{band}.tif", own, -9999, **place) for band, own in pixels.items()}
    files["Fmask"] = write(folder / f"{name}.Fmask.tif", mask, 255, **place)
    angles = {"SZA": write(folder / f"{name}.SZA.tif", mask.astype(np.uint16), 40_000, **place)}
    moment = f"{np.datetime64('2023-01-01') + (day - 1)}T10:16:01Z"
    item = item_of(api, name, moment, {**files, **angles}, {"eo:cloud_cover": 5})
    if not of_nasa:
        for band, common in bands.items():
            item["assets"][band]["eo:bands"] = [{"name": band, "common_name": common}]
    add(api, item, f"HLS{part}30_2.0" if of_nasa else f"hls2-{part.lower()}30", projected=not of_nasa)
    return files


def as_read(path: Path) -> NDArray[np.float64]:
    with rasterio.open(path) as dataset:
        pixels: NDArray[np.float64] = dataset.read(1).astype(float)
    return pixels


@pytest.mark.parametrize("spelling", ["SR_{}", "OLI_{}", "{}"])
@pytest.mark.parametrize("says_scale", [True, False])
def test_landsat(api: Api, tmp_path: Path, spelling: str, says_scale: bool) -> None:
    """USGS calls the near infrared B5: it is no red edge."""
    quality = np.full(SHAPE, CLEAR, np.uint16)
    quality[0, :4] = CLOUD, SHADOW, FILL, WATER
    files = add_landsat(api, tmp_path, spelling=spelling, says_scale=says_scale, quality=quality)
    series = open_one(api, collection="landsat-c2-l2")
    assert series.bands == SHARED
    assert series.grid.transform[0] == PIXEL
    assert not series.notes
    whole = read_all(series)
    assert np.flatnonzero(~whole.valid[0].ravel()).tolist() == [0, 1, 2]
    for place, common in enumerate(("blue", "green", "red", "nir08", "swir16", "swir22")):
        reflectance = as_read(files[common]) * 2.75e-5 - 0.2
        expected = np.where(whole.valid[0], np.maximum(reflectance, 1e-4), 0)
        np.testing.assert_allclose(whole.values[0, place] * 1e-4, expected, atol=0.51e-4)


def test_landsats_of_two_generations(api: Api, tmp_path: Path) -> None:
    """Landsat 5 has its near infrared in B4; all dates are one series."""
    old = add_landsat(api, tmp_path, "2023-05-01", satellite=5, spelling="{}")
    new = add_landsat(api, tmp_path, "2023-05-09", satellite=9)
    whole = read_all(series := open_one(api, collection="landsat-c2-l2"))
    assert series.bands == SHARED
    for day, files in enumerate((old, new)):
        expected = np.maximum(as_read(files["nir08"]) * 2.75e-5 - 0.2, 1e-4)
        np.testing.assert_allclose(whole.values[day, 3] * 1e-4, expected, atol=0.51e-4)


@pytest.mark.parametrize("of_nasa", [True, False])
def test_hls_is_one_series_of_both_parts(api: Api, tmp_path: Path, of_nasa: bool) -> None:
    mask = np.zeros(SHAPE, np.uint8)
    mask[0, :7] = 2, 4, 8, 16, 255, 32, 0b11000000  # cloud, beside it, shadow, snow, nothing, water, aerosol
    sentinel = add_hls(api, tmp_path, "S", 121, mask=mask, of_nasa=of_nasa)
    landsat = add_hls(api, tmp_path, "L", 122, mask=mask, of_nasa=of_nasa)
    both = "HLSS30_2.0,HLSL30_2.0" if of_nasa else "hls2-s30, hls2-l30"
    series = open_one(api, collection=both)
    assert series.bands == SHARED
    assert [str(day) for day in series.dates] == ["2023-05-01", "2023-05-02"]
    assert not series.notes
    whole = read_all(series)
    for valid in whole.valid:
        assert np.flatnonzero(~valid.ravel()).tolist() == [0, 1, 2, 3, 4]
    for day, files in enumerate((sentinel, landsat)):
        own = ("B02", "B03", "B04", "B8A", "B11", "B12") if day == 0 else ("B02", "B03", "B04", "B05", "B06", "B07")
        for place, band in enumerate(own):
            expected = np.where(whole.valid[day], as_read(files[band]), 0)
            np.testing.assert_array_equal(whole.values[day, place], expected)
    alone = open_one(api, collection=both.split(",")[0])
    assert alone.bands == ("B02", "B03", "B04", "B05", "B8A", "B11", "B12")


def test_values_of_hls_below_zero_are_dark_and_not_missing(api: Api, tmp_path: Path) -> None:
    pixels = {band: np.full(SHAPE, 300, np.int16) for band in S30}
    pixels["B04"][0, :4] = -9999, -20, 0, 1
    add_hls(api, tmp_path, pixels=pixels)
    whole = read_all(open_one(api, collection="HLSS30_2.0"))
    assert np.flatnonzero(~whole.valid[0].ravel()).tolist() == [0]
    assert whole.values[0, 2, 0, :5].tolist() == [0, 1, 1, 1, 300]


def test_a_neighbouring_zone_is_warped_with_its_mask(api: Api, tmp_path: Path) -> None:
    add_hls(api, tmp_path, "S", 121)
    west = {"crs": "EPSG:32633", "transform": Affine(PIXEL, 0, 156_800, 0, -PIXEL, 5_409_300)}
    mask = np.zeros(SHAPE, np.uint8)
    mask[:, 5:] = 2
    files = add_hls(api, tmp_path, "S", 141, mask=mask, **west)
    series = open_one(api, collection="HLSS30_2.0", crs="EPSG:32632", resampling="nearest")
    whole = read_all(series)
    assert any("1 of 2 items do not fit the pixels" in note for note in series.notes)

    def warped(path: Path, nodata: int) -> Pixels:
        grid = series.grid
        size = {"height": grid.height, "width": grid.width, "src_nodata": nodata, "nodata": nodata}
        with rasterio.open(path) as raw, WarpedVRT(raw, crs=grid.crs, transform=grid.affine, **size) as dataset:
            read: Pixels = dataset.read(1)
        return read

    red, sky = warped(files["B04"], -9999), warped(files["Fmask"], 255)
    valid = (red != -9999) & (sky == 0)
    assert 0 < valid.sum() < valid.size
    np.testing.assert_array_equal(whole.valid[1], valid)
    np.testing.assert_array_equal(whole.values[1, 2][valid], red[valid])


@pytest.mark.parametrize(
    ("identifier", "collection", "properties", "name", "band"),
    [
        ("HLS.L30.T32UPU.2023121T101601.v2.0", "", {}, "B05", "B8A"),
        ("HLS.L30.T32UPU.2023121T101601.v2.0", "", {}, "B09", None),
        ("HLS.L30.T32UPU.2023121T101601.v2.0", "", {}, "B11", None),
        ("HLS.S30.T32UPU.2023121T101601.v2.0", "", {}, "B05", "B05"),
        ("mine", "HLSL30.v2.0", {}, "B06", "B11"),
        ("mine", "hls2-s30", {}, "Fmask", "SCL"),
        ("mine", "landsat", {"platform": "LANDSAT_8"}, "SR_B5", "B8A"),
        ("mine", "landsat", {"platform": "landsat-7"}, "SR_B5", "B11"),
        ("mine", "landsat", {"platform": "landsat-8"}, "QA_PIXEL", "SCL"),
        ("mine", "landsat", {"platform": "landsat-8"}, "ST_B10", None),
        ("mine", "landsat", {"platform": "landsat-8"}, "nir08", "B8A"),
        ("mine", "", {"platform": "sentinel-2a"}, "B5", "B05"),
    ],
)
def test_names_of_products(identifier: str, collection: str, properties: Json, name: str, band: str | None) -> None:
    asset = {"href": "x.tif", "type": "image/tiff", "roles": ["data"]}
    found = assets_by_band({name: asset}, product_of(identifier, collection, properties))
    assert list(found) == ([band] if band else [])


def test_level_1_of_landsat_is_refused(api: Api, tmp_path: Path) -> None:
    add_landsat(api, tmp_path)
    api.items[0]["id"] = "LC08_L1TP_193026_20230501_02_T1"
    with pytest.raises(
        InputError, match="not surface reflectance in the item LC08_L1TP_193026_20230501_02_T1: it is of"
    ):
        open_one(api, collection="landsat-c2-l2")


def test_other_nodata_is_refused(api: Api, tmp_path: Path) -> None:
    files = add_hls(api, tmp_path)
    api.items[0]["assets"]["B04"]["raster:bands"] = [{"nodata": 0}]
    with pytest.raises(
        InputError, match=r"unclear reflectance in the item HLS.*asset B04: its nodata is 0 instead of -99"
    ):
        open_one(api, collection="HLSS30_2.0")
    del api.items[0]["assets"]["B04"]["raster:bands"]
    write(files["B04"], numbers(0, 1, 9000, np.int16), -1000)
    with pytest.raises(InputError, match=r"not a band of its product in .*: its nodata is -1000 instead of -9999"):
        open_one(api, collection="HLSS30_2.0")


def test_numbers_without_a_sign_are_no_hls(api: Api, tmp_path: Path) -> None:
    files = add_hls(api, tmp_path)
    write(files["B04"], numbers(0, 1, 9000, np.uint16))
    with pytest.raises(InputError, match=r"not a band of its product in .*: 1 bands of uint16 instead of one of int16"):
        open_one(api, collection="HLSS30_2.0")


def test_bands_that_one_part_of_hls_lacks(api: Api, tmp_path: Path) -> None:
    add_hls(api, tmp_path, "S", 121)
    add_hls(api, tmp_path, "L", 122)
    with pytest.raises(InputError, match=r"a band is missing in .*: the item HLS.L30.* of 2023-05-02 has no B05"):
        open_one(api, collection="HLSS30_2.0,HLSL30_2.0", bands=("B04", "B05"))


def test_an_unknown_collection_among_several(api: Api, tmp_path: Path) -> None:
    add_hls(api, tmp_path)
    with pytest.raises(InputError, match=r"no collection 'HLSL30' .*HLSS30_2.0"):
        open_one(api, collection="HLSS30_2.0,HLSL30")


def test_a_store_of_hls(api: Api, tmp_path: Path, run_cli: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    """By the command line, over the area of the parcels."""
    add_hls(api, tmp_path, "S", 121)
    add_hls(api, tmp_path, "L", 122)
    left, top = CORNER
    fields = [box(left + at, top - at - 90, left + at + 90, top - at) for at in (30, 150)]
    parcels = tmp_path / "parcels.gpkg"
    geopandas.GeoDataFrame({"crop": ["wheat", "maize"]}, geometry=fields, crs="EPSG:32632").to_file(parcels)
    season = ("--from", "2023-03-01", "--to", "2023-10-31")
    command = ("ingest", api.address, "--collection", "HLSS30_2.0,HLSL30_2.0", *season, "--parcels", parcels)
    ended = run_cli(*command, "-o", "store", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    store = cropstar.open_store(tmp_path / "store")
    assert store.bands == SHARED
