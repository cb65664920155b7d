"""Label rasters: GeoTIFF or a variable of a NetCDF file, as outlines of connected areas of one code.

An area of equal codes, connected along the edges of pixels, is a parcel. Outlines follow the edges of pixels, so burnt
onto the same grid they give the raster back; on another grid a pixel has the code that the raster has at its centre. 0
and nodata are unlabelled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import CRSError

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.grid import Grid, parse_crs
from cropstar.geo.raster import GDAL_ERRORS, open_raster, rasterio_window
from cropstar.geo.windows import Window
from cropstar.inputs import GEOTIFF_ENDINGS
from cropstar.runtime import logger
from cropstar.store.gate import open_hdf5

LABEL = "label"  # the column of the outlines' codes
KEY = "parcel_id"
RASTER_ENDINGS = (*GEOTIFF_ENDINGS, ".nc", ".nc4")
MAXIMUM_AREAS = 2_000_000  # outlines are held in memory
MAXIMUM_PIXELS = 2**28  # of the part that is read: a Sentinel-2 tile is half of it
WORLDCEREAL = {"LC", "CT"}  # land cover and crop types; often with irrigation, IRR
COORDINATES = (("x", "y"), ("lon", "lat"), ("longitude", "latitude"), ("easting", "northing"))
CRS_NAMES = ("crs_wkt", "spatial_ref")


def is_label_raster(path: Path) -> bool:
    return path.suffix.lower() in RASTER_ENDINGS


def read_label_raster(path: Path, grid: Grid, layer: str | None) -> Any:
    """The areas of a raster where it meets a grid, as a GeoDataFrame of outlines with their codes.

    `layer` is the variable of a NetCDF file, or the band of a GeoTIFF by its description or number.
    """
    import geopandas
    import shapely
    from rasterio.features import shapes

    read = _read_geotiff if path.suffix.lower().startswith(".tif") else _read_netcdf
    codes, own, window = read(path, grid, layer)
    if not _same_pixels(own, grid):
        logger.warning("%s lies on another grid than the images: each pixel has the label at its centre", path)
    piece = own.crop(window)
    known = codes != 0
    outlines: list[Any] = []
    values: list[int] = []
    for shape, value in shapes(codes, mask=known, connectivity=4, transform=piece.affine):
        if len(values) == MAXIMUM_AREAS:
            why = f"more than {MAXIMUM_AREAS:,} connected areas"
            raise InputError("not a raster of fields", path=path, why=why, remedy="sieve it, or give outlines")
        outlines.append(shapely.geometry.shape(shape))
        values.append(int(value))
    places = np.array(outlines, dtype=object)
    return geopandas.GeoDataFrame(
        {KEY: _keys(places, own), LABEL: [str(value) for value in values]}, geometry=list(places), crs=own.rasterio_crs
    )


def _same_pixels(own: Grid, grid: Grid) -> bool:
    """Whether the pixels of a raster are those of the grid; it may be another part of it, or go from south to north."""
    steps = [abs(a) - abs(b) for a, b in zip(own.transform, grid.transform, strict=True)]
    drift = 1e-3 * grid.resolution / max(own.shape)  # of a step: a thousandth of a pixel from edge to edge
    if own.rasterio_crs != grid.rasterio_crs or any(abs(steps[place]) > drift for place in (0, 1, 3, 4)):
        return False
    column, row = ~grid.affine @ (own.transform[2], own.transform[5])
    return bool(abs(column - round(column)) < 1e-3 and abs(row - round(row)) < 1e-3)


def _keys(shapes: NDArray[np.object_], grid: Grid) -> list[str]:
    """Row and column of an area's first pixel: the same whichever part of the raster is read."""
    import shapely

    if not len(shapes):
        return []
    places, owners = shapely.get_coordinates(shapes, return_index=True)
    columns, rows = (np.rint(each).astype(np.int64) for each in ~grid.affine @ (places[:, 0], places[:, 1]))
    order = np.lexsort((columns, rows, owners))
    first = order[np.unique(owners[order], return_index=True)[1]]
    return [f"{row}-{column}" for row, column in zip(rows[first].tolist(), columns[first].tolist(), strict=True)]


def _read_geotiff(path: Path, grid: Grid, layer: str | None) -> tuple[NDArray[Any], Grid, Window]:
    with open_raster(path) as dataset:
        if dataset.crs is None:
            raise InputError("no coordinate system", path=path, remedy="set one with gdal_edit -a_srs")
        index = _band_index(dataset, layer, path)
        own = Grid.of(dataset)
        window = _window_on(own, grid, path)
        try:
            pixels = dataset.read(index, window=rasterio_window(window))
        except GDAL_ERRORS as failure:
            why = f"the pixels cannot be read ({failure.__cause__ or failure})"
            raise InputError("damaged raster", path=path, why=why, remedy="get the file again") from None
        return _codes(pixels, dataset.nodatavals[index - 1], path), own, window


def _band_index(dataset: Any, layer: str | None, path: Path) -> int:
    """Which band has the labels, counted from 1."""
    names = [name or "" for name in dataset.descriptions]
    if layer is None:
        if dataset.count > 1:
            why = f"it has {dataset.count} bands"
            raise UsageError(
                "cannot tell which band has the labels", path=path, why=why, remedy="give --label-column 1"
            )
        return 1
    if names.count(layer) > 1:
        why = f"{names.count(layer)} bands are called so"
        raise UsageError(f"which band '{layer}'?", path=path, why=why, remedy="give its number with --label-column")
    if layer in names:
        return names.index(layer) + 1
    if layer.isdecimal() and 1 <= int(layer) <= dataset.count:
        return int(layer)
    why = f"its bands are {', '.join(name or str(number) for number, name in enumerate(names, 1))}"
    raise UsageError(f"no band '{layer}'", path=path, why=why, remedy="correct --label-column")


def _read_netcdf(path: Path, grid: Grid, layer: str | None) -> tuple[NDArray[Any], Grid, Window]:
    try:
        with open_hdf5(path) as file:
            name = _variable(file, layer, path)
            own = _netcdf_grid(file, file[name].shape[-2:], path)
            window = _window_on(own, grid, path)
            pixels = file[name][(*(0,) * (file[name].ndim - 2), *window.slices)]
            fill = file[name].attrs.get("_FillValue")
        return _codes(pixels, None if fill is None else float(np.ravel(fill)[0]), path), own, window
    except CropstarError:
        raise
    except (OSError, KeyError, ValueError, RuntimeError) as failure:
        why = f"not NetCDF-4 that can be read ({' '.join(str(failure).split())[:200]})"
        raise InputError("unreadable labels", path=path, why=why, remedy="give a GeoTIFF or NetCDF-4 file") from None


def _variable(file: Any, layer: str | None, path: Path) -> str:
    """The variable of labels: rasters of whole numbers may be."""
    rasters = [name for name in file if _is_raster(file[name])]
    if layer is not None and layer in rasters:
        return layer
    if layer is None and len(rasters) == 1:
        return str(rasters[0])
    if layer is None and set(rasters) >= WORLDCEREAL:
        logger.info("%s: labels are the crop types (CT); --label-column LC takes land cover", path.name)
        return "CT"
    what = "cannot tell which variable has the labels" if layer is None else f"no variable '{layer}'"
    why = f"the rasters of whole numbers are {', '.join(rasters) or 'none'}"
    raise UsageError(what, path=path, why=why, remedy="name it with --label-column")


def _is_raster(dataset: Any) -> bool:
    shape = getattr(dataset, "shape", ())
    whole = len(shape) >= 2 and dataset.dtype.kind in "iu"
    return whole and all(side == 1 for side in shape[:-2]) and min(shape[-2:]) > 1


def _netcdf_grid(file: Any, shape: tuple[int, int], path: Path) -> Grid:
    """The grid by the CF conventions: centres of pixels in two coordinates, and a variable with the system."""
    for x_name, y_name in COORDINATES:
        if x_name in file and y_name in file:
            break
    else:
        raise InputError("no coordinates", path=path, why="no x and y", remedy="write it by the CF conventions")
    x, y = (np.asarray(file[name][()], dtype=np.float64) for name in (x_name, y_name))
    if (len(y), len(x)) != tuple(shape):
        why = f"{len(x)} x {len(y)} coordinates of {shape[1]} x {shape[0]} pixels"
        raise InputError("coordinates do not fit", path=path, why=why, remedy="write it with dimensions y, x")
    for values, name in ((x, x_name), (y, y_name)):
        steps = np.diff(values)
        if not (np.isfinite(steps).all() and steps[0] and np.allclose(steps, steps[0], rtol=1e-3)):
            raise InputError(f"irregular coordinates '{name}'", path=path, remedy="bring it to a regular grid")
    wide, high = (float((values[-1] - values[0]) / (len(values) - 1)) for values in (x, y))
    transform = (wide, 0.0, float(x[0]) - wide / 2, 0.0, high, float(y[0]) - high / 2)
    return Grid(_netcdf_crs(file, x_name, path), transform, len(y), len(x))


def _netcdf_crs(file: Any, x_name: str, path: Path) -> str:
    for name in file:
        for key in CRS_NAMES:
            text = file[name].attrs.get(key)
            text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            if isinstance(text, str):
                try:
                    return str(parse_crs(text).to_wkt())
                except CRSError:
                    continue
    if x_name.startswith("lon"):
        return str(CRS.from_epsg(4326).to_wkt())
    raise InputError("no coordinate system", path=path, why="no crs_wkt", remedy="write it by the CF conventions")


def _window_on(own: Grid, grid: Grid, path: Path) -> Window:
    """The part of a raster that meets the images."""
    from rasterio.warp import transform_bounds

    try:
        bounds = transform_bounds(grid.rasterio_crs, own.rasterio_crs, *grid.bounds)
    except GDAL_ERRORS as failure:
        why = f"its coordinate system cannot be transformed to the images' ({failure})"
        raise InputError("labels in another coordinate system", path=path, why=why, remedy="reproject it") from None
    inverse = ~own.affine
    corners = [inverse @ (x, y) for x in (bounds[0], bounds[2]) for y in (bounds[1], bounds[3])]
    columns, rows = ([corner[axis] for corner in corners] for axis in (0, 1))
    left, top = max(int(np.floor(min(columns))) - 1, 0), max(int(np.floor(min(rows))) - 1, 0)
    right, bottom = min(int(np.ceil(max(columns))) + 1, own.width), min(int(np.ceil(max(rows))) + 1, own.height)
    if right <= left or bottom <= top:
        why = "none of its pixels lies on them"
        remedy = "give one of the same place"
        raise InputError("the label raster does not cover the images", path=path, why=why, remedy=remedy)
    if (right - left) * (bottom - top) > MAXIMUM_PIXELS:
        why = f"{right - left} x {bottom - top} pixels lie on the images"
        raise InputError(
            "the pixels of the labels are too small", path=path, why=why, remedy="bring it to the grid of the images"
        )
    return Window(top, left, bottom - top, right - left)


def _codes(pixels: NDArray[Any], nodata: float | None, path: Path) -> NDArray[np.int32]:
    """Codes as whole numbers, 0 where there is none."""
    if pixels.dtype.kind not in "iuf":
        why = f"values are {pixels.dtype}"
        raise InputError("not a label raster", path=path, why=why, remedy="give whole numbers, one for each class")
    if pixels.dtype.kind == "f":
        known = np.isfinite(pixels)
        if (pixels[known] != np.rint(pixels[known])).any():
            why = f"values are {pixels.dtype} with fractions"
            raise InputError("not a label raster", path=path, why=why, remedy="give whole numbers, one for each class")
        pixels = np.where(known, pixels, 0)
    codes = np.where(pixels == nodata, 0, pixels) if nodata is not None and np.isfinite(nodata) else pixels
    if codes.min(initial=0) < np.iinfo(np.int32).min or codes.max(initial=0) > np.iinfo(np.int32).max:
        raise InputError("codes too large", path=path, why=f"up to {codes.max()}", remedy="give smaller ones")
    return codes.astype(np.int32)
