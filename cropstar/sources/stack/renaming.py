"""Bands that the user calls otherwise than the file does: --bands B02=blue."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TypeVar

from cropstar.errors import UsageError
from cropstar.geo.sensors import band_name, in_order
from cropstar.registry import did_you_mean
from cropstar.sources.base import Bands

RENAMED = "="
EXAMPLE = "such as --bands B02,B03,B04,B08 or --bands B02=blue,B08=nir"
Entry = TypeVar("Entry")


def spelt(given: Sequence[str]) -> Bands:
    """The entries of --bands with the one name of each band, on either side of an equals sign."""
    names = tuple(RENAMED.join(map(band_name, entry.split(RENAMED))) for entry in given)
    sides = [name.split(RENAMED) for name in names]
    if not names or len(set(names)) < len(names) or any(len(side) > 2 or not all(side) for side in sides):
        raise UsageError("--bands wants names, each once", why=f"got '{','.join(given)}'", remedy=EXAMPLE)
    return names


def has_renaming(given: Bands | None) -> bool:
    """Whether --bands says which of the file's bands are meant, so that it is no list in the file's order."""
    return any(RENAMED in entry for entry in given or ())


def rename(
    table: Mapping[tuple[date, str], Entry], given: Bands | None, where: Path
) -> tuple[dict[tuple[date, str], Entry], Bands | None]:
    """The table with the names that `given` has for the file's bands, and these names."""
    if given is None or not has_renaming(given):
        return dict(table), given
    there = in_order(band for _, band in table)
    pairs = [_pair(entry, there) for entry in given]
    for new, own in pairs:
        if own not in there:
            raise UsageError(f"no band '{own}'", path=where, remedy=did_you_mean(own, there))
        if [each for each, _ in pairs].count(new) > 1 or [each for _, each in pairs].count(own) > 1:
            raise UsageError("--bands names a band twice", path=where, why=", ".join(given), remedy=EXAMPLE)
    names = {own: new for new, own in pairs}
    hidden = set(names.values()) - set(names)  # another band has that name in the file, and is not meant
    kept = {(day, names.get(band, band)): entry for (day, band), entry in table.items() if band not in hidden}
    return kept, tuple(new for new, _ in pairs)


def _pair(entry: str, there: Collection[str]) -> tuple[str, str]:
    """The name to have and the file's own. As of tables, B02=blue; the file tells where it is the other way round."""
    left, equals, right = entry.partition(RENAMED)
    if not equals:
        return left, left
    return (right, left) if left in there and right not in there else (left, right)
