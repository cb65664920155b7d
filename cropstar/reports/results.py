"""Results of runs: result.json read with care, its figures as tables, and the text of `cropstar evaluate`.

A result may have been edited, or written by another version.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError
from cropstar.reports.wording import DASH, areas, count, cut, percent, plural, printable, score
from cropstar.store.classes import choose_colours
from cropstar.store.gate import ResultRow, checked, read_json

RESULT = "result.json"
CONFIG = "config.yaml"
MAXIMUM_RESULT_BYTES = 256_000_000  # the parcels of each part are listed: ten bytes for each of millions
PARTS = frozenset(
    ("version", "run", "command", "classes", "data", "split", "model", "config", "history", "best_epoch", "test")
) | {"throughput"}


def read_result(folder: Path) -> dict[str, Any]:
    """The content of result.json; a run without one is not finished."""
    path = folder / RESULT
    if not path.is_file():
        if not (folder / CONFIG).exists():
            raise ArtifactError(
                "not a run",
                path=folder,
                why=f"there is no {CONFIG}",
                remedy="give the folder of a run, as in data/runs",
            )
        raise ArtifactError(
            "the run is not finished",
            path=folder,
            why=f"there is no {RESULT}",
            remedy=f"continue it with 'cropstar train --resume {folder}'",
        )
    if path.stat().st_size > MAXIMUM_RESULT_BYTES:
        raise damaged(path, "too large for a result")
    try:
        result = read_json(path)
    except (ValueError, RecursionError) as failure:
        raise damaged(path, str(failure)) from None
    missing = sorted(PARTS - result.keys()) if isinstance(result, dict) else sorted(PARTS)
    if missing:
        raise damaged(path, f"it lacks {', '.join(missing)}")
    assert isinstance(result, dict)
    try:
        checked(ResultRow, result)
    except ValueError as failure:
        raise damaged(path, str(failure)) from None
    return result


def damaged(path: Path, why: str) -> ArtifactError:
    return ArtifactError("the result cannot be read", path=path, why=why, remedy="train again with this version")


# --- figures by parcel, pixel or date

PLURALS = {"parcel": "parcels", "pixel": "pixels", "date": "dates"}
UNKNOWN_COLOUR = "#9aa39d"


@dataclass(frozen=True)
class AccuracyTable:
    """The figures of one way of counting."""

    unit: str  # parcel, pixel or date
    figures: dict[str, Any]
    main: bool  # what the model was trained to get right, or what a reader of a map looks at

    @property
    def many(self) -> str:
        return PLURALS[self.unit]


def unit_of(test: dict[str, Any]) -> str:
    """The unit of the table beside that of parcels; results of earlier versions do not say it."""
    unit = test.get("unit")
    if unit in PLURALS:
        return str(unit)
    same = test["pixel"]["confusion"] == test["parcel"]["confusion"]
    return "parcel" if same else "pixel"  # of series each is a parcel: there was one table, twice


def accuracy_tables(test: dict[str, Any], *, split_by_pixel: bool = False) -> list[AccuracyTable]:
    """The main one first. One table where parcels are all there is."""
    unit = unit_of(test)
    if unit == "parcel":
        return [AccuracyTable("parcel", test["parcel"], main=True)]
    finer_first = split_by_pixel or unit == "date"
    both = [
        AccuracyTable("parcel", test["parcel"], main=not finer_first),
        AccuracyTable(unit, test["pixel"], main=finer_first),
    ]
    return both[::-1] if finer_first else both


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


# --- figures as text

FIGURES = {
    "overall_accuracy": "accuracy",
    "kappa": "kappa",
    "macro_f1": "macro-F1",
    "weighted_f1": "weighted F1",
}
COLUMN_WIDTH = 19
LONGEST_NAME = 40  # letters of a class's name


def format_scores(facts: dict[str, Any]) -> str:
    """The result of `evaluate_model`: figures of each table with their intervals, classes, areas, confidence."""
    model, figures = facts["model"], facts["figures"]
    by_pixel = facts["split"]["by"] == "pixel"
    shown, classes = accuracy_tables(figures, split_by_pixel=by_pixel), tidy_classes(facts["classes"])
    rows = [(f"by {table.unit}", table) for table in shown]
    for level in coarser_levels(figures, split_by_pixel=by_pixel):
        rows += [(f"{level.title}, by {table.unit}", table) for table in level.tables]
    width = max(10, *(len(name) for name, _ in rows))
    lines = [
        f"{model['name']} {model['layers']}\u00d7{model['hidden']}  {model['path']}",
        f"{facts['store']}  {_evaluated_part(facts, shown[0])}",
        "",
        " " * width + "".join(f"{name:>{COLUMN_WIDTH}}" for name in FIGURES.values()),
        *(f"{name:<{width}}{_cells(table.figures)}" for name, table in rows),
    ]
    for table in shown:
        lines += ["", *_classes(table.unit, classes, table.figures)]
    if facts.get("areas"):
        lines += ["", *area_lines(area_table(facts["areas"], classes), LONGEST_NAME)]
    return "\n".join([*lines, *_confidence(facts)])


def _evaluated_part(facts: dict[str, Any], main: AccuracyTable) -> str:
    """The part, and of what it is a part."""
    split, parcels = facts["split"], plural(facts["parcels"], "parcel")
    what = parcels if main.unit == "parcel" else f"{main.many} of {parcels}"
    if facts["part"] == "all":
        return f"all, {what}"
    how = f"the split '{split['name']}'" if split["by"] == "name" else f"a split by {split['by']}"
    known = ", in fields that training has seen" if split["by"] == "pixel" else ""
    return f"{facts['part']} of {how} (seed {split['seed']}), {what}{known}"


def _cells(figures: dict[str, Any]) -> str:
    cells = [with_interval(figures[key], figures["intervals"][key]) for key in FIGURES]
    return "".join(f"{cell:>{COLUMN_WIDTH}}" for cell in cells)


def with_interval(value: float | None, interval: list[float] | None) -> str:
    """A figure with its interval in brackets; alone where there is none."""
    return score(value) + (f" ({score(interval[0])}\u2013{score(interval[1])})" if interval else "")


def _classes(level: str, classes: list[dict[str, Any]], figures: dict[str, Any]) -> list[str]:
    """A line for each class that occurs or was predicted; the others have no figures."""
    rows = list(zip(classes, figures["classes"], figures["intervals"]["class_f1"], strict=True))
    present = [row for row in rows if row[1]["f1"] is not None]
    width = max(10, *(min(len(entry["name"]), LONGEST_NAME) for entry, _, _ in present)) if present else 10
    title = f"by {level}"
    lines = [f"{title:<{width}}  precision  recall  {'F1 (95 %)':>17}     IoU  {level + 's':>9}"]
    for entry, row, interval in present:
        name = cut(entry["name"], LONGEST_NAME)
        lines.append(
            f"{name:<{width}}  {score(row['precision']):>9}  {score(row['recall']):>6}  "
            f"{with_interval(row['f1'], interval):>17}  {score(row['iou']):>6}  {count(row['support']):>9}"
        )
    if len(present) < len(rows):
        lines.append(f"and {plural(len(rows) - len(present), 'class', 'classes')} that neither occur nor are predicted")
    return lines


def _confidence(facts: dict[str, Any]) -> list[str]:
    calibration, sets = facts["calibration"], facts["sets"]
    if calibration is None:
        return ["", f"confidence {DASH} the model was not calibrated"]
    reached = sets[facts["part"]]
    return [
        "",
        f"confidence  expected calibration error (ECE) {percent(calibration['after']['ece'])} at temperature "
        f"{calibration['temperature']:.2f}; {percent(calibration['before']['ece'])} uncalibrated",
        f"sets        prediction sets of {reached['mean_size']:.2f} classes on average contain the true class in "
        f"{percent(reached['coverage'])} of cases; target coverage {percent(sets['coverage'])}",
    ]


# --- coarser levels of a class table


@dataclass(frozen=True)
class CoarserLevel:
    """One level: its classes, and its figures in the same tables as those of the classes."""

    name: str
    classes: list[dict[str, Any]]
    tables: list[AccuracyTable]

    @property
    def title(self) -> str:
        return f"{self.name}, {plural(len(self.classes), 'class', 'classes')}"


def coarser_levels(test: dict[str, Any], *, split_by_pixel: bool = False) -> list[CoarserLevel]:
    """The coarsest first; none of a flat class table."""
    levels = []
    for level in test.get("levels") or ():
        names = [str(name) for name in level["classes"]]
        # Two of one name under different parents are two classes, and get two colours.
        colours = choose_colours([f"{name} {names[:place].count(name)}" for place, name in enumerate(names)])
        classes = tidy_classes([{"name": name, "colour": colour} for name, colour in zip(names, colours, strict=True)])
        own = accuracy_tables({**level, "unit": test.get("unit")}, split_by_pixel=split_by_pixel)
        levels.append(CoarserLevel(str(level["name"]), classes, own))
    return levels


# --- areas by class, adjusted for the errors of the map

SMALLEST_MARGIN = 0.0005  # of a margin that is shown: less would read as none, and claim certainty
USERS, PRODUCERS = "user\u2019s acc.", "producer\u2019s acc."
DESIGNS = {"random": "simple random sample", "stratified": "random sample stratified by mapped class"}


@dataclass(frozen=True)
class AreaRow:
    name: str
    colour: str
    mapped: str  # hectares
    estimated: str
    margin: str
    users: str
    producers: str


@dataclass(frozen=True)
class AreaTable:
    rows: list[AreaRow]
    overall: str
    confidence: int  # per cent
    design: str | None  # in words; None: not known
    source: str
    warnings: list[str]


def area_table(estimates: dict[str, Any], classes: list[dict[str, Any]]) -> AreaTable:
    """From the areas of an evaluation; a class that the map does not show and the sample did not find has no row."""
    values = [entry["value"] for entry in estimates["area"]]
    margins = [entry["margin"] for entry in estimates["area"]]
    # One precision for all of them.
    texts = areas([*estimates["mapped"], *(value or 0.0 for value in values), *(value or 0.0 for value in margins)])
    size = len(classes)
    rows = [
        AreaRow(
            entry["name"],
            entry["colour"],
            texts[place],
            texts[size + place] if values[place] is not None else DASH,
            f"\u00b1 {texts[2 * size + place]}" if margins[place] else DASH,
            _share(estimates["users_accuracy"][place]),
            _share(estimates["producers_accuracy"][place]),
        )
        for place, entry in enumerate(classes)
        if estimates["mapped"][place] or values[place]
    ]
    return AreaTable(
        rows,
        _share(estimates["overall_accuracy"]),
        round(100 * estimates["level"]),
        DESIGNS.get(estimates["design"]),
        str(estimates["source"]),
        [str(warning) for warning in estimates["warnings"]],
    )


def _share(estimate: dict[str, Any]) -> str:
    margin = estimate["margin"]
    return percent(estimate["value"]) + (f" \u00b1 {100 * margin:.1f}" if margin and margin >= SMALLEST_MARGIN else "")


def area_lines(table: AreaTable, longest: int) -> list[str]:
    """The table for the terminal."""
    width = max([10, *(min(len(row.name), longest) for row in table.rows)])
    head = f"{'hectares':<{width}}  {'mapped':>10}  {'adjusted':>10}  {f'{table.confidence} %':>10}"
    lines = [f"{head}  {USERS:>16}  {PRODUCERS:>16}"]
    for row in table.rows:
        name = cut(row.name, longest)
        cells = f"{row.mapped:>10}  {row.estimated:>10}  {row.margin:>10}  {row.users:>16}  {row.producers:>16}"
        lines.append(f"{name:<{width}}  {cells}")
    return [
        *lines,
        f"area-weighted accuracy {table.overall}; {table.design or 'no sampling design'}; mapped areas: {table.source}",
    ]
