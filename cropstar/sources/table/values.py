"""The numbers of a table: which observations are valid, and what their scale is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.sensors import SCALE, SENTINEL2, clear_sky
from cropstar.sources.table.columns import Columns, TableOptions

LARGEST = np.iinfo(np.uint16).max
LOOKED_AT = 1_000_000  # values that the guess of the scale looks at
SCENE_CLASSES = re.compile(r"(.*[-_. ])?scl", re.IGNORECASE)
GOOD_WORDS = re.compile(r"valid|clear|usable", re.IGNORECASE)


@dataclass(frozen=True)
class Values:
    """reflectance = values * scale + offset; rows that are not valid hold zero."""

    values: NDArray[Any]  # (rows, C): uint16 where the source has whole numbers, else float32
    valid: NDArray[np.bool_]  # (rows,)
    scale: float


def read_values(frame: pd.DataFrame, columns: Columns, options: TableOptions, path: Path) -> Values:
    """An observation is valid when every band has a value: no nodata, and of Sentinel-2's bands none below zero."""
    values = np.zeros((len(frame), len(columns.bands)), dtype=np.float32)  # (rows, C)
    valid = np.ones(len(frame), dtype=bool)
    for place, (band, column) in enumerate(columns.bands.items()):
        numbers = _numbers(frame[column], path)
        with np.errstate(over="ignore"):
            values[:, place] = numbers
        valid &= np.isfinite(values[:, place]) & ~np.isin(numbers, options.nodata)
        if band in SENTINEL2:
            valid &= ~(numbers < 0)
    if set(columns.bands) <= set(SENTINEL2) and len(columns.bands) > 1:
        valid &= values.any(axis=1)  # zero in all bands is Sentinel-2's nodata
    if columns.mask is not None:
        valid &= usable(frame[columns.mask], path)
    if not valid.any():
        why = f"{len(frame)} rows have a missing band, nodata or a mask"
        raise InputError("no valid observation", path=path, why=why, remedy="check the band columns and --nodata")
    values[~valid] = 0
    whole = bool((values == np.round(values)).all() and values.min() >= 0 and values.max() <= LARGEST)
    scale = options.scale if options.scale is not None else guess_scale(values[valid], whole, path)
    return Values(values.astype(np.uint16) if whole else values, valid, scale)


def guess_scale(values: NDArray[np.float32], whole: bool, path: Path) -> float:
    """Reflectance as it is, or ten thousand times as large; of anything else the user must say."""
    some = values[:: max(values.size // LOOKED_AT, 1)]
    typical = float(np.percentile(some, 95))  # a few bright clouds decide nothing
    if not whole and 0 <= typical <= 1.5:
        return 1.0
    if (whole or typical >= 200) and 0 <= typical <= 20_000:
        return SCALE
    why = f"95 % of the values are below {typical:g}, neither reflectance nor 10000 times as much"
    raise UsageError("which scale?", path=path, why=why, remedy="give it with --scale: reflectance = value * scale")


def usable(column: pd.Series[Any], path: Path) -> NDArray[np.bool_]:
    """A column called SCL is Sentinel-2's scene classification, in one called valid or clear 0 means unusable,
    and in any other one 0 means usable. Without a value an observation is not usable."""
    name, numbers = str(column.name), _numbers(column, path)
    if SCENE_CLASSES.fullmatch(name):
        return clear_sky(numbers)
    good: NDArray[np.bool_] = numbers != 0 if GOOD_WORDS.search(name) else numbers == 0
    return good & ~np.isnan(numbers)


def _numbers(column: pd.Series[Any], path: Path) -> NDArray[np.float64]:
    """A column as numbers, NaN where there is none."""
    if not pd.api.types.is_numeric_dtype(column.dtype):
        plain = column.astype(object)
        numbers = pd.to_numeric(plain, errors="coerce")
        strange = (numbers.isna() & plain.notna()).to_numpy()
        if strange.any():
            row = int(np.argmax(strange))
            why = f"'{str(plain.iloc[row])[:40]}' in row {row + 1} of column '{column.name}'"
            raise InputError("text among the numbers", path=path, why=why, remedy="correct it or leave it empty")
        column = numbers
    return column.to_numpy(dtype=np.float64, na_value=np.nan)
