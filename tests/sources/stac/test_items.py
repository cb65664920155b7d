"""Which asset is which band, and which addresses are followed: hostile catalogues lead nowhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.shutil import copy

from cropstar.errors import InputError
from cropstar.sources.stac.items import assets_by_band, checked_href
from tests.sources.examples.safe import some_pixels, write_band
from tests.sources.examples.stac_api import Api
from tests.sources.examples.stac_catalogue import add_granule, constant, open_one, read_all

ELSEWHERE = "https://stac.example.org/v1"
BASE = f"{ELSEWHERE}/collections/c/items/i"


@pytest.mark.parametrize(
    ("name", "band"),
    [
        ("B04", "B04"),
        ("B4", "B04"),
        ("red", "B04"),
        ("B04_10m", "B04"),
        ("red-jp2", "B04"),
        ("b8a", "B8A"),
        ("B08A", "B8A"),
        ("B002", "B02"),
        ("nir08", "B8A"),
        ("nir", "B08"),
        ("rededge2-jp2", "B06"),
        ("SCL_20m", "SCL"),
        ("scl-jp2", "SCL"),
        ("swir22", "B12"),
        ("visual", None),
        ("AOT_10m", None),
        ("B99", None),
        ("x4", None),
        ("rededge", None),
        ("", None),
    ],
)
def test_names_of_bands(name: str, band: str | None) -> None:
    chosen = assets_by_band({name: asset()})
    assert list(chosen) == ([band] if band else [])


def asset(href: str = "x.tif", **fields: Any) -> dict[str, Any]:
    return {"href": href, "type": "image/tiff", "roles": ["data"], **fields}


def test_the_best_of_several_assets() -> None:
    assets = {
        "B04_20m": asset(),
        "B04_10m": asset(),
        "B04_60m": asset(),
        "red-jp2": asset("x.jp2", type="image/jp2", gsd=10),
        "SCL_60m": asset(),
        "SCL_20m": asset(),
        "band-five": asset() | {"eo:bands": [{"name": "B05", "common_name": "rededge"}]},
        "six": asset(bands=[{"name": "x", "eo:common_name": "rededge2"}]),
        "visual": asset() | {"eo:bands": [{"name": "B04"}, {"name": "B03"}, {"name": "B02"}]},
        "green": asset(roles=["thumbnail"]),
        "blue": asset(type="application/json"),
        "nir": {"type": "image/tiff"},
        "broken": 7,
    }
    chosen = {band: key for band, (key, _) in assets_by_band(assets).items()}
    assert chosen == {"B04": "B04_10m", "B05": "band-five", "B06": "six", "SCL": "SCL_20m"}


def test_names_of_other_catalogues_are_read(api: Api, tmp_path: Path) -> None:
    item = add_granule(api, tmp_path)
    expected = read_all(open_one(api))
    names = {"B02": "blue", "B05": "rededge1", "SCL": "scl"}
    item["assets"] = {names[key]: value for key, value in item["assets"].items()}
    series = open_one(api)
    assert series.bands == ("B02", "B05")
    np.testing.assert_array_equal(read_all(series).values, expected.values)


@pytest.mark.parametrize(
    "href",
    [
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "/vsicurl/https://example.org/x.tif",
        "https://example.org/vsizip/x.tif",
        "https://example.org/%2Fvsimem/x.tif",
        "https://example.org/x.vrt",
        "https://example.org/x.VRT?a=b",
        "https://example.org/x%2Evrt",
        "s3://bucket/x.tif",
        "ftp://example.org/x.tif",
        "<VRTDataset/>",
        "https://example.org/a b.tif",
        "https://[broken/x.tif",
        "http://127.0.0.1/x.tif",
        "http://localhost:8080/x.tif",
        "http://[::1]/x.tif",
        "http://169.254.169.254/latest/meta-data",
    ],
)
def test_addresses_that_are_not_followed(href: str) -> None:
    with pytest.raises(InputError) as caught:
        checked_href(href, BASE, ELSEWHERE, "i")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("refused address in the item i: ")


@pytest.mark.parametrize(
    ("href", "base", "catalogue", "expected"),
    [
        ("https://other.org/x.tif?sig=1", BASE, ELSEWHERE, "https://other.org/x.tif?sig=1"),
        ("./x.tif", BASE, ELSEWHERE, f"{ELSEWHERE}/collections/c/items/x.tif"),
        ("/x.jp2", BASE, ELSEWHERE, "https://stac.example.org/x.jp2"),
        ("file:///data/x.tif", BASE, "http://localhost:8080", "file:///data/x.tif"),
        ("http://127.0.0.1:9/x.tif", BASE, "http://127.0.0.1:8", "http://127.0.0.1:9/x.tif"),
    ],
)
def test_addresses_that_are_followed(href: str, base: str, catalogue: str, expected: str) -> None:
    assert checked_href(href, base, catalogue, "i") == expected


def test_a_catalogue_of_this_machine_may_name_files(api: Api, tmp_path: Path) -> None:
    item = add_granule(api, tmp_path)
    expected = read_all(open_one(api))
    for entry in item["assets"].values():
        entry["href"] = api.files[entry["href"].removeprefix(api.address)].as_uri()
    np.testing.assert_array_equal(read_all(open_one(api)).values, expected.values)


def test_a_vrt_behind_a_tif_name_is_not_followed(api: Api, tmp_path: Path) -> None:
    """GDAL goes by content: with free choice of drivers it would open this one and read a file of this machine."""
    secret = write_band(tmp_path / "secret.tif", some_pixels("B02"), 10)
    with rasterio.open(secret) as dataset:
        copy(dataset, tmp_path / "trap.tif", driver="VRT")
    item = add_granule(api, tmp_path, pixels={"B02": some_pixels("B02")})
    item["assets"]["B02"]["href"] = api.share(tmp_path / "trap.tif", "B02.tif")
    with rasterio.open(tmp_path / "trap.tif") as trap:
        assert trap.driver == "VRT"
    with pytest.raises(InputError, match="cannot be opened as GeoTIFF or JPEG 2000"):
        open_one(api)


@pytest.mark.parametrize("content", [b"", b"<html>log in</html>", b"II*\0" + bytes(200), "cut", None])
def test_files_that_cannot_be_read(api: Api, tmp_path: Path, content: bytes | str | None) -> None:
    item = add_granule(api, tmp_path, pixels={"B02": some_pixels("B02")})
    href = item["assets"]["B02"]["href"]
    original = api.files[href.removeprefix(api.address)]
    if content is None:
        item["assets"]["B02"]["href"] = api.address + "/files/nowhere.tif?signature=secret"
    elif content == "cut":
        original.write_bytes(original.read_bytes()[:600])
    else:
        assert isinstance(content, bytes)
        original.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_all(open_one(api))
    assert "\n" not in str(caught.value)
    assert item["id"] in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["float32", "int16"])
def test_pixels_of_another_kind_are_refused(api: Api, tmp_path: Path, kind: str) -> None:
    add_granule(api, tmp_path, pixels={"B02": constant("B02", 5).astype(kind)})
    with pytest.raises(InputError, match="not a band of its product"):
        open_one(api)
