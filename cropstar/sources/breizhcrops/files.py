"""Which regions a folder holds, and the parcels of each.

<root>/<year>/<level>/<region>.csv + <region>.h5     as the package downloads them
<root>/<year>/<level>/<region>/csv/<id>.csv          raw, taken where there is no h5
<root>/csv/<region>/<id>.csv  ids/<region>_<part>.txt     raw, as the first publications have them
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pandas as pd

from cropstar.errors import InputError
from cropstar.sources.base import safe_name, short_list
from cropstar.sources.breizhcrops.classes import MAPPING
from cropstar.sources.breizhcrops.options import LEVELS, REGIONS, scene_name
from cropstar.sources.texts import read_text_table

YEAR = re.compile(r"20\d\d", re.ASCII)
LABEL_COLUMNS = ("CODE_CULTU", "code_cultu", "label")
SEQUENCE_LENGTH = "sequencelength"


@dataclass(frozen=True)
class Parcel:
    key: str  # its id in the register of the year
    code: str  # of its crop
    place: str  # the name of its dataset, or of its csv file


@dataclass(frozen=True)
class Listing:
    parcels: list[Parcel]
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
        return scene_name(safe_name(self.region), self.year, self.level)

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
    if any(found.region in REGIONS for found in _packaged(path)):
        return True
    return (path / MAPPING).is_file() and any(path.glob("csv/*/*.csv"))


def find_regions(root: Path) -> list[RegionFiles]:
    """All that a folder holds, in the order of year, level and region."""
    found = [*_packaged(root), *_loose(root)]
    return sorted(found, key=lambda files: (files.year, files.level, files.region))


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
    """Folders without a year and level: the first file tells."""
    for folder in sorted(root.glob("csv/*")):
        first = min(folder.glob("*.csv"), default=None) if folder.is_dir() else None
        if first is not None:
            row = first_row(first)
            year = row.get("doa", "")[:4]
            if not YEAR.fullmatch(year):
                raise InputError("no date", path=first, why="its first row has no doa", remedy="write it as YYYY-MM-DD")
            level = "L2A" if "CLD" in row else "L1C"
            here = folder.parent.parent
            yield RegionFiles(folder.name, int(year), level, here / "index.csv", here / "data.h5", folder)


def first_row(path: Path) -> dict[str, str]:
    """The first observation of a raw csv by its columns; of a file with a header alone the values are empty."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle)
            header = next(reader, [])
            row = next(reader, [""] * len(header))
    except (UnicodeDecodeError, csv.Error) as failure:
        raise InputError("not a table", path=path, why=str(failure), remedy="get the file again") from None
    if "doa" not in header or len(row) != len(header):
        why = "it is empty" if not header else f"the columns are {short_list(header)}"
        raise InputError("not the csv of a parcel", path=path, why=why, remedy="get the file again")
    return dict(zip(header, row, strict=True))


def list_parcels(files: RegionFiles) -> Listing:
    """The parcels of a region, of whatever class."""
    if files.folder is not None and files.is_raw:
        paths = sorted(files.folder.glob("*.csv"))
        return Listing([Parcel(path.stem, _code(first_row(path), path), path.name) for path in paths])
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
        Parcel(PurePosixPath(place.replace("\\", "/")).stem, crop.strip(), place)
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
