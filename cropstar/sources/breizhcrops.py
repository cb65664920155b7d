"""BreizhCrops: parcel series of Brittany as its package stores them, h5 or one csv file per parcel.

<root>/<year>/<level>/<region>.csv + <region>.h5     as the package downloads them
<root>/<year>/<level>/<region>/csv/<id>.csv          raw, taken where there is no h5
<root>/csv/<region>/<id>.csv  ids/<region>_<part>.txt     raw, as the first publications have them
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import Season, from_days
from cropstar.geo.sensors import SCALE, in_order, sentinel2_band
from cropstar.inputs import MAXIMUM_CLASSES, reading
from cropstar.registry import short_list
from cropstar.runtime import event, logger, track
from cropstar.sources.base import SampleScene, TileSpec, equal_parts, fits_uint16, pack_series, recipe_of, safe_name
from cropstar.sources.texts import natural_ranks, read_text_table
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import require_plain
from cropstar.store.tile import ParcelTable, SeriesTile

__all__ = [
    "FOLDS",
    "REGIONS",
    "BreizhCropsOptions",
    "BreizhCropsScene",
    "looks_like_breizhcrops",
    "open_breizhcrops",
]


REGIONS = ("frh01", "frh02", "frh03", "frh04", "belle-ile", "kermaux")
LEVELS = ("L1C", "L2A")
MASKS = ("none", "clouds")


@dataclass(frozen=True)
class BreizhCropsOptions:
    """Options that are not given select everything."""

    year: int | None = None
    level: str | None = None
    regions: tuple[str, ...] | None = None
    mask: str = "none"  # clouds: an observation is valid where QA60 (L1C) or CLD (L2A) is at most `cloud_limit`
    cloud_limit: float = 0.0  # these columns are means over the parcel: 102.4 is a tenth of it under clouds
    samples_per_tile: int = 4096
    download: bool = False  # fetch what is missing of `regions`

    def __post_init__(self) -> None:
        if self.level is not None and self.level not in LEVELS:
            raise UsageError(f"unknown level '{self.level}'", remedy=f"choose one of: {', '.join(LEVELS)}")
        if self.mask not in MASKS:
            raise UsageError(f"unknown mask '{self.mask}'", remedy=f"choose one of: {', '.join(MASKS)}")
        if self.samples_per_tile < 1:
            raise UsageError("the samples of a tile must be above zero")
        if self.download and not self.regions:
            raise UsageError("no regions to download given", remedy="name them, e.g. --regions frh01,frh02")

    def to_json(self) -> dict[str, Any]:
        """The options that change a tile."""
        masked = {"cloud_limit": self.cloud_limit} if self.mask != "none" else {}
        return {"mask": self.mask, "samples_per_tile": self.samples_per_tile, **masked}


# The named splits of a store, whose groups are regions. `test-frh04` is the one of the published results; `validation`
# is for choosing settings without looking at frh04.
FOLDS: dict[str, dict[str, list[str]]] = {
    name: {"train": train.split(), "validation": [], "test": [test]}
    for name, train, test in (
        ("test-frh04", "frh01 frh02 frh03", "frh04"),
        ("test-frh03", "frh01 frh02 frh04", "frh03"),
        ("test-frh02", "frh01 frh03 frh04", "frh02"),
        ("test-frh01", "frh02 frh03 frh04", "frh01"),
        ("validation", "frh01 frh02", "frh03"),
    )
}

# Of the lists of ids beside raw csv: their names are the groups of the parcels.
ID_LISTS = {"train": ("train",), "validation": ("valid", "validation"), "test": ("eval", "test")}


UNLISTED = ""  # the group of a parcel that is in none of the lists of ids: no split deals it out


class BreizhCropsScene(SampleScene):
    """The mapped parcels of a region in the natural order of their ids, numbered from 1.

    A region of 180,000 parcels is gigabytes: it is looked through once for its dates, then read again piece by piece.
    """

    layout = "series"

    def __init__(
        self,
        root: Path,
        files: RegionFiles,
        listed: Listing,
        mapping: ClassMapping,
        options: BreizhCropsOptions,
    ) -> None:
        parcels = listed.parcels
        self.name = files.name
        self.left_out = Counter(parcel.code for parcel in parcels if parcel.code not in mapping.numbers)
        mapped = [parcel for parcel in parcels if parcel.code in mapping.numbers]
        if not mapped:
            why = f"none of {len(parcels)} parcels: {_explain_codes(self.left_out, root)}"
            raise InputError("no parcel of a mapped class", path=files.data, why=why, remedy="correct classmapping.csv")
        ranks = natural_ranks([parcel.key for parcel in mapped])
        mapped = [mapped[place] for place in np.argsort(ranks)]
        _require_unique(mapped, files)
        self._files, self._mapping, self._options = files, mapping, options
        self._columns = _find_columns(files, mapped)
        self._parcels, self._observations, days = self._look_through(mapped)
        self.empty = listed.empty + len(mapped) - len(self._parcels)
        self.dates = from_days(days)
        parts = read_parts(root, files.region) if files.is_raw else {}
        self._groups = _groups(parts, root) if parts else None
        ids = {part: [name for name in names if name in parts] for part, names in ID_LISTS.items()}
        self._splits = {"ids": ids} if parts else FOLDS
        self.provenance: dict[str, Any] = {
            "source": "breizhcrops",
            "origin": f"breizhcrops {files.year}",  # ids are the register's: Belle-Ile and frh04 share fields
            "region": files.region,
            "group": files.region,
            "year": files.year,
            "level": files.level,
            "files": "csv" if files.is_raw else files.h5.name,
            "left_out": {"unmapped": sum(self.left_out.values()), "empty": self.empty},
            **({"id_lists": {part: len(ids) for part, ids in parts.items()}} if parts else {}),
        }
        own = sorted(files.data.glob("*.csv")) if files.is_raw else [files.index, files.h5]
        settings = {"name": self.name, "columns": self._columns, "groups": self._groups, **options.to_json()}
        self.recipe = recipe_of([*own, mapping.path], settings)
        self.fingerprint = Fingerprint(
            LEVEL_BANDS[files.level], SCALE, 0.0, 0.0, Season.of(self.dates), mapping.classes
        )

    def _look_through(self, parcels: list[_Parcel]) -> tuple[list[_Parcel], int, list[int]]:
        """The parcels that have observations, how many these are, and all dates."""
        kept: list[_Parcel] = []
        count, days = 0, set[int]()
        with _open_reader(self._files, self._columns) as read:
            for parcel in track(parcels, len(parcels), f"look through {self.name}", "parcel"):
                own = read(parcel).days
                if len(own):
                    kept.append(parcel)
                    count += len(own)
                    days.update(own.tolist())
        if not kept:
            raise InputError("no observation", path=self._files.data, why=f"{len(parcels)} parcels without a whole row")
        return kept, count, sorted(days)

    @property
    def volume(self) -> int:
        """Bytes of all values."""
        return 4 * self._observations * len(self.fingerprint.bands)

    def cuts(self) -> list[tuple[int, int]]:
        return equal_parts(len(self._parcels), self._options.samples_per_tile)

    def build(self, spec: TileSpec) -> SeriesTile:
        window = spec.window
        chosen = self._parcels[window.top : window.bottom]
        with _open_reader(self._files, self._columns) as read:
            series = [read(parcel) for parcel in chosen]
        limit = self._options.cloud_limit if self._options.mask == "clouds" else np.inf
        whole = all(fits_uint16(one.values) for one in series)  # means over parcels are fractions
        kind = np.uint16 if whole else np.float32
        numbers = np.arange(window.top + 1, window.bottom + 1, dtype=np.int32)
        labels = np.array([self._mapping.numbers[parcel.code] for parcel in chosen], dtype=np.int16)
        # The list that each parcel is in; of h5 files the region is the group of all.
        groups = None if self._groups is None else [self._groups.get(parcel.key, UNLISTED) for parcel in chosen]
        table = ParcelTable(numbers, [parcel.key for parcel in chosen], labels, groups)
        return pack_series(self, [(one.days, one.values.astype(kind), one.clouds <= limit) for one in series], table)

    def counts(self) -> dict[str, Any]:
        return {
            "samples": len(self._parcels),
            "observations": self._observations,
            "splits": self._splits,
        }


def open_breizhcrops(path: Path, options: BreizhCropsOptions | None = None) -> list[BreizhCropsScene]:
    """One scene for each chosen region; all have the classes of one mapping."""
    options = options or BreizhCropsOptions()
    if options.download:
        from cropstar.sources.breizhcrops_download import download_missing

        download_missing(path, options)
    if not path.is_dir():
        raise InputError("no such folder", path=path, remedy="give the folder that holds classmapping.csv")
    mapping = _read_classes(path)
    listed = _without_parts([(files, _list_parcels(files)) for files in _choose_regions(path, options)], options)
    scenes = [BreizhCropsScene(path, files, listing, mapping, options) for files, listing in listed]
    for scene in scenes:
        _log_summary(scene, path)
    return scenes


def _choose_regions(path: Path, options: BreizhCropsOptions) -> list[RegionFiles]:
    present = find_regions(path)
    chosen = [files for files in present if options.year in (None, files.year) and options.level in (None, files.level)]
    wanted = options.regions
    missing = [name for name in wanted or () if name not in {files.region for files in chosen}]
    if missing or not chosen:
        what = f"no region '{missing[0]}'" if missing else "no BreizhCrops region"
        asked = " ".join(str(value) for value in (options.year, options.level) if value is not None)
        why = f"there is {short_list(files.name for files in present) or 'none'}"
        remedy = "choose one of these, or get others with --regions and --download"
        raise InputError(f"{what}{f' of {asked}' if asked else ''}", path=path, why=why, remedy=remedy)
    chosen = [files for files in chosen if wanted is None or files.region in wanted]
    levels = sorted({files.level for files in chosen})
    if len(levels) > 1:
        raise UsageError(
            "several levels", path=path, why=f"{' and '.join(levels)} have different bands", remedy="name it"
        )
    return chosen


def _without_parts(
    regions: Sequence[tuple[RegionFiles, Listing]], options: BreizhCropsOptions
) -> list[tuple[RegionFiles, Listing]]:
    """Belle-Ile is a part of frh04: nobody gets a parcel twice without asking for it."""
    keys = [{parcel.key for parcel in listing.parcels} for _, listing in regions]
    kept = []
    for own, (files, listing) in zip(keys, regions, strict=True):
        others = zip(keys, regions, strict=True)
        around = [other.region for theirs, (other, _) in others if other.year == files.year and own < theirs]
        if around:
            fate = "is left out" if options.regions is None else "has its parcels twice"
            logger.warning("the region %s is a part of %s and %s", files.region, around[0], fate)
        if not around or options.regions is not None:
            kept.append((files, listing))
    return kept


def _require_unique(parcels: list[_Parcel], files: RegionFiles) -> None:
    key, count = Counter(parcel.key for parcel in parcels).most_common(1)[0]
    if count > 1:
        raise InputError(f"the parcel '{key}' appears {count} times", path=files.index, remedy="correct the index")


def _groups(parts: dict[str, list[str]], root: Path) -> dict[str, str]:
    """The list of each id; one in two of them would be trained on and tested on."""
    groups: dict[str, str] = {}
    for part, ids in parts.items():
        for key in ids:
            if groups.setdefault(key, part) != part:
                why = f"'{key}' is in those of {groups[key]} and {part}"
                raise InputError("a parcel is in two lists", path=root / "ids", why=why, remedy="correct the lists")
    return groups


def _log_summary(scene: BreizhCropsScene, root: Path) -> None:
    about = scene.describe()
    counts = f"{about['samples']} parcels, {about['observations']} observations of {len(about['dates'])} dates"
    event(
        f"{scene.name}: {counts}",
        samples=about["samples"],
        left_out=about["left_out"],
    )
    if scene.left_out:
        codes = _explain_codes(scene.left_out, root)
        logger.warning("%s: %d parcels of no mapped class left out: %s", scene.name, scene.left_out.total(), codes)
    if scene.empty:
        logger.warning("%s: %d parcels without a complete observation left out", scene.name, scene.empty)


# --- Regions of a folder and their parcels

YEAR = re.compile(r"20\d\d", re.ASCII)
LABEL_COLUMNS = ("CODE_CULTU", "code_cultu", "label")
SEQUENCE_LENGTH = "sequencelength"


@dataclass(frozen=True)
class _Parcel:
    key: str  # its id in the register of the year
    code: str  # of its crop
    place: str  # the name of its dataset, or of its csv file


@dataclass(frozen=True)
class Listing:
    parcels: list[_Parcel]
    empty: int = 0  # parcels whose series has no row, by the index; they are not among the parcels


@dataclass(frozen=True)
class RegionFiles:
    """The files of one region, year and level: an index and an h5 file, or a folder of csv files."""

    region: str
    year: int
    level: str
    index: Path
    h5: Path
    folder: Path | None = None  # of raw csv files

    @property
    def name(self) -> str:
        return f"{safe_name(self.region)}-{self.year}-{self.level}"

    @property
    def is_raw(self) -> bool:
        return self.folder is not None and not self.h5.exists()

    @property
    def data(self) -> Path:
        return self.folder if self.folder is not None and self.is_raw else self.h5


def looks_like_breizhcrops(path: Path) -> bool:
    """Whether a folder is laid out as one of the above; of the raw csv only together with a class mapping."""
    if not path.is_dir():
        return False
    if any(files.region in REGIONS for files in _packaged(path)):
        return True
    return (path / MAPPING_FILE).is_file() and any(path.glob("csv/*/*.csv"))


def find_regions(root: Path) -> list[RegionFiles]:
    """The regions in a folder, ordered by year, level and region."""
    regions = [*_packaged(root), *_loose(root)]
    return sorted(regions, key=lambda files: (files.year, files.level, files.region))


def _packaged(root: Path) -> Iterator[RegionFiles]:
    for folder in sorted(root.glob("20??/L??")):
        if folder.name not in LEVELS or not YEAR.fullmatch(folder.parent.name):
            continue
        raw = {entry.parent.name for entry in folder.glob("*/csv") if any(entry.glob("*.csv"))}
        whole = {entry.stem for entry in folder.iterdir() if entry.suffix in (".csv", ".h5")}
        for region in sorted(raw | whole):
            csv_folder = folder / region / "csv" if region in raw else None
            index, h5 = folder / f"{region}.csv", folder / f"{region}.h5"
            yield RegionFiles(region, int(folder.parent.name), folder.name, index, h5, csv_folder)


def _loose(root: Path) -> Iterator[RegionFiles]:
    """Folders without year and level in their names: the first file tells both."""
    for folder in sorted(root.glob("csv/*")):
        first = min(folder.glob("*.csv"), default=None) if folder.is_dir() else None
        if first is not None:
            row = _first_row(first)
            year = row.get("doa", "")[:4]
            if not YEAR.fullmatch(year):
                raise InputError("no date", path=first, why="its first row has no doa", remedy="write it as YYYY-MM-DD")
            level = "L2A" if "CLD" in row else "L1C"
            top = folder.parent.parent
            yield RegionFiles(folder.name, int(year), level, top / "index.csv", top / "data.h5", folder)


def _first_row(path: Path) -> dict[str, str]:
    """The first observation of a raw csv by its columns; of a file with a header alone the values are empty."""
    with reading("not a table", path), path.open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.reader(handle)
        header = next(reader, [])
        row = next(reader, [""] * len(header))
    if "doa" not in header or len(row) != len(header):
        why = "it is empty" if not header else f"the columns are {short_list(header)}"
        raise InputError("not the csv of a parcel", path=path, why=why, remedy="get the file again")
    return dict(zip(header, row, strict=True))


def _list_parcels(files: RegionFiles) -> Listing:
    """The parcels of a region, of whatever class."""
    if files.folder is not None and files.is_raw:
        paths = sorted(files.folder.glob("*.csv"))
        return Listing([_Parcel(path.stem, _code(_first_row(path), path), path.name) for path in paths])
    if not files.h5.is_file():
        why = f"{files.h5.name} is missing"
        remedy = f"get it with --regions {files.region} --download, or choose other regions"
        raise InputError(f"no series of the region '{files.region}'", path=files.h5.parent, why=why, remedy=remedy)
    return read_index(files.index)


def read_index(path: Path) -> Listing:
    """Every variant of the index has the code and the path; the id is the path's last part, as in the package."""
    if not path.is_file():
        raise InputError("no index of the region", path=path, why="the h5 file has none beside it", remedy="get it too")
    frame = read_text_table(path)
    code = next((name for name in LABEL_COLUMNS if name in frame), None)
    if code is None or "path" not in frame:
        why = f"the columns are {short_list(frame)}"
        raise InputError("not an index of parcels", path=path, why=why, remedy="it has the columns CODE_CULTU and path")
    filled = pd.Series(True, index=frame.index)
    if SEQUENCE_LENGTH in frame:
        filled = pd.to_numeric(frame[SEQUENCE_LENGTH], errors="coerce") != 0
    chosen = frame[filled]
    parcels = [
        _Parcel(PurePosixPath(place.replace("\\", "/")).stem, crop.strip(), place)
        for place, crop in zip(chosen["path"], chosen[code], strict=True)
    ]
    return Listing(parcels, int((~filled).sum()))


def read_parts(root: Path, region: str) -> dict[str, list[str]]:
    """The lists of ids beside raw csv, by the name of the part: ids/regiona_train.txt."""
    return {
        path.stem[len(region) + 1 :]: path.read_text(encoding="utf-8").split()
        for path in sorted(root.glob("ids/*.txt"))
        if path.stem.lower().startswith(f"{region.lower()}_")
    }


def _code(row: dict[str, str], path: Path) -> str:
    column = next((name for name in LABEL_COLUMNS if name in row), None)
    if column is None:
        raise InputError("no label", path=path, why=f"the columns are {short_list(row)}", remedy="add one")
    return row[column].strip().removesuffix(".0")


# --- The series of one parcel: rows with gaps dropped, each date once

DATE = "doa"
CLOUDS = {"L1C": "QA60", "L2A": "CLD"}
L1C = (*(f"B{n}" for n in range(1, 9)), "B8A", "B9", "B10", "B11", "B12", "QA10", "QA20", "QA60", DATE)
L1C_ALPHABETIC = ("B1", "B10", "B11", "B12", *(f"B{n}" for n in range(2, 9)), "B8A", "B9", *L1C[-4:])
L2A = (DATE, *(f"B{n}" for n in range(2, 9)), "B8A", "B11", "B12", "CLD", "EDG", "SAT")
L2A_DATE_LAST = (*L2A[1:], DATE)
COLUMNS = {"L1C": L1C, "L2A": L2A}
LEVEL_BANDS = {level: tuple(in_order(filter(None, map(sentinel2_band, COLUMNS[level])))) for level in COLUMNS}

DAY = {1e17: 86_400e9, 1e14: 86_400e6, 1e11: 86_400e3, 1e8: 86_400.0}  # above: nano-, micro-, milliseconds, seconds
FIRST_DAY, LAST_DAY = 16_500, 47_500  # 2015, Sentinel-2's first year, to 2100
LOOKED_AT = 100  # parcels that tell the order of the columns


@dataclass(frozen=True)
class _ParcelSeries:
    days: NDArray[np.int32]  # (T,), ascending
    values: NDArray[np.float64]  # (T, C), the bands of the level in Sentinel-2's order
    clouds: NDArray[np.float64]  # (T,), QA60 or CLD


ReadParcel = Callable[[_Parcel], _ParcelSeries]


@contextmanager
def _open_reader(files: RegionFiles, columns: Sequence[str]) -> Iterator[ReadParcel]:
    """A function that reads parcels, as long as the file is open."""
    if files.folder is not None and files.is_raw:
        folder = files.folder
        yield lambda parcel: _read_csv(folder / parcel.place, files.level)
        return
    places = {sentinel2_band(name) or name: place for place, name in enumerate(columns)}
    with _open(files.h5) as handle:
        yield lambda parcel: _arrange(_dataset(handle, parcel, files), places, files, parcel)


def _find_columns(files: RegionFiles, parcels: Sequence[_Parcel]) -> tuple[str, ...]:
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
    with reading("damaged h5 file", path, "download it again"):
        return h5py.File(path, "r")


def _dataset(handle: Any, parcel: _Parcel, files: RegionFiles) -> NDArray[np.float64]:
    wanted = len(COLUMNS[files.level])
    with reading("damaged h5 file", files.h5, "download it again"):
        dataset = handle.get(parcel.place)
        if not isinstance(dataset, h5py.Dataset):
            why, remedy = f"the index names '{parcel.place}'", "use the index and h5 file of one download"
            raise InputError("a parcel is missing", path=files.h5, why=why, remedy=remedy)
        require_plain(dataset.id)
        if dataset.file.filename != handle.filename:
            raise ValueError(f"'{parcel.place}' is a link to another file")
        if dataset.ndim != 2 or dataset.shape[1] != wanted:
            why = f"'{parcel.place}' has the shape {dataset.shape}, {files.level} has {wanted} columns"
            raise InputError("wrong number of columns", path=files.h5, why=why, remedy="check the level")
        return np.asarray(dataset[()], dtype=np.float64)


def _read_csv(path: Path, level: str) -> _ParcelSeries:
    with reading("not the csv of a parcel", path):
        frame: pd.DataFrame = pd.read_csv(path, dtype=dict.fromkeys((*LABEL_COLUMNS, "id"), str), encoding="utf-8-sig")
        present = {sentinel2_band(name) or name: name for name in frame if isinstance(name, str)}
        missing = [name for name in (*LEVEL_BANDS[level], CLOUDS[level], DATE) if name not in present]
        if missing:
            why = f"{short_list(missing)} of {level} are missing"
            raise InputError("wrong columns", path=path, why=why, remedy="check the level")
        frame = frame.dropna(subset=[name for name in frame if not str(name).startswith("Unnamed")])
        values = frame[[present[band] for band in LEVEL_BANDS[level]]].to_numpy(dtype=np.float64)
        clouds = frame[CLOUDS[level]].to_numpy(dtype=np.float64)
        return _once_a_day(_days_of_column(frame[DATE]), values, clouds, path, path.stem)


def _days_of_column(column: pd.Series[Any]) -> NDArray[np.float64]:
    if pd.api.types.is_numeric_dtype(column.dtype):
        return _days_since_1970(column.to_numpy(dtype=np.float64))
    moments = pd.to_datetime(column, format="ISO8601").to_numpy(dtype="datetime64[D]")
    return moments.astype(np.int64).astype(np.float64)


def _arrange(rows: NDArray[np.float64], places: dict[str, int], files: RegionFiles, parcel: _Parcel) -> _ParcelSeries:
    rows = rows[np.isfinite(rows).all(axis=1)]
    values = rows[:, [places[band] for band in LEVEL_BANDS[files.level]]]
    clouds = rows[:, places[CLOUDS[files.level]]]
    return _once_a_day(_days_since_1970(rows[:, places[DATE]]), values, clouds, files.h5, parcel.place)


def _days_since_1970(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """Days since 1970 from nanoseconds, or whatever unit the magnitude tells; zero where none does."""
    days = np.zeros(len(moments))
    for least, length in sorted(DAY.items()):
        days = np.where(moments > least, np.floor(moments / length), days)
    return days


def _once_a_day(
    days: NDArray[np.float64], values: NDArray[np.float64], clouds: NDArray[np.float64], path: Path, name: str
) -> _ParcelSeries:
    """In the order of the dates; of several rows with one date the first is kept."""
    if ((days < FIRST_DAY) | (days > LAST_DAY)).any():
        why = f"'{name}' has days outside 2015 to 2100 in its column {DATE}"
        raise InputError("not a date", path=path, why=why, remedy="check the level and the file")
    once, firsts = np.unique(days.astype(np.int32), return_index=True)
    return _ParcelSeries(once, values[firsts], clouds[firsts])


# --- The class mapping: from the codes of the French parcel register to classes

MAPPING_FILE, CODES_FILE = "classmapping.csv", "codes.csv"
CODE_COLUMNS = ("code", "nutzcode")
MOST_CODES = 5  # in a message


@dataclass(frozen=True)
class ClassMapping:
    path: Path
    classes: ClassTable
    numbers: dict[str, int]  # of each code


def _read_classes(root: Path) -> ClassMapping:
    """The mapping beside the data."""
    path = root / MAPPING_FILE
    if not path.is_file():
        remedy = "put it there, or let --download get it"
        raise InputError("no class mapping", path=root, why=f"{MAPPING_FILE} is missing", remedy=remedy)
    return read_mapping(path)


def read_mapping(path: Path) -> ClassMapping:
    """Read a class mapping. Its ids become the class numbers, without gaps."""
    frame = read_text_table(path)
    code = next((name for name in CODE_COLUMNS if name in frame), None)
    if code is None or not {"id", "classname"} <= set(frame):
        why = f"the columns are {short_list(frame)}"
        raise InputError("not a class mapping", path=path, why=why, remedy="it has the columns id, classname and code")
    ids = pd.to_numeric(frame["id"], errors="coerce")
    if frame.empty or ids.isna().any():
        raise InputError("not a class mapping", path=path, why="a row has no numeric id", remedy="correct it")
    rows = frame.assign(id=ids.astype(int), code=frame[code].str.strip(), classname=frame["classname"].str.strip())
    names = rows.groupby("id")["classname"].first()  # the first name of each id, as the package takes it
    for what, column in (("code", rows["code"]), ("class name", names)):
        twice = column[column.duplicated()]
        if len(twice):
            raise InputError(f"the {what} '{twice.iloc[0]}' appears twice", path=path, remedy="correct it")
    if len(names) > MAXIMUM_CLASSES:
        raise InputError("too many classes", path=path, why=f"{len(names)} ids, at most {MAXIMUM_CLASSES}")
    places = {int(number): place for place, number in enumerate(names.index)}
    numbers = {str(key): places[number] for key, number in zip(rows["code"], rows["id"], strict=True)}
    return ClassMapping(path, ClassTable.in_order(list(names)), numbers)


def _explain_codes(counts: Counter[str], root: Path) -> str:
    """The most frequent codes with their names from codes.csv, if there is one."""
    meanings: dict[str, str] = {}
    if (root / CODES_FILE).is_file():
        frame = read_text_table(root / CODES_FILE, separator=";")
        if frame.shape[1] > 1:
            meanings = dict(zip(frame.iloc[:, 0], frame.iloc[:, 1], strict=True))
    explained = [
        f"{code or 'no code'}{f' ({meanings[code]})' if code in meanings else ''} {count}"
        for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CODES]
    ]
    return ", ".join(explained) + (" and others" if len(counts) > MOST_CODES else "")
