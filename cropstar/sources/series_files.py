"""EuroCropsML and TimeSen2Crop: collections of one small file per series."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, from_days, to_days
from cropstar.geo.sensors import (
    DECIBEL_OFFSET,
    DECIBEL_SCALE,
    OPTICAL,
    SCALE,
    SENTINEL2,
    Sensor,
    decibel_counts,
    is_number,
    sentinel2_band,
)
from cropstar.inputs import reading
from cropstar.sources.base import SampleScene, TileSpec, equal_parts, pack_series, recipe_of, safe_name
from cropstar.sources.texts import read_small_text
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SensorArrays, SeriesTile

SAMPLES_PER_TILE = 4096
BRIGHTEST = np.iinfo(np.uint16).max

Rows = tuple[NDArray[np.int32], NDArray[Any], NDArray[np.bool_]]  # days (T,), values (T, C), valid (T,)


@dataclass(frozen=True)
class SampleFile:
    """One series: its files, what it is called, its class, and the group that splits may hold out."""

    files: tuple[Path | None, ...]  # of each sensor; None where it has none
    key: str
    label: str
    group: str


@dataclass(frozen=True)
class SensorFiles:
    """A sensor, and what reads its files: the dates in any order, and values as they are stored."""

    sensor: Sensor
    read: Callable[[Path], Rows]

    @property
    def nothing(self) -> Rows:
        """What a sensor saw of a series that it has no file of."""
        return np.zeros(0, dtype=np.int32), np.zeros((0, len(self.sensor.bands))), np.zeros(0, dtype=bool)


class SampleFilesScene(SampleScene):
    """The series of a collection, read when their tile is built."""

    layout = "series"

    def __init__(
        self,
        folder: Path,
        source: str,
        samples: Sequence[SampleFile],
        sensors: Sequence[SensorFiles],
        extra_files: Sequence[Path] = (),
    ) -> None:
        self.name = safe_name(folder.resolve().name)
        self._samples, self._sensors = list(samples), list(sensors)
        files = [file for sample in samples for file in sample.files if file is not None]
        self.recipe = recipe_of([*extra_files, *files], {"source": source})
        self.provenance: dict[str, Any] = {"source": source, "folder": folder.resolve().name}
        self._classes = ClassTable.from_names(sorted({sample.label for sample in samples}))
        self.dates = _first_and_last([days for sample in self._some() for days, _, _ in self._rows(sample)], folder)
        own = [each.sensor for each in sensors]
        self.fingerprint = Fingerprint.of(own, 0.0, Season.of(self.dates), self._classes)

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
        rows = [self._rows(sample) for sample in samples]
        table = ParcelTable(
            np.arange(window.top + 1, window.bottom + 1, dtype=np.int32),
            [sample.key for sample in samples],
            np.array([self._classes.number_of(sample.label) for sample in samples], dtype=np.int16),
            [sample.group for sample in samples],
        )
        others = [_packed([own[place] for own in rows]) for place in range(1, len(self._sensors))]
        return replace(pack_series(self, [own[0] for own in rows], table), others=tuple(others))

    def _rows(self, sample: SampleFile) -> list[Rows]:
        """The dates of a series by each sensor, as they are stored; of two of one date the first."""
        found = []
        for sensor, path in zip(self._sensors, sample.files, strict=True):
            days, values, valid = sensor.read(path) if path is not None else sensor.nothing
            once, firsts = np.unique(days, return_index=True)
            kept = np.where(valid[firsts][:, None], values[firsts], 0)
            found.append((once, np.clip(np.rint(kept), 0, BRIGHTEST).astype(np.uint16), valid[firsts]))
        return found

    def counts(self) -> dict[str, Any]:
        return {
            "samples": len(self._samples),
        }


def _packed(series: Sequence[Rows]) -> SensorArrays:
    days, values, valid = (np.concatenate(column) for column in zip(*series, strict=True))
    starts = np.cumsum([0, *(len(own) for own, _, _ in series)], dtype=np.int64)
    return SensorArrays(days.astype(np.int32, copy=False), values, valid, starts=starts)


def _first_and_last(days: Sequence[NDArray[np.int32]], folder: Path) -> tuple[Any, ...]:
    seen = [each for each in days if len(each)]
    if not seen:
        raise InputError("no dates", path=folder, why="all series are empty", remedy="get the collection again")
    return from_days([int(min(each.min() for each in seen)), int(max(each.max() for each in seen))])


# --- EuroCropsML: a folder of `<NUTS>_<parcel>_<hcat>.npz`, each with `data` (T,13), `dates` and the parcel's centre.
# Values are those of Sentinel-2 L1C, reflectance x 10000; newer releases have folders S2 and S1, the latter with VV and
# VH (T,2) in decibels. -999 is nothing. Classes are HCAT codes; groups are countries. Its lists of few-shot splits are
# not read.

EUROCROPSML_NAME = re.compile(
    r"(?P<region>[A-Z]{2}[A-Z0-9]{0,3})_(?P<parcel>[^_]+(?:_[^_]+)*)_(?P<crop>\d{6,12})\.npz", re.ASCII
)
EUROCROPSML_REMEDY = "give the folder of .npz files that the package eurocropsml writes"
RADAR_FOLDER = "S1"


def open_eurocropsml(path: Path) -> list[SampleFilesScene]:
    """All series of a folder as one scene, radar beside optical values where it has both."""
    optical: dict[str, Path] = {}
    radar: dict[str, Path] = {}
    for file in sorted(path.rglob("*.npz")):
        if EUROCROPSML_NAME.fullmatch(file.name):
            of_sensor = radar if file.parent.name == RADAR_FOLDER else optical
            of_sensor[file.name] = file
    named = {"S2": optical, RADAR_FOLDER: radar}
    sensors = [EUROCROPSML_SENSORS[name] for name, files in named.items() if files]
    if not sensors:
        why = "no file is called <NUTS>_<parcel>_<hcat>.npz"
        raise InputError("not EuroCropsML", path=path, why=why, remedy=EUROCROPSML_REMEDY)
    samples = []
    for name in sorted({**optical, **radar}):
        match = EUROCROPSML_NAME.fullmatch(name)
        assert match is not None
        files = tuple(of_sensor.get(name) for of_sensor in named.values() if of_sensor)
        samples.append(SampleFile(files, Path(name).stem, match["crop"], match["region"][:2]))
    return [SampleFilesScene(path, "eurocropsml", samples, sensors)]


def looks_like_eurocropsml(path: Path) -> bool:
    """Whether a folder, or one below it, has files of such names."""
    return path.is_dir() and any(
        EUROCROPSML_NAME.fullmatch(file.name) for place in ("", "*/") for file in path.glob(f"{place}*.npz")
    )


def read_parcel(path: Path) -> Rows:
    """Dates, values and where there are any: a date of zeros was not seen."""
    days, values = _arrays(path, len(SENTINEL2))
    seen = is_number(values).all(axis=1) & (values >= 0).all(axis=1) & (values != 0).any(axis=1)
    return days, values, seen


def read_radar(path: Path) -> Rows:
    """The same of backscatter in decibels."""
    days, values = _arrays(path, len(RADAR))
    seen = is_number(values).all(axis=1) & (values > LOWEST_DECIBELS).all(axis=1) & (values != 0).any(axis=1)
    return days, decibel_counts(values), seen


def _arrays(path: Path, bands: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    with reading("a damaged series", path, EUROCROPSML_REMEDY):
        with np.load(path, allow_pickle=False) as content:
            values = np.asarray(content["data"], dtype=np.float64)
            days = content["dates"].astype("datetime64[D]").astype(np.int32)
        if values.shape != (len(days), bands):
            raise ValueError(f"data of shape {values.shape} for {len(days)} dates and {bands} bands")
    return days, values


RADAR = ("VV", "VH")
LOWEST_DECIBELS = -100
EUROCROPSML_SENSORS = {
    "S2": SensorFiles(Sensor(OPTICAL, SENTINEL2, SCALE, 0.0), read_parcel),
    RADAR_FOLDER: SensorFiles(Sensor("S1", RADAR, DECIBEL_SCALE, DECIBEL_OFFSET), read_radar),
}


# --- TimeSen2Crop: `<tile>/<class>/<n>.csv` with nine bands and a flag per date, and the dates in `<tile>/dates.csv`.
# The published files count the bands, B1 to B9. A flag of 0 is clear; 1 cloud, 2 shadow and 3 snow are masked. Classes
# are folders 0 to 15, groups are tiles; 2019_33UVP is 33UVP in another year.

DATES = "dates.csv"
FLAG = "flag"
BANDS = ("B02", "B03", "B04", "B05", "B06", "B07", "B8A", "B11", "B12")
COUNTED = tuple(f"B{number:02}" for number in range(1, 10))  # the same, as published files count them
CLASSES = (
    *("legumes", "grassland", "maize", "potato", "sunflower", "soy", "winter barley", "winter caraway", "rye"),
    *("rapeseed", "beet", "spring cereals", "winter wheat", "winter triticale", "permanent plantation", "other crops"),
)
DAY = re.compile(r"\b(20\d\d)-?(\d\d)-?(\d\d)", re.ASCII)
TIMESEN2CROP_REMEDY = "give the folder of tiles, each with dates.csv and a folder per class"


def open_timesen2crop(path: Path) -> list[SampleFilesScene]:
    """All tiles of a folder, or the folder of one tile, as one scene."""
    tiles = [path] if (path / DATES).is_file() else sorted(each.parent for each in path.glob(f"*/{DATES}"))
    samples = [
        SampleFile((file,), f"{tile.resolve().name}/{folder.name}/{file.stem}", _class_of(folder), tile.resolve().name)
        for tile in tiles
        for folder in sorted(each for each in tile.iterdir() if each.is_dir())
        for file in sorted(folder.glob("*.csv"))
    ]
    if not samples:
        why = f"no <tile>/<class>/<n>.csv beside a {DATES}"
        raise InputError("not TimeSen2Crop", path=path, why=why, remedy=TIMESEN2CROP_REMEDY)
    sensors = [SensorFiles(Sensor(OPTICAL, BANDS, SCALE, 0.0), read_series)]
    return [SampleFilesScene(path, "timesen2crop", samples, sensors, [tile / DATES for tile in tiles])]


def _class_of(folder: Path) -> str:
    """The crop that a folder has; other names than 0 to 15 are names of crops."""
    known = {str(number): name for number, name in enumerate(CLASSES)}
    return known.get(folder.name, folder.name)


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
        bands = COUNTED if set(COUNTED) <= set(columns) else BANDS
        values = np.stack([pd.to_numeric(frame[columns[band]]).to_numpy(dtype=np.float64) for band in bands], axis=1)
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
