"""Small SAFE products as ESA lays them out: lossless JPEG 2000, native resolutions, metadata of either era."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

from cropstar.geo.sensors import NATIVE_RESOLUTION

HEIGHT, WIDTH = 25, 20  # of the 10 m grid; the 20 m grid ends 10 m below it, as in the real cut-outs
CORNER = (600_000.0, 5_400_000.0)
FEW = ("B02", "B05", "SCL")
Pixels = NDArray[Any]


def resolution_of(band: str) -> int:
    return {**NATIVE_RESOLUTION, "SCL": 20}[band]


def shape_of(band: str) -> tuple[int, int]:
    ratio = resolution_of(band) // 10
    return -(-HEIGHT // ratio), -(-WIDTH // ratio)


def some_pixels(band: str, seed: int = 0) -> Pixels:
    if band == "SCL":
        return np.full(shape_of(band), 4, dtype=np.uint8)
    generator = np.random.default_rng([seed, *band.encode()])
    return generator.integers(1, 6000, shape_of(band)).astype(np.uint16)


def write_band(
    path: Path, pixels: Pixels, resolution: float, *, epsg: int = 32632, corner: tuple[float, float] = CORNER
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {"driver": "GTiff"}
    if path.suffix == ".jp2":
        options = {"driver": "JP2OpenJPEG", "QUALITY": "100", "REVERSIBLE": "YES"}
    with rasterio.open(
        path,
        "w",
        height=pixels.shape[0],
        width=pixels.shape[1],
        count=1,
        dtype=pixels.dtype,
        crs=f"EPSG:{epsg}",
        transform=Affine(resolution, 0, corner[0], 0, -resolution, corner[1]),
        **options,
    ) as dataset:
        dataset.write(pixels, 1)
    return path


def metadata_xml(
    *,
    uri: str,
    day: str = "2023-05-01",
    tile: str = "T32UPU",
    baseline: str = "02.08",
    generation: str = "2023-05-01T14:00:00.000000Z",
    quantification: str | None = "10000",
    offsets: Mapping[int, float] | None = None,
    head: str = "",
) -> str:
    """MTD_MSIL2A.xml; before baseline 02.07 its elements had other names."""
    old = "L2A_" if baseline < "02.07" else ""
    quantity = f"<{old}BOA_QUANTIFICATION_VALUE unit='none'>{quantification}</{old}BOA_QUANTIFICATION_VALUE>"
    listed = "".join(
        f'<BOA_ADD_OFFSET band_id="{band}">{value}</BOA_ADD_OFFSET>' for band, value in (offsets or {}).items()
    )
    bands = "".join(
        f'<Spectral_Information bandId="{number}" physicalBand="{name.replace("B0", "B")}"/>'
        for number, name in enumerate(NATIVE_RESOLUTION)
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>{head}
<n1:Level-2A_User_Product xmlns:n1="https://psd-14.sentinel2.eo.esa.int/PSD/User_Product_Level-2A.xsd">
  <n1:General_Info>
    <{old}Product_Info>
      <PRODUCT_START_TIME>{day}T10:20:31.024Z</PRODUCT_START_TIME>
      <PRODUCT_URI{"_2A" if old else ""}>{uri}</PRODUCT_URI{"_2A" if old else ""}>
      <PROCESSING_BASELINE>{baseline}</PROCESSING_BASELINE>
      <GENERATION_TIME>{generation}</GENERATION_TIME>
      <Product_Organisation><Granule_List>
        <Granule granuleIdentifier="S2A_OPER_MSI_L2A_TL_VGS2_20230501T140000_A041035_{tile}_N{baseline}"/>
      </Granule_List></Product_Organisation>
    </{old}Product_Info>
    <{old}Product_Image_Characteristics>
      <QUANTIFICATION_VALUES_LIST>{quantity if quantification else ""}</QUANTIFICATION_VALUES_LIST>
      <BOA_ADD_OFFSET_VALUES_LIST>{listed}</BOA_ADD_OFFSET_VALUES_LIST>
      <Spectral_Information_List>{bands}</Spectral_Information_List>
    </{old}Product_Image_Characteristics>
  </n1:General_Info>
</n1:Level-2A_User_Product>
"""


def write_product(
    folder: Path,
    *,
    day: str = "2023-05-01",
    tile: str = "T32UPU",
    baseline: str = "02.08",
    made: str = "140000",
    offset: float | None = None,
    quantification: str = "10000",
    bands: tuple[str, ...] = FEW,
    pixels: Mapping[str, Pixels] | None = None,
    seed: int = 0,
    epsg: int = 32632,
    corner: tuple[float, float] = CORNER,
    ending: str = "jp2",
) -> Path:
    """A product below `folder`; `pixels` stand in for the random ones of some bands. `made` is HHMMSS."""
    plain = day.replace("-", "")
    number = f"N{baseline.replace('.', '')}"
    name = f"S2A_MSIL2A_{plain}T102031_{number}_R065_{tile}_{plain}T{made}.SAFE"
    safe = folder / name
    prefix = f"{'L2A_' if baseline < '02.07' else ''}{tile}_{plain}T102031"
    images = safe / "GRANULE" / f"L2A_{tile}_A041035_{plain}T102526" / "IMG_DATA"
    for band in bands:
        resolution = resolution_of(band)
        numbers = (pixels or {}).get(band)
        numbers = some_pixels(band, seed) if numbers is None else numbers
        write_band(
            band_file(safe, band, ending, images / f"R{resolution}m", prefix),
            numbers,
            resolution,
            epsg=epsg,
            corner=corner,
        )
    xml = metadata_xml(
        uri=name,
        day=day,
        tile=tile,
        baseline=baseline,
        generation=f"{day}T{made[:2]}:{made[2:4]}:{made[4:]}.000000Z",
        quantification=quantification,
        offsets=None if offset is None else dict.fromkeys(range(13), offset),
    )
    (safe / "MTD_MSIL2A.xml").write_text(xml, encoding="utf-8")
    return safe


def band_file(safe: Path, band: str, ending: str = "jp2", folder: Path | None = None, prefix: str = "") -> Path:
    """Where a band is to be written, or was."""
    if folder is not None:
        return folder / f"{prefix}_{band}_{resolution_of(band)}m.{ending}"
    (found,) = safe.rglob(f"*_{band}_*m.{ending}")
    return found


def zip_product(safe: Path, path: Path, *, compression: int = zipfile.ZIP_DEFLATED, root: str | None = None) -> Path:
    """The product as the data hub hands it out; `root` is the folder inside the archive."""
    inside = safe.name if root is None else root
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in sorted(safe.rglob("*")):
            if file.is_file():
                archive.write(file, str(Path(inside, file.relative_to(safe))))
    return path
