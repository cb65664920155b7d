"""The files beside the tiles: class names, where tiles lie, the folds and the years of folders."""

from __future__ import annotations

import configparser
import math
import re
from dataclasses import dataclass
from pathlib import Path

from rasterio.crs import CRS
from rasterio.errors import CRSError

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_CLASSES
from cropstar.logs import logger
from cropstar.sources.base import Transform
from cropstar.store.classes import ClassTable, CropClass, choose_colours

CLASSES, PLACES, SETTINGS, TILE_IDS = "classes.txt", "geotransforms.csv", "dataset.ini", "tileids"
KNOWN_CLASSES = {
    1: "sugar beet",
    2: "summer oat",
    3: "meadow",
    5: "rape",
    8: "hop",
    9: "winter spelt",
    12: "winter triticale",
    13: "beans",
    15: "peas",
    16: "potatoes",
    17: "soybeans",
    19: "asparagus",
    22: "winter wheat",
    23: "winter barley",
    24: "winter rye",
    25: "summer barley",
    26: "maize",
}
UNKNOWN = 0  # the id of pixels without a known crop
RESOLUTION = 10.0
MAXIMUM_TEXT_BYTES = 2**26  # a hundred thousand tiles are five megabytes
WHOLE = re.compile(r"\d{1,18}", re.ASCII)
YEAR = re.compile(r"(?<!\d)20([1-9]\d)(?!\d)|data[-_]?(\d\d)(?!\d)", re.ASCII)  # 2016 or data16


@dataclass(frozen=True)
class Places:
    """Where tiles lie."""

    path: Path
    transforms: dict[int, Transform]
    codes: dict[int, int]  # the EPSG code of each tile's coordinate system


def read_classes(root: Path) -> tuple[ClassTable, dict[int, int]]:
    """The classes in the order of their ids, and the number of each id; 0, the unknown, is none of them."""
    path = root / CLASSES
    names = KNOWN_CLASSES
    if path.is_file():
        names = _parse_classes(path)
    else:
        logger.warning("no %s in %s: taking the %d published classes", CLASSES, root, len(names))
    colours = choose_colours(list(names.values()))
    table = ClassTable(
        CropClass(number, name, colour)
        for number, (name, colour) in enumerate(zip(names.values(), colours, strict=True))
    )
    return table, {label: number for number, label in enumerate(names)}


def read_places(root: Path) -> Places | None:
    """xmin, xres, 0, ymax, 0, -yres and the EPSG code of each tile; None without the file."""
    path = root / PLACES
    if not path.is_file():
        return None
    transforms: dict[int, Transform] = {}
    codes: dict[int, int] = {}
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            tile, left, across, b, top, d, down, code = (float(cell) for cell in line.split(","))
            known = int(tile), int(code)
        except (ValueError, OverflowError):
            why = f"line {number} is not tile, six numbers and an EPSG code"
            raise InputError("not a list of geotransforms", path=path, why=why, remedy="get the file again") from None
        if (abs(across), abs(down), b, d) != (RESOLUTION, RESOLUTION, 0, 0) or not math.isfinite(left + top):
            why = f"line {number} has pixels of {across:g} x {down:g} m"
            raise InputError("not pixels of 10 m", path=path, why=why, remedy="tiles have them")
        transforms[known[0]], codes[known[0]] = (RESOLUTION, 0.0, left, 0.0, -RESOLUTION, top), known[1]
    return Places(path, transforms, codes)


def coordinate_system(code: int, path: Path) -> str:
    try:
        return str(CRS.from_epsg(code).to_wkt())
    except (CRSError, OverflowError, ValueError):
        raise InputError("unknown coordinate system", path=path, why=f"EPSG:{code}", remedy="correct it") from None


def read_splits(root: Path, present: set[int]) -> dict[str, dict[str, list[str]]]:
    """The folds of the tiles that are there.

    The authors train on `train_fold<k>`, look at `test_fold<k>` while training, and report on `eval`: these are our
    train, validation and test. Without tiles of `eval` the fold's own test tiles are the test.
    """
    folder = root / TILE_IDS
    held_out = _tile_ids(folder / "eval.tileids", present)
    splits: dict[str, dict[str, list[str]]] = {}
    for path in sorted(folder.glob("train_fold*.tileids")):
        fold = path.name.removeprefix("train_fold").removesuffix(".tileids")
        train, other = _tile_ids(path, present), _tile_ids(folder / f"test_fold{fold}.tileids", present)
        parts = {"train": train, "validation": other, "test": held_out}
        if not held_out:
            parts = {"train": train, "validation": [], "test": other}
        if parts["train"] and parts["test"]:
            splits[f"fold{fold}"] = parts
    return splits


def year_of(folder: Path, root: Path) -> int | None:
    """The year by a folder's name, such as data16, or by the section of dataset.ini that names it."""
    path = root / SETTINGS
    if path.is_file():
        settings = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            settings.read_string("\n".join(_lines(path)))
        except configparser.Error:
            raise InputError("not a settings file", path=path, why="its sections cannot be read") from None
        for section in settings.sections():
            named = Path(settings[section].get("datadir", "")).name == folder.name
            if named and re.fullmatch(r"20\d\d", section, re.ASCII):
                return int(section)
    found = YEAR.search(folder.name) or YEAR.search(root.name)
    return 2000 + int(found[1] or found[2]) if found else None


def _parse_classes(path: Path) -> dict[int, str]:
    names: dict[int, str] = {}
    for number, line in enumerate(_lines(path), start=1):
        label, bar, name = line.partition("|")
        if not bar:
            continue  # headings and empty lines, which the authors' reader skips as well
        if not WHOLE.fullmatch(label.strip()) or not name.strip():
            raise InputError("not a class", path=path, why=f"line {number} is not id|name", remedy="correct it")
        if int(label) in names:
            raise InputError(f"the class id {int(label)} stands twice", path=path, remedy="correct it")
        names[int(label)] = name.strip()
    names.pop(UNKNOWN, None)
    twice = {name for name in names.values() if list(names.values()).count(name) > 1}
    if not names or len(names) > MAXIMUM_CLASSES or twice:
        why = f"'{min(twice)}' stands twice" if twice else f"{len(names)} of them"
        raise InputError("unusable classes", path=path, why=why, remedy="give lines such as 1|sugar beet")
    return dict(sorted(names.items()))


def _tile_ids(path: Path, present: set[int]) -> list[str]:
    if not path.is_file():
        return []
    found = []
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        if not WHOLE.fullmatch(line.strip()):
            raise InputError("not a tile id", path=path, why=f"line {number}", remedy="give one whole number a line")
        if int(line) in present:
            found.append(int(line))
    return [str(tile) for tile in sorted(set(found))]


def _lines(path: Path) -> list[str]:
    if path.stat().st_size > MAXIMUM_TEXT_BYTES:
        raise InputError("too large a text", path=path, why=f"{path.stat().st_size} bytes", remedy="check the file")
    try:
        return path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", path=path, remedy="save it as UTF-8") from None
