"""SAFE products for the benchmarks of ingest: the files that ESA delivers, of any size, without real content."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

from cropstar.geo.sensors import NATIVE_RESOLUTION

CORNER = (600_000.0, 5_400_000.0)
TILE, CRS = "T32UPU", "EPSG:32632"
JPEG2000 = {"driver": "JP2OpenJPEG", "QUALITY": "100", "REVERSIBLE": "YES", "BLOCKXSIZE": 1024, "BLOCKYSIZE": 1024}
RESOLUTION = {**NATIVE_RESOLUTION, "SCL": 20}
METADATA = """<?xml version="1.0" encoding="UTF-8"?>
<n1:Level-2A_User_Product xmlns:n1="https://psd-14.sentinel2.eo.esa.int/PSD/User_Product_Level-2A.xsd">
  <n1:General_Info>
    <Product_Info>
      <PRODUCT_START_TIME>{day}T10:20:31.024Z</PRODUCT_START_TIME>
      <PRODUCT_URI>{name}</PRODUCT_URI>
      <PROCESSING_BASELINE>05.09</PROCESSING_BASELINE>
      <GENERATION_TIME>{day}T14:00:00.000000Z</GENERATION_TIME>
    </Product_Info>
    <Product_Image_Characteristics>
      <QUANTIFICATION_VALUES_LIST>
        <BOA_QUANTIFICATION_VALUE unit="none">10000</BOA_QUANTIFICATION_VALUE>
      </QUANTIFICATION_VALUES_LIST>
      <BOA_ADD_OFFSET_VALUES_LIST>{offsets}</BOA_ADD_OFFSET_VALUES_LIST>
    </Product_Image_Characteristics>
  </n1:General_Info>
</n1:Level-2A_User_Product>
"""

Pixels = NDArray[Any]
WriteBand = Callable[[Path, str, int], None]  # path, band, number of the date


def write_products(folder: Path, dates: int, bands: tuple[str, ...], ending: str, write: WriteBand) -> None:
    """One product for every fifth day; `write` writes the band files."""
    offsets = "".join(f'<BOA_ADD_OFFSET band_id="{number}">-1000</BOA_ADD_OFFSET>' for number in range(13))
    for number in range(dates):
        day = date(2023, 1, 1) + timedelta(days=5 * number)
        name = f"S2A_MSIL2A_{day:%Y%m%d}T102031_N0509_R065_{TILE}_{day:%Y%m%d}T140000.SAFE"
        images = folder / name / "GRANULE" / f"L2A_{TILE}_A041035_{day:%Y%m%d}T102526" / "IMG_DATA"
        for band in bands:
            path = images / f"R{RESOLUTION[band]}m" / f"{TILE}_{day:%Y%m%d}T102031_{band}_{RESOLUTION[band]}m.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path, band, number)
        (folder / name / "MTD_MSIL2A.xml").write_text(METADATA.format(day=day, name=name, offsets=offsets))


def profile(band: str, side: int, **options: Any) -> dict[str, Any]:
    """What rasterio needs to write a band of a granule whose 10 m bands have `side` pixels a side."""
    resolution = RESOLUTION[band]
    pixels = -(-side * 10 // resolution)
    place = {"crs": CRS, "transform": Affine(resolution, 0, CORNER[0], 0, -resolution, CORNER[1])}
    kind = {"count": 1, "dtype": "uint8" if band == "SCL" else "uint16"}
    return {"height": pixels, "width": pixels, **place, **kind, **options}


def texture(shape: tuple[int, int], seed: int) -> Pixels:
    """Fields with a level of their own and noise in them: lossless, some seven bits a pixel as real bands are."""
    random = np.random.default_rng(seed)
    fields = random.normal(3000, 700, (-(-shape[0] // 24), -(-shape[1] // 31)))
    ground = fields.repeat(24, axis=0).repeat(31, axis=1)[: shape[0], : shape[1]]
    return np.clip(ground + random.normal(0, 25, shape), 1, 12_000).astype(np.uint16)


def write_texture(path: Path, band: str, side: int, seed: int) -> None:
    settings = profile(band, side, **JPEG2000)
    shape = settings["height"], settings["width"]
    pixels = clouds(shape, seed) if band == "SCL" else texture(shape, seed)
    with rasterio.open(path, "w", **settings) as dataset:
        dataset.write(pixels, 1)


def clouds(shape: tuple[int, int], seed: int) -> Pixels:
    """A scene classification: a fifth under clouds, in large patches."""
    coarse = np.random.default_rng(seed).random((-(-shape[0] // 300), -(-shape[1] // 300)))
    classes = np.where(coarse < 0.2, 9, 4).astype(np.uint8)
    return classes.repeat(300, axis=0).repeat(300, axis=1)[: shape[0], : shape[1]]


def write_parcels(path: Path, side: int, pitch: int = 40) -> None:
    """Square fields of `pitch` pixels all over the granule, with paths between them."""
    import geopandas  # here: the workers of a measured ingest load this file and should not wait for it

    frame = geopandas.GeoDataFrame(
        [{"crop": ("wheat", "maize", "rape")[number % 3], "geometry": field} for number, field in _fields(side, pitch)],
        crs=CRS,
    )
    frame.to_file(path)


def _fields(side: int, pitch: int) -> Iterator[tuple[int, Any]]:
    from shapely.geometry import box

    metres = 10 * pitch
    for number in range((side // pitch) ** 2):
        row, column = divmod(number, side // pitch)
        left, top = CORNER[0] + column * metres, CORNER[1] - row * metres
        yield number, box(left + 15, top - metres + 15, left + metres - 15, top - 15)
