"""Areas put right by the sample, as rows of a table: for the report and for the terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cropstar.reports.wording import DASH, areas, percent

SMALLEST = 0.0005  # of a margin that is shown: less would read as none, and claim certainty
USERS, PRODUCERS = "user\u2019s acc.", "producer\u2019s acc."
DESIGNS = {"random": "a simple random sample", "stratified": "a random sample of each mapped class"}


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
    found = [entry["value"] for entry in estimates["area"]]
    margins = [entry["margin"] for entry in estimates["area"]]
    # One precision for all of them.
    texts = areas([*estimates["mapped"], *(value or 0.0 for value in found), *(value or 0.0 for value in margins)])
    size = len(classes)
    rows = [
        AreaRow(
            entry["name"],
            entry["colour"],
            texts[place],
            texts[size + place] if found[place] is not None else DASH,
            f"\u00b1 {texts[2 * size + place]}" if margins[place] else DASH,
            _share(estimates["users_accuracy"][place]),
            _share(estimates["producers_accuracy"][place]),
        )
        for place, entry in enumerate(classes)
        if estimates["mapped"][place] or found[place]
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
    return percent(estimate["value"]) + (f" \u00b1 {100 * margin:.1f}" if margin and margin >= SMALLEST else "")


def area_lines(table: AreaTable, longest: int) -> list[str]:
    """The table for the terminal."""
    width = max([10, *(min(len(row.name), longest) for row in table.rows)])
    head = f"{'hectares':<{width}}  {'mapped':>10}  {'put right':>10}  {f'{table.confidence} %':>10}"
    lines = [f"{head}  {USERS:>16}  {PRODUCERS:>16}"]
    for row in table.rows:
        name = row.name if len(row.name) <= longest else row.name[: longest - 1] + "\u2026"
        cells = f"{row.mapped:>10}  {row.estimated:>10}  {row.margin:>10}  {row.users:>16}  {row.producers:>16}"
        lines.append(f"{name:<{width}}  {cells}")
    return [*lines, f"overall accuracy by area {table.overall}; {table.design or 'no design'}, areas of {table.source}"]
