"""What a training result says, picked out for the report: rows of tables and plain sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cropstar.geo.ground import SQUARE_METRES_PER_HECTARE
from cropstar.reports.judged import Table, unit_of
from cropstar.reports.lettering import printable
from cropstar.reports.wording import DASH, amount, count, duration, is_missing, percent, rate

UNKNOWN_COLOUR = "#9aa39d"
FIRST = ("name", "layers", "hidden", "parameters")
FEW = 10  # below so many test parcels one parcel more or less moves the figures by ten points


def tidy_classes(classes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Names on one line; colours that are colours, since they go into style attributes."""
    return [
        {
            "name": printable(str(entry["name"])) or DASH,
            "colour": str(entry["colour"])
            if re.fullmatch(r"#[0-9a-fA-F]{6}", str(entry["colour"]))
            else UNKNOWN_COLOUR,
        }
        for entry in classes
    ]


@dataclass(frozen=True)
class Confusion:
    """One kind of mistake: so many parcels, or pixels, of one crop mapped as another."""

    true: dict[str, Any]
    mapped: dict[str, Any]
    number: int
    total: int

    @property
    def share(self) -> str:
        return percent(self.number / self.total)


def worst_confusions(confusion: list[list[int]], classes: list[dict[str, Any]], most: int = 5) -> list[Confusion]:
    """The most frequent mistakes."""
    mistakes = [
        Confusion(classes[row], classes[column], number, sum(counts))
        for row, counts in enumerate(confusion)
        for column, number in enumerate(counts)
        if row != column and number
    ]
    return sorted(mistakes, key=lambda mistake: (-mistake.number, mistake.total))[:most]


def class_rows(classes: list[dict[str, Any]], shown: Sequence[Table]) -> list[dict[str, Any]]:
    """A row for each class with its figures in each table."""
    rows = []
    for number, entry in enumerate(classes):
        figures = [{**table.figures["classes"][number], "unit": table.unit} for table in shown]
        supports = [own["support"] for own in figures if own["unit"] == "parcel"]
        few = any(not is_missing(support) and support < FEW for support in supports)
        rows.append({**entry, "figures": figures, "few": few})
    return rows


def extremes(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The classes with the best and the worst F1 in the main table; those with few test parcels prove neither."""
    judged = [row for row in rows if not is_missing(row["figures"][0]["f1"]) and not row["few"]]
    ranked = sorted(judged, key=lambda row: float(row["figures"][0]["f1"]))
    if not ranked or ranked[0]["figures"][0]["f1"] == ranked[-1]["figures"][0]["f1"]:  # nothing to choose between
        return None
    return ranked[-1], ranked[0]


def split_rows(classes: list[dict[str, Any]], counts: dict[str, list[int]]) -> list[dict[str, Any]]:
    """Parcels of each class in each part, and in all."""
    parts = zip(counts["train"], counts["validation"], counts["test"], strict=True)
    return [{**entry, "counts": [*numbers, sum(numbers)]} for entry, numbers in zip(classes, parts, strict=True)]


def facts(data: dict[str, Any]) -> list[tuple[str, str]]:
    """What the model learned from."""
    dates = sorted(str(date) for date in data["dates"])
    period = f"{len(dates)} from {dates[0]} to {dates[-1]}" if len(dates) > 1 else ", ".join(dates) or DASH
    resolution = data["resolution"]
    return [
        ("store", str(data["store"])),
        ("dates", period),
        ("bands", ", ".join(str(band) for band in data["bands"]) or DASH),
        ("tiles", count(data["tiles"])),
        ("pixel size", DASH if is_missing(resolution) or not resolution else f"{resolution:g} m"),
    ]


def settings(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The model's own settings, what it is first; those that were left open do not concern it."""
    first = [key for key in FIRST if key in values]
    ordered = {key: values[key] for key in [*first, *values] if values[key] is not None}
    return [(key.replace("_", " "), _in_words(value)) for key, value in ordered.items()]


def _in_words(value: Any) -> str:
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(_in_words(item) for item in value) or DASH
    return f"{value:g}" if isinstance(value, float) else str(value)


def interval_words(figures: dict[str, Any]) -> dict[str, str]:
    """The 95 % intervals of the main figures in words, empty where there is none."""
    known = figures.get("intervals", {})
    accuracy, f1 = known.get("overall_accuracy"), known.get("macro_f1")
    return {
        "overall_accuracy": f"{100 * accuracy[0]:.0f}\u2013{100 * accuracy[1]:.0f} %" if accuracy else "",
        "macro_f1": f"{f1[0]:.2f}\u2013{f1[1]:.2f}" if f1 else "",
    }


def costs(data: dict[str, Any]) -> list[tuple[str, str]]:
    """Time, speed and memory; of pixels also the ground that they cover."""
    throughput, unit = data["throughput"], unit_of(data["test"])
    speed, resolution = throughput["samples_per_second"], data["data"]["resolution"]
    what = {"pixel": "labelled pixels", "parcel": "series", "date": "series"}[unit]
    said = f"{rate(speed)} {what} a second" if not is_missing(speed) else DASH
    if unit == "pixel" and not is_missing(speed) and not is_missing(resolution) and resolution > 0:
        said += f", {rate(speed * resolution**2 / SQUARE_METRES_PER_HECTARE)} ha a second"
    return [
        ("training time", duration(throughput["seconds"])),
        ("speed", said),
        ("peak memory", amount(throughput["peak_memory_mb"], "MB")),
    ]
