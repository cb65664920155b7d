"""Tiles in TFRecords, as they are published.

A record holds x10, x20 and x60 (T, h, w, C), labels (T, H, W) and the days of the year, all int64, little-endian and
in C order. Every record says 2017, so that the year is taken from elsewhere. A day of zero or below is padding.
"""

from __future__ import annotations

import math
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.sources.tum.example import Feature, MalformedExample, parse_example
from cropstar.sources.tum.rawtile import BANDS, RawTile, require_bands
from cropstar.sources.tum.records import REMEDY, read_record

Shape = tuple[int, ...]


def look_at_record(path: Path, year: int) -> tuple[tuple[date, ...], tuple[int, int]]:
    """The dates of a tile, none where all are padding, and the rows and columns of its image."""
    features = _features(path, check=False)
    shapes = {resolution: _shape(features, f"x{resolution}", 4, path) for resolution in BANDS}
    require_bands(shapes, path)
    dates, _ = _dates(features, year, shapes[10][0], path)
    return dates, (shapes[10][1], shapes[10][2])


def read_tile(path: Path, year: int) -> RawTile:
    features = _features(path, check=True)
    shapes = {resolution: _shape(features, f"x{resolution}", 4, path) for resolution in BANDS}
    require_bands(shapes, path)
    dates, places = _dates(features, year, shapes[10][0], path)
    bands = {resolution: _array(features, f"x{resolution}/data", shapes[resolution], path) for resolution in BANDS}
    shape = _shape(features, "labels", 3, path)
    labels = _array(features, "labels/data", shape, path)
    if shape[1:] != shapes[10][1:3] or shape[0] != shapes[10][0]:
        why = f"labels have the shape {shape}, x10 {shapes[10]}"
        raise InputError("shapes that do not fit", path=path, why=why, remedy=REMEDY)
    first = int(places.min()) if len(places) else 0  # labels are the same on all dates; padding has none
    return RawTile(path, dates, {resolution: array[places] for resolution, array in bands.items()}, labels[first])


def _features(path: Path, *, check: bool) -> dict[str, Feature]:
    try:
        return parse_example(read_record(path, check=check))
    except MalformedExample as failure:
        raise InputError("not an Example in the record", path=path, why=str(failure), remedy=REMEDY) from None


def _dates(features: dict[str, Feature], year: int, count: int, path: Path) -> tuple[tuple[date, ...], NDArray[Any]]:
    """The dates in their order, of two equal ones the first, and their places in the record."""
    shape = _shape(features, "dates", 1, path)
    days = _array(features, "dates/doy", shape, path)
    if len(days) != count:
        why = f"{len(days)} days for {count} images"
        raise InputError("shapes that do not fit", path=path, why=why, remedy=REMEDY)
    real = np.flatnonzero(days > 0)
    if len(real) and days[real].max() > 366:
        why = f"there is {int(days[real].max())}"
        raise InputError("not a day of the year", path=path, why=why, remedy=REMEDY)
    once, firsts = np.unique(days[real], return_index=True)
    return tuple(date(year, 1, 1) + timedelta(days=int(day) - 1) for day in once), real[firsts]


def _shape(features: dict[str, Feature], name: str, sides: int, path: Path) -> Shape:
    shape = _one(features, f"{name}/shape", path).numbers
    if shape is None or len(shape) != sides or min(shape) < 1:
        why = f"{name}/shape is {shape}"
        raise InputError("not the shape of an array", path=path, why=why, remedy=REMEDY)
    return shape


def _array(features: dict[str, Feature], name: str, shape: Shape, path: Path) -> NDArray[Any]:
    data = _one(features, name, path).data
    if data is None or len(data) != 8 * math.prod(shape):
        why = f"{name} has {'no' if data is None else len(data)} bytes, its shape {shape} wants {8 * math.prod(shape)}"
        raise InputError("an array that does not fit its shape", path=path, why=why, remedy=REMEDY)
    return np.frombuffer(data, dtype="<i8").reshape(shape)


def _one(features: dict[str, Feature], name: str, path: Path) -> Feature:
    if name not in features:
        why = f"'{name}' is missing"
        raise InputError("not a tile of MTLCC", path=path, why=why, remedy="give the folder of the image series")
    return features[name]
