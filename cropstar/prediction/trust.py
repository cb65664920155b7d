"""How far a map can be trusted: the test figures for the day that it stands at, and what the test does not cover.

Images of another year or region than the model was tested on, of too few dates, or whose values do not look like those
of the training are said to be so, in the log, in the tags of the map, under its picture and on its page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import CropstarError
from cropstar.geo.calendar import Season, from_days, season_days, to_days
from cropstar.geo.grid import Grid, degrees_of
from cropstar.geo.windows import Window
from cropstar.models.novelty import ABOVE, UNKNOWN, calendars_from, missing_dates
from cropstar.prediction.request import MapOptions
from cropstar.registry import short_list
from cropstar.reports.record import LATE, TestRecord
from cropstar.reports.results import RESULT, read_result
from cropstar.reports.wording import plural
from cropstar.runtime import event, logger
from cropstar.sources.base import Series
from cropstar.store.classes import NOT_A_FIELD
from cropstar.store.model_file import ModelCard
from cropstar.store.store import Store

RECORD = "record"  # of the provenance of a model card
KILOMETRES_PER_DEGREE = 111.2
COUNTED = "Hectares are counted pixels, with the errors of the map in them"
TO_LEAVE_OUT = "use --mask, --only-parcels or --unknown to leave out what is none of them"
FEW = 2 / 3  # of the dates that training had by then
MISSING = 0.25  # of the dates that training had by then, where the model never learnt to do without some


@dataclass(frozen=True)
class Trust:
    """The accuracy and caveats of a map."""

    model: str = ""  # what made it
    accuracy: str = ""  # the test figures; "" where none are known
    caveats: tuple[str, ...] = ()
    note: str = ""  # of every pixel that is not a crop and yet mapped as one

    def tags(self) -> dict[str, str]:
        tags = {
            "CROPSTAR_ACCURACY": self.accuracy,
            "CROPSTAR_CAVEATS": " | ".join(self.caveats),
            "CROPSTAR_NOTE": self.note,
        }
        return {name: text for name, text in tags.items() if text}

    def announce(self) -> None:
        if self.accuracy:
            event(self.accuracy)
        for caveat in self.caveats:
            logger.warning("%s", caveat)
        if self.note:
            event(f"{self.note} ({TO_LEAVE_OUT})")


def read_record(card: ModelCard, model: Path) -> TestRecord | None:
    """The record of a model, of its card or, of older ones, of the run that its file lies in."""
    stored = card.provenance.get(RECORD)
    if isinstance(stored, dict):
        return TestRecord.from_json(stored)
    if not (model.parent / RESULT).is_file():
        return None
    try:
        return TestRecord.of_result(read_result(model.parent), card.fingerprint.season)
    except (CropstarError, OSError, KeyError, TypeError, ValueError, IndexError, AttributeError):
        return None


def judge_trust(
    card: ModelCard, model: Path, dates: Sequence[date], series: Series, options: MapOptions | None = None
) -> Trust:
    """The accuracy and caveats of a map; `dates` are all dates of the map, including those of a state."""
    options = options or MapOptions()
    classes = card.fingerprint.classes
    note = f"every pixel is given one of {len(classes)} classes, woods and houses too"
    if options.marks or NOT_A_FIELD in classes.names:
        note = ""
    strange, record = value_caveats(card, series), read_record(card, model)
    if record is None:
        return replace(_untested(card, model, strange), note=note)
    day = day_of_season(dates, card.fingerprint.season)
    elsewhere = [*_other_years(record, dates), *_other_region(record, series.grid)]
    warnings = [*elsewhere, *_few_dates(card, record, len(dates), dates[-1], day)]
    if record.unit == "parcel" and not options.only_parcels:
        warnings.append("the test was of parcels, each by its mean series: single pixels were not tested")
    if options.unknown is not None:
        warnings += _broken_promise(card, record, dates, options.unknown, elsewhere=bool(elsewhere))
    return replace(_tested(card, model, record, day, strange, warnings, covered=not (strange or elsewhere)), note=note)


def judge_tables(card: ModelCard, model: Path, store: Store) -> Trust:
    """The accuracy and caveats of the classes of a store of series, by its last date and the usual number of dates."""
    strange, record = series_caveats(card, store), read_record(card, model)
    if record is None:
        return _untested(card, model, strange)
    counts, spans = [], []
    for reader in store.tiles:
        starts = reader.starts
        own = np.diff(starts)
        counts.append(own[own > 0])
        spans.append(reader.days[np.stack([starts[:-1], starts[1:] - 1], axis=1)[own > 0]].reshape(-1, 2))
    seen, lengths = np.concatenate(spans), np.concatenate(counts)
    if not len(seen):
        return _untested(card, model, strange)
    day = int(season_days(seen, card.fingerprint.season)[:, 1].max())
    dates = from_days(np.unique(np.concatenate([reader.observed_days for reader in store.tiles])))
    elsewhere = _other_years(record, dates)
    warnings = [*elsewhere, *_few_dates(card, record, int(np.median(lengths)), dates[-1], day)]
    return _tested(card, model, record, day, strange, warnings, covered=not (strange or elsewhere))


def _file(card: ModelCard, model: Path) -> str:
    """The model's name and file, not the folders of this machine: pages are passed on."""
    return f"{card.model.get('name', 'ensemble')} {model.parent.name}/{model.name}"


def _untested(card: ModelCard, model: Path, strange: Sequence[str]) -> Trust:
    return Trust(_file(card, model), "", (*strange, "no test figures are known of this model file"))


def _tested(
    card: ModelCard,
    model: Path,
    record: TestRecord,
    day: int,
    strange: Sequence[str],
    warnings: list[str],
    *,
    covered: bool,
) -> Trust:
    names = card.fingerprint.classes.names
    if len(names) == 1:
        warnings.append(f"the model knows one class: all becomes {names[0]}, and its accuracy means nothing")
    if record.absent:
        warnings.append(
            f"no test parcel of {short_list(record.absent, 8)}: nothing is known of how well "
            f"{'it is' if len(record.absent) == 1 else 'they are'} mapped"
        )
    made = f"{_file(card, model)}, trained on {record.store} of {record.year_text}"
    return Trust(made, record.headline(day, covered=covered), (*strange, *warnings))


def day_of_season(dates: Sequence[date], season: Season) -> int:
    """The day that a map stands at: that of its last date, counted from the start of the season."""
    return int(season_days(to_days(dates)[None], season)[0, -1])


def describe_model(card: ModelCard, model: Path) -> str:
    """A line on the model that a command chose by itself."""
    record = read_record(card, model)
    classes = plural(len(card.fingerprint.classes), "class", "classes")
    origin = "" if record is None else f", trained on {record.store} of {record.year_text}"
    return f"model   {model}: {card.model.get('name', 'ensemble')}{origin}, for {classes}"


def _other_years(record: TestRecord, dates: Sequence[date]) -> list[str]:
    others = sorted({day.year for day in dates} - set(record.years))
    if not record.years or not others:
        return []
    years = ", ".join(map(str, others))
    return [f"these images are of {years}, the test was of {record.year_text}: its figures do not cover another year"]


def _other_region(record: TestRecord, grid: Grid) -> list[str]:
    box = degrees_of(grid)
    if record.bounds is None or box is None:
        return []
    west, south, east, north = record.bounds
    apart_x = max(west - box[2], box[0] - east, 0.0) * np.cos(np.radians((box[1] + box[3]) / 2))
    apart_y = max(south - box[3], box[1] - north, 0.0)
    kilometres = float(np.hypot(apart_x, apart_y)) * KILOMETRES_PER_DEGREE
    if kilometres < 1:
        return []
    return [f"the map lies {kilometres:,.0f} km from the parcels of the test: its figures do not cover another region"]


def _few_dates(card: ModelCard, record: TestRecord, count: int, last: date, day: int) -> list[str]:
    length, season = int(card.shape.get("length", 0)), card.fingerprint.season
    elapsed = min(max(day, 0) / max(season.length, 1), 1.0)
    warnings = []
    if not record.covers(day):
        ends = f"the images end on {last}, day {day} of a season of {season.length}"
        warnings.append(f"{ends}: the test was of whole seasons alone")
    if card.provenance.get("regular") is None and count < FEW * length * elapsed:
        few = f"{plural(count, 'date')}, where training had up to {length} in a season"
        warnings.append(f"{few}: expect a lower accuracy than tested")
    return warnings


def _broken_promise(
    card: ModelCard, record: TestRecord, dates: Sequence[date], rate: float, *, elsewhere: bool
) -> list[str]:
    """A warning where more crops may be unknown than --unknown says: it is learnt for fields and dates of the training.

    A state depends on which dates it saw. Without a scale for hidden dates, as in older model files, images of half of
    the dates made five times as many crops unknown.
    """
    own = season_days(to_days(dates)[None], card.fingerprint.season)[0]
    stored = (card.calibration or {}).get(UNKNOWN, {})
    stages = stored.get("days", ())
    missing, learnt = missing_dates(stages, calendars_from(stored), own)
    shares = [float(row["share"]) for row in stored.get("hidden", ())]
    most = max(shares) + ABOVE if shares else MISSING
    why = ["images of another year or region"] if elsewhere else []
    if record.unit == "parcel":
        why.append("the model learnt from mean series of parcels, not from pixels")
    if missing > most * learnt:
        why.append(f"{missing} of {learnt} dates that training had by then have no image here")
    elif len(stages) == 1 and stages[0] - int(own[-1]) > LATE:
        why.append("the model learnt whole seasons alone")
    if not why:
        return []
    return [f"more than {rate:.3g} of the crops may be unknown, --unknown is not promised here: {'; '.join(why)}"]


# --- values unlike those of the training
#
# Means and spreads of each band over some windows of the scene, beside those of the training parcels. A scene has
# more than parcels, and an early map fewer months: a band may lie one spread away for good reasons. What lies further
# has a cause that is worth a warning; the usual ones are known by their pattern.

PER_SIDE, SIDE = 2, 64  # windows that are looked at, across and down, and their pixels a side
FAR = 1.5  # standard deviations
WIDE = 4.0  # times the spread
LEAST = 200  # observations
MOST_ROWS = 100_000  # of series that are looked at
VISIBLE = ("B01", "B02", "B03", "B04")


def value_caveats(card: ModelCard, series: Series) -> list[str]:
    """A warning where bands of a series are far from what the model was trained on; empty where they are not."""
    found = measure_bands(card, series)
    return [] if found is None else _band_caveats(card, *found)


def series_caveats(card: ModelCard, store: Store) -> list[str]:
    """The same of a store of series."""
    own, bands = store.fingerprint, card.fingerprint.bands
    if card.fingerprint.sensors or own.sensors or not set(bands) <= set(own.bands):
        return []
    chosen = [own.bands.index(band) for band in bands]
    scales, offsets = (np.broadcast_to(each, len(own.bands))[chosen] for each in (own.scales, own.offsets))
    parts = []
    for reader in store.tiles:
        values, valid, _ = reader.series
        some = slice(None, None, max(len(values) * len(store.tiles) // MOST_ROWS, 1))
        parts.append(values[some][valid[some]][:, chosen] * scales + offsets)
    seen = np.concatenate(parts)
    return _band_caveats(card, seen.mean(axis=0), seen.std(axis=0)) if len(seen) >= LEAST else []


def _band_caveats(card: ModelCard, mean: NDArray[np.float64], spread: NDArray[np.float64]) -> list[str]:
    bands = card.fingerprint.bands
    learnt, deviation = np.array(card.normalisation.mean), np.array(card.normalisation.deviation)
    away, ratio = (mean - learnt) / deviation, spread / deviation
    strange = np.flatnonzero((np.abs(away) > FAR) | (ratio > WIDE) | (ratio < 1 / (2 * WIDE)))
    if not len(strange):
        return []
    order = strange[np.argsort(-np.abs(away[strange]), kind="stable")]
    shown = (f"{bands[each]} {mean[each]:.3f} (training {learnt[each]:.3f} ± {deviation[each]:.3f})" for each in order)
    reason = likely_reason(bands, mean, learnt, deviation)
    return [f"band means are unlike those of the training images, {short_list(shown, 4)}: {reason}"]


def likely_reason(bands: Sequence[str], mean: NDArray[Any], learnt: NDArray[Any], deviation: NDArray[Any]) -> str:
    """The usual cause of such a pattern, in words."""
    shift = mean - learnt
    typical = float(np.median(shift))
    even = bool(np.all(np.abs(shift - typical) < np.maximum(0.5 * abs(typical), 1.5 * deviation)))
    ratio = float(np.median(mean / np.maximum(learnt, 1e-6)))
    if even and 0.06 <= typical <= 0.14:
        return "an offset of +0.1, as of Sentinel-2 products since 2022 whose offset of -1000 was not applied?"
    if even and -0.14 <= typical <= -0.06:
        return "an offset of -0.1: was the -1000 of Sentinel-2 products applied twice?"
    if ratio > 20 or ratio < 1 / 20:
        return f"values are {ratio:.3g} times as large: another scale (reflectance x 10000, or not)?"
    visible = [place for place, band in enumerate(bands) if band.upper() in VISIBLE]
    others = [place for place in range(len(bands)) if place not in visible]
    if visible and others and shift[visible].min() > 0.02 and abs(np.median(shift[others])) < shift[visible].max():
        return "visible bands are too bright: Level-1C, without atmospheric correction, or haze?"
    return "another sensor, season or landscape, or other units?"


def measure_bands(card: ModelCard, series: Series) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Mean and spread of each of the model's bands over some windows; None where hardly anything was seen."""
    if card.fingerprint.sensors or not set(card.fingerprint.bands) <= set(series.bands):
        return None  # of several sensors each has bands and statistics of its own
    chosen = [series.bands.index(band) for band in card.fingerprint.bands]
    count, total, squares = 0, np.zeros(len(chosen)), np.zeros(len(chosen))
    for window in sample_windows(series.grid):
        observed = series.read(window)
        values = observed.values[:, chosen].astype(np.float64) * series.scale + series.offset  # (T, C, h, w)
        seen = np.moveaxis(values, 1, -1)[observed.valid]  # (n, C)
        count += len(seen)
        total += seen.sum(axis=0)
        squares += np.square(seen).sum(axis=0)
    if count < LEAST:
        return None
    mean = total / count
    return mean, np.sqrt(np.maximum(squares / count - np.square(mean), 0))


def sample_windows(grid: Grid) -> list[Window]:
    """Small windows spread evenly over a grid."""
    height, width = min(SIDE, grid.height), min(SIDE, grid.width)
    places = (np.arange(PER_SIDE) + 0.5) / PER_SIDE
    tops = sorted({int(place * (grid.height - height)) for place in places})
    lefts = sorted({int(place * (grid.width - width)) for place in places})
    return [Window(top, left, height, width) for top in tops for left in lefts]
