"""Names of files: date, band and tile of each file of a folder, and what the user says instead.

Names are guessed from the path below the folder, or matched with the user's --pattern. A word counts whole or not at
all, so that no part of a tile (T31TEJ), an orbit (R008) or a baseline (N0208) is taken for a date or a band. The file's
own name comes first, then its folder, then the folder above.
"""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any, Self, TypeVar

from pydantic import ConfigDict, field_validator, model_validator

from cropstar.config import Options
from cropstar.errors import InputError, UsageError
from cropstar.geo.sensors import (
    CLEAR_SCENE_CLASSES,
    HLS_FMASK,
    HLS_L30,
    HLS_S30,
    INDICES,
    LANDSAT_QA,
    OLI,
    SCENE_CLASSIFICATION,
    TM,
    WORD,
    band_name,
    in_order,
)
from cropstar.inputs import GEOTIFF_ENDINGS, require_file
from cropstar.registry import did_you_mean, short_list
from cropstar.runtime import logger
from cropstar.sources.base import Bands
from cropstar.sources.sentinel2.series import Resampling, SceneClasses
from cropstar.sources.texts import read_small_text

USUAL_KERNEL = "bilinear"
T = TypeVar("T")


class StackOptions(Options):
    """Options of stacks: how the files of a folder are named, and what is read from them.

    `pattern` names the files, as "S2_{band}_{date}.tif"; without it names are guessed. `masks` names the masks of
    each date in the same way: files of one band in which 0 is clear and anything else is not. `bands` are those to
    read, in that order, B02=blue for one that the file calls otherwise; of files whose bands have no names it gives
    the names. `dates` are those of one file whose bands do not say theirs, `by_band` that it has all dates of a band
    before the next band. `clear` are the classes to keep of the scene classification, `resampling` is for bands of
    coarser pixels, bilinear where it is not given. `scale` and `offset` make reflectance of the files' values; without
    them it is what the files say.
    """

    model_config = ConfigDict(strict=False)  # lists are accepted for tuples

    pattern: str | None = None
    masks: str | None = None
    bands: Bands | None = None
    clear: SceneClasses = CLEAR_SCENE_CLASSES
    resampling: Resampling | None = None
    dates: str | Path | Sequence[date] | None = None
    by_band: bool = False
    scale: float | None = None
    offset: float | None = None

    @field_validator("bands")
    @classmethod
    def _spelled(cls, bands: Bands | None) -> Bands | None:
        return None if bands is None else spell_bands(bands)

    @field_validator("dates", mode="before")
    @classmethod
    def _parsed(cls, dates: str | Path | Sequence[date] | None) -> Dates | None:
        return None if dates is None else parse_dates(dates)

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.by_band and (self.dates is None or self.bands is None):
            why = "it sets the order of the bands in the file"
            raise UsageError("--by-band needs --dates and --bands", why=why, remedy="give all three")
        if self.scale is not None and not (0 < self.scale < math.inf):
            raise UsageError(
                f"--scale {self.scale:g}", why="not a number above zero", remedy="give a number such as 0.0001"
            )
        if self.offset is not None and not math.isfinite(self.offset):
            raise UsageError(f"--offset {self.offset:g}", why="not a number", remedy="give a number such as -0.1")
        _ = self.file_pattern, self.mask_pattern
        return self

    @property
    def kernel(self) -> str:
        """The resampling that is used."""
        return self.resampling or USUAL_KERNEL

    def radiometry(self, found: tuple[float, float]) -> tuple[float, float]:
        """Scale and offset: those that are given, else those of the files."""
        if self.scale is None and self.offset is None:
            return found
        return found[0] if self.scale is None else self.scale, self.offset or 0.0

    @property
    def days(self) -> Dates | None:
        """The dates that are given by hand."""
        return None if self.dates is None else parse_dates(self.dates)

    @property
    def file_pattern(self) -> NamePattern | None:
        return None if self.pattern is None else NamePattern.parse(self.pattern, "--pattern")

    @property
    def mask_pattern(self) -> NamePattern | None:
        pattern = None if self.masks is None else NamePattern.parse(self.masks, "--masks")
        if pattern is not None and "band" in pattern.fields:
            raise UsageError("--masks has no {band}", why=f"got '{self.masks}'", remedy="a mask is for a whole date")
        return pattern

    def to_json(self) -> dict[str, Any]:
        """The options that values depend on, for the recipe of a scene; defaults are left out."""
        chosen: dict[str, Any] = {"pattern": self.pattern, "masks": self.masks, "bands": self.bands}
        if self.clear != CLEAR_SCENE_CLASSES:
            chosen["scene_classes"] = list(self.clear)
        if self.kernel != USUAL_KERNEL:
            chosen["resampling"] = self.kernel
        if self.days is not None:
            chosen["dates"] = [day.isoformat() for day in self.days]
            chosen["order"] = "band" if self.by_band else "date"
        chosen |= {"scale": self.scale, "offset": self.offset}
        return {name: value for name, value in chosen.items() if value is not None}


# --- The GeoTIFFs of a folder by tile, date and band

MAXIMUM_FILES = 100_000  # a hundred tiles of 70 dates and 13 bands
MAXIMUM_DEPTH = 4  # folders below the one that was given: tile, year, date, band
SHOWN = 3
HOW_TO_NAME = 'say how the files are named, for example --pattern "S2_{tile}_{band}_{date}.tif"'


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
    for directory, below, names in os.walk(folder, onerror=_reraise):
        place = PurePosixPath(Path(directory).relative_to(folder).as_posix())
        deep = len(place.parts) >= MAXIMUM_DEPTH
        below[:] = [] if deep else sorted(name for name in below if not _is_skipped_folder(name))
        for name in sorted(names):
            if name.lower().endswith(GEOTIFF_ENDINGS) and not name.startswith("."):
                yield place / name
                count += 1
        if count > MAXIMUM_FILES:
            why = f"more than {MAXIMUM_FILES:,} GeoTIFFs"
            raise InputError("too many files", path=folder, why=why, remedy="give the folder of fewer tiles")


def find_tiles(folder: Path, options: StackOptions) -> list[TileFiles]:
    """The dated files of a folder, one entry per tile."""
    pattern, mask_pattern = options.file_pattern, options.mask_pattern
    files: dict[str | None, list[DatedFile]] = defaultdict(list)
    masks: dict[str | None, list[tuple[date, Path]]] = defaultdict(list)
    others, indices = [], []
    for relative in geotiffs(folder):
        path = folder / relative
        if not pattern and indices_in(relative.stem) and not bands_in(relative.stem):
            indices.append(path)
            continue
        if mask_pattern and (name := mask_pattern.match(relative)) and name.day:
            masks[name.tile].append((name.day, path))
            continue
        name = pattern.match(relative) if pattern else _guessed(relative, path)
        if name is None or name.day is None:
            others.append(path)
        else:
            files[name.tile].append(DatedFile(path, name.day, name.band))
    if not files:
        raise _no_dated_files(folder, options, [*others, *indices])
    if others:
        reason = f"not named as {options.pattern}" if pattern else "no band of a date by their names"
        logger.info(
            "%d GeoTIFFs left out, %s: %s", len(others), reason, short_list((path.name for path in others), SHOWN)
        )
    if indices:
        names = sorted({name for path in indices for name in indices_in(path.stem)})
        logger.warning("%d files of indices left out: %s are not bands", len(indices), ", ".join(names))
    if mask_pattern and not masks:
        why = f"none is named as {options.masks}"
        raise InputError("no masks", path=folder, why=why, remedy="check --masks, or leave it out")
    return _by_tile(
        folder, _one_tile_or_all(folder, files, "--pattern"), _one_tile_or_all(folder, masks, "--masks", [*files])
    )


def _reraise(failure: OSError) -> None:
    raise failure  # a folder passed over would be dates that are missing without a word


def _is_skipped_folder(folder: str) -> bool:
    return folder.startswith(".") or folder.upper().endswith(".SAFE")


def _guessed(relative: PurePosixPath, path: Path) -> Name | None:
    try:
        return None if _is_companion(relative) else guess_name(relative)
    except UnclearName as failure:
        raise InputError("an unclear name", path=path, why=str(failure), remedy=HOW_TO_NAME) from None


def _no_dated_files(folder: Path, options: StackOptions, others: list[Path]) -> InputError:
    if not others:
        return InputError("no GeoTIFFs", path=folder, remedy="give a folder of dated .tif files")
    if options.pattern:
        why = f"none of {short_list((path.name for path in others), SHOWN)} is named as {options.pattern}"
        return InputError("no dated GeoTIFFs", path=folder, why=why, remedy="check --pattern")
    why = f"no date is in the names of {short_list((path.name for path in others), SHOWN)}"
    return InputError("no dated GeoTIFFs", path=folder, why=why, remedy=HOW_TO_NAME)


def _one_tile_or_all(
    folder: Path, found: dict[str | None, list[T]], option: str, known: list[str | None] | None = None
) -> dict[str | None, list[T]]:
    """Files without a tile name belong to the only tile; refused if there are several tiles."""
    if known == [None] and len(found) == 1:
        return {None: next(iter(found.values()))}  # only the masks name the tile
    tiles = [tile for tile in known or found if tile is not None]
    if None not in found or not tiles:
        return found
    if len(tiles) > 1:
        why = f"some names have a tile ({short_list(sorted(tiles), SHOWN)}), others have none"
        raise UsageError("files without a tile", path=folder, why=why, remedy=f"put {{tile}} into {option}")
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


# --- Guessing

BEGIN, END = r"(?<![A-Za-z0-9])", r"(?![A-Za-z0-9])"
CLOCK = r"(?:T\d\d[-:.]?\d\d(?:[-:.]?\d\d(?:\.?\d{3})?)?Z?)?"
DATE = rf"(?:19|20)\d\d(?P<sign>[-_.]?)\d\d(?P=sign)\d\d{CLOCK}"
DATES = re.compile(rf"{BEGIN}{DATE}{END}", re.ASCII)
YEAR_AND_DAY = re.compile(rf"{BEGIN}((?:19|20)\d\d)(\d{{3}})T\d{{6}}{END}", re.ASCII)  # as HLS has it
# A product's name holds the date of sensing and that of processing, in this order.
PRODUCT = re.compile(rf"{BEGIN}S2[A-Z]_MSIL[12][AC]_(?=\d{{8}}T)", re.ASCII | re.IGNORECASE)
BANDS = re.compile(rf"{BEGIN}(?:{WORD}){END}", re.ASCII | re.IGNORECASE)
# Zone 1 to 60, latitude band, column and row of the military grid; I and O are never used.
MGRS = r"(?:0[1-9]|[1-5]\d|60)[C-HJ-NP-X][A-HJ-NP-Z][A-HJ-NP-V]"
TILES = re.compile(rf"{BEGIN}T?({MGRS}){END}", re.ASCII | re.IGNORECASE)
LANDSAT = re.compile(
    rf"{BEGIN}(?P<satellite>L[COTEM]0[45789])_L2S[PR]_(?P<tile>\d{{6}})_(?P<day>\d{{8}})_\d{{8}}_\d\d_\w\w_(?P<layer>\w+)$",
    re.ASCII | re.IGNORECASE,
)
HLS = re.compile(
    rf"{BEGIN}HLS\.(?P<kind>[SL])30\.T(?P<tile>{MGRS})\.(?P<day>\d{{7}})T\d{{6}}\.v\d\.\d\.(?P<layer>\w+)$",
    re.ASCII | re.IGNORECASE,
)
SITS_CLOUDS = re.compile(rf"SENTINEL-2_.*_CLOUD{END}", re.ASCII | re.IGNORECASE)  # sits calls the SCL band so
# Rasters that come with the bands and are none: true colour, aerosol, water vapour, probabilities.
COMPANIONS = re.compile(rf"{BEGIN}(?:TCI|AOT|WVP|CLDPRB|SNWPRB){END}", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Name:
    """The parts of a file name; a file without a band in its name has several bands."""

    day: date | None
    band: str | None = None
    tile: str | None = None


class UnclearName(ValueError):
    """An ambiguous file name."""


def guess_name(relative: PurePosixPath) -> Name:
    """The name of a file, by its path below the folder."""
    if match := LANDSAT.search(relative.stem):
        named = OLI if match["satellite"].upper() in ("LC08", "LC09") else TM
        return _product_layer(match, {f"SR_{own}": band for own, band in named.items()}, LANDSAT_QA)
    if match := HLS.search(relative.stem):
        return _product_layer(match, HLS_L30 if match["kind"].upper() == "L" else HLS_S30, HLS_FMASK)
    parts = [relative.stem, *reversed(relative.parent.parts)]
    days = _nearest(days_in(part) for part in parts)
    if len(days) > 1:
        raise UnclearName(f"the name has the dates {' and '.join(map(str, days))}")
    tiles = _nearest(_tiles_in(part) for part in parts)
    if len(tiles) > 1:
        raise UnclearName(f"the name has the tiles {' and '.join(tiles)}")
    bands = _nearest(bands_in(part) for part in parts)
    if not bands and SITS_CLOUDS.search(relative.stem):
        bands = [SCENE_CLASSIFICATION]
    # Several bands in a name: a file of them all, which says itself in what order.
    return Name(days[0] if days else None, bands[0] if len(bands) == 1 else None, tiles[0] if tiles else None)


def _product_layer(match: re.Match[str], bands: Mapping[str, str], quality: str) -> Name:
    """One file of a Landsat or HLS product; angles, thermal bands and the like are not bands of a date."""
    layer = match["layer"].upper()
    band = SCENE_CLASSIFICATION if layer == quality else bands.get(layer)
    if band is None:
        return Name(None)
    text = match["day"]
    day = date(int(text[:4]), 1, 1) + timedelta(int(text[4:]) - 1) if len(text) == 7 else _parse_day(text)
    return Name(day, band, tile_name(match["tile"]))


def quality_kind(path: Path) -> str | None:
    """Which quality band of bits a file is; None of a scene classification."""
    for pattern, kind in ((LANDSAT, LANDSAT_QA), (HLS, HLS_FMASK)):
        if (match := pattern.search(path.stem)) and match["layer"].upper() == kind:
            return kind
    return None


def is_landsat(path: Path) -> bool:
    """Whether a file is a band of a Landsat Collection 2 product, by its name."""
    return LANDSAT.search(path.stem) is not None


def indices_in(text: str) -> list[str]:
    """The vegetation indices that a name has."""
    return [word for word in re.split(r"[^A-Za-z0-9]+", text.upper()) if word in INDICES]


def _is_companion(relative: PurePosixPath) -> bool:
    """Whether a file only comes along with the bands."""
    return bool(COMPANIONS.search(relative.stem)) and not BANDS.search(relative.stem)


def days_in(text: str) -> list[date]:
    """The different dates in a text; of a product's name that of sensing."""
    if product := PRODUCT.search(text):
        text = text[product.end() : product.end() + 8]
    days = [_parse_day(match[0]) for match in DATES.finditer(text)]
    for match in YEAR_AND_DAY.finditer(text):
        day = date(int(match[1]), 1, 1) + timedelta(int(match[2]) - 1)
        days.append(day if day.year == int(match[1]) else None)
    return list(dict.fromkeys(day for day in days if day))


def bands_in(text: str) -> list[str]:
    return list(dict.fromkeys(band_name(match[0]) for match in BANDS.finditer(text)))


def _tiles_in(text: str) -> list[str]:
    return list(dict.fromkeys(tile_name(match[1]) for match in TILES.finditer(text)))


def _parse_day(text: str) -> date | None:
    """The date at the start of a text; the calendar decides whether it is one."""
    digits = re.sub(r"[-_.]", "", text)[:8]
    try:
        return date(int(digits[:4]), int(digits[4:6]), int(digits[6:]))
    except ValueError:
        return None


def tile_name(text: str) -> str:
    """'31TEJ' and 'T31TEJ' are one tile; other names are kept."""
    match = TILES.fullmatch(text)
    return f"T{match[1].upper()}" if match else text


def _nearest(parts: Iterable[list[T]]) -> list[T]:
    """The first part that is not empty."""
    return next((part for part in parts if part), [])


# --- Patterns such as "S2_{tile}_{band}_{date}.tif"

FIELDS = {
    "date": rf"(?P<date>(?:19|20)\d\d(?P<sign>[-_.]?)\d\d(?P=sign)\d\d{CLOCK})",
    "band": r"(?P<band>[A-Za-z0-9]+)",
    "tile": r"(?P<tile>[^/_]+)",
    "*": r"[^/]*?",  # as little as fits: of two dates the first is meant
}
ENDING_PATTERN = r"(?:\.tiff?)"
MAXIMUM_LENGTH = 200
MAXIMUM_STARS = 5  # each multiplies the ways in which a long name can be looked at
PATTERN_EXAMPLE = 'for example "S2_{band}_{date}.tif"'


@dataclass(frozen=True)
class NamePattern:
    text: str
    fields: frozenset[str]
    expression: re.Pattern[str]

    @classmethod
    def parse(cls, text: str, option: str) -> NamePattern:
        """The pattern that an option gives. Placeholders: {date}, {band}, {tile}, and {*} for anything."""
        split = re.split(r"(\{[^{}]*\}|\*)", text.removeprefix("./"))
        pieces = ["{*}" if piece == "*" else piece for piece in split if piece]
        names = [piece[1:-1] for piece in pieces if _is_field(piece)]
        for name in names:
            if name not in FIELDS:
                known = did_you_mean(name, FIELDS)
                raise UsageError(f"unknown placeholder {{{name}}} in {option}", why=f"got '{text}'", remedy=known)
            if name != "*" and names.count(name) > 1:
                raise UsageError(f"{{{name}}} appears twice in {option}", why=f"got '{text}'", remedy="give it once")
        _require_clear(text, option, pieces, names)
        expression = "".join(FIELDS[piece[1:-1]] if _is_field(piece) else re.escape(piece) for piece in pieces)
        has_ending = re.search(ENDING_PATTERN + "$", text, re.IGNORECASE)
        return cls(
            text,
            frozenset(names),
            re.compile(expression + ("" if has_ending else ENDING_PATTERN), re.ASCII | re.IGNORECASE),
        )

    def match(self, relative: PurePosixPath) -> Name | None:
        """The parts of a matching file name, else None; a pattern with a slash is for the path below the folder."""
        matched = self.expression.fullmatch(str(relative) if "/" in self.text else relative.name)
        day = _parse_day(matched["date"]) if matched else None
        if matched is None or day is None:
            return None
        texts = matched.groupdict()
        band, tile = texts.get("band"), texts.get("tile")
        return Name(day, band and band_name(band), tile and tile_name(tile))


def _is_field(piece: str) -> bool:
    return piece.startswith("{") and piece.endswith("}")


def _require_clear(text: str, option: str, pieces: list[str], names: list[str]) -> None:
    """A pattern that names a date, and that can only be read in one way."""
    got = f"got '{text}'"
    if "date" not in names:
        raise UsageError(f"{option} needs a {{date}}", why=got, remedy=PATTERN_EXAMPLE)
    if len(text) > MAXIMUM_LENGTH or names.count("*") > MAXIMUM_STARS:
        why = f"{len(text)} characters and {names.count('*')} {{*}}"
        raise UsageError(f"{option} is too long", why=why, remedy=f"give at most {MAXIMUM_STARS} {{*}}")
    for one, other in pairwise(pieces):
        if _is_field(one) and _is_field(other) and "{date}" not in (one, other):
            raise UsageError(f"nothing stands between {one} and {other} in {option}", why=got, remedy=PATTERN_EXAMPLE)
    if any(sign in piece for piece in pieces if not _is_field(piece) for sign in "{}"):
        raise UsageError(f"a brace without its pair in {option}", why=got, remedy=PATTERN_EXAMPLE)


# --- --bands B02=blue: bands that the user calls otherwise than the file does

RENAMED = "="
BANDS_EXAMPLE = "such as --bands B02,B03,B04,B08 or --bands B02=blue,B08=nir"


def spell_bands(given: Sequence[str]) -> Bands:
    """The entries of --bands with the one name of each band, on either side of an equals sign."""
    names = tuple(RENAMED.join(map(band_name, entry.split(RENAMED))) for entry in given)
    sides = [name.split(RENAMED) for name in names]
    if not names or len(set(names)) < len(names) or any(len(side) > 2 or not all(side) for side in sides):
        raise UsageError("--bands needs names, each once", why=f"got '{','.join(given)}'", remedy=BANDS_EXAMPLE)
    return names


def has_renaming(given: Bands | None) -> bool:
    """Whether --bands renames bands, and so is not a list in the order of the file."""
    return any(RENAMED in entry for entry in given or ())


def rename(
    table: Mapping[tuple[date, str], T], given: Bands | None, where: Path
) -> tuple[dict[tuple[date, str], T], Bands | None]:
    """The table with the names that `given` has for the file's bands, and these names."""
    if given is None or not has_renaming(given):
        return dict(table), given
    available = in_order(band for _, band in table)
    pairs = [_new_and_own_name(entry, available) for entry in given]
    for new, own in pairs:
        if own not in available:
            raise UsageError(f"no band '{own}'", path=where, remedy=did_you_mean(own, available))
        if [each for each, _ in pairs].count(new) > 1 or [each for _, each in pairs].count(own) > 1:
            raise UsageError("--bands names a band twice", path=where, why=", ".join(given), remedy=BANDS_EXAMPLE)
    names = {own: new for new, own in pairs}
    hidden = set(names.values()) - set(names)  # another band has that name in the file, and is not meant
    kept = {(day, names.get(band, band)): entry for (day, band), entry in table.items() if band not in hidden}
    return kept, tuple(new for new, _ in pairs)


def _new_and_own_name(entry: str, there: Collection[str]) -> tuple[str, str]:
    """The name to have and the file's own. As of tables, B02=blue; the file tells where it is the other way round."""
    left, equals, right = entry.partition(RENAMED)
    if not equals:
        return left, left
    return (right, left) if left in there and right not in there else (left, right)


# --- --dates 2023-04-01,2023-05-11, or a file that lists them

Dates = tuple[date, ...]
LIST_FILE = "@"  # before the name of a file that lists the dates
DATES_EXAMPLE = "write them as --dates 2023-04-01,2023-05-11, or --dates @dates.txt with one date per line"


def parse_dates(given: str | Path | Sequence[date]) -> Dates:
    """Dates of the command line: separated by commas, or in a file that is named, with or without @ before it."""
    if not isinstance(given, (str, Path)):
        return _require_once(tuple(given), None)
    text = str(given).strip()
    if text.startswith(LIST_FILE) or ("," not in text and Path(text).is_file()):
        path = Path(text.removeprefix(LIST_FILE))
        return _require_once(tuple(_parse_date(word, path) for word in _words_of(path)), path)
    return _require_once(tuple(_parse_date(word.strip(), None) for word in text.split(",")), None)


def _words_of(path: Path) -> list[str]:
    require_file(path)
    return read_small_text(path).replace(",", " ").split()


def _parse_date(word: str, path: Path | None) -> date:
    try:
        return date.fromisoformat(word)
    except ValueError:
        raise _wrong_dates("not a date", f"'{word[:40]}'", path) from None


def _require_once(dates: Dates, path: Path | None) -> Dates:
    if not dates:
        raise _wrong_dates("no dates", "the list is empty", path)
    for place, day in enumerate(dates):
        if day in dates[:place]:
            raise _wrong_dates("a date appears twice", str(day), path)
    return dates


def _wrong_dates(what: str, why: str, path: Path | None) -> InputError | UsageError:
    """A file that is wrong, or the option itself."""
    if path is not None:
        return InputError(what, path=path, why=why, remedy=DATES_EXAMPLE)
    return UsageError(f"{what} in --dates", why=why, remedy=DATES_EXAMPLE)
