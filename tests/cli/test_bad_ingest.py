"""Images that cannot be ingested: one line, the documented exit code, bounded memory, the store as it was."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import rasterio
from rasterio.windows import Window

from tests.cli.refusing import (
    DAYS,
    SAFE,
    SEASON,
    STACK,
    Build,
    claim_size,
    cut,
    huge_tiff,
    place,
    refused,
    vrt,
    write_safe,
    write_season,
    write_sparse,
    write_stack,
)
from tests.sources.examples import dated, stacks
from tests.sources.examples.granules import write_fields
from tests.sources.examples.safe import CORNER, FEW, band_file, metadata_xml, resolution_of, write_product, zip_product

__all__ = ["place"]  # a fixture
AGAIN = "get the product again"


# --- Sentinel-2 products


def jp2_cut_off(folder: Path) -> list[str]:
    cut(band_file(write_safe(folder), "B02"))
    return SAFE


def jp2_web_page(folder: Path) -> list[str]:
    band_file(write_safe(folder), "B02").write_text("<!DOCTYPE html><html><body>Please log in</body></html>")
    return SAFE


def jp2_empty(folder: Path) -> list[str]:
    band_file(write_safe(folder), "SCL").write_bytes(b"")
    return SAFE


def jp2_huge(folder: Path) -> list[str]:
    claim_size(band_file(write_safe(folder), "B02"))
    return SAFE


def band_vrt_as_tif(folder: Path) -> list[str]:
    band = band_file(write_safe(folder, "tif"), "B02", "tif")
    band.rename(folder / "real.tif")
    band.write_text("\ufeff \n" + vrt(folder / "real.tif"), encoding="utf-8")
    return SAFE


def band_of_huge_blocks(folder: Path) -> list[str]:
    """20 x 25 pixels stored in one block of a gigabyte, which GDAL would decode."""
    band = band_file(write_safe(folder, "tif"), "B02", "tif")
    write_sparse(band, [""], (25, 20), (32768, 16384))
    return SAFE


def metadata_bomb(folder: Path) -> list[str]:
    entities = '<!ENTITY a0 "ha">' + "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    xml = metadata_xml(uri="&a9;", head=f"<!DOCTYPE bomb [{entities}]>")
    (write_safe(folder) / "MTD_MSIL2A.xml").write_text(xml)
    return SAFE


def zipped(folder: Path) -> Path:
    product = write_safe(folder)
    archive = zip_product(product, product.with_suffix(".zip"))
    shutil.rmtree(product)
    return archive


def zip_slip(folder: Path) -> list[str]:
    with zipfile.ZipFile(zipped(folder), "a") as archive:
        archive.writestr("../../evil.txt", "evil")
    return SAFE


def zip_bomb(folder: Path) -> list[str]:
    with zipfile.ZipFile(zipped(folder), "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb_B02_10m.jp2", bytes(2**24))
    return SAFE


def second_date(folder: Path, *, crs: int = 32632, east: float = 0, side: int | None = None) -> list[str]:
    write_fields(folder / "parcels.gpkg", 20)
    write_product(folder / "safe", day=DAYS[0])
    pixels = {band: np.full((side * 10 // resolution_of(band),) * 2, 4, "u2") for band in FEW} if side else None
    write_product(folder / "safe", day=DAYS[1], epsg=crs, corner=(CORNER[0] + east, CORNER[1]), pixels=pixels)
    return SAFE


def band_missing(folder: Path) -> list[str]:
    band_file(write_safe(folder), "B05").unlink()
    return SAFE


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (jp2_cut_off, ("20230610T102031_B02_10m.jp2", "cut off", AGAIN)),
        (jp2_web_page, ("20230610T102031_B02_10m.jp2", "a web page", AGAIN)),
        (jp2_empty, ("20230610T102031_SCL_20m.jp2", "zero bytes", AGAIN)),
        (jp2_huge, ("20230610T102031_B02_10m.jp2", "1000000 x 1000000 pixels", AGAIN)),
        (band_vrt_as_tif, ("20230610T102031_B02_10m.tif", "XML, not an image", AGAIN)),
        (band_of_huge_blocks, ("20230610T102031_B02_10m.tif", "blocks of 16384 x 32768 pixels", AGAIN)),
        (metadata_bomb, ("20230610T140000.SAFE/MTD_MSIL2A.xml", "entities", AGAIN)),
        (zip_slip, ("20230610T140000.zip", "'../../evil.txt' points out of it", AGAIN)),
        (zip_bomb, ("20230610T140000.zip", "'bomb_B02_10m.jp2' unpacks to", AGAIN)),
        (lambda folder: second_date(folder, crs=32633), ("20230610T140000.SAFE", "EPSG:32633 instead of", "reproject")),
        (lambda folder: second_date(folder, side=30), ("20230610T140000.SAFE", "30 x 30 pixels instead of", "cut")),
        (lambda folder: second_date(folder, east=4), ("20230610T140000.SAFE", "0.4 x 0 pixels", "one grid")),
        (band_missing, ("20230610T140000.SAFE", "2023-06-10", "has no B05", "leave the date out")),
    ],
)
def test_products(place: Path, build: Build, parts: tuple[str, ...]) -> None:
    refused(place, build, 3, *parts)


# --- GeoTIFFs


def rewritten(folder: Path, shape: tuple[int, int] = (24, 30), **changes: object) -> list[str]:
    dated.write_raster(write_season(folder), dated.some_pixels(shape=shape), **changes)  # type: ignore[arg-type]
    return SEASON


def dated_band_missing(folder: Path) -> list[str]:
    write_season(folder).unlink()
    return SEASON


def dated_cut_off(folder: Path) -> list[str]:
    cut(write_season(folder))
    return SEASON


def dated_vrt(folder: Path) -> list[str]:
    band = write_season(folder)
    band.rename(folder / "real.tif")
    band.write_text(vrt(folder / "real.tif"))
    return SEASON


def stack_vrt(folder: Path) -> list[str]:
    write_stack(folder).rename(folder / "real.tif")
    (folder / "tile.tif").write_text(vrt(folder / "real.tif"))
    return STACK


def stack_of_an_address(folder: Path) -> list[str]:
    write_stack(folder).write_text("/vsicurl/http://127.0.0.1:9/tile.tif\n")
    return STACK


def stack_band_missing(folder: Path) -> list[str]:
    stacks.write_stack(write_stack(folder), stacks.BANDS[:3])
    return STACK


def stack_huge(folder: Path) -> list[str]:
    write_stack(folder).write_bytes(huge_tiff())
    return STACK


def stack_of_huge_blocks(folder: Path) -> list[str]:
    """A block of one band would do, but all 200 lie in it, pixel by pixel: six gigabytes."""
    days = [f"2023-{1 + number // 25:02d}-{1 + number % 25:02d} B04" for number in range(200)]
    write_sparse(write_stack(folder), days, (20, 30), (4096, 4096), interleave="pixel")
    return STACK


def stack_of_many_tiles(folder: Path) -> list[str]:
    """A file of some kilobytes that stands for 56 million tiles."""
    tile = write_stack(folder)
    write_sparse(tile, ["2023-05-01 B04"], (119_999, 119_999), (4096, 4096))
    with rasterio.open(tile, "r+") as dataset:  # where it is looked first for data
        dataset.write(np.ones((1, 1), "u2"), 1, window=Window(0, 15 * 4096, 1, 1))
    return [*STACK, "--tile-size", "16"]


@pytest.mark.parametrize(
    ("build", "code", "parts"),
    [
        (lambda folder: rewritten(folder, (20, 30)), 3, ("B08_2018-04-01.tif", "30 x 20 pixels instead", "gdalwarp")),
        (lambda folder: rewritten(folder, shift=(4, 0)), 3, ("B08_2018-04-01.tif", "(0.4 x 0 pixels)", "gdalwarp")),
        (dated_band_missing, 3, ("in season", "2018-04-01 has no B08", "--bands")),
        (dated_cut_off, 3, ("B08_2018-04-01.tif", "the pixels cannot be read", "get the file again")),
        (dated_vrt, 3, ("B08_2018-04-01.tif", "not a GeoTIFF")),
        (stack_vrt, 3, ("in tile.tif", "not a GeoTIFF")),
        (stack_of_an_address, 3, ("in tile.tif", "not a GeoTIFF")),
        (stack_band_missing, 3, ("in tile.tif", "2023-06-10 has no B08", "; ")),
        (stack_huge, 3, ("in tile.tif", "1000000 x 1000000 pixels", "header")),
        (stack_of_huge_blocks, 3, ("in tile.tif", "4096 x 4096 pixels of 200 bands", "INTERLEAVE=BAND")),
        (stack_of_many_tiles, 2, ("tiles of 16 pixels are too many in tile:", "56,250,000 tiles", "--tile-size")),
    ],
)
def test_geotiffs(place: Path, build: Build, code: int, parts: tuple[str, ...]) -> None:
    refused(place, build, code, *parts)
