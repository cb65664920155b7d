"""Tables of series: CSV or Parquet files with one row per observation, one scene per group."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import field as dataclass_field
from functools import reduce
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import EPOCH, YEAR, Season, from_days, parse_day
from cropstar.geo.sensors import (
    BACKSCATTER_KINDS,
    DECIBEL_OFFSET,
    DECIBEL_SCALE,
    OPTICAL,
    RADAR_BANDS,
    SCALE,
    SENTINEL2,
    Sensor,
    backscatter_kind,
    band_name,
    clear_sky,
    decibel_counts,
    in_order,
    is_number,
    is_radar,
    radar_band,
    sentinel2_band,
    to_decibels,
)
from cropstar.geo.weather import THERMAL_BAND, Warmth, to_celsius
from cropstar.inputs import MAXIMUM_CLASSES
from cropstar.registry import short_list, suggestion
from cropstar.runtime import event, logger
from cropstar.sources.base import SampleScene, TileSpec, equal_parts, fits_uint16, recipe_of, safe_name
from cropstar.sources.table_files import open_file
from cropstar.sources.texts import natural_ranks
from cropstar.sources.vectors import LABEL_COLUMNS
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SensorArrays, SeriesTile

__all__ = ["TableOptions", "TableScene", "guess_column", "open_table", "reflectance_band"]


class TableScene(SampleScene):
    """The samples of one group. Their numbers run from 1, in the natural order of their keys."""

    layout = "series"

    def __init__(
        self,
        name: str,
        samples: _Samples,
        chosen: range,
        fingerprint: Fingerprint,
        samples_per_tile: int,
        recipe: str,
        provenance: dict[str, Any],
    ) -> None:
        self.name = name
        self.recipe = recipe
        self.provenance = provenance
        self._samples = samples
        self._chosen = chosen
        self._samples_per_tile = samples_per_tile
        days = [rows.days[rows.starts[chosen.start] : rows.starts[chosen.stop]] for rows in samples.rows]
        self.dates = from_days(np.unique(np.concatenate(days)))
        self.fingerprint = fingerprint.with_season(_season_of(samples, chosen))

    def cuts(self) -> list[tuple[int, int]]:
        return equal_parts(len(self._chosen), self._samples_per_tile)

    def build(self, spec: TileSpec) -> SeriesTile:
        samples, window = self._samples, spec.window
        start, stop = self._chosen.start + window.top, self._chosen.start + window.bottom
        first, *others = (rows.select(start, stop) for rows in samples.rows)
        numbers = np.arange(window.top + 1, window.bottom + 1, dtype=np.int32)
        return SeriesTile(
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            starts=first.starts,
            days=first.days,
            values=first.values,
            valid=first.valid,
            table=ParcelTable(
                numbers,
                samples.keys[start:stop],
                samples.labels[start:stop],
                fields=None if samples.fields is None else samples.fields[start:stop],
            ),
            provenance=self.provenance,
            others=tuple(
                SensorArrays(rows.days, rows.values, rows.valid, starts=rows.starts, context=rows.context)
                for rows in others
            ),
            context=first.context,
        )

    def typical_values(self) -> NDArray[np.float64]:
        """The median of each band over all valid observations of the table (C,), in its own scale."""
        with warnings.catch_warnings():  # not a number of a sensor that saw nothing
            warnings.simplefilter("ignore", RuntimeWarning)
            return np.concatenate([np.median(rows.values[rows.valid], axis=0) for rows in self._samples.rows])

    def counts(self) -> dict[str, Any]:
        rows = [rows.starts[self._chosen.stop] - rows.starts[self._chosen.start] for rows in self._samples.rows]
        return {"samples": len(self._chosen), "observations": int(sum(rows))}


def _season_of(samples: _Samples, chosen: range) -> Season:
    """The season of some samples. Where they are of several years it is the one that every sample fits into.

    Otherwise one season would span all years, and a crop of one year would have nothing in common with that of another.
    """
    spans: dict[int, tuple[int, int]] = {}
    for rows in samples.rows:
        for sample in chosen:
            days = rows.days[rows.starts[sample] : rows.starts[sample + 1]]
            if len(days):
                first, last = spans.get(sample, (days[0], days[-1]))
                spans[sample] = min(first, days[0]), max(last, days[-1])
    spanned = Season.of(from_days([min(first for first, _ in spans.values()), max(last for _, last in spans.values())]))
    if spanned.length <= YEAR:
        return spanned
    seasons = {Season.of(from_days(span)) for span in spans.values()}
    merged = reduce(Season.merge, sorted(seasons, key=attrgetter("length", "start")))
    return min(merged, spanned, key=attrgetter("length"))


def open_table(path: Path, options: TableOptions | None = None) -> list[TableScene]:
    """Read a table, whole, into scenes that share bands, scale and classes."""
    options = options or TableOptions()
    if options.samples_per_tile < 1 or (options.scale is not None and not 0 < options.scale < math.inf):
        raise UsageError("the scale and the samples of a tile must be above zero", remedy="correct --scale")
    if not math.isfinite(options.offset):
        raise UsageError(f"the offset is {options.offset:g}", remedy="correct --offset")
    file = open_file(path)
    columns = find_columns(file.columns, options, path)
    frame = file.read(columns.texts, columns.numbers)
    columns = _without_empty_bands(frame, columns, options, path)
    samples = _gather_samples(frame, columns, options, path)
    # What was guessed is in the recipe as if it had been given: should a later version guess otherwise, it shows.
    recipe = recipe_of(
        [path],
        {
            "columns": columns.to_json(),
            "bands": list(columns.bands),  # their order counts
            "scale": samples.scale,
            "offset": options.offset,
            "nodata": options.nodata,
            "keep_unlabelled": options.keep_unlabelled,
            "samples_per_tile": options.samples_per_tile,
            **({"warmth": options.warmth.to_json()} if options.temperature is not None else {}),
        },
    )
    seen = np.concatenate([rows.days for rows in samples.rows if len(rows.days)])
    season = Season.of(from_days([seen.min(), seen.max()]))
    context = [*columns.context, *([THERMAL_BAND] if options.temperature is not None else [])]
    fingerprint = Fingerprint.of(samples.sensors, 0.0, season, samples.classes, context)
    _log_summary(samples, columns, options, path, [name for name in file.columns if name not in columns.used])

    scenes: dict[str, TableScene] = {}
    for group, members in groupby(range(len(samples.keys)), key=samples.groups.__getitem__):
        places = list(members)
        name = safe_name(f"{path.stem}-{group}" if columns.group is not None else path.stem)
        if name in scenes:
            why = f"two values of column '{columns.group}' both give '{name}'"
            raise InputError("groups of one name", path=path, why=why, remedy="write them with letters and digits")
        provenance: dict[str, Any] = {
            "source": "table",
            "file": path.name,
            "columns": columns.to_json(),
            "origin": recipe,
            **({"warmth": options.warmth.to_json()} if columns.temperature is not None else {}),
        }
        if columns.group is not None:
            provenance["group"] = group
        chosen = range(places[0], places[-1] + 1)
        scenes[name] = TableScene(name, samples, chosen, fingerprint, options.samples_per_tile, recipe, provenance)
    return list(scenes.values())


def _log_summary(samples: _Samples, columns: Columns, options: TableOptions, path: Path, unused: list[str]) -> None:
    """Log how columns are used, so that a wrong guess is seen."""
    roles = f"id {columns.id}, date {columns.date}, label {columns.label or 'none'}, group {columns.group or 'none'}"
    roles += f", field {columns.field}" if columns.field else ""
    offset = f" {options.offset:+g}" if options.offset else ""
    event(
        f"{path.name}: {roles}, mask {columns.mask or 'none'}, bands {' '.join(columns.bands) or 'none'}; "
        f"reflectance = value x {samples.scale:g}{offset}; {_further_columns(columns)}"
        f"not used: {short_list(unused) or 'nothing'}",
        columns=columns.to_json(),
        scale=samples.scale,
        samples=len(samples.keys),
    )
    several = len(samples.keys) - len(set(samples.keys))
    if several and options.group_column is None:
        logger.warning(
            "%d ids of %s are in more than one %s and are a sample in each; --group-column none keeps them together",
            several,
            path.name,
            columns.group,
        )


def _further_columns(columns: Columns) -> str:
    notes = [f"sensor {name} {' '.join(bands)} in dB" for name, bands in columns.radar.items()]
    notes += [f"context {' '.join(columns.context)}"] if columns.context else []
    return "".join(f"{text}; " for text in notes)


# --- Columns: named by the user, or guessed when the name is plain

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
NO_GROUP = "none"  # as the name of the group's column: the table is one scene whatever its columns are called


@dataclass(frozen=True)
class TableOptions:
    """Options of a table; columns that are not given are guessed."""

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
    needs_labels: bool = True  # False of a table that is to be classified
    samples_per_tile: int = 4096
    context: tuple[str, ...] = ()  # columns that every date has whichever sensor saw it: terrain, weather
    temperature: str | None = None  # a column: the mean of the days since the row before
    base_temperature: float = 0.0
    warm_from: str = "01-01"  # the day of the year on which warmth begins to count
    sensors: tuple[Sensor, ...] = ()  # those of a model: one without columns has no observation

    @property
    def warmth(self) -> Warmth:
        return Warmth(self.base_temperature, self.warm_from)


@dataclass(frozen=True)
class Columns:
    """The columns of one table, by what they hold."""

    id: str
    date: str
    label: str | None  # None where none is needed
    group: str | None
    mask: str | None
    bands: dict[str, str]  # of optical images: the band's name, then its column
    field: str | None = None  # None: every id is a field of its own
    radar: dict[str, dict[str, str]] = dataclass_field(default_factory=dict)  # the same of each radar sensor
    context: dict[str, str] = dataclass_field(default_factory=dict)  # and of what every date has
    temperature: str | None = None

    @property
    def texts(self) -> list[str]:
        named = (self.id, self.date, self.label, self.group, self.field)
        return list(dict.fromkeys(column for column in named if column is not None))

    @property
    def used(self) -> set[str]:
        return {*self.texts, *self.numbers}

    @property
    def numbers(self) -> list[str]:
        radar = [column for bands in self.radar.values() for column in bands.values()]
        named = [*self.bands.values(), *radar, *self.context.values(), self.mask, self.temperature]
        return list(dict.fromkeys(column for column in named if column is not None))

    def to_json(self) -> dict[str, Any]:
        """Without a column of fields as before there could be one: recipes of older stores stay the same."""
        later = ("field", "radar", "context", "temperature")
        return {role: column for role, column in asdict(self).items() if role not in later or column}


def reflectance_band(column: str) -> str | None:
    """Sentinel-2's own name of the band that a column holds; its scene classification is not a band here."""
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
    chosen: dict[str, str | None] = {}
    for role, name in named.items():
        if name is not None and not (role == "group" and name == NO_GROUP):
            _require_column(name, present, path, f"--{role}-column")
        chosen[role] = (
            name if name is not None else guess_column(role, [column for column in present if column not in taken])
        )
    chosen["id"] = chosen["id"] or options.field_column  # one series per field, or one in each group
    for role in ("id", "date", *(["label"] if options.needs_labels else [])):
        if chosen[role] is None:
            remedy = f"name it with --{role}-column"
            raise InputError(f"no {role} column", path=path, why=_listed(present), remedy=remedy)
    for role, column in unguessed.items():
        if column is not None:
            _require_column(column, present, path, f"--{role}-column")
    group = None if chosen["group"] == NO_GROUP else chosen["group"]
    optical, radar = _named_bands(present, options.bands, path) if options.bands else _guessed_bands(present, path)
    context = {column.strip(): column for column in options.context}
    for column in [*options.context, *([options.temperature] if options.temperature is not None else [])]:
        _require_column(column, present, path, "--context" if column in options.context else "--temperature")
    key, date = str(chosen["id"]), str(chosen["date"])
    plain = Columns(key, date, chosen["label"], group, options.mask_column, optical, options.field_column)
    return replace(plain, radar=radar, context=context, temperature=options.temperature)


def present_bands(path: Path) -> set[str]:
    """The bands that a table has a column of, by their names and by those that sensors give them."""
    columns = open_file(path).columns
    radar = [known for column in columns if (known := radar_band(column))]
    spelt = {text for band, sensor in radar for text in (band, f"{sensor}:{band}")}
    return {*(band_name(column) for column in columns), *spelt}


def guess_column(role: str, present: Sequence[str]) -> str | None:
    """The column with a plain name for the id, the date, the label or the group."""
    plain = {re.sub(r"[-\s]+", "_", column.strip().lower()): column for column in reversed(present)}
    return next((plain[name] for name in GUESSES[role] if name in plain), None)


BandColumns = tuple[dict[str, str], dict[str, dict[str, str]]]  # of optical bands, and of each radar sensor


def _guessed_bands(present: Sequence[str], path: Path) -> BandColumns:
    """Sentinel-2's bands and radar's in their own order, so that tables with other orders of columns agree."""
    bands: dict[str, str] = {}
    radar: dict[str, dict[str, str]] = {}
    for column in present:
        band, backscatter = reflectance_band(column), radar_band(column)
        own = bands
        if backscatter is not None:
            band, own = backscatter[0], radar.setdefault(backscatter[1], {})
        if band in own:
            why = f"{own[band]} and {column} are both {band}"
            raise InputError("a band appears twice", path=path, why=why, remedy="choose the columns with --bands")
        if band is not None:
            own[band] = column
    if not bands and not radar:
        remedy = "name them with --bands, such as --bands B04=red,B08=nir"
        raise InputError("no band columns", path=path, why=_listed(present), remedy=remedy)
    return {band: bands[band] for band in in_order(bands)}, _radar_in_order(radar)


def _radar_in_order(radar: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    return {name: {band: radar[name][band] for band in RADAR_BANDS if band in radar[name]} for name in sorted(radar)}


def _named_bands(present: Sequence[str], wanted: Sequence[str], path: Path) -> BandColumns:
    """The user's bands in the user's order: `red`, `B04` (in any spelling that the table has) or `B04=red`.

    Polarisations, by the name of the band, are of a radar sensor; `S1-ASC:VV` says of which.
    """
    spelt = {band: column for column in reversed(present) if (band := reflectance_band(column))}
    backscatter = {known: column for column in reversed(present) if (known := radar_band(column))}
    found: dict[str, str] = {}
    radar: dict[str, dict[str, str]] = {}
    for entry in wanted:
        name, equals, column = entry.rpartition("=") if entry not in present else ("", "", entry)
        sensor, colon, band = (name if equals else entry).rpartition(":")
        seen = radar_band(band if colon else name if equals else entry)
        if seen is not None:
            seen = (seen[0], sensor or seen[1])
            if column not in present and not equals:  # the only orbit that the table has, where none is named
                alike = [known for known in backscatter if known[0] == seen[0] and (not sensor or known[1] == sensor)]
                known = seen if seen in backscatter else alike[0] if len(alike) == 1 else None
                seen, column = (known, backscatter[known]) if known is not None else (seen, column)
        elif column not in present and not equals and (band := reflectance_band(entry) or "") in spelt:
            column = spelt[band]
        _require_column(column, present, path, "--bands")
        name = seen[0] if seen else band_name(name if equals else column)
        own = radar.setdefault(seen[1], {}) if seen else found
        if not name or name in own:
            raise UsageError(f"the band '{name}' is named twice or not at all", why=", ".join(wanted))
        own[name] = column
    return found, radar


def _require_column(name: str, present: Sequence[str], path: Path, option: str) -> None:
    if name not in present:
        remedy = f"{suggestion(name, present)}correct {option}"
        raise UsageError(f"no column '{name}'", path=path, why=_listed(present), remedy=remedy)


def _listed(present: Sequence[str]) -> str:
    return f"the columns are {short_list(present)}"


# --- Samples: rows put together by field, in the order of their dates

MAXIMUM_GROUPS = 1000  # each is a scene with a file of its own
LONGEST_TEXT = 200  # tiles keep texts of one length


@dataclass(frozen=True)
class _Rows:
    """The observations of one sensor: sample i has the rows starts[i]:starts[i+1], in the order of their dates."""

    starts: NDArray[np.int64]  # (N+1,)
    days: NDArray[np.int32]  # (rows,)
    values: NDArray[Any]  # (rows, C)
    valid: NDArray[np.bool_]  # (rows,)
    context: NDArray[np.float32] | None = None  # (rows, D)

    def select(self, start: int, stop: int) -> _Rows:
        """The rows of some samples."""
        starts = self.starts[start : stop + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        context = None if self.context is None else self.context[rows]
        return _Rows(starts - starts[0], self.days[rows], self.values[rows], self.valid[rows], context)


@dataclass(frozen=True)
class _Samples:
    """All samples of a table, sorted by group, then key, each in the natural order (2 before 10)."""

    keys: list[str]
    groups: list[str]  # one per sample; "" where the table has no groups
    fields: list[str] | None  # one per sample; None where every id is a field of its own
    labels: NDArray[np.int16]  # (N,)
    rows: tuple[_Rows, ...]  # of each sensor
    sensors: tuple[Sensor, ...]
    scale: float  # of the first sensor
    classes: ClassTable


def _gather_samples(frame: pd.DataFrame, columns: Columns, options: TableOptions, path: Path) -> _Samples:
    """Sort the rows into samples. An id that stands in two groups is two samples."""
    if frame.empty:
        raise InputError("an empty table", path=path, why="it has a header but no rows")
    ids = encode_texts(frame[columns.id], path)
    ids.require_complete("id", path, f"fill the column '{columns.id}' or choose another with --id-column")
    groups = encode_texts(frame[columns.group], path) if columns.group else _same_everywhere(len(frame))
    groups.require_complete("group", path, f"fill the column '{columns.group}' or give --group-column none")
    labels = encode_texts(frame[columns.label], path) if columns.label else _nothing_anywhere(len(frame))
    fields = encode_texts(frame[columns.field], path) if columns.field else None
    if fields is not None:
        fields.require_complete("field", path, f"fill the column '{columns.field}' or leave out --field-column")
    _require_few_groups_and_short_texts(ids, groups, labels, fields, columns, path)
    days = encode_days(frame[columns.date], path)
    read = _read_sensors(frame, columns, options, path)

    id_ranks, group_ranks = natural_ranks(ids.texts), natural_ranks(groups.texts)
    sample = group_ranks[groups.codes] * len(ids.texts) + id_ranks[ids.codes]  # (rows,)
    order = np.lexsort((days, sample))  # stable: rows of one sample and date stay in the file's order
    sample = sample[order]
    own_label = _one_label_each(sample, labels.codes[order], order, ids, labels, columns, path)
    if fields is not None:
        _require_one_field_each(sample, fields.codes[order], order, ids, fields, path)
    keep = ~_repeated(sample, days[order], path)
    if options.needs_labels:
        keep &= _with_label(sample, own_label, options.keep_unlabelled, columns, path)
    order, sample, own_label = order[keep], sample[keep], own_label[keep]

    firsts = np.flatnonzero(np.diff(sample, prepend=MISSING))
    valid = np.logical_or.reduce([own.valid for own in read])[order]  # by any sensor
    if unseen := int((~np.logical_or.reduceat(valid, firsts)).sum()):
        logger.warning("%d samples of %s have no valid observation", unseen, path.name)
    starts = np.append(firsts, len(order)).astype(np.int64)
    context = _read_context(frame, columns, options, path, days, order, starts)
    rows = order[firsts]  # one row of each sample
    names = {int(code): labels.texts[code] for code in np.unique(own_label) if code != MISSING}
    classes = ClassTable.from_names(names.values())
    numbers = {code: classes.number_of(name) for code, name in names.items()} | {MISSING: UNLABELLED}
    return _Samples(
        keys=[ids.texts[code] for code in ids.codes[rows]],
        groups=[groups.texts[code] for code in groups.codes[rows]],
        fields=None if fields is None else [fields.texts[code] for code in fields.codes[rows]],
        labels=np.array([numbers[int(code)] for code in own_label[firsts]], dtype=np.int16),
        rows=_rows_by_sensor(read, order, starts, days, context),
        sensors=tuple(own.sensor for own in read),
        scale=read[0].sensor.scale,
        classes=classes,
    )


def _rows_by_sensor(
    read: Sequence[_Values],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    days: NDArray[np.int32],
    context: NDArray[np.float32] | None,
) -> tuple[_Rows, ...]:
    """The rows in their order; of several sensors each has those that it saw, and no others."""

    def rows(own: _Values, kept: NDArray[np.bool_] | slice, starts: NDArray[np.int64]) -> _Rows:
        chosen = order[kept]
        some = None if context is None else context[kept]
        return _Rows(starts, days[chosen], own.values[chosen], own.valid[chosen], some)

    if len(read) == 1:
        return (rows(read[0], slice(None), starts),)
    sample = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    masks = [own.valid[order] for own in read]
    seen = np.logical_or.reduceat(np.logical_or.reduce(masks), starts[:-1])
    masks[0][starts[:-1][~seen]] = True  # a sample that nobody saw keeps a date, which stays not valid
    counts = [np.bincount(sample[mask], minlength=len(starts) - 1) for mask in masks]
    return tuple(
        rows(own, mask, np.concatenate([[0], np.cumsum(count)]).astype(np.int64))
        for own, mask, count in zip(read, masks, counts, strict=True)
    )


def _require_few_groups_and_short_texts(
    ids: _CodedColumn,
    groups: _CodedColumn,
    labels: _CodedColumn,
    fields: _CodedColumn | None,
    columns: Columns,
    path: Path,
) -> None:
    """A wrong column is noticed before it becomes a thousand files or classes."""
    if len(groups.texts) > MAXIMUM_GROUPS:
        why = f"{len(groups.texts)} different values in column '{columns.group}'"
        remedy = "choose another column with --group-column, or none"
        raise InputError("too many groups", path=path, why=why, remedy=remedy)
    if len(labels.texts) > MAXIMUM_CLASSES:
        why = f"{len(labels.texts)} different values in column '{columns.label}'"
        raise InputError("too many classes", path=path, why=why, remedy="choose another column with --label-column")
    named = ((ids, columns.id), (groups, columns.group), (labels, columns.label), (fields, columns.field))
    for coded, column in named:
        longest = max(coded.texts if coded else [], key=len, default="")
        if len(longest) > LONGEST_TEXT:
            why = f"{len(longest)} letters in column '{column}'"
            raise InputError("a name that is too long", path=path, why=why, remedy="choose another column")


def _one_label_each(
    sample: NDArray[np.int64],
    codes: NDArray[np.int64],
    order: NDArray[np.int64],
    ids: _CodedColumn,
    labels: _CodedColumn,
    columns: Columns,
    path: Path,
) -> NDArray[np.int64]:
    """The label of each row's sample; rows without a label follow those that have one."""
    firsts = np.flatnonzero(np.diff(sample, prepend=MISSING))
    highest = np.maximum.reduceat(codes, firsts)
    lowest = np.minimum.reduceat(np.where(codes == MISSING, len(labels.texts), codes), firsts)
    torn = np.flatnonzero((highest != lowest) & (highest != MISSING))
    if torn.size:
        place = torn[0]
        key = ids.texts[ids.codes[order[firsts[place]]]]
        names = f"'{labels.texts[lowest[place]]}' and '{labels.texts[highest[place]]}'"
        remedy = "correct them, or tell seasons apart with --group-column" if columns.group is None else "correct them"
        raise InputError("labels differ within one id", path=path, why=f"'{key}' has {names}", remedy=remedy)
    return np.repeat(highest, np.diff(np.append(firsts, len(sample))))


def _require_one_field_each(
    sample: NDArray[np.int64],
    codes: NDArray[np.int64],
    order: NDArray[np.int64],
    ids: _CodedColumn,
    fields: _CodedColumn,
    path: Path,
) -> None:
    torn = np.flatnonzero((sample[1:] == sample[:-1]) & (codes[1:] != codes[:-1]))
    if torn.size:
        place = torn[0]
        names = f"'{fields.texts[codes[place]]}' and '{fields.texts[codes[place + 1]]}'"
        why = f"'{ids.texts[ids.codes[order[place]]]}' has {names}"
        remedy = "correct --field-column, or choose an --id-column that is unique over all fields"
        raise InputError("fields differ within one id", path=path, why=why, remedy=remedy)


def _repeated(sample: NDArray[np.int64], days: NDArray[np.int32], path: Path) -> NDArray[np.bool_]:
    """True where the row before has the same sample and date."""
    repeated = np.zeros(len(sample), dtype=bool)
    repeated[1:] = (sample[1:] == sample[:-1]) & (days[1:] == days[:-1])
    count = int(repeated.sum())
    if count:
        logger.warning("%d rows of %s repeat an id and date; the first of each is kept", count, path.name)
    return repeated


def _with_label(
    sample: NDArray[np.int64], label: NDArray[np.int64], keep_all: bool, columns: Columns, path: Path
) -> NDArray[np.bool_]:
    """Which rows belong to labelled samples; the others are left out with a warning."""
    labelled = label != MISSING
    if not labelled.any():
        why = f"the column '{columns.label}' is empty"
        raise InputError("no labelled sample", path=path, why=why, remedy="choose another column with --label-column")
    count = len(np.unique(sample[~labelled]))
    if count:
        fate = "kept without one" if keep_all else "left out"
        logger.warning("%d samples of %s have no label and are %s", count, path.name, fate)
    return np.ones_like(labelled) if keep_all else labelled


DECIBELS = "give all of it in dB, or all of it in linear power"
LOOKED_AT = 1_000_000  # values that the guess of the scale looks at
SCENE_CLASSES_NAME = re.compile(r"(.*[-_. ])?scl", re.IGNORECASE)
GOOD_WORDS = re.compile(r"valid|clear|usable", re.IGNORECASE)


@dataclass(frozen=True)
class _Values:
    """The values of a sensor; rows that are not valid hold zero."""

    sensor: Sensor
    values: NDArray[Any]  # (rows, C): uint16 where the source has whole numbers, else float32
    valid: NDArray[np.bool_]  # (rows,)


def _read_sensors(frame: pd.DataFrame, columns: Columns, options: TableOptions, path: Path) -> list[_Values]:
    """Optical bands first; a missing value of one sensor leaves the others as they are."""
    sensors = [_read_values(frame, columns, options, path)] if columns.bands else []
    sensors += [_read_radar(frame, name, bands, options, path) for name, bands in columns.radar.items()]
    return [_read_for(sensor, sensors, len(frame), path) for sensor in options.sensors] or sensors


def _read_for(wanted: Sensor, found: Sequence[_Values], rows: int, path: Path) -> _Values:
    """The values for a sensor of a model, by its name or its kind; none is valid if the table has no such sensor."""
    radar = is_radar(wanted.bands)
    alike = [own for own in found if set(own.sensor.bands) == set(wanted.bands) and is_radar(own.sensor.bands) == radar]
    own = next((each for each in alike if each.sensor.name == wanted.name), next(iter(alike), None))
    if own is None:
        return _Values(wanted, np.zeros((rows, len(wanted.bands)), dtype=np.uint16), np.zeros(rows, dtype=bool))
    if own.sensor.name != wanted.name:
        logger.warning("%s: columns of %s are read as the model's %s", path.name, own.sensor.name, wanted.name)
    order = [own.sensor.bands.index(band) for band in wanted.bands]
    return _Values(replace(own.sensor, name=wanted.name, bands=wanted.bands), own.values[:, order], own.valid)


def _read_radar(frame: pd.DataFrame, name: str, bands: dict[str, str], options: TableOptions, path: Path) -> _Values:
    """Backscatter in dB, whatever the table has it in."""
    numbers = np.stack([numbers_of(frame[column], path) for column in bands.values()], axis=1)
    valid = (is_number(numbers) & ~np.isin(numbers, options.nodata)).all(axis=1)
    valid &= (numbers != 0).any(axis=1)
    if not valid.any():
        why = f"{', '.join(bands.values())} have no value together"
        remedy = "check them and --nodata, or leave them out with --bands"
        raise InputError("no valid observation of radar", path=path, why=why, remedy=remedy)
    kinds = {}
    for place, column in enumerate(bands.values()):
        try:
            kinds[column] = backscatter_kind(numbers[valid, place])
        except ValueError as failure:
            raise InputError(
                f"unclear backscatter in '{column}'", path=path, why=str(failure), remedy=DECIBELS
            ) from None
    if len(set(kinds.values())) > 1:
        why = ", ".join(f"{column} is {kind}" for column, kind in kinds.items())
        raise InputError("decibels and linear power are mixed", path=path, why=why, remedy=DECIBELS)
    decibels = to_decibels(numbers, next(iter(kinds.values())))
    valid &= np.isfinite(decibels).all(axis=1)
    description = BACKSCATTER_KINDS[next(iter(kinds.values()))]
    event(f"{path.name}: {name} {' '.join(bands)} taken for {description}, stored in dB")
    values = decibel_counts(decibels)
    values[~valid] = 0
    return _Values(Sensor(name, tuple(bands), DECIBEL_SCALE, DECIBEL_OFFSET), values, valid)


def _read_context(
    frame: pd.DataFrame,
    columns: Columns,
    options: TableOptions,
    path: Path,
    days: NDArray[np.int32],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
) -> NDArray[np.float32] | None:
    """(rows, D) in the order of the rows: columns, and the warmth so far; a gap has the value before or after it."""
    named = [*columns.context.values(), *([columns.temperature] if columns.temperature is not None else [])]
    if not named:
        return None
    layers = []
    sample = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for column in named:
        numbers = numbers_of(frame[column], path)
        known = pd.Series(np.where(np.isin(numbers, options.nodata), np.nan, numbers)[order])
        by_sample = known.groupby(sample)
        filled = by_sample.ffill().fillna(by_sample.bfill())
        if filled.isna().all():
            why = "it has no value"
            raise InputError(f"nothing in the column '{column}'", path=path, why=why, remedy="leave it out")
        layers.append(filled.fillna(filled.median()).to_numpy(np.float64))
    if columns.temperature is not None:
        try:
            daily = to_celsius(layers.pop())
        except ValueError as failure:
            what = f"no temperature in the column '{columns.temperature}'"
            raise InputError(what, path=path, why=str(failure), remedy="give degrees, or kelvins") from None
        layers.append(options.warmth.of_rows(days[order], daily, starts))
    return np.stack(layers, axis=1).astype(np.float32)


def _without_empty_bands(frame: pd.DataFrame, columns: Columns, options: TableOptions, path: Path) -> Columns:
    """Leave out bands that were guessed and have no value in any row: such a column would take all others down."""
    empty = {
        band: column
        for band, column in columns.bands.items()
        if len(frame) and not _usable_values(frame[column], band, options, path)[1].any()
    }
    if not empty:
        return columns
    listed = ", ".join(f"{column} ({band})" if column != band else band for band, column in empty.items())
    if options.bands:
        why = f"{listed} hold nodata in every row"
        raise InputError("a band without any value", path=path, why=why, remedy="leave it out of --bands")
    if len(empty) == len(columns.bands) and not columns.radar:
        why = f"all bands hold nodata in every row: {listed}"
        raise InputError("no valid observation", path=path, why=why, remedy="check the band columns and --nodata")
    logger.warning("%s: left out, nodata in every row: %s", path.name, listed)
    return replace(columns, bands={band: column for band, column in columns.bands.items() if band not in empty})


def _usable_values(
    column: pd.Series[Any], band: str, options: TableOptions, path: Path
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """A band's values, and which of them are not nodata; of Sentinel-2's bands none is below zero."""
    numbers = numbers_of(column, path)
    with np.errstate(over="ignore"):
        values = numbers.astype(np.float32)
    usable = is_number(values) & ~np.isin(numbers, options.nodata)
    return values, usable & ~(numbers < 0) if band in SENTINEL2 else usable


def _read_values(frame: pd.DataFrame, columns: Columns, options: TableOptions, path: Path) -> _Values:
    """An observation is valid when every band has a value."""
    values = np.zeros((len(frame), len(columns.bands)), dtype=np.float32)  # (rows, C)
    valid = np.ones(len(frame), dtype=bool)
    for place, (band, column) in enumerate(columns.bands.items()):
        values[:, place], usable = _usable_values(frame[column], band, options, path)
        valid &= usable
    if set(columns.bands) <= set(SENTINEL2) and len(columns.bands) > 1:
        valid &= values.any(axis=1)  # zero in all bands is Sentinel-2's nodata
    if columns.mask is not None:
        valid &= usable_observations(frame[columns.mask], path)
    if not valid.any():
        why = f"{len(frame)} rows have a missing band, nodata or a mask"
        raise InputError("no valid observation", path=path, why=why, remedy="check the band columns and --nodata")
    values[~valid] = 0
    whole = fits_uint16(values)
    scale = options.scale if options.scale is not None else guess_scale(values[valid], whole, path)
    name = OPTICAL if set(columns.bands) <= set(SENTINEL2) else "optical"
    sensor = Sensor(name, tuple(columns.bands), scale, options.offset)
    return _Values(sensor, values.astype(np.uint16) if whole else values, valid)


def guess_scale(values: NDArray[np.float32], whole: bool, path: Path) -> float:
    """Guess whether values are reflectance or 10,000 times that; anything else is refused."""
    some = values[:: max(values.size // LOOKED_AT, 1)]
    typical = float(np.percentile(some, 95))  # a few bright clouds decide nothing
    if not whole and 0 <= typical <= 1.5:
        return 1.0
    if (whole or typical >= 200) and 0 <= typical <= 20_000:
        return SCALE
    why = f"95 % of the values are below {typical:g}, neither reflectance nor 10000 times as much"
    raise UsageError(
        "the scale is not clear", path=path, why=why, remedy="give it with --scale: reflectance = value * scale"
    )


def usable_observations(column: pd.Series[Any], path: Path) -> NDArray[np.bool_]:
    """A column called SCL is Sentinel-2's scene classification, in one called valid or clear 0 means unusable,
    and in any other one 0 means usable. Without a value an observation is not usable."""
    name, numbers = str(column.name), numbers_of(column, path)
    if SCENE_CLASSES_NAME.fullmatch(name):
        return clear_sky(numbers)
    good: NDArray[np.bool_] = numbers != 0 if GOOD_WORDS.search(name) else numbers == 0
    return good & ~np.isnan(numbers)


def numbers_of(column: pd.Series[Any], path: Path) -> NDArray[np.float64]:
    """A column as numbers, NaN where there is none."""
    if not pd.api.types.is_numeric_dtype(column.dtype):
        plain = column.astype(object)
        try:
            numbers = pd.to_numeric(plain, errors="coerce")
        except OverflowError:  # of a whole number with hundreds of digits, which "coerce" does not cover
            numbers = plain.map(_number_or_nan).astype(np.float64)
        strange = (numbers.isna() & plain.notna()).to_numpy()
        if strange.any():
            row = int(np.argmax(strange))
            why = f"'{str(plain.iloc[row])[:40]}' in row {row + 1} of column '{column.name}'"
            raise InputError("text among the numbers", path=path, why=why, remedy="correct it or leave it empty")
        column = numbers
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _number_or_nan(value: Any) -> float:
    try:
        return float(value)
    except (OverflowError, TypeError, ValueError):
        return float("nan")


# --- Columns of text as numbers: each different value once, each row the number of its value

MISSING = -1
OLDEST, NEWEST = 1900, 2199  # years of observations
WHOLE_NUMBER = re.compile(r"-?\d+\.0")


@dataclass(frozen=True)
class _CodedColumn:
    """`texts[codes[row]]` is the value of a row; a code of MISSING means that it has none."""

    codes: NDArray[np.int64]
    texts: list[str]

    def row_of(self, code: int) -> int:
        """The first row with a value, counted from 1 as people do."""
        return int(np.argmax(self.codes == code)) + 1

    def require_complete(self, what: str, path: Path, remedy: str) -> None:
        if MISSING in self.codes:
            raise InputError(f"no {what}", path=path, why=f"row {self.row_of(MISSING)} has none", remedy=remedy)


def encode_texts(column: pd.Series[Any], path: Path) -> _CodedColumn:
    """Any column as texts without blanks around them; whole numbers are written without a decimal point."""
    try:
        codes, values = pd.factorize(column)
    except TypeError:
        raise InputError(f"the column '{column.name}' holds neither text nor numbers", path=path) from None
    try:
        texts = [value.decode("utf-8") if isinstance(value, bytes) else str(value) for value in values]
    except UnicodeDecodeError:
        what = f"the column '{column.name}' holds text that is not UTF-8"
        raise InputError(what, path=path, remedy="write the table again") from None
    texts = [text.strip() for text in texts]
    if all(WHOLE_NUMBER.fullmatch(text) for text in texts):
        texts = [text.removesuffix(".0") for text in texts]  # whole numbers became fractions beside a missing one
    numbers = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text))}
    lookup = np.array([*(numbers.get(text, MISSING) for text in texts), MISSING], dtype=np.int64)
    return _CodedColumn(lookup[codes], list(numbers))  # a missing value has the code -1: the last of the lookup


def _nothing_anywhere(rows: int) -> _CodedColumn:
    """A column without any value."""
    return _CodedColumn(np.full(rows, MISSING, dtype=np.int64), [])


def _same_everywhere(rows: int) -> _CodedColumn:
    """A column of one value."""
    return _CodedColumn(np.zeros(rows, dtype=np.int64), [""])


def encode_days(column: pd.Series[Any], path: Path) -> NDArray[np.int32]:
    """Days since 1970-01-01, as written: no time zone moves an image to another day."""
    remedy = "write dates as YYYY-MM-DD"
    dates = encode_texts(column, path)
    dates.require_complete("date", path, remedy)
    days = np.zeros(len(dates.texts), dtype=np.int32)
    for code, text in enumerate(dates.texts):
        try:
            day = parse_day(text)
            if day is None or not OLDEST <= day.year <= NEWEST:
                raise ValueError
            days[code] = (day - EPOCH).days
        except ValueError:
            why = f"'{text[:40]}' in row {dates.row_of(code)} of column '{column.name}'"
            raise InputError("not a date", path=path, why=why, remedy=remedy) from None
    return days[dates.codes]
