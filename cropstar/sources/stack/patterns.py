"""Names of files by a pattern of the user's, such as "S2_{tile}_{band}_{date}.tif"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

from cropstar.errors import UsageError
from cropstar.geo.sensors import band_name
from cropstar.registry import did_you_mean
from cropstar.sources.stack.names import CLOCK, Name, parse_day, tile_name

FIELDS = {
    "date": rf"(?P<date>(?:19|20)\d\d(?P<sign>[-_.]?)\d\d(?P=sign)\d\d{CLOCK})",
    "band": r"(?P<band>[A-Za-z0-9]+)",
    "tile": r"(?P<tile>[^/_]+)",
    "*": r"[^/]*?",  # as little as fits: of two dates the first is meant
}
ENDING = r"(?:\.tiff?)"
MAXIMUM_LENGTH = 200
MAXIMUM_STARS = 5  # each multiplies the ways in which a long name can be looked at
EXAMPLE = 'for example "S2_{band}_{date}.tif"'


@dataclass(frozen=True)
class Pattern:
    text: str
    fields: frozenset[str]
    expression: re.Pattern[str]

    @classmethod
    def parse(cls, text: str, option: str) -> Pattern:
        """The pattern that an option gives. Placeholders: {date}, {band}, {tile}, and {*} for anything."""
        split = re.split(r"(\{[^{}]*\}|\*)", text.removeprefix("./"))
        pieces = ["{*}" if piece == "*" else piece for piece in split if piece]
        names = [piece[1:-1] for piece in pieces if _is_field(piece)]
        for name in names:
            if name not in FIELDS:
                known = did_you_mean(name, FIELDS)
                raise UsageError(f"unknown placeholder {{{name}}} in {option}", why=f"got '{text}'", remedy=known)
            if name != "*" and names.count(name) > 1:
                raise UsageError(f"{{{name}}} stands twice in {option}", why=f"got '{text}'", remedy="give it once")
        _require_clear(text, option, pieces, names)
        expression = "".join(FIELDS[piece[1:-1]] if _is_field(piece) else re.escape(piece) for piece in pieces)
        has_ending = re.search(ENDING + "$", text, re.IGNORECASE)
        return cls(
            text,
            frozenset(names),
            re.compile(expression + ("" if has_ending else ENDING), re.ASCII | re.IGNORECASE),
        )

    def match(self, relative: PurePosixPath) -> Name | None:
        """What the name of a file says, if it fits; a pattern with a slash is for the path below the folder."""
        found = self.expression.fullmatch(str(relative) if "/" in self.text else relative.name)
        day = parse_day(found["date"]) if found else None
        if found is None or day is None:
            return None
        texts = found.groupdict()
        band, tile = texts.get("band"), texts.get("tile")
        return Name(day, band and band_name(band), tile and tile_name(tile))


def _is_field(piece: str) -> bool:
    return piece.startswith("{") and piece.endswith("}")


def _require_clear(text: str, option: str, pieces: list[str], names: list[str]) -> None:
    """A pattern that names a date, and that can only be read in one way."""
    got = f"got '{text}'"
    if "date" not in names:
        raise UsageError(f"{option} wants a {{date}}", why=got, remedy=EXAMPLE)
    if len(text) > MAXIMUM_LENGTH or names.count("*") > MAXIMUM_STARS:
        why = f"{len(text)} characters and {names.count('*')} {{*}}"
        raise UsageError(f"{option} is too long", why=why, remedy=f"give at most {MAXIMUM_STARS} {{*}}")
    for one, other in pairwise(pieces):
        if _is_field(one) and _is_field(other) and "{date}" not in (one, other):
            raise UsageError(f"nothing stands between {one} and {other} in {option}", why=got, remedy=EXAMPLE)
    if any(sign in piece for piece in pieces if not _is_field(piece) for sign in "{}"):
        raise UsageError(f"a brace without its pair in {option}", why=got, remedy=EXAMPLE)
