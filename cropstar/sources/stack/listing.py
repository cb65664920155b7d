"""The GeoTIFFs of a folder by tile, date and band, told by their names alone."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path, PurePosixPath
from typing import TypeVar

from cropstar.errors import InputError, UsageError
from cropstar.logs import logger
from cropstar.sources.base import short_list
from cropstar.sources.stack.names import Name, Unclear, guess, is_companion
from cropstar.sources.stack.options import StackOptions

ENDINGS = (".tif", ".tiff")
MAXIMUM_FILES = 100_000  # a hundred tiles of 70 dates and 13 bands
MAXIMUM_DEPTH = 4  # folders below the one that was given: tile, year, date, band
SHOWN = 3
HOW_TO_NAME = 'tell how the files are named, for example --pattern "S2_{tile}_{band}_{date}.tif"'
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class DatedFile:
    path: Path
    day: date
    band: str | None  # None: it holds several


@dataclass(frozen=True)
class TileFiles:
    """The files of one tile; None is the tile of files whose names have none."""

    tile: str | None
    files: list[DatedFile] = field(default_factory=list)
    masks: dict[date, Path] = field(default_factory=dict)


def geotiffs(folder: Path) -> Iterator[PurePosixPath]:
    """GeoTIFFs below a folder, hidden files and products left out, in one order on every machine."""
    count = 0
    for directory, below, names in os.walk(folder, onerror=_give_up):
        place = PurePosixPath(Path(directory).relative_to(folder).as_posix())
        deep = len(place.parts) >= MAXIMUM_DEPTH
        below[:] = [] if deep else sorted(name for name in below if not _is_apart(name))
        for name in sorted(names):
            if name.lower().endswith(ENDINGS) and not name.startswith("."):
                yield place / name
                count += 1
        if count > MAXIMUM_FILES:
            why = f"more than {MAXIMUM_FILES:,} GeoTIFFs"
            raise InputError("too many files", path=folder, why=why, remedy="give the folder of fewer tiles")


def find_tiles(folder: Path, options: StackOptions) -> list[TileFiles]:
    """The dated files of a folder, one entry a tile."""
    pattern, mask_pattern = options.file_pattern, options.mask_pattern
    files: dict[str | None, list[DatedFile]] = defaultdict(list)
    masks: dict[str | None, list[tuple[date, Path]]] = defaultdict(list)
    others = []
    for relative in geotiffs(folder):
        path = folder / relative
        if mask_pattern and (name := mask_pattern.match(relative)) and name.day:
            masks[name.tile].append((name.day, path))
            continue
        name = pattern.match(relative) if pattern else _guessed(relative, path)
        if name is None or name.day is None:
            others.append(path)
        else:
            files[name.tile].append(DatedFile(path, name.day, name.band))
    if not files:
        raise _nothing_found(folder, options, others)
    if others:
        reason = f"not named as {options.pattern}" if pattern else "no band of a date by their names"
        logger.info(
            "%d GeoTIFFs left out, %s: %s", len(others), reason, short_list((path.name for path in others), SHOWN)
        )
    if mask_pattern and not masks:
        why = f"none is named as {options.masks}"
        raise InputError("no masks", path=folder, why=why, remedy="check --masks, or leave it out")
    return _by_tile(folder, _one_or_all(folder, files, "--pattern"), _one_or_all(folder, masks, "--masks", [*files]))


def _give_up(failure: OSError) -> None:
    raise failure  # a folder passed over would be dates that are missing without a word


def _is_apart(folder: str) -> bool:
    return folder.startswith(".") or folder.upper().endswith(".SAFE")


def _guessed(relative: PurePosixPath, path: Path) -> Name | None:
    try:
        return None if is_companion(relative) else guess(relative)
    except Unclear as failure:
        raise InputError("an unclear name", path=path, why=str(failure), remedy=HOW_TO_NAME) from None


def _nothing_found(folder: Path, options: StackOptions, others: list[Path]) -> InputError:
    if not others:
        return InputError("no GeoTIFFs", path=folder, remedy="give a folder of dated .tif files")
    if options.pattern:
        why = f"none of {short_list((path.name for path in others), SHOWN)} is named as {options.pattern}"
        return InputError("no dated GeoTIFFs", path=folder, why=why, remedy="check --pattern")
    why = f"no date is in the names of {short_list((path.name for path in others), SHOWN)}"
    return InputError("no dated GeoTIFFs", path=folder, why=why, remedy=HOW_TO_NAME)


def _one_or_all(
    folder: Path, found: dict[str | None, list[Entry]], option: str, known: list[str | None] | None = None
) -> dict[str | None, list[Entry]]:
    """Files without a tile belong to the one tile there is; of several it cannot be told."""
    if known == [None] and len(found) == 1:
        return {None: next(iter(found.values()))}  # only the masks name the tile
    tiles = [tile for tile in known or found if tile is not None]
    if None not in found or not tiles:
        return found
    if len(tiles) > 1:
        why = f"some names have a tile ({short_list(sorted(tiles), SHOWN)}), others have none"
        raise UsageError("files of which tile?", path=folder, why=why, remedy=f"put {{tile}} into {option}")
    return {tiles[0]: [*found.get(tiles[0], []), *found[None]]}


def _by_tile(
    folder: Path, files: dict[str | None, list[DatedFile]], masks: dict[str | None, list[tuple[date, Path]]]
) -> list[TileFiles]:
    tiles = []
    for tile, dated in sorted(files.items(), key=lambda item: item[0] or ""):
        by_day: dict[date, Path] = {}
        for day, path in masks.get(tile, []):
            if day in by_day:
                why = f"{path} and {by_day[day]} are both of {day}"
                raise InputError("two masks of one date", path=folder, why=why, remedy="keep one, or narrow --masks")
            by_day[day] = path
        tiles.append(TileFiles(tile, dated, by_day))
    return tiles
