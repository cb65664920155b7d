"""Which band of which file is which: by the file's name, by its descriptions, or by what the user says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cropstar.errors import InputError, UsageError
from cropstar.geo.sensors import SCENE_CLASSIFICATION, band_name, in_order
from cropstar.registry import did_you_mean
from cropstar.sources.base import Bands
from cropstar.sources.stack.handles import OpenRasters
from cropstar.sources.stack.headers import Header, read_header
from cropstar.sources.stack.listing import DatedFile, TileFiles
from cropstar.sources.stack.names import bands_in, days_in
from cropstar.sources.stack.renaming import has_renaming

REMEDY = "describe its bands, name them in order with --bands B02,B03,B04,B08, or leave it out with --pattern"


@dataclass(frozen=True)
class Entry:
    """One band of a file; `index` counts from 1, as GDAL does."""

    path: Path
    index: int
    lone: bool  # the file's name says the band: it must be the only one


Table = dict[tuple[date, str], Entry]


def make_table(tile: TileFiles, given: Bands | None, files: OpenRasters) -> Table:
    """Every band of every date; files of one band are not opened yet."""
    table: Table = {}
    for dated in sorted(tile.files, key=lambda each: (each.day, each.path)):
        if dated.band:
            found = [(dated.band, Entry(dated.path, 1, True))]
        else:
            names = names_of(read_header(dated.path, files), dated, given)
            found = [(name, Entry(dated.path, index, False)) for index, name in enumerate(names, start=1)]
        for band, entry in found:
            if (dated.day, band) in table:
                raise _twice(dated.day, band, table[dated.day, band], entry)
            table[dated.day, band] = entry
    return table


def names_of(header: Header, dated: DatedFile, given: Bands | None) -> list[str]:
    """The bands of a file in its order. --bands gives the names where the file has none of its own."""
    own = [_name(text, dated) for text in header.names]
    if given and not has_renaming(given) and not set(given) & set(own):
        if len(given) != header.count:
            why = f"{header.count} bands are there and {len(given)} are named: {', '.join(given)}"
            raise InputError("another number of bands", path=header.path, why=why, remedy="name all of them in order")
        return list(given)
    for index, (name, text) in enumerate(zip(own, header.names, strict=True), start=1):
        if not name:
            said = f"is described as '{text}'" if text else "has no description"
            why = f"band {index} of {header.count} {said}"
            raise InputError("unknown bands", path=header.path, why=why, remedy=REMEDY)
    return [name for name in own if name]


def choose_bands(table: Table, given: Bands | None, wanted: Bands | None, where: Path) -> tuple[Bands, bool]:
    """The reflectance bands to read, and whether there is a scene classification. Every date must have them all."""
    days = sorted({day for day, _ in table})
    there = in_order(band for _, band in table)
    reflectance = tuple(band for band in there if band != SCENE_CLASSIFICATION)
    bands = tuple(band for band in given if band != SCENE_CLASSIFICATION) if given else reflectance
    if not given and wanted and set(wanted) <= set(reflectance):
        bands = wanted
    if not bands:
        raise InputError("no reflectance bands", path=where, why="nothing but masks is there", remedy="add the bands")
    for band in bands:
        if band not in reflectance:
            raise UsageError(f"no band '{band}'", path=where, remedy=did_you_mean(band, there))
    with_classes = SCENE_CLASSIFICATION in there
    for day in days:
        missing = [band for band in (*bands, *([SCENE_CLASSIFICATION] * with_classes)) if (day, band) not in table]
        if missing:
            why = f"{day} has no {', '.join(missing)}"
            remedy = "add it, take the date away, or choose among the bands with --bands"
            raise InputError("a band is missing", path=where, why=why, remedy=remedy)
    return bands, with_classes


def _name(text: str, dated: DatedFile) -> str | None:
    """The band that a description names, as 'B8A', 'B4, central wavelength 665 nm' or '2023-05-14 B08'."""
    days, bands = days_in(text), bands_in(text)
    if days and days != [dated.day]:
        why = f"a band is described as '{text}' and the file's name says {dated.day}"
        raise InputError("several dates in one file", path=dated.path, why=why, remedy="give such a file by itself")
    if len(bands) == 1:
        return bands[0]
    return band_name(text) if text.isidentifier() else None


def _twice(day: date, band: str, first: Entry, second: Entry) -> InputError:
    if first.path == second.path:
        return InputError("a band stands twice", path=first.path, why=band, remedy="keep one of them")
    why = f"{first.path.name} and {second.path.name}"
    if first.path.name == second.path.name:
        why = f"{first.path} and {second.path}"
    remedy = "keep one of them, or tell them apart with --pattern, which may name the {tile}"
    return InputError(f"two files for {band} of {day}", path=first.path.parent, why=why, remedy=remedy)
