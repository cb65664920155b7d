"""The record of a model: what it was tested on, and how it did, day by day of the season.

It is part of the model's card, so that a map can say how far it can be trusted wherever the model file went. For model
files of older versions it is made of the result of their run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cropstar.geo.calendar import Season
from cropstar.geo.grid import Grid, degrees_of
from cropstar.reports.wording import plural
from cropstar.store.store import Store

Bounds = tuple[float, float, float, float]  # west, south, east, north, in degrees

FEW_TESTED = 30  # fields: with fewer, the standard error of an accuracy of 0.9 is above five points
LATE = 25  # days before the season's end from which a model of whole seasons has not been tested


@dataclass(frozen=True)
class TestRecord:
    """How a model did on test parcels."""

    __test__ = False  # not a test of pytest's

    store: str  # its name
    years: tuple[int, ...]
    season: tuple[int, int]  # first day of the year and length in days
    parcels: int  # of the test
    unit: str  # what the first two figures count: pixel, date or parcel
    accuracy: float | None
    macro_f1: float | None
    parcel_accuracy: float | None
    parcel_macro_f1: float | None
    classes: int  # with test parcels
    absent: tuple[str, ...]  # classes without any
    bounds: Bounds | None = None
    days: tuple[int, ...] = ()  # since the season's start, with the figures of maps that end by then
    accuracy_by_day: tuple[float | None, ...] = ()
    macro_f1_by_day: tuple[float | None, ...] = ()
    too_optimistic: bool = False  # pixels of test fields were trained on
    out_of_fold: int = 0  # models that judged all fields, each those that it never saw; 0: a test part

    @classmethod
    def of_result(cls, result: Mapping[str, Any], season: Season, bounds: Bounds | None = None) -> TestRecord:
        """From the result of a run."""
        test, parts = result["test"], result["split"]["counts"]
        counts, there = parts["test"], [any(own) for own in zip(*parts.values(), strict=True)]
        names = [row["name"] for row in result["classes"]]
        early = result.get("earliness") or {}
        unit = str(test.get("unit") or ("pixel" if result["data"]["resolution"] else "parcel"))
        first = test["parcel" if unit == "parcel" else "pixel"]  # a series without a grid is a parcel
        return cls(
            store=str(result["data"]["store"]).replace("\\", "/").rstrip("/").rpartition("/")[2],
            years=tuple(sorted({int(day[:4]) for day in result["data"]["dates"]})),
            season=(season.start, season.length),
            parcels=int(sum(counts)),
            unit=unit,
            accuracy=first["overall_accuracy"],
            macro_f1=first["macro_f1"],
            parcel_accuracy=test["parcel"]["overall_accuracy"],
            parcel_macro_f1=test["parcel"]["macro_f1"],
            classes=sum(number > 0 for number in counts),
            absent=tuple(name for name, own, any_ in zip(names, counts, there, strict=True) if any_ and not own),
            bounds=bounds,
            days=tuple(early.get("days", ())),
            accuracy_by_day=tuple(early.get("accuracy", ())),
            macro_f1_by_day=tuple(early.get("macro_f1", ())),
            too_optimistic=result["split"].get("by") == "pixel",
            out_of_fold=int(result["split"].get("out_of_fold") or 0),
        )

    def to_json(self) -> dict[str, Any]:
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> TestRecord | None:
        """The record from a model card; None if it cannot be read."""
        try:
            given: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
            record = cls(**given)
            if len(record.days) != len(record.accuracy_by_day) or len(record.days) != len(record.macro_f1_by_day):
                return None
            if not all(isinstance(day, int) for day in (*record.days, *record.years, *record.season, record.parcels)):
                return None
            figures = (record.accuracy, record.macro_f1, *record.accuracy_by_day, *record.macro_f1_by_day)
            if not all(figure is None or isinstance(figure, float | int) for figure in figures):
                return None
        except TypeError:
            return None
        return record

    def is_of(self, result: Mapping[str, Any]) -> bool:
        """Whether a result of a run is the one that this record was made of."""
        told = TestRecord.of_result(result, Season(*self.season), self.bounds)
        return told == self

    @property
    def year_text(self) -> str:
        years = [str(year) for year in self.years]
        return years[0] if len(years) == 1 else f"{years[0]} to {years[-1]}" if years else "no year"

    def figures_by(self, day: int) -> tuple[float | None, float | None] | None:
        """Accuracy and macro-F1 of maps that end by a day of the season; None where that was not tested.

        The figures of the last day that is not later are those of the dates that were there by then.
        """
        known = [place for place, own in enumerate(self.days) if own <= day]
        if not known:
            return None
        return self.accuracy_by_day[known[-1]], self.macro_f1_by_day[known[-1]]

    def covers(self, day: int) -> bool:
        """Whether maps that end by a day of the season were tested; those of its last weeks count as whole seasons."""
        return bool(self.days) or self.season[1] - day <= LATE

    def headline(self, day: int | None = None, *, covered: bool = True) -> str:
        """The figures in one line; with a `day` before the end of the season, those of maps that end by then.

        `covered` says whether the test is valid for the images that it is quoted for.
        """
        seen = f"on {plural(self.parcels, 'parcel')} that training never saw"
        if self.out_of_fold:
            seen = f"on all {self.parcels} parcels, each by a model of {self.out_of_fold} that never saw it"
        if self.too_optimistic:
            seen = "on pixels of fields that training has seen, which is too optimistic"
        if not covered:
            seen += ", not valid for these images"
        over = "" if not self.absent else f" over {self.classes} of {self.classes + len(self.absent)} classes"
        whole = self._whole(over)
        if self._few:
            seen += ", too few to rely on"
        if day is None or (self.days and day >= self.season[1]) or (not self.days and self.covers(day)):
            return f"{seen}: {whole}"
        if not self.days:
            return f"{seen}, at the end of the season, not by its day {day}: {whole}"
        early = self.figures_by(day)
        at_end = whole if self._few or self.accuracy is None else f"{self.accuracy:.3f}"
        until = f"for maps that end by day {day} of the season (at its end {at_end})"
        if early is None:
            return f"{seen}: no figure {until}"
        unit = "pixel" if self.unit == "pixel" else "parcel"
        figures = f"{_figures(*early)}{over} by {unit}"
        if self._few and early[0] is not None:
            figures = (
                f"{early[0]:.0%} of their {unit}s right{over}" if unit == "pixel" else f"{early[0]:.0%} right{over}"
            )
        return f"{seen}: {figures} {until}"

    @property
    def _few(self) -> bool:
        return self.parcels < FEW_TESTED and not self.too_optimistic

    def _whole(self, over: str) -> str:
        """The figures of whole seasons. Of a few parcels a share right says more than three digits."""
        if self._few and self.parcel_accuracy is not None:
            right = round(self.parcel_accuracy * self.parcels)
            low, high = wilson_interval(right, self.parcels)
            return f"{right} of {self.parcels} right{over}, an accuracy of {low:.2f} to {high:.2f} at 95 % confidence"
        by_parcel = f"{self._of_parcels()}{over if self.unit == 'parcel' else ''} by parcel"
        if self.unit == "parcel":
            return by_parcel
        return f"{_figures(self.accuracy, self.macro_f1)}{over} by {self.unit}; {by_parcel}"

    def _of_parcels(self) -> str:
        """The figures by parcel, the accuracy with its interval: pixels of a parcel are no independent sample."""
        interval = ""
        if self.parcel_accuracy is not None and not self.too_optimistic:
            low, high = wilson_interval(round(self.parcel_accuracy * self.parcels), self.parcels)
            interval = f" ({low:.2f} to {high:.2f} at 95 % confidence)"
        return _figures(self.parcel_accuracy, self.parcel_macro_f1, interval)


def wilson_interval(right: int, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share (Wilson 1927)."""
    if not count:
        return 0.0, 1.0
    z2 = 1.96**2
    share, scale = right / count, 1 + z2 / count
    middle, half = share + z2 / (2 * count), math.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count)
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


def _figures(accuracy: float | None, macro_f1: float | None, interval: str = "") -> str:
    figures = [] if accuracy is None else [f"overall accuracy {accuracy:.3f}{interval}"]
    figures += [] if macro_f1 is None else [f"macro-F1 {macro_f1:.3f}"]
    return ", ".join(figures) or "no figure"


def join_bounds(several: Sequence[Bounds]) -> Bounds | None:
    if not several:
        return None
    west, south, east, north = zip(*several, strict=True)
    return min(west), min(south), max(east), max(north)


def boxes_meet(first: Bounds, second: Bounds) -> bool:
    return first[0] < second[2] and second[0] < first[2] and first[1] < second[3] and second[1] < first[3]


def store_bounds(store: Store) -> list[Bounds]:
    """The bounding boxes of a store's scenes, in degrees; empty for tables of series."""
    found = []
    for scene in store.manifest.scenes.values():
        if isinstance(scene.get("grid"), dict) and (bounds := degrees_of(Grid.from_json(scene["grid"]))) is not None:
            found.append(bounds)
    return found
