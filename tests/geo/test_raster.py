"""Rasters from outside: GeoTIFFs of a sane size, and nothing that only claims to be one."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from cropstar.errors import InputError
from cropstar.geo.raster import open_raster

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def write_tif(path: Path, width: int = 8, height: int = 6, count: int = 1, **options: str | int | bool) -> Path:
    profile = {"driver": "GTiff", "width": width, "height": height, "count": count, "dtype": "uint8"}
    place = {"crs": "EPSG:32632", "transform": Affine(10, 0, 500_000, 0, -10, 5_000_000)}
    with rasterio.open(path, "w", **profile, **place, **options) as dataset:
        if not options:
            dataset.write(np.ones((count, height, width), dtype=np.uint8))
    return path


def test_a_geotiff_opens_whatever_its_name(tmp_path: Path) -> None:
    for name in ("a.tif", "b.TIFF", "with space ü.tif", "no_ending"):
        with open_raster(write_tif(tmp_path / name)) as dataset:
            assert dataset.shape == (6, 8)
            assert dataset.read(1).all()


@pytest.mark.parametrize(
    "content", [b"", b"just text\n", b"II*\0" + b"\xff" * 60, b"\x89HDF\r\n\x1a\n", b"https://example.org/a.tif"]
)
def test_what_is_no_geotiff_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "scene.tif"
    path.write_bytes(content)
    with pytest.raises(InputError, match="unreadable raster") as caught:
        open_raster(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_vrt_with_the_name_of_a_geotiff_is_refused(tmp_path: Path) -> None:
    secret = write_tif(tmp_path / "secret.tif")
    smuggled = tmp_path / "scene.tif"
    smuggled.write_text(
        f'<VRTDataset rasterXSize="8" rasterYSize="6"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        f'<SourceFilename relativeToVRT="0">{secret}</SourceFilename><SourceBand>1</SourceBand>'
        f"</SimpleSource></VRTRasterBand></VRTDataset>"
    )
    with rasterio.open(smuggled) as dataset:
        assert dataset.read(1).all()  # left to itself, GDAL follows it
    with pytest.raises(InputError, match="unreadable raster"):
        open_raster(smuggled)


@pytest.mark.parametrize("driver", ["PNG", "JPEG"])
def test_other_formats_are_refused(tmp_path: Path, driver: str) -> None:
    path = tmp_path / "scene.tif"
    with rasterio.open(path, "w", driver=driver, width=8, height=8, count=1, dtype="uint8") as dataset:
        dataset.write(np.ones((1, 8, 8), dtype=np.uint8))
    with pytest.raises(InputError, match="unreadable raster"):
        open_raster(path)


@pytest.mark.parametrize(
    "name", ["absent.tif", ".", "/vsicurl/https://example.org/a.tif", "zip://a.zip!b.tif", "GTIFF_DIR:1:a.tif"]
)
def test_what_is_no_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_raster(tmp_path / name if not name.startswith("/") else Path(name))


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "scene.tif"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="no such file"):
        open_raster(pipe)


def test_an_enormous_header_is_refused(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "wide.tif", 130_000, 10, sparse_ok=True, tiled=True)
    assert path.stat().st_size < 100_000
    with pytest.raises(InputError, match="a raster too large to be a scene") as caught:
        open_raster(path)
    assert "130000 x 10 pixels, 1 bands" in str(caught.value)


def test_too_many_bands_are_refused(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "deep.tif", 1, 1, 10_001, sparse_ok=True, interleave="pixel")
    with pytest.raises(InputError, match="10001 bands"):
        open_raster(path)


@pytest.mark.parametrize(
    "transform",
    [
        Affine(10, 10, 500_000, 10, 10, 5_000_000),
        Affine(2e-308, 0, 500_000, 0, -2e-314, 5_000_000),
        Affine(float("nan"), 0, 500_000, 0, -10, 5_000_000),
        Affine(1e8, 0, 500_000, 0, -1e8, 5_000_000),
        Affine(10, 0, 1e300, 0, -10, 5_000_000),
    ],
)
def test_pixels_without_a_size_are_refused(tmp_path: Path, transform: Affine) -> None:
    path = write_tif(tmp_path / "scene.tif")
    with rasterio.open(path, "r+") as dataset:
        dataset.transform = transform
    with pytest.raises(InputError, match="no usable pixel size"):
        open_raster(path)


def test_names_of_bands_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = write_tif(tmp_path / "scene.tif")
    with rasterio.open(path, "r+") as dataset:
        dataset.set_band_description(1, "MARK")
    content = path.read_bytes()
    assert content.count(b"MARK") == 1
    path.write_bytes(content.replace(b"MARK", b"M\xfbRK"))
    with pytest.raises(InputError, match="unreadable tags"):
        open_raster(path)
