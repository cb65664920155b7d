"""What GDAL itself says of a raster, by its C interface in the library that rasterio brings."""

from __future__ import annotations

import ctypes
from pathlib import Path

import rasterio


def library() -> ctypes.CDLL:
    folder = Path(rasterio.__file__).parent.parent / "rasterio.libs"
    found = sorted(folder.glob("libgdal*.so*"))
    gdal = ctypes.CDLL(str(found[0]) if found else "libgdal.so")
    for name in ("GDALOpen", "GDALGetRasterBand", "GDALGetDefaultRAT"):
        getattr(gdal, name).restype = ctypes.c_void_p
    for name in ("GDALGetProjectionRef", "GDALRATGetNameOfCol", "GDALRATGetValueAsString"):
        getattr(gdal, name).restype = ctypes.c_char_p
    gdal.GDALGetRasterCategoryNames.restype = ctypes.POINTER(ctypes.c_char_p)
    gdal.GDALAllRegister()
    return gdal


def names_and_table(path: Path) -> tuple[list[str], list[dict[str, str]], dict[str, int]]:
    """Category names, rows of the attribute table, and GDAL's usage number of each of its columns."""
    gdal = library()
    dataset = ctypes.c_void_p(gdal.GDALOpen(str(path).encode(), 0))
    gdal.GDALGetProjectionRef(dataset)  # as gdalinfo does; before it, GDAL has not looked for the companion file
    band = ctypes.c_void_p(gdal.GDALGetRasterBand(dataset, 1))
    listed = gdal.GDALGetRasterCategoryNames(band)
    names: list[str] = []
    while listed and listed[len(names)] is not None:
        names.append(listed[len(names)].decode())
    table = ctypes.c_void_p(gdal.GDALGetDefaultRAT(band))
    rows: list[dict[str, str]] = []
    usages: dict[str, int] = {}
    if table:
        columns = [
            gdal.GDALRATGetNameOfCol(table, place).decode() for place in range(gdal.GDALRATGetColumnCount(table))
        ]
        usages = {name: gdal.GDALRATGetUsageOfCol(table, place) for place, name in enumerate(columns)}
        for row in range(gdal.GDALRATGetRowCount(table)):
            values = [gdal.GDALRATGetValueAsString(table, row, place).decode() for place in range(len(columns))]
            rows.append(dict(zip(columns, values, strict=True)))
    gdal.GDALClose(dataset)
    return names, rows, usages
