"""The area that a map gives to each class: counted in a classified GeoTIFF, or read from a table."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from cropstar.errors import InputError, MismatchError
from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.geo.paths import require_file
from cropstar.geo.raster import open_raster, rasterio_window
from cropstar.geo.windows import split
from cropstar.limits import MAXIMUM_CLASSES, MAXIMUM_CONFIG_BYTES

NODATA = 255
BLOCK = 1024  # pixels a side that are read at once
COLUMNS = ("class", "hectares")
TABLE = "give a table with the columns class and hectares, or a map that 'cropstar predict' made"


@dataclass(frozen=True)
class MappedAreas:
    hectares: tuple[float, ...]  # of each of the model's classes
    model: str | None  # digest of the one that made the map; None: not known


def read_mapped(path: Path, names: Sequence[str]) -> MappedAreas:
    """The hectares of each named class; a class that the source does not have has none."""
    require_file(path)
    if path.suffix.lower() in (".tif", ".tiff"):
        return _count(path, names)
    if path.suffix.lower() == ".csv":
        return MappedAreas(_read_table(path, names), None)
    raise InputError("no areas", path=path, why="neither .tif nor .csv", remedy=TABLE)


def _count(path: Path, names: Sequence[str]) -> MappedAreas:
    with open_raster(path) as dataset:
        share = hectares_per_pixel(Grid.of(dataset))
        tags = dataset.tags(1)
        named = {value: tags[f"CLASS_{value}"] for value in range(MAXIMUM_CLASSES) if f"CLASS_{value}" in tags}
        why = None
        if not named or dataset.dtypes[0] != "uint8":
            why = "it has no class names, as a map of cropstar has"
        elif share is None:
            why = "its coordinates are no metres, so that pixels differ in size"
        if why:
            raise InputError("no map to count areas in", path=path, why=why, remedy=TABLE)
        counts = _values(path, dataset)
        model = dataset.tags().get("CROPSTAR_MODEL")
    unnamed = [str(value) for value in np.flatnonzero(counts[:NODATA]) if int(value) not in named]
    if unnamed:
        why = f"its values {', '.join(unnamed)} have no name"
        raise InputError("no map to count areas in", path=path, why=why, remedy=TABLE)
    strange = [name for value, name in named.items() if counts[value] and name not in names]
    if strange:
        raise _unknown(path, strange)
    assert share is not None
    hectares = dict.fromkeys(names, 0.0)
    for value, name in named.items():
        if counts[value]:
            hectares[name] += float(counts[value]) * share
    return MappedAreas(tuple(hectares.values()), model)


def _values(path: Path, dataset: Any) -> NDArray[np.int64]:
    counts = np.zeros(256, dtype=np.int64)
    try:
        for window in split(dataset.shape, BLOCK):
            counts += np.bincount(dataset.read(1, window=rasterio_window(window)).ravel(), minlength=256)
    except RasterioError as failure:
        remedy = "make the map again"
        raise InputError("the map cannot be read", path=path, why=str(failure), remedy=remedy) from None
    return counts


def _read_table(path: Path, names: Sequence[str]) -> tuple[float, ...]:
    if path.stat().st_size > MAXIMUM_CONFIG_BYTES:
        raise InputError("a table too large to be one of areas", path=path, remedy=TABLE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = list(csv.DictReader(lines))
    except (UnicodeDecodeError, csv.Error) as failure:
        raise InputError("the table cannot be read", path=path, why=str(failure), remedy=TABLE) from None
    if not rows or not set(COLUMNS) <= rows[0].keys():
        why = "no rows" if not rows else f"its columns are {', '.join(str(name) for name in rows[0])}"
        raise InputError("no table of areas", path=path, why=why, remedy=TABLE)
    found: dict[str, float] = {}
    for place, row in enumerate(rows, start=2):
        name, text = (str(row[column] or "").strip() for column in COLUMNS)
        if name in found:
            raise InputError(f"'{name}' stands twice", path=path, why=f"line {place}", remedy="leave one of them")
        found[name] = _number(path, place, text)
    strange = [name for name in found if name not in names]
    if strange:
        raise _unknown(path, strange)
    return tuple(found.get(name, 0.0) for name in names)


def _number(path: Path, place: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        why = f"'{text}' in line {place} is no area"
        raise InputError("no table of areas", path=path, why=why, remedy="give hectares as numbers from 0, like 12.5")
    return value


def _unknown(path: Path, strange: Sequence[str]) -> MismatchError:
    why = f"the model does not know the classes [{', '.join(strange)}]"
    return MismatchError("the areas do not fit the model", path=path, why=why, remedy="give areas of its classes")
