"""Which column is what: named by the user, or guessed when the name is plain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import InputError, UsageError
from cropstar.geo.sensors import SENTINEL2, band_name, in_order, sentinel2_band
from cropstar.registry import suggestion
from cropstar.sources.base import short_list
from cropstar.sources.labels import LABEL_COLUMNS

# The first one that the table has is taken. A bare "id" comes last: beside a parcel_id it often numbers the rows.
GUESSES = {
    "id": (
        *("sample_id", "parcel_id", "field_id", "poly_id", "polygon_id", "plot_id", "point_id", "pixel_id"),
        *("sampleid", "parcelid", "fieldid", "polyid", "id_parcel", "parcel", "field", "fid", "id"),
    ),
    "date": ("date", "timestamp", "datetime", "time", "doa", "acquisition_date", "obs_date", "observation_date"),
    "label": (*LABEL_COLUMNS, "class_name", "label_name", "code_cultu", "ewoc_code"),
    "group": ("group", "year", "region"),
}
NONE = "none"  # as the name of the group's column: the table is one scene whatever its columns are called


@dataclass(frozen=True)
class TableOptions:
    """What the user says of a table; whatever is left out is guessed."""

    id_column: str | None = None
    date_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None  # NONE: no groups
    field_column: str | None = None  # never guessed: several series of one field, which no split tears apart
    mask_column: str | None = None  # never guessed
    bands: tuple[str, ...] = ()  # columns, or NAME=COLUMN
    scale: float | None = None
    offset: float = 0.0
    nodata: tuple[float, ...] = (65535.0, -9999.0, -32768.0)
    keep_unlabelled: bool = False
    samples_per_tile: int = 4096


@dataclass(frozen=True)
class Columns:
    """The columns of one table, by what they hold."""

    id: str
    date: str
    label: str
    group: str | None
    mask: str | None
    bands: dict[str, str]  # the band's name, then its column
    field: str | None = None  # None: every id is a field of its own

    @property
    def texts(self) -> list[str]:
        named = (self.id, self.date, self.label, self.group, self.field)
        return list(dict.fromkeys(column for column in named if column is not None))

    @property
    def used(self) -> set[str]:
        return {*self.texts, *self.numbers}

    @property
    def numbers(self) -> list[str]:
        return [*self.bands.values(), *([self.mask] if self.mask is not None else [])]

    def to_json(self) -> dict[str, Any]:
        """Without a column of fields as before there could be one: recipes of older stores stay the same."""
        return {role: column for role, column in asdict(self).items() if role != "field" or column is not None}


def reflectance_band(column: str) -> str | None:
    """Sentinel-2's own name of the band that a column holds; its scene classification is no band here."""
    band = sentinel2_band(column)
    return band if band in SENTINEL2 else None


def find_columns(present: Sequence[str], options: TableOptions, path: Path) -> Columns:
    """Give every column that is needed its meaning, or say which one is missing."""
    named = {
        "id": options.id_column,
        "date": options.date_column,
        "label": options.label_column,
        "group": options.group_column,
    }
    unguessed = {"field": options.field_column, "mask": options.mask_column}
    taken = {column for column in (*named.values(), *unguessed.values()) if column is not None}
    found: dict[str, str | None] = {}
    for role, name in named.items():
        if name is not None and not (role == "group" and name == NONE):
            _require(name, present, path, f"--{role}-column")
        found[role] = name if name is not None else _guess(role, [column for column in present if column not in taken])
    found["id"] = found["id"] or options.field_column  # one series a field, or one in each group
    for role in ("id", "date", "label"):
        if found[role] is None:
            remedy = f"name it with --{role}-column"
            raise InputError(f"no {role} column", path=path, why=_listed(present), remedy=remedy)
    for role, column in unguessed.items():
        if column is not None:
            _require(column, present, path, f"--{role}-column")
    group = None if found["group"] == NONE else found["group"]
    bands = _named_bands(present, options.bands, path) if options.bands else _guessed_bands(present, path)
    key, date, label = (str(found[role]) for role in ("id", "date", "label"))
    return Columns(key, date, label, group, options.mask_column, bands, options.field_column)


def _guess(role: str, present: Sequence[str]) -> str | None:
    plain = {re.sub(r"[-\s]+", "_", column.strip().lower()): column for column in reversed(present)}
    return next((plain[name] for name in GUESSES[role] if name in plain), None)


def _guessed_bands(present: Sequence[str], path: Path) -> dict[str, str]:
    """Sentinel-2's bands in their own order, so that two tables agree whatever the order of their columns."""
    found: dict[str, str] = {}
    for column in present:
        band = reflectance_band(column)
        if band in found:
            why = f"{found[band]} and {column} are both {band}"
            raise InputError("a band stands twice", path=path, why=why, remedy="choose the columns with --bands")
        if band is not None:
            found[band] = column
    if not found:
        remedy = "name them with --bands, such as --bands B04=red,B08=nir"
        raise InputError("no band columns", path=path, why=_listed(present), remedy=remedy)
    return {band: found[band] for band in in_order(found)}


def _named_bands(present: Sequence[str], wanted: Sequence[str], path: Path) -> dict[str, str]:
    """The user's bands in the user's order: `red`, `B04` (in any spelling that the table has) or `B04=red`."""
    spelt = {band: column for column in reversed(present) if (band := reflectance_band(column))}
    found: dict[str, str] = {}
    for entry in wanted:
        name, equals, column = entry.rpartition("=") if entry not in present else ("", "", entry)
        band = reflectance_band(entry)
        if column not in present and not equals and band in spelt:
            column = spelt[band]
        _require(column, present, path, "--bands")
        name = band_name(name if equals else column)
        if not name or name in found:
            raise UsageError(f"the band '{name}' is named twice or not at all", why=", ".join(wanted))
        found[name] = column
    return found


def _require(name: str, present: Sequence[str], path: Path, option: str) -> None:
    if name not in present:
        remedy = f"{suggestion(name, present)}correct {option}"
        raise UsageError(f"no column '{name}'", path=path, why=_listed(present), remedy=remedy)


def _listed(present: Sequence[str]) -> str:
    return f"the columns are {short_list(present)}"
