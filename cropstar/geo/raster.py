"""Raster files: opening files safely, and checking that a written file is complete."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio._err import CPLE_BaseError
from rasterio.errors import CRSError, RasterioError
from rasterio.windows import Window as RasterioWindow

from cropstar.errors import InputError
from cropstar.geo.windows import Window
from cropstar.inputs import MAXIMUM_RASTER_BANDS, MAXIMUM_RASTER_SIDE, require_file

if TYPE_CHECKING:
    from cropstar.geo.grid import Grid

# GDAL would otherwise list the folder and look for side files, which is slow on network disks. And no file may send it
# to another host: of /vsicurl/ only this name is allowed, which is none.
OPEN_ENVIRONMENT = {"GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "CPL_VSIL_CURL_ALLOWED_FILENAME": "none"}

# What rasterio raises over a file: some complaints of GDAL come through it as they are, and are no RasterioError.
GDAL_ERRORS = (RasterioError, CRSError, CPLE_BaseError)

SMALLEST_PIXEL = 1e-20  # square degrees or metres: anything less cannot be inverted
LARGEST_PIXEL = 1e7  # degrees or metres a side
FARTHEST = 1e12  # coordinates

GDAL_CACHE_MEGABYTES = 256  # of one process; GDAL itself takes a twentieth of the computer's memory


def bound_gdal(*, threads: int | None = None) -> None:
    """Bound GDAL's memory, and its threads, unless the user did. Only works before GDAL has read its first pixel."""
    os.environ.setdefault("GDAL_CACHEMAX", str(GDAL_CACHE_MEGABYTES))
    if threads is not None:
        os.environ.setdefault("GDAL_NUM_THREADS", str(threads))


def open_raster(path: Path) -> Any:
    """An open rasterio dataset.

    Only GDAL's GeoTIFF driver may look at the file: a VRT or a URL with a .tif name could otherwise
    make it read any file or host.
    """
    require_file(path)
    bound_gdal()
    try:
        with rasterio.Env(**OPEN_ENVIRONMENT):
            dataset = rasterio.open(path, driver="GTiff")
    except GDAL_ERRORS as failure:
        why = f"not a GeoTIFF that can be read ({failure})"
        raise InputError("unreadable raster", path=path, why=why, remedy="give a GeoTIFF") from None
    too_large = max(dataset.shape) > MAXIMUM_RASTER_SIDE or dataset.count > MAXIMUM_RASTER_BANDS
    if too_large:
        why = f"{dataset.width} x {dataset.height} pixels, {dataset.count} bands"
        dataset.close()
        raise InputError("a raster too large to be a scene", path=path, why=why, remedy="check the file's header")
    try:
        require_pixels(dataset, path)
        _require_texts(dataset, path)
    except InputError:
        dataset.close()
        raise
    return dataset


def require_pixels(dataset: Any, path: str | Path) -> None:
    """Refuse a raster whose pixels have no size or no location: coordinates could not be computed."""
    a, b, _, d, e, _ = numbers = tuple(dataset.transform)[:6]
    sides = max(map(abs, (a, b, d, e)))
    # Written so that what is not a number is refused, too.
    if not (abs(a * e - b * d) > SMALLEST_PIXEL and sides <= LARGEST_PIXEL and max(map(abs, numbers)) < FARTHEST):
        why = f"its transform is {', '.join(f'{number:g}' for number in numbers)}"
        raise InputError("no usable pixel size", path=path, why=why, remedy="bring it to a grid with gdalwarp -tr")


def _require_texts(dataset: Any, path: Path) -> None:
    """Refuse tags and names of bands that cannot be read: rasterio fails over them wherever they are asked for."""
    try:
        _ = dataset.descriptions
        for index in (0, *dataset.indexes):
            dataset.tags(index)
    except UnicodeDecodeError as failure:
        why, remedy = f"its tags are not UTF-8 ({failure.reason})", "write them again as UTF-8, or remove them"
        raise InputError("unreadable tags", path=path, why=why, remedy=remedy) from None


def warped_to(dataset: Any, grid: Grid, resampling: str, **options: Any) -> Any:
    """A dataset on another grid, warped by GDAL as it is read."""
    from rasterio.enums import Resampling
    from rasterio.vrt import WarpedVRT

    place = {"crs": grid.rasterio_crs, "transform": grid.affine, "width": grid.width, "height": grid.height}
    return WarpedVRT(dataset, **place, resampling=Resampling[resampling], **options)


def rasterio_window(window: Window) -> RasterioWindow:
    return RasterioWindow(window.left, window.top, window.width, window.height)


def checksum(pixels: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(pixels).data)


def reads_back(path: Path, written: Iterable[tuple[int, Window, int]]) -> bool:
    """Whether a file holds what was written: band, window and checksum of each piece.

    GDAL keeps a full disk to itself when it flushes on closing, so only reading back tells.
    """
    try:
        with rasterio.open(path, driver="GTiff") as dataset:
            return all(
                checksum(dataset.read(band, window=rasterio_window(window))) == wanted
                for band, window, wanted in written
            )
    except GDAL_ERRORS:
        return False
