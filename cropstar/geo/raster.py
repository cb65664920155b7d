"""Opening raster files that come from outside: local GeoTIFFs, and nothing that only claims to be one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import rasterio
from rasterio.errors import RasterioError

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_RASTER_BANDS, MAXIMUM_RASTER_SIDE

# GDAL would otherwise list the folder and look for side files, which is slow on network disks.
OPEN_ENVIRONMENT = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}


def open_raster(path: Path) -> Any:
    """An open rasterio dataset.

    Only GDAL's GeoTIFF driver may look at the file: a VRT or a URL with a .tif name could otherwise
    make it read any file or host.
    """
    if not path.is_file():
        raise InputError("no such file", path=path, remedy="check the path")
    try:
        with rasterio.Env(**OPEN_ENVIRONMENT):
            dataset = rasterio.open(path, driver="GTiff")
    except RasterioError as failure:
        why = f"not a GeoTIFF that can be read ({failure})"
        raise InputError("unreadable raster", path=path, why=why, remedy="give a GeoTIFF") from None
    too_large = max(dataset.shape) > MAXIMUM_RASTER_SIDE or dataset.count > MAXIMUM_RASTER_BANDS
    if too_large:
        why = f"{dataset.width} x {dataset.height} pixels, {dataset.count} bands"
        dataset.close()
        raise InputError("a raster too large to be a scene", path=path, why=why, remedy="check the file's header")
    return dataset
