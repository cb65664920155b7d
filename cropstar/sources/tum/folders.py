"""Folders of TUM's data: tiles as TFRecords or GeoTIFFs, or batches of series; what the user may choose.

<root>/geotransforms.csv  classes.txt  dataset.ini  tileids/*.tileids
<root>/<data>/<tile>.tfrecord[.gz]      <root>/<data>/<tile>/{y,labels}.tif
<root>/{train,test,eval}/b<number>.pkl  or <root>/b<number>.pkl
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cropstar.errors import InputError, UsageError
from cropstar.inputs import require_file

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


LABEL_FILES = ("y.tif", "labels.tif")
RECORDS, RASTERS, BATCHES = "records", "rasters", "batches"
RECORD = re.compile(r"(\d{1,18})\.tfrecord(?:\.gz)?", re.ASCII)
TILE_FOLDER = re.compile(r"\d{1,18}", re.ASCII)
BATCH = re.compile(r"b(\d{1,9})\.pkl", re.ASCII)
PARTS = ("train", "test", "eval")  # folders of batches that belong together
COMPANIONS = ("classes.txt", "geotransforms.csv", "dataset.ini", "tileids")
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
        candidates = (folder for folder in folders if any((folder / name).exists() for name in COMPANIONS))
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


def find_data(path: Path) -> list[DataFolder]:
    return sorted(_walk(path), key=lambda found: found.path)


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
    """The label raster of a tile's folder; a folder without one is no tile."""
    return next((folder / name for name in LABEL_FILES if (folder / name).is_file()), None)


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
