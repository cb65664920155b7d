"""The series of one parcel, from its dataset or its csv file: rows with gaps dropped, each date once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.sensors import in_order, sentinel2_band
from cropstar.logs import logger
from cropstar.sources.base import short_list
from cropstar.sources.breizhcrops.files import LABEL_COLUMNS, Parcel, RegionFiles

DATE = "doa"
CLOUDS = {"L1C": "QA60", "L2A": "CLD"}
L1C = (*(f"B{n}" for n in range(1, 9)), "B8A", "B9", "B10", "B11", "B12", "QA10", "QA20", "QA60", DATE)
L1C_ALPHABETIC = ("B1", "B10", "B11", "B12", *(f"B{n}" for n in range(2, 9)), "B8A", "B9", *L1C[-4:])
L2A = (DATE, *(f"B{n}" for n in range(2, 9)), "B8A", "B11", "B12", "CLD", "EDG", "SAT")
L2A_DATE_LAST = (*L2A[1:], DATE)
COLUMNS = {"L1C": L1C, "L2A": L2A}
BANDS = {level: tuple(in_order(filter(None, map(sentinel2_band, COLUMNS[level])))) for level in COLUMNS}

DAY = {1e17: 86_400e9, 1e14: 86_400e6, 1e11: 86_400e3, 1e8: 86_400.0}  # above: nano-, micro-, milliseconds, seconds
FIRST_DAY, LAST_DAY = 16_500, 47_500  # 2015, Sentinel-2's first year, to 2100
MAXIMUM_ROWS = 10_000  # of a parcel; a year of two satellites with overlapping orbits has about 150
LOOKED_AT = 100  # parcels that tell the order of the columns
UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError)


@dataclass(frozen=True)
class Observations:
    days: NDArray[np.int32]  # (T,), ascending
    values: NDArray[np.float64]  # (T, C), the bands of the level in Sentinel-2's order
    clouds: NDArray[np.float64]  # (T,), QA60 or CLD


Read = Callable[[Parcel], Observations]


@contextmanager
def reading(files: RegionFiles, columns: Sequence[str]) -> Iterator[Read]:
    """A function that reads parcels, as long as the file is open."""
    if files.folder is not None and files.is_raw:
        folder = files.folder
        yield lambda parcel: _read_csv(folder / parcel.place, files.level)
        return
    places = {sentinel2_band(name) or name: place for place, name in enumerate(columns)}
    with _open(files.h5) as handle:
        yield lambda parcel: _arrange(_dataset(handle, parcel, files), places, files, parcel)


def find_columns(files: RegionFiles, parcels: Sequence[Parcel]) -> tuple[str, ...]:
    """The order of an h5 file's columns, which it does not say itself: the magnitudes tell.

    In L2A the date stands first or, in older files, last. In L1C the bands are in Sentinel-2's order; files that
    the first versions of the package compiled have them in the alphabet's, and B10, which sees next to nothing,
    where B2 should be.
    """
    if files.is_raw:
        return COLUMNS[files.level]
    with _open(files.h5) as handle:
        some = [_dataset(handle, parcel, files) for parcel in parcels[:LOOKED_AT]]
    rows = np.concatenate([np.empty((0, len(COLUMNS[files.level]))), *some])
    rows = rows[np.isfinite(rows).all(axis=1)]
    if not len(rows):
        return COLUMNS[files.level]
    if files.level == "L2A":
        return L2A_DATE_LAST if np.median(rows[:, -1]) > min(DAY) else L2A
    second, eleventh = np.median(rows[:, 1]), np.median(rows[:, 10])
    if 4 * second < eleventh:
        logger.warning("the bands of %s are in alphabetical order: B10 is where B2 should be", files.h5.name)
        return L1C_ALPHABETIC
    return L1C


def _open(path: Path) -> Any:
    try:
        return h5py.File(path, "r")
    except OSError as failure:
        raise InputError("damaged h5 file", path=path, why=str(failure), remedy="download it again") from None


def _dataset(handle: Any, parcel: Parcel, files: RegionFiles) -> NDArray[np.float64]:
    try:
        found = handle.get(parcel.place)
        if isinstance(found, h5py.Dataset):
            wanted = len(COLUMNS[files.level])
            if found.ndim != 2 or found.shape[1] != wanted:
                why = f"'{parcel.place}' has the shape {found.shape}, {files.level} has {wanted} columns"
                raise InputError("wrong number of columns", path=files.h5, why=why, remedy="check the level")
            if found.shape[0] > MAXIMUM_ROWS:
                raise InputError("too long a series", path=files.h5, why=f"'{parcel.place}' has {found.shape[0]} rows")
            return np.asarray(found[()], dtype=np.float64)
    except InputError:
        raise
    except UNREADABLE as failure:
        why = f"'{parcel.place}': {failure}"
        raise InputError("damaged h5 file", path=files.h5, why=why, remedy="download it again") from None
    why = f"the index names '{parcel.place}'"
    raise InputError("a parcel is missing", path=files.h5, why=why, remedy="take the index and h5 file of one download")


def _read_csv(path: Path, level: str) -> Observations:
    try:
        frame: pd.DataFrame = pd.read_csv(
            path, dtype={**dict.fromkeys((*LABEL_COLUMNS, "id"), str)}, encoding="utf-8-sig", nrows=MAXIMUM_ROWS + 1
        )
        if len(frame) > MAXIMUM_ROWS:
            raise InputError("too long a series", path=path, why=f"more than {MAXIMUM_ROWS} rows")
        present = {sentinel2_band(name) or name: name for name in frame if isinstance(name, str)}
        missing = [name for name in (*BANDS[level], CLOUDS[level], DATE) if name not in present]
        if missing:
            why = f"{short_list(missing)} of {level} are missing"
            raise InputError("wrong columns", path=path, why=why, remedy="check the level")
        frame = frame.dropna(subset=[name for name in frame if not str(name).startswith("Unnamed")])
        values = frame[[present[band] for band in BANDS[level]]].to_numpy(dtype=np.float64)
        clouds = frame[CLOUDS[level]].to_numpy(dtype=np.float64)
        days = _days_of_column(frame[DATE])
    except InputError:
        raise
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError, TypeError) as failure:
        raise InputError("not the csv of a parcel", path=path, why=str(failure), remedy="get the file again") from None
    return _once_a_day(days, values, clouds, path, path.stem)


def _days_of_column(column: pd.Series[Any]) -> NDArray[np.float64]:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return _days(column.to_numpy(dtype=np.float64))
    moments = pd.to_datetime(column, format="ISO8601").to_numpy(dtype="datetime64[D]")
    return moments.astype(np.int64).astype(np.float64)


def _arrange(rows: NDArray[np.float64], places: dict[str, int], files: RegionFiles, parcel: Parcel) -> Observations:
    rows = rows[np.isfinite(rows).all(axis=1)]
    values = rows[:, [places[band] for band in BANDS[files.level]]]
    clouds = rows[:, places[CLOUDS[files.level]]]
    return _once_a_day(_days(rows[:, places[DATE]]), values, clouds, files.h5, parcel.place)


def _days(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Days since 1970 from nanoseconds, or whatever unit the magnitude tells; zero where none does."""
    days = np.zeros(len(moments))
    for least, length in sorted(DAY.items()):
        days = np.where(moments > least, np.floor(moments / length), days)
    return days


def _once_a_day(
    days: NDArray[np.float64], values: NDArray[np.float64], clouds: NDArray[np.float64], path: Path, name: str
) -> Observations:
    """In the order of the dates; of several rows with one date the first is kept."""
    if ((days < FIRST_DAY) | (days > LAST_DAY)).any():
        why = f"'{name}' has days outside 2015 to 2100 in its column {DATE}"
        raise InputError("not a date", path=path, why=why, remedy="check the level and the file")
    once, firsts = np.unique(days.astype(np.int32), return_index=True)
    return Observations(once, values[firsts], clouds[firsts])
