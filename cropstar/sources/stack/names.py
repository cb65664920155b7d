"""What the name of a file says: its date, band and tile, guessed from the path below the folder.

A word counts whole or not at all, so that no part of a tile (T31TEJ), an orbit (R008) or a baseline (N0208) is taken
for a date or a band. The file's own name comes first, then its folder, then the folder above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import PurePosixPath
from typing import TypeVar

from cropstar.geo.sensors import WORD, band_name

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
# Rasters that come with the bands and are none: true colour, aerosol, water vapour, probabilities.
COMPANIONS = re.compile(rf"{BEGIN}(?:TCI|AOT|WVP|CLDPRB|SNWPRB){END}", re.ASCII | re.IGNORECASE)

Found = TypeVar("Found")


@dataclass(frozen=True)
class Name:
    """What a name tells; a file without a band in its name holds several."""

    day: date | None
    band: str | None = None
    tile: str | None = None


class Unclear(ValueError):
    """A name that says two things."""


def guess(relative: PurePosixPath) -> Name:
    """The name of a file, by its path below the folder."""
    parts = [relative.stem, *reversed(relative.parent.parts)]
    days = _nearest(days_in(part) for part in parts)
    if len(days) > 1:
        raise Unclear(f"the name has the dates {' and '.join(map(str, days))}")
    tiles = _nearest(tiles_in(part) for part in parts)
    if len(tiles) > 1:
        raise Unclear(f"the name has the tiles {' and '.join(tiles)}")
    bands = _nearest(bands_in(part) for part in parts)
    # Several bands in a name: a file of them all, which says itself in what order.
    return Name(days[0] if days else None, bands[0] if len(bands) == 1 else None, tiles[0] if tiles else None)


def is_companion(relative: PurePosixPath) -> bool:
    """Whether a file only comes along with the bands."""
    return bool(COMPANIONS.search(relative.stem)) and not BANDS.search(relative.stem)


def days_in(text: str) -> list[date]:
    """The different dates in a text; of a product's name that of sensing."""
    if product := PRODUCT.search(text):
        text = text[product.end() : product.end() + 8]
    days = [parse_day(match[0]) for match in DATES.finditer(text)]
    for match in YEAR_AND_DAY.finditer(text):
        day = date(int(match[1]), 1, 1) + timedelta(int(match[2]) - 1)
        days.append(day if day.year == int(match[1]) else None)
    return list(dict.fromkeys(day for day in days if day))


def bands_in(text: str) -> list[str]:
    return list(dict.fromkeys(band_name(match[0]) for match in BANDS.finditer(text)))


def tiles_in(text: str) -> list[str]:
    return list(dict.fromkeys(tile_name(match[1]) for match in TILES.finditer(text)))


def parse_day(text: str) -> date | None:
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


def _nearest(parts: Iterable[list[Found]]) -> list[Found]:
    """What the first part that says anything says."""
    return next((found for found in parts if found), [])
