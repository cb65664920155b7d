"""The figures of an evaluation as tables to print."""

from __future__ import annotations

from typing import Any

from cropstar.reports.area_table import area_lines, area_table
from cropstar.reports.coarser import coarser_levels
from cropstar.reports.findings import tidy_classes
from cropstar.reports.judged import Table, tables
from cropstar.reports.wording import DASH, count, percent, plural, score

FIGURES = {
    "overall_accuracy": "accuracy",
    "kappa": "kappa",
    "macro_f1": "macro-F1",
    "weighted_f1": "weighted F1",
}
COLUMN = 19
LONGEST = 40  # letters of a class's name


def say_scores(facts: dict[str, Any]) -> str:
    """What `evaluate_model` found: figures of each table with their intervals, classes, areas, confidence."""
    model, figures = facts["model"], facts["figures"]
    by_pixel = facts["split"]["by"] == "pixel"
    shown, classes = tables(figures, split_by_pixel=by_pixel), tidy_classes(facts["classes"])
    rows = [(f"by {table.unit}", table) for table in shown]
    for level in coarser_levels(figures, split_by_pixel=by_pixel):
        rows += [(f"{level.title}, by {table.unit}", table) for table in level.tables]
    width = max(10, *(len(name) for name, _ in rows))
    lines = [
        f"{model['name']} {model['layers']}\u00d7{model['hidden']}  {model['path']}",
        f"{facts['store']}  {_judged(facts, shown[0])}",
        "",
        " " * width + "".join(f"{name:>{COLUMN}}" for name in FIGURES.values()),
        *(f"{name:<{width}}{_cells(table.figures)}" for name, table in rows),
    ]
    for table in shown:
        lines += ["", *_classes(table.unit, classes, table.figures)]
    if facts.get("areas"):
        lines += ["", *area_lines(area_table(facts["areas"], classes), LONGEST)]
    return "\n".join([*lines, *_confidence(facts)])


def _judged(facts: dict[str, Any], main: Table) -> str:
    """The part, and of what it is a part."""
    split, parcels = facts["split"], plural(facts["parcels"], "parcel")
    what = parcels if main.unit == "parcel" else f"{main.many} of {parcels}"
    if facts["part"] == "all":
        return f"all, {what}"
    how = f"the split '{split['name']}'" if split["by"] == "name" else f"a split by {split['by']}"
    known = ", fields that training has seen" if split["by"] == "pixel" else ""
    return f"{facts['part']} of {how} (seed {split['seed']}), {what}{known}"


def _cells(figures: dict[str, Any]) -> str:
    cells = [with_interval(figures[key], figures["intervals"][key]) for key in FIGURES]
    return "".join(f"{cell:>{COLUMN}}" for cell in cells)


def with_interval(value: float | None, interval: list[float] | None) -> str:
    """A figure with its interval in brackets; alone where there is none."""
    return score(value) + (f" ({score(interval[0])}\u2013{score(interval[1])})" if interval else "")


def _classes(level: str, classes: list[dict[str, Any]], figures: dict[str, Any]) -> list[str]:
    """A line for each class that is there or was named; the others have no figures."""
    rows = list(zip(classes, figures["classes"], figures["intervals"]["class_f1"], strict=True))
    present = [row for row in rows if row[1]["f1"] is not None]
    width = max(10, *(min(len(entry["name"]), LONGEST) for entry, _, _ in present)) if present else 10
    title = f"by {level}"
    lines = [f"{title:<{width}}  precision  recall  {'F1 (95 %)':>17}     IoU  {level + 's':>9}"]
    for entry, row, interval in present:
        name = entry["name"] if len(entry["name"]) <= LONGEST else entry["name"][: LONGEST - 1] + "\u2026"
        lines.append(
            f"{name:<{width}}  {score(row['precision']):>9}  {score(row['recall']):>6}  "
            f"{with_interval(row['f1'], interval):>17}  {score(row['iou']):>6}  {count(row['support']):>9}"
        )
    if len(present) < len(rows):
        lines.append(f"and {plural(len(rows) - len(present), 'class', 'classes')} neither there nor named")
    return lines


def _confidence(facts: dict[str, Any]) -> list[str]:
    calibration, sets = facts["calibration"], facts["sets"]
    if calibration is None:
        return ["", f"confidence {DASH} the model was not calibrated"]
    promise = sets[facts["part"]]
    return [
        "",
        f"confidence  off by {percent(calibration['after']['ece'])} on average (ECE) with the model's temperature of "
        f"{calibration['temperature']:.2f}; {percent(calibration['before']['ece'])} without",
        f"sets        {promise['mean_size']:.2f} classes on average hold the true one in "
        f"{percent(promise['coverage'])} of all cases; {percent(sets['coverage'])} were promised",
    ]
