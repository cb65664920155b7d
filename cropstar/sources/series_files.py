"""EuroCropsML and TimeSen2Crop: collections of one small file per series."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, from_days, to_days
from cropstar.geo.sensors import SCALE, SENTINEL2, is_number, sentinel2_band
from cropstar.inputs import reading
from cropstar.sources.base import SampleScene, TileSpec, equal_parts, pack_series, recipe_of, safe_name
from cropstar.sources.texts import read_small_text
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SeriesTile

SAMPLES_PER_TILE = 4096
BRIGHTEST = np.iinfo(np.uint16).max

Rows = tuple[NDArray[np.int32], NDArray[Any], NDArray[np.bool_]]  # days (T,), values (T, C), valid (T,)


@dataclass(frozen=True)
class SampleFile:
    """One series: its file, what it is called, its class, and the group that splits may hold out."""

    path: Path
    key: str
    label: str
    group: str


class SampleFilesScene(SampleScene):
    """The series of a collection, read when their tile is built. `read` gives the dates of a file in any order."""

    layout = "series"

    def __init__(
        self,
        folder: Path,
        source: str,
        samples: Sequence[SampleFile],
        bands: tuple[str, ...],
        read: Callable[[Path], Rows],
        extra_files: Sequence[Path] = (),
    ) -> None:
        self.name = safe_name(folder.resolve().name)
        self._samples, self._read = list(samples), read
        self.recipe = recipe_of([*extra_files, *(sample.path for sample in samples)], {"source": source})
        self.provenance: dict[str, Any] = {"source": source, "folder": folder.resolve().name}
        self._classes = ClassTable.from_names(sorted({sample.label for sample in samples}))
        self.dates = _first_and_last([read(sample.path)[0] for sample in self._some()], folder)
        self.fingerprint = Fingerprint(bands, SCALE, 0.0, 0.0, Season.of(self.dates), self._classes)

    def _some(self) -> list[SampleFile]:
        """Series of every group, to learn the season from."""
        groups: dict[str, list[SampleFile]] = {}
        for sample in self._samples:
            groups.setdefault(sample.group, []).append(sample)
        return [sample for own in groups.values() for sample in own[:: max(len(own) // 50, 1)]]

    @property
    def volume(self) -> int:
        """Bytes of all values, about."""
        return len(self._samples) * 50 * 2 * len(self.fingerprint.bands)

    def cuts(self) -> list[tuple[int, int]]:
        return equal_parts(len(self._samples), SAMPLES_PER_TILE)

    def build(self, spec: TileSpec) -> SeriesTile:
        window = spec.window
        samples = self._samples[window.top : window.bottom]
        series = []
        for sample in samples:
            days, values, valid = self._read(sample.path)
            once, firsts = np.unique(days, return_index=True)  # of two rows of one date the first
            kept = np.where(valid[firsts][:, None], values[firsts], 0)
            series.append((once, np.clip(np.rint(kept), 0, BRIGHTEST).astype(np.uint16), valid[firsts]))
        table = ParcelTable(
            np.arange(window.top + 1, window.bottom + 1, dtype=np.int32),
            [sample.key for sample in samples],
            np.array([self._classes.number_of(sample.label) for sample in samples], dtype=np.int16),
            [sample.group for sample in samples],
        )
        return pack_series(self, series, table)

    def counts(self) -> dict[str, Any]:
        return {
            "samples": len(self._samples),
        }


def _first_and_last(days: Sequence[NDArray[np.int32]], folder: Path) -> tuple[Any, ...]:
    seen = [each for each in days if len(each)]
    if not seen:
        raise InputError("no dates", path=folder, why="all series are empty", remedy="get the collection again")
    return from_days([int(min(each.min() for each in seen)), int(max(each.max() for each in seen))])


# --- EuroCropsML: a folder of `<NUTS>_<parcel>_<hcat>.npz`, each with `data` (T,13), `dates` and the parcel's centre.
# Values are those of Sentinel-2 L1C, reflectance x 10000. Classes are HCAT codes; groups are countries. Its lists of
# few-shot splits are not read.

EUROCROPSML_NAME = re.compile(
    r"(?P<region>[A-Z]{2}[A-Z0-9]{0,3})_(?P<parcel>[^_]+(?:_[^_]+)*)_(?P<crop>\d{6,12})\.npz", re.ASCII
)
EUROCROPSML_REMEDY = "give the folder of .npz files that the package eurocropsml writes"


def open_eurocropsml(path: Path) -> list[SampleFilesScene]:
    """All series of a folder as one scene."""
    samples = []
    for file in sorted(path.rglob("*.npz")):
        if match := EUROCROPSML_NAME.fullmatch(file.name):
            samples.append(SampleFile(file, file.stem, match["crop"], match["region"][:2]))
    if not samples:
        why = "no file is called <NUTS>_<parcel>_<hcat>.npz"
        raise InputError("not EuroCropsML", path=path, why=why, remedy=EUROCROPSML_REMEDY)
    return [SampleFilesScene(path, "eurocropsml", samples, SENTINEL2, read_parcel)]


def looks_like_eurocropsml(path: Path) -> bool:
    """Whether a folder, or one below it, has files of such names."""
    return path.is_dir() and any(
        EUROCROPSML_NAME.fullmatch(file.name) for place in ("", "*/") for file in path.glob(f"{place}*.npz")
    )


def read_parcel(path: Path) -> Rows:
    """Dates, values and where there are any: a date of zeros was not seen."""
    with reading("a damaged series", path, EUROCROPSML_REMEDY):
        with np.load(path, allow_pickle=False) as content:
            values: NDArray[Any] = np.asarray(content["data"], dtype=np.float64)
            days = content["dates"].astype("datetime64[D]").astype(np.int32)
        if values.shape != (len(days), len(SENTINEL2)):
            raise ValueError(f"data of shape {values.shape} for {len(days)} dates and {len(SENTINEL2)} bands")
    seen = is_number(values).all(axis=1) & (values >= 0).all(axis=1) & (values != 0).any(axis=1)
    return days, values, seen


# --- TimeSen2Crop: `<tile>/<class>/<n>.csv` with nine bands and a flag per date, and the dates in `<tile>/dates.csv`.
# A flag of 0 is clear; 1 cloud, 2 shadow and 3 snow are masked. Classes are called as their folders, groups are tiles.

DATES = "dates.csv"
FLAG = "flag"
BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12")
DAY = re.compile(r"\b(20\d\d)-?(\d\d)-?(\d\d)", re.ASCII)
TIMESEN2CROP_REMEDY = "give the folder of tiles, each with dates.csv and a folder per class"


def open_timesen2crop(path: Path) -> list[SampleFilesScene]:
    """All tiles of a folder, or the folder of one tile, as one scene."""
    tiles = [path] if (path / DATES).is_file() else sorted(each.parent for each in path.glob(f"*/{DATES}"))
    samples = [
        SampleFile(file, f"{tile.resolve().name}/{folder.name}/{file.stem}", folder.name, tile.resolve().name)
        for tile in tiles
        for folder in sorted(each for each in tile.iterdir() if each.is_dir())
        for file in sorted(folder.glob("*.csv"))
    ]
    if not samples:
        why = f"no <tile>/<class>/<n>.csv beside a {DATES}"
        raise InputError("not TimeSen2Crop", path=path, why=why, remedy=TIMESEN2CROP_REMEDY)
    return [SampleFilesScene(path, "timesen2crop", samples, BANDS, read_series, [tile / DATES for tile in tiles])]


def looks_like_timesen2crop(path: Path) -> bool:
    """Whether a folder is a tile with classes, or holds such tiles."""
    return path.is_dir() and any(
        next(tile.parent.glob("*/*.csv"), None) for place in ("", "*/") for tile in path.glob(f"{place}{DATES}")
    )


def read_series(path: Path) -> Rows:
    """Dates, values, and which were clear."""
    days = to_days(_dates(path.parent.parent / DATES))
    with reading("not nine bands and a flag", path, TIMESEN2CROP_REMEDY):
        frame = pd.read_csv(path)
        columns = {sentinel2_band(str(name)): name for name in frame}
        (flags,) = (name for name in frame if str(name).strip().lower() == FLAG)
        values = np.stack([pd.to_numeric(frame[columns[band]]).to_numpy(dtype=np.float64) for band in BANDS], axis=1)
        clear = pd.to_numeric(frame[flags]).to_numpy(dtype=np.float64) == 0
    if len(values) != len(days):
        why = f"{len(values)} rows for {len(days)} dates in {DATES}"
        raise InputError("a damaged series", path=path, why=why, remedy=TIMESEN2CROP_REMEDY)
    return days, values, clear & is_number(values).all(axis=1) & (values >= 0).all(axis=1) & (values != 0).any(axis=1)


@lru_cache(maxsize=64)
def _dates(path: Path) -> tuple[date, ...]:
    try:
        dates = tuple(date(int(y), int(m), int(d)) for y, m, d in DAY.findall(read_small_text(path)))
    except ValueError:
        dates = ()
    if not dates:
        raise InputError("no dates", path=path, why="no line has a date such as 20170905", remedy=TIMESEN2CROP_REMEDY)
    return dates
