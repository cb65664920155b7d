"""The data of TUM, found in its folders: tiles as TFRecords or GeoTIFFs (MTLCC), or batches of series (fieldRNN).

<root>/geotransforms.csv  classes.txt  dataset.ini  tileids/*.tileids
<root>/<data>/<tile>.tfrecord[.gz]      <root>/<data>/<tile>/{y,labels}.tif
<root>/{train,test,eval}/b<number>.pkl  or <root>/b<number>.pkl
"""

from __future__ import annotations

import configparser
import os
import re
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cropstar.errors import InputError, UsageError
from cropstar.inputs import reading, require_file
from cropstar.registry import short_list
from cropstar.sources.base import Scene
from cropstar.sources.texts import read_small_text

FIRST_YEAR, LAST_YEAR = 2015, 2100  # Sentinel-2 sees since June 2015


@dataclass(frozen=True)
class TumOptions:
    """Options that are not given select everything."""

    year: int | None = None  # of folders that tell their year the one to take, of others the year that they are of
    data: str | None = None  # which of several folders, such as 240/data16, 240 or data16
    images_per_tile: int = 64  # fewer where images are large

    def __post_init__(self) -> None:
        if self.year is not None and not FIRST_YEAR <= self.year <= LAST_YEAR:
            raise UsageError(f"no Sentinel-2 images in {self.year}", remedy=f"give one from {FIRST_YEAR} on")
        if self.images_per_tile < 1:
            raise UsageError("the images of a tile must be above zero")


def open_tum(path: Path, options: TumOptions | None = None) -> list[Scene]:
    """One scene for each folder of tiles, which is a year, or one of all batches."""
    from cropstar.sources.tum.images import ImageScene
    from cropstar.sources.tum.points import SeriesScene

    options = options or TumOptions()
    if not path.is_dir():
        raise InputError("no such folder", path=path, remedy="give the folder of the data set")
    folders = sorted(_walk(path), key=lambda found: found.path)
    if not folders:
        why = "there are no <tile>.tfrecord.gz, no folders of GeoTIFFs with y.tif or labels.tif and no b0.pkl"
        raise InputError("no TUM data", path=path, why=why, remedy="give the folder of the data set")
    chosen = _choose(folders, path, options)
    if chosen[0].kind == BATCHES:
        series = SeriesScene([folder.path for folder in _in_order(chosen)], options.year)
        series.log_summary(chosen=options.year is not None)
        return [series]
    scenes = [ImageScene(folder, _year(folder, options), options) for folder in chosen]
    for scene in scenes:
        scene.log_summary()
    return list(scenes)


LABEL_FILES = ("y.tif", "labels.tif")
RECORDS, RASTERS, BATCHES = "records", "rasters", "batches"
RECORD = re.compile(r"(\d{1,18})\.tfrecord(?:\.gz)?", re.ASCII)
TILE_FOLDER = re.compile(r"\d{1,18}", re.ASCII)
BATCH = re.compile(r"b(\d{1,9})\.pkl", re.ASCII)
YEAR = re.compile(r"(?<!\d)20([1-9]\d)(?!\d)|data[-_]?(\d\d)(?!\d)", re.ASCII)  # 2016 or data16
PARTS = ("train", "test", "eval")  # folders of batches that belong together
CLASSES, PLACES, SETTINGS, TILE_IDS = "classes.txt", "geotransforms.csv", "dataset.ini", "tileids"
MAXIMUM_TEXT_BYTES = 2**26  # a hundred thousand tiles are five megabytes
DEPTH = 4  # folders below the one that was given
MOST_FOLDERS = 2000  # that are looked into before giving up
ANCESTORS = 3  # folders above the data in which their companions may lie


@dataclass(frozen=True)
class DataFolder:
    kind: str
    path: Path  # absolute: its names are what data are called by

    @property
    def root(self) -> Path:
        """The folder with class names, places and folds; the one above where there are none."""
        folders = [self.path, *self.path.parents][: ANCESTORS + 1]
        candidates = (
            folder
            for folder in folders
            if any((folder / name).exists() for name in (CLASSES, PLACES, SETTINGS, TILE_IDS))
        )
        return next(candidates, self.path.parent)

    @property
    def label(self) -> str:
        """How messages and the option `data` name it."""
        if self.kind == BATCHES and self.path.name in PARTS:
            return self.path.parent.name
        return f"{self.root.name}/{self.path.name}" if self.root != self.path else self.path.name


def looks_like_tum(path: Path) -> bool:
    """Whether some folder at or below a path holds tiles or batches."""
    return path.is_dir() and next(_walk(path), None) is not None


def list_tiles(folder: DataFolder) -> dict[int, Path]:
    """The file or folder of each tile, in the order of their ids."""
    tiles: dict[int, Path] = {}
    for entry in folder.path.iterdir():
        tile = _tile_id(entry, folder.kind)
        if tile is None:
            continue
        if tile in tiles:
            why = f"{tiles[tile].name} and {entry.name}"
            raise InputError(f"the tile {tile} appears twice", path=folder.path, why=why, remedy="remove one of them")
        if folder.kind == RECORDS:
            require_file(entry)
        tiles[tile] = entry
    return dict(sorted(tiles.items()))


def list_batches(folder: Path) -> list[Path]:
    """The batches in the order of their numbers."""
    numbered = [(int(match[1]), entry) for entry in folder.iterdir() if (match := BATCH.fullmatch(entry.name))]
    for _, entry in numbered:
        require_file(entry)
    return [entry for _, entry in sorted(numbered)]


def label_file(folder: Path) -> Path | None:
    """The label raster of a tile's folder; a folder without one is not a tile."""
    return next((folder / name for name in LABEL_FILES if (folder / name).is_file()), None)


def lines_of(path: Path) -> list[str]:
    return read_small_text(path, MAXIMUM_TEXT_BYTES).splitlines()


def _tile_id(entry: Path, kind: str) -> int | None:
    if kind == RECORDS:
        match = RECORD.fullmatch(entry.name)
        return int(match[1]) if match else None
    return int(entry.name) if TILE_FOLDER.fullmatch(entry.name) and label_file(entry) else None


def _walk(path: Path) -> Iterator[DataFolder]:
    """The folders with data from the top down; below one of them is no other."""
    waiting, seen = deque([(path.absolute(), 0)]), 0
    while waiting and seen < MOST_FOLDERS:
        folder, depth = waiting.popleft()
        seen += 1
        kind, below = _look_into(folder)
        if kind is not None:
            yield DataFolder(kind, folder)
        elif depth < DEPTH:
            waiting.extend((child, depth + 1) for child in below)


def _look_into(folder: Path) -> tuple[str | None, list[Path]]:
    below = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if RECORD.fullmatch(entry.name):
                    return RECORDS, []
                if BATCH.fullmatch(entry.name):
                    return BATCHES, []
                if entry.is_dir():
                    if TILE_FOLDER.fullmatch(entry.name) and label_file(Path(entry.path)):
                        return RASTERS, []
                    below.append(Path(entry.path))
    except OSError:  # a folder that may not be read holds nothing for us
        return None, []
    return None, sorted(below)


# --- Which of several folders


def _choose(found: list[DataFolder], path: Path, options: TumOptions) -> list[DataFolder]:
    """Choose the folders to read: years of one collection of tiles, or the parts of one collection of batches."""
    labels = sorted({folder.label for folder in found})
    if options.data is not None:
        found = [folder for folder in found if _matches(folder, options.data)]
        if not found:
            what = f"no data '{options.data}'"
            raise UsageError(what, path=path, why=f"there is {short_list(labels)}", remedy="choose one with --data")
    if options.year is not None:
        found = [folder for folder in found if _year(folder, options) == options.year]
        if not found:
            what = f"no data of {options.year}"
            raise UsageError(what, path=path, why=f"there is {short_list(labels)}", remedy="choose another --year")
    collections = {(folder.kind == BATCHES, _collection(folder)) for folder in found}
    years: dict[int | None, list[DataFolder]] = defaultdict(list)
    for folder in found:
        years[_year(folder, options)].append(folder)
    twice = any(len(folders) > 1 and folders[0].kind != BATCHES for folders in years.values())
    if len(collections) > 1 or twice:
        why = f"there is {short_list(sorted({folder.label for folder in found}))}"
        raise UsageError("several collections", path=path, why=why, remedy="choose with --data")
    return found


def _matches(folder: DataFolder, wanted: str) -> bool:
    wanted = wanted.strip("/")
    return wanted in (folder.label, *folder.label.split("/"), folder.path.name)


def _collection(folder: DataFolder) -> Path:
    if folder.kind != BATCHES:
        return folder.root
    return folder.path.parent if folder.path.name in PARTS else folder.path


def _in_order(folders: list[DataFolder]) -> list[DataFolder]:
    """Train, test, eval."""
    return sorted(folders, key=lambda folder: PARTS.index(folder.path.name) if folder.path.name in PARTS else -1)


def _year(folder: DataFolder, options: TumOptions) -> int | None:
    """Of tiles the year by their folder, else the user's; None where file names may tell."""
    if folder.kind == BATCHES:
        return options.year
    year = _year_of(folder.path, folder.root) or options.year
    if year is None and folder.kind == RECORDS:
        why = "neither the records nor the folder's name have it"
        raise UsageError("the year is not known", path=folder.path, why=why, remedy="give it with --year")
    return year


def _year_of(folder: Path, root: Path) -> int | None:
    """The year by a folder's name, such as data16, or by the section of dataset.ini that names it."""
    path = root / SETTINGS
    if path.is_file():
        settings = configparser.ConfigParser(interpolation=None, strict=False)
        with reading("not a settings file", path):
            settings.read_string("\n".join(lines_of(path)))
        for section in settings.sections():
            named = Path(settings[section].get("datadir", "")).name == folder.name
            if named and re.fullmatch(r"20\d\d", section, re.ASCII):
                return int(section)
    match = YEAR.search(folder.name) or YEAR.search(root.name)
    return 2000 + int(match[1] or match[2]) if match else None
