"""The two files a user would have: a stacked GeoTIFF of the season and the parcels in a GeoPackage."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import geopandas as gpd
import pyogrio
import rasterio
from pyogrio.errors import DataSourceError
from rasterio.errors import RasterioIOError

from cropstar.errors import InputError, ResourceError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import checksum, reads_back
from cropstar.geo.sensors import SCALE
from cropstar.geo.windows import Window
from cropstar.sources.synthetic.crops import BANDS
from cropstar.sources.synthetic.landscape import make_landscape
from cropstar.sources.synthetic.options import SceneOptions
from cropstar.sources.synthetic.scene import acquisitions
from cropstar.sources.synthetic.surface import Surface, make_surface
from cropstar.sources.synthetic.weather import acquisition_dates
from cropstar.store.atomic import atomic_path

TILE, PARCELS = "tile.tif", "parcels.gpkg"
LAYER = "parcels"
CLASSIFICATION = "SCL"


def write_scene(folder: Path, options: SceneOptions) -> tuple[Path, Path]:
    """Write both files unless they are already there; equal options give equal bytes."""
    tile, parcels = folder / TILE, folder / PARCELS
    wanted = options.tags()
    tile_tags, parcel_tags = _tile_tags(tile), _parcel_tags(parcels)
    for path, tags in ((tile, tile_tags), (parcels, parcel_tags)):
        if path.exists() and tags.get("GENERATOR") != wanted["GENERATOR"]:
            raise InputError(
                "will not overwrite a file that is no synthetic scene",
                path=path,
                remedy="choose another folder or move the file away",
            )
    if _matches(tile_tags, wanted) and _matches(parcel_tags, wanted):
        return tile, parcels
    landscape = make_landscape(options)
    if not _matches(parcel_tags, wanted):
        _write_parcels(parcels, landscape.parcels, wanted)
    if not _matches(tile_tags, wanted):
        _write_tile(tile, landscape.grid, make_surface(options, landscape), options)
    return tile, parcels


def _write_tile(path: Path, grid: Grid, surface: Surface, options: SceneOptions) -> None:
    """Date-major bands, each date's scene classification last."""
    profile = {
        "driver": "GTiff",
        "height": grid.height,
        "width": grid.width,
        "count": options.dates * (len(BANDS) + 1),
        "dtype": "uint16",
        "crs": grid.rasterio_crs,
        "transform": grid.affine,
        "nodata": 0,
        "tiled": True,
        "blockxsize": 256,
        "blockysize": 256,
        "interleave": "band",
        "compress": "deflate",
        "zlevel": 3,
        "predictor": 2,
        "num_threads": "ALL_CPUS",
        "bigtiff": "IF_SAFER",
    }
    with atomic_path(path) as partial:
        checksums = _write_bands(partial, profile, options, surface)
        whole = Window(0, 0, grid.height, grid.width)
        if not reads_back(partial, [(band, whole, wanted) for band, wanted in enumerate(checksums, start=1)]):
            why = "not all of it reached the disk"
            raise ResourceError("cannot write", path=path, why=why, remedy="free some disk space and run again")


def _write_bands(path: Path, profile: dict[str, Any], options: SceneOptions, surface: Surface) -> list[int]:
    """Write all bands; returns a checksum of each."""
    names = (*BANDS, CLASSIFICATION)
    stack = [(date.isoformat(), name) for date in acquisition_dates(options) for name in names]
    checksums: list[int] = []
    with rasterio.Env(), rasterio.open(path, "w", **profile) as tile:
        # All that goes into the header comes first: a header that grows later is written twice.
        tile.update_tags(**options.tags())
        for position, (date, name) in enumerate(stack, start=1):
            tile.set_band_description(position, f"{date} {name}")
            tile.update_tags(position, DATE=date, BAND=name)
        tile.scales = [1.0 if name == CLASSIFICATION else SCALE for _, name in stack]
        tile.offsets = [0.0] * len(stack)
        for acquisition in acquisitions(options, surface):
            for band in (*acquisition.counts, acquisition.classification.astype("uint16")):
                checksums.append(checksum(band))
                tile.write(band, len(checksums))
    return checksums


def _write_parcels(path: Path, parcels: gpd.GeoDataFrame, tags: dict[str, str]) -> None:
    package = BytesIO()
    # A GeoPackage notes when it was written; a fixed time keeps equal scenes equal.
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": f"{tags['START']}T00:00:00.000Z"})
    try:
        pyogrio.write_dataframe(parcels, package, layer=LAYER, driver="GPKG", layer_metadata=tags)
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})
    with atomic_path(path) as partial:
        partial.write_bytes(package.getvalue())


def _tile_tags(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        with rasterio.open(path) as tile:
            return dict(tile.tags())
    except RasterioIOError:
        return {}


def _parcel_tags(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        return dict(pyogrio.read_info(path, layer=LAYER)["layer_metadata"] or {})
    except (DataSourceError, pyogrio.errors.DataLayerError):
        return {}


def _matches(tags: dict[str, str], wanted: dict[str, str]) -> bool:
    return all(tags.get(key) == value for key, value in wanted.items())
