"""Opening the files behind assets: GeoTIFF or JPEG 2000 and nothing else, over a network that may fail.

GDAL goes by what a file holds, not by its name: without the list of drivers a server could answer with a VRT and
have any file of this machine read.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.errors import NotGeoreferencedWarning, RasterioError
from rasterio.vrt import WarpedVRT

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import OPEN_ENVIRONMENT, rasterio_window
from cropstar.geo.resampling import grid_difference
from cropstar.geo.windows import Window
from cropstar.sources.base import HandleCache
from cropstar.sources.sentinel2.files import MAXIMUM_SIDE
from cropstar.sources.stac.hrefs import gdal_name
from cropstar.sources.stac.items import Asset

DRIVERS = ("GTiff", "JP2OpenJPEG")
ENVIRONMENT = {
    **OPEN_ENVIRONMENT,
    "GDAL_HTTP_CONNECTTIMEOUT": "10",
    "GDAL_HTTP_TIMEOUT": "60",
    "GDAL_HTTP_MAX_RETRY": "3",
    "GDAL_HTTP_RETRY_DELAY": "0.5",
    "GDAL_HTTP_MULTIPLEX": "YES",
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_INGESTED_BYTES_AT_OPEN": "32768",  # the header of a cloud-optimised file in one request
}
REMEDY = "try again, or leave the date out"
Key = tuple[str, Grid | None, str]  # address, and for a warped one the grid and the resampling


class AssetFiles(HandleCache[Key]):
    """Open files of assets."""

    def grid(self, asset: Asset) -> Grid:
        """Of the catalogue's word, else of the file's header."""
        return asset.grid or Grid.of(self._dataset(asset))

    def read(self, asset: Asset, window: Window) -> NDArray[Any]:
        """Pixels (h, w) of a window of the file, which may be empty."""
        if not window.height or not window.width:
            return np.zeros((window.height, window.width), dtype=np.uint16)
        return _pixels(asset, self._dataset(asset), window)

    def read_warped(self, asset: Asset, window: Window, grid: Grid, resampling: str) -> NDArray[Any]:
        """Pixels (h, w) of a window of another grid, by GDAL's warper; zero is nodata and mixes with nothing.

        The warped dataset spans the whole grid and is made block by block, so no value depends on the window.
        """
        return _pixels(asset, self._dataset(asset, grid, resampling), window)

    def _dataset(self, asset: Asset, grid: Grid | None = None, resampling: str = "") -> Any:
        def open_one(stack: ExitStack) -> Any:
            dataset = stack.enter_context(_open_asset(asset))
            _check(asset, dataset)
            return dataset if grid is None else stack.enter_context(_warped(dataset, grid, resampling))

        return self.get((asset.href, grid, resampling), open_one)


def _open_asset(asset: Asset) -> Any:
    name = gdal_name(asset.href)
    likely = 1 if name.partition("?")[0].lower().endswith((".jp2", ".j2k")) else 0
    reason = ""
    for driver in (DRIVERS[likely], DRIVERS[1 - likely]):
        try:
            with rasterio.Env(**ENVIRONMENT), warnings.catch_warnings():
                warnings.simplefilter("ignore", NotGeoreferencedWarning)
                return rasterio.open(name, driver=driver, sharing=False)
        except RasterioError as failure:
            reason = reason or _reason(failure)
    why = f"it cannot be opened as GeoTIFF or JPEG 2000 ({reason})"
    raise InputError("unreadable asset", path=asset.label, why=why, remedy=REMEDY)


def _check(asset: Asset, dataset: Any) -> None:
    """What the header says, before any pixel is decoded."""
    sides = (*dataset.shape, *dataset.block_shapes[0])
    if max(sides) > MAXIMUM_SIDE:
        why = f"{dataset.width} x {dataset.height} pixels in blocks of {sides[3]} x {sides[2]}"
        raise InputError("a raster too large to be a granule", path=asset.label, why=why, remedy=REMEDY)
    if dataset.count != 1 or dataset.dtypes[0] not in ("uint8", "uint16"):
        why = f"{dataset.count} bands of {dataset.dtypes[0]}"
        raise InputError("not a Sentinel-2 band", path=asset.label, why=why, remedy="choose another collection")
    if dataset.crs is None:
        raise InputError("no coordinate system", path=asset.label, remedy=REMEDY)
    if asset.grid and (difference := grid_difference(Grid.of(dataset), asset.grid)):
        why = f"the file has {difference} as the catalogue says"
        raise InputError("an asset is not what its item says", path=asset.label, why=why, remedy=REMEDY)


def _warped(dataset: Any, grid: Grid, resampling: str) -> Any:
    return WarpedVRT(
        dataset,
        crs=grid.rasterio_crs,
        transform=grid.affine,
        height=grid.height,
        width=grid.width,
        resampling=Resampling[resampling],
        src_nodata=0,
        nodata=0,
    )


def _pixels(asset: Asset, dataset: Any, window: Window) -> NDArray[Any]:
    try:
        with rasterio.Env(**ENVIRONMENT):
            pixels: NDArray[Any] = dataset.read(1, window=rasterio_window(window))
    except RasterioError as failure:
        why = f"the pixels cannot be read ({_reason(failure)})"
        raise InputError("damaged asset", path=asset.label, why=why, remedy=REMEDY) from None
    return pixels


def _reason(failure: BaseException) -> str:
    """GDAL's own word, without the address: it may hold a signature."""
    text = " ".join(str(failure.__cause__ or failure).split())
    return " ".join(word.partition("?")[0] if "://" in word else word for word in text.split())[:200]
