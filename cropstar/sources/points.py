"""Labelled points: tables of longitude and latitude, their dates, and which of them are of one field.

Surveys have them as CSV, such as sits' samples (id, longitude, latitude, start_date, end_date, label) and LUCAS
(point_id, th_lat, th_long, survey_date, lc1). What a point labels is decided in `sources/labels.py`, as of parcels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import CropstarError, InputError
from cropstar.geo.calendar import EPOCH, parse_day, to_days
from cropstar.sources.table_files import CSV_ENDINGS, PARQUET_ENDINGS, TableFile, open_file

WGS84 = "EPSG:4326"
# Longitude and latitude in degrees; of LUCAS the place that was meant, not where the surveyor stood.
COORDINATES = (
    *(("longitude", "latitude"), ("lon", "lat"), ("long", "lat"), ("lng", "lat")),
    *(("th_long", "th_lat"), ("gps_long", "gps_lat")),
)
GROUP_DISTANCE = 100.0  # metres: points of one crop that are nearer to each other are taken for one field
SEASON_MARGIN = 31  # days that a point's single date may lie before the first image or after the last

Flags = NDArray[np.bool_]


# --- tables of points


def is_point_table(path: Path) -> bool:
    """Whether a file is a table, not a vector file, by its ending and its columns."""
    ending = path.suffix.lower()
    if ending not in PARQUET_ENDINGS:
        return ending in CSV_ENDINGS
    try:
        columns = open_file(path).columns
    except CropstarError:  # the reader of vector files says what is wrong with it
        return False
    return "geometry" not in columns and _places(columns) is not None


def read_point_table(path: Path) -> Any:
    """A table as a GeoDataFrame; rows without a place have no geometry."""
    import geopandas

    file = open_file(path)
    pair = _places(file.columns)
    if pair is None:
        why = f"the columns are {', '.join(file.columns[:20])}"
        raise InputError("no coordinates", path=path, why=why, remedy="call the columns longitude and latitude")
    frame = _read(file, pair)
    numbers = [frame[name].to_numpy(dtype=np.float64, na_value=np.nan) for name in pair]
    x, y = numbers
    strange = np.flatnonzero((np.abs(x) > 180) | (np.abs(y) > 90))
    if strange.size:
        why = f"row {strange[0] + 1} has {pair[0]} {x[strange[0]]:g} and {pair[1]} {y[strange[0]]:g}"
        raise InputError(
            "not degrees", path=path, why=why, remedy="give longitude and latitude (WGS84), or a GeoPackage"
        )
    known = np.isfinite(x) & np.isfinite(y)
    places = geopandas.points_from_xy(np.where(known, x, 0), np.where(known, y, 0))
    shapes = [place if placed else None for place, placed in zip(places, known, strict=True)]
    return geopandas.GeoDataFrame(frame.drop(columns=list(pair)), geometry=shapes, crs=WGS84)


def _read(file: TableFile, pair: tuple[str, str]) -> Any:
    """Everything but the places is text: a code 010 stays one."""
    import pandas

    frame = file.read([name for name in file.columns if name not in pair], list(pair))
    for name in pair:
        frame[name] = pandas.to_numeric(frame[name], errors="coerce")
    return frame


def _places(columns: Sequence[str]) -> tuple[str, str] | None:
    plain = {column.strip().lower(): column for column in reversed(columns)}
    for x, y in COORDINATES:
        if x in plain and y in plain:
            return plain[x], plain[y]
    return None


# --- dates: which points were seen in the season of the images

PERIODS = (("start_date", "end_date"), ("start", "end"))
MOMENTS = ("survey_date", "date", "obs_date", "observation_date", "valid_time")
YEARS = ("year",)
DAY_FIRST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{2}|\d{4})", re.ASCII)  # as LUCAS has it: 07/06/18
YEAR = re.compile(r"(\d{4})(?:\.0)?", re.ASCII)


def outside_of_season(frame: Any, dates: Sequence[date], path: Path) -> Flags:
    """Which points are of another season than images of these dates; those without a date are of any.

    A period (start_date and end_date) must hold one of the dates; a single date must lie between the first and the last
    of them, give or take a month; a year must be one of theirs.
    """
    plain = {str(column).strip().lower(): column for column in reversed(list(frame.columns))}
    days = to_days(sorted(dates))
    for first, last in PERIODS:
        if first in plain and last in plain:
            starts, ends = (_days(frame[plain[name]], path) for name in (first, last))
            known = ~np.isnan(starts) & ~np.isnan(ends)
            held = np.searchsorted(days, ends, side="right") > np.searchsorted(days, starts, side="left")
            return known & ~held
    for name in MOMENTS:
        if name in plain:
            moments = _days(frame[plain[name]], path)
            near = (moments >= days[0] - SEASON_MARGIN) & (moments <= days[-1] + SEASON_MARGIN)
            outside: Flags = ~np.isnan(moments) & ~near
            return outside
    for name in YEARS:
        if name in plain:
            matches = [YEAR.fullmatch(str(value).strip()) for value in frame[plain[name]]]
            years = {day.year for day in dates}
            return np.array([match is not None and int(match[1]) not in years for match in matches], dtype=bool)
    return np.zeros(len(frame), dtype=bool)


def _days(column: Any, path: Path) -> NDArray[np.float64]:
    """Days since 1970, NaN where there is no date."""
    days = np.full(len(column), np.nan)
    missing = column.isna().to_numpy()
    for row, value in enumerate(column):
        text = "" if missing[row] else str(value).strip()
        if not text:
            continue
        try:
            days[row] = (_parse_day(text) - EPOCH).days
        except ValueError:
            why = f"'{text[:40]}' in row {row + 1} of column '{column.name}'"
            raise InputError("not a date", path=path, why=why, remedy="write dates as YYYY-MM-DD") from None
    return days


def _parse_day(text: str) -> date:
    if day := parse_day(text):
        return day
    if match := DAY_FIRST.fullmatch(text):
        year = int(match[4])
        return date(year if year > 99 else 2000 + year, int(match[3]), int(match[1]))
    raise ValueError


# --- fields: points that are near each other are of one, so that no split tears it apart

EARTH = 6_371_009.0  # metres
AT_ONCE = 5_000  # points whose neighbours are looked for


def fields_by_distance(shapes: Any, names: Sequence[str | None], keys: Sequence[str], metres: float) -> list[str]:
    """The field of each point, named after its first point.

    `shapes` are in degrees. Two points of one label that are nearer than the distance are of one field, and so are
    those that a chain of such points connects, and those of one key. Every file has its fields once, whatever the
    images: scenes of several years then agree on them.
    """
    import shapely

    present = np.flatnonzero(~(shapely.is_missing(shapes) | shapely.is_empty(shapes)))
    points = shapes[present]
    x, y = shapely.get_x(points), shapely.get_y(points)
    texts = [str(names[row]) for row in present.tolist()]
    labels = np.unique(np.array(texts, dtype=str), return_inverse=True)[1]
    field = np.arange(len(present))
    if metres > 0 and len(present):
        tree = shapely.STRtree(points)
        high = np.degrees(metres / EARTH) * 1.01
        wide = high / np.maximum(np.cos(np.radians(np.minimum(np.abs(y) + high, 89.9))), 1e-3)
        for start in range(0, len(present), AT_ONCE):
            some = np.arange(start, min(start + AT_ONCE, len(present)))
            boxes = shapely.box(x[some] - wide[some], y[some] - high, x[some] + wide[some], y[some] + high)
            first, second = tree.query(boxes)
            first = some[first]
            near = (first < second) & (labels[first] == labels[second])
            first, second = first[near], second[near]
            near = _distance(x[first], y[first], x[second], y[second]) < metres
            field = _joined(field, first[near], second[near])
    codes = np.unique(np.array([keys[row] for row in present.tolist()], dtype=str), return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    same = codes[order][1:] == codes[order][:-1]
    field = _joined(field, order[:-1][same], order[1:][same])
    names_of = np.array(keys, dtype=object)
    fields = names_of.copy()
    fields[present] = names_of[present][field]
    return [str(name) for name in fields]


def _joined(field: NDArray[np.int64], first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
    """Fields (N,), each the lowest of its points' numbers, after pairs of points were found to be of one."""
    while True:
        lowest = np.minimum(field[first], field[second])
        before = field.copy()
        np.minimum.at(field, field[first], lowest)
        np.minimum.at(field, field[second], lowest)
        while (field[field] != field).any():
            field = field[field]
        if np.array_equal(before, field):
            return field


def _distance(x: Any, y: Any, other_x: Any, other_y: Any) -> NDArray[np.float64]:
    """Metres along the great circle."""
    a, b, c, d = (np.radians(each) for each in (x, y, other_x, other_y))
    half = np.sin((d - b) / 2) ** 2 + np.cos(b) * np.cos(d) * np.sin((c - a) / 2) ** 2
    metres: NDArray[np.float64] = 2 * EARTH * np.arcsin(np.sqrt(np.minimum(half, 1)))
    return metres
