"""TimeSen2Crop: `<tile>/<class>/<n>.csv` with nine bands and a flag per date, and the dates in `<tile>/dates.csv`.

A flag of 0 is clear; 1 cloud, 2 shadow and 3 snow are masked. Classes are called as their folders, groups are tiles.
"""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from cropstar.errors import InputError
from cropstar.geo.calendar import to_days
from cropstar.geo.sensors import sentinel2_band
from cropstar.inputs import reading
from cropstar.sources.sample_files import Rows, SampleFile, SampleFilesScene
from cropstar.sources.texts import read_small_text

DATES = "dates.csv"
FLAG = "flag"
BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12")
DAY = re.compile(r"\b(20\d\d)-?(\d\d)-?(\d\d)", re.ASCII)
REMEDY = "give the folder of tiles, each with dates.csv and a folder per class"


def open_timesen2crop(path: Path) -> list[SampleFilesScene]:
    """All tiles of a folder, or the one that it is, as one scene."""
    tiles = [path] if (path / DATES).is_file() else sorted(each.parent for each in path.glob(f"*/{DATES}"))
    samples = [
        SampleFile(file, f"{tile.resolve().name}/{folder.name}/{file.stem}", folder.name, tile.resolve().name)
        for tile in tiles
        for folder in sorted(each for each in tile.iterdir() if each.is_dir())
        for file in sorted(folder.glob("*.csv"))
    ]
    if not samples:
        why = f"no <tile>/<class>/<n>.csv beside a {DATES}"
        raise InputError("not TimeSen2Crop", path=path, why=why, remedy=REMEDY)
    return [SampleFilesScene(path, "timesen2crop", samples, BANDS, read_series, [tile / DATES for tile in tiles])]


def looks_like_timesen2crop(path: Path) -> bool:
    """Whether a folder is a tile with classes, or holds such tiles."""
    return path.is_dir() and any(
        next(tile.parent.glob("*/*.csv"), None) for place in ("", "*/") for tile in path.glob(f"{place}{DATES}")
    )


def read_series(path: Path) -> Rows:
    """Dates, values, and which were clear."""
    days = to_days(_dates(path.parent.parent / DATES))
    with reading("not nine bands and a flag", path, REMEDY):
        frame = pd.read_csv(path)
        columns = {sentinel2_band(str(name)): name for name in frame}
        (flags,) = (name for name in frame if str(name).strip().lower() == FLAG)
        values = np.stack([pd.to_numeric(frame[columns[band]]).to_numpy(dtype=np.float64) for band in BANDS], axis=1)
        clear = pd.to_numeric(frame[flags]).to_numpy(dtype=np.float64) == 0
    if len(values) != len(days):
        why = f"{len(values)} rows for {len(days)} dates in {DATES}"
        raise InputError("a damaged series", path=path, why=why, remedy=REMEDY)
    return days, values, clear & np.isfinite(values).all(axis=1) & (values >= 0).all(axis=1) & (values != 0).any(axis=1)


@lru_cache(maxsize=64)
def _dates(path: Path) -> tuple[date, ...]:
    try:
        found = tuple(date(int(y), int(m), int(d)) for y, m, d in DAY.findall(read_small_text(path)))
    except ValueError:
        found = ()
    if not found:
        raise InputError("no dates", path=path, why="no line has a date such as 20170905", remedy=REMEDY)
    return found
