"""Tiles unpacked to GeoTIFFs, a folder a tile, in the two ways that are about.

<tile>/<YYYYMMDD>_{10m,20m,60m}.tif   y.tif
<tile>/{10m,20m,60m}/<YYYYMMDD>.tif   labels.tif
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import open_raster
from cropstar.sources.tum.rawtile import BANDS, MAXIMUM_DATES, MAXIMUM_SIDE, RawTile, require_bands

LABELS = ("y.tif", "labels.tif")
FLAT = re.compile(r"(\d{8})_(10|20|60)m\.tif", re.ASCII)
NESTED = re.compile(r"(\d{8})\.tif", re.ASCII)
REMEDY = "get or convert the tile again"


def label_file(folder: Path) -> Path | None:
    return next((folder / name for name in LABELS if (folder / name).is_file()), None)


def list_dates(folder: Path) -> dict[date, dict[int, Path]]:
    """The file of each resolution by date, in order."""
    found: dict[date, dict[int, Path]] = {}
    places = [(folder, FLAT, 0), *((folder / f"{resolution}m", NESTED, resolution) for resolution in BANDS)]
    for place, pattern, resolution in places:
        for path in place.iterdir() if place.is_dir() else ():
            if match := pattern.fullmatch(path.name):
                found.setdefault(_date(match[1], path), {})[resolution or int(match[2])] = path
    for day, files in found.items():
        missing = [f"{resolution} m" for resolution in BANDS if resolution not in files]
        if missing:
            raise InputError(f"no raster of {missing[0]} on {day}", path=folder, remedy=REMEDY)
    return dict(sorted(found.items()))


def all_files(folder: Path) -> list[Path]:
    labels = label_file(folder)
    own = [path for files in list_dates(folder).values() for path in files.values()]
    return [*own, *([] if labels is None else [labels])]


def shifted(days: Iterable[date], year: int | None) -> dict[date, date]:
    """The dates that file names stand for. Converters write the year of the records, which is 2017 in all of them:
    where the names have one year and the folder is of another, only the day of the year counts."""
    days = list(days)
    if year is None or {day.year for day in days} == {year} or len({day.year for day in days}) != 1:
        return {day: day for day in days}
    return {day: date(year, 1, 1) + timedelta(days=day.timetuple().tm_yday - 1) for day in days}


def read_tile(folder: Path, year: int | None) -> RawTile:
    listed = list_dates(folder)
    meant = shifted(listed, year)
    if len(listed) > MAXIMUM_DATES:
        raise InputError("too many dates", path=folder, why=f"{len(listed)} of them", remedy="check the folder")
    labels = _read(_require_labels(folder))
    bands: dict[int, NDArray[Any]] = {}
    for resolution in BANDS:
        images = [_read(files[resolution]) for files in listed.values()]
        if len({image.shape for image in images}) > 1:
            raise InputError("rasters of different sizes", path=folder, why=f"those of {resolution} m", remedy=REMEDY)
        bands[resolution] = np.stack(images).transpose(0, 2, 3, 1)  # (T, h, w, C)
    require_bands({resolution: array.shape for resolution, array in bands.items()}, folder)
    if labels.shape != (1, *bands[10].shape[1:3]):
        why = f"labels are {labels.shape[1:]}, the images {bands[10].shape[1:3]} pixels"
        raise InputError("shapes that do not fit", path=folder, why=why, remedy=REMEDY)
    return RawTile(folder, tuple(meant[day] for day in listed), bands, labels[0])


def grid_of(folder: Path) -> Grid:
    """Where a tile lies by its own label raster."""
    with open_raster(_require_labels(folder)) as dataset:
        return Grid.of(dataset)


def _require_labels(folder: Path) -> Path:
    path = label_file(folder)
    if path is None:
        raise InputError("no labels", path=folder, why=f"there is no {' or '.join(LABELS)}", remedy=REMEDY)
    return path


def _read(path: Path) -> NDArray[Any]:
    """(C, h, w)."""
    with open_raster(path) as dataset:
        if max(dataset.shape) > MAXIMUM_SIDE or dataset.count > len(BANDS[20]):
            why = f"{dataset.width} x {dataset.height} pixels, {dataset.count} bands"
            raise InputError("too large a tile", path=path, why=why, remedy="check the file")
        if any(np.dtype(kind).kind not in "iu" for kind in dataset.dtypes):
            raise InputError("not whole numbers", path=path, why=f"they are {dataset.dtypes[0]}", remedy=REMEDY)
        try:
            pixels: NDArray[Any] = dataset.read()
        except RasterioError as failure:
            raise InputError("a damaged raster", path=path, why=str(failure), remedy=REMEDY) from None
    return pixels


def _date(text: str, path: Path) -> date:
    try:
        return datetime.strptime(text, "%Y%m%d").date()
    except ValueError:
        raise InputError("not a date in a file's name", path=path, remedy="name it YYYYMMDD") from None
