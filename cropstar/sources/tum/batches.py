"""Batches of series: (x, y, number of observations), each date of a sample with a class of its own.

x (N, T, 1 + bands x 9) has the time in its first column (in the last where that is how it looks), then for each band
the nine pixels of a 3 x 3 neighbourhood; y (N, T, classes) how much of each class was seen. Both are filled up with
zeros after a sample's observations.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_CLASSES
from cropstar.sources.tum.arrays_of_pickle import REMEDY, read_arrays
from cropstar.store.classes import UNLABELLED

PIXELS = 9
MOST_BANDS = 20
MOST_VALUES = 2**22  # of a batch; the published ones have 715,000
YEAR_LENGTHS = (365, 366)
NEAR = 0.02  # of a day


@dataclass(frozen=True)
class Layout:
    """What all batches of a collection have in common."""

    features: int
    classes: int

    @property
    def bands(self) -> tuple[str, ...]:
        """Which bands of Sentinel-2 these are was not published."""
        count = (self.features - 1) // PIXELS
        return tuple(f"band{band}_{pixel}" for band in range(1, count + 1) for pixel in range(1, PIXELS + 1))


@dataclass(frozen=True)
class Batch:
    """The observations of all samples end to end, in the order of their dates; samples without one are gone."""

    samples: NDArray[np.int64]  # (N,) places in the file
    lengths: NDArray[np.int64]  # (N,)
    days: NDArray[np.int32]  # (rows,) since 1970
    values: NDArray[Any]  # (rows, C), float64 as read
    labels: NDArray[np.int16]  # (rows,), UNLABELLED where y is zero throughout
    layout: Layout
    empty: int


def read_batch(path: Path, year: int) -> Batch:
    x, y, counts = _three(path)
    kept = np.flatnonzero(counts > 0)
    lengths = counts[kept].astype(np.int64)
    observed = np.arange(x.shape[1]) < counts[:, None]  # (N, T)
    rows, seen = x[observed].astype(np.float64), y[observed]  # (rows, features), (rows, classes)
    if not np.isfinite(rows).all() or not np.isfinite(seen).all():
        raise InputError("a value that is no number", path=path, why="NaN or infinite", remedy=REMEDY)
    days, column = _days(rows, year, path)
    order = np.lexsort((days, np.repeat(kept, lengths)))
    labels = np.where(seen.any(axis=1), seen.argmax(axis=1), UNLABELLED).astype(np.int16)
    values = np.delete(rows, column, axis=1)
    layout = Layout(x.shape[2], y.shape[2])
    return Batch(kept, lengths, days[order], values[order], labels[order], layout, len(counts) - len(kept))


def _three(path: Path) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    arrays = read_arrays(path)
    shapes = ", ".join(str(array.shape) for array in arrays)
    if [array.ndim for array in arrays] != [3, 3, 1]:
        why = f"arrays of the shapes {shapes or 'none'}"
        raise InputError("not a batch (x, y, number of observations)", path=path, why=why, remedy=REMEDY)
    x, y, counts = arrays
    if max(x.size, y.size) > MOST_VALUES:
        why = f"arrays of the shapes {shapes}, at most {MOST_VALUES} values are read"
        raise InputError("too large a batch", path=path, why=why, remedy=REMEDY)
    fits = x.shape[:2] == y.shape[:2] and len(counts) == len(x) and 1 <= y.shape[2] <= MAXIMUM_CLASSES
    bands, rest = divmod(x.shape[2] - 1, PIXELS)
    if not fits or rest or not 1 <= bands <= MOST_BANDS or counts.dtype.kind not in "iu":
        raise InputError("a batch that does not fit", path=path, why=f"arrays of the shapes {shapes}", remedy=REMEDY)
    if len(counts) and not 0 <= int(counts.min()) <= int(counts.max()) <= x.shape[1]:
        why = f"{int(counts.min())} to {int(counts.max())} observations, x has room for {x.shape[1]}"
        raise InputError("a batch that does not fit", path=path, why=why, remedy=REMEDY)
    return x, y, counts


def _days(rows: NDArray[np.float64], year: int, path: Path) -> tuple[NDArray[np.int32], int]:
    """The dates, and the column that they are in.

    The authors' series begin on the last day of the year before and write it as a whole year: 365 or 366 is that day.
    """
    last = rows.shape[1] - 1
    for column, exact in ((0, True), (last, True), (0, False)):
        numbers = _numbers(rows[:, column], exact)
        if numbers is not None:
            break
    else:
        why = "neither the first nor the last column is a day or share of the year"
        raise InputError("no column of days", path=path, why=why, remedy=REMEDY)
    numbers = np.where(numbers >= min(YEAR_LENGTHS), 0, numbers)
    first = (date(year, 1, 1) - timedelta(days=1) - date(1970, 1, 1)).days
    return (first + numbers).astype(np.int32), column


def _numbers(column: NDArray[np.float64], exact: bool) -> NDArray[np.int64] | None:
    """Days of the year, from such or from shares of a year; exactly these, or any share."""
    if len(column) and column.min() <= 0:
        return None
    if len(column) == 0 or column.max() <= 1 + 1e-4:
        for length in YEAR_LENGTHS:
            days = column * length
            if not exact or (np.abs(days - np.round(days)) <= NEAR).all():
                return np.round(days).astype(np.int64)
    elif exact and column.max() <= max(YEAR_LENGTHS) and (column == np.round(column)).all():
        return column.astype(np.int64)
    return None
