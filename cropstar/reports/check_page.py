"""The page of `cropstar check`: suspect labels and declared crops, with the curve of each field beside its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from cropstar.reports.results import tidy_classes
from cropstar.reports.wording import count, html_templates, percent, printable, write_html

WIDTH, HEIGHT, MARGIN = 250, 120, 18  # of a plot, in pixels
LIGHTS = {"green": "#2f8f4e", "yellow": "#e0a800", "red": "#c0392b"}
MEANINGS = {
    "green": "the declared crop is possible, and more probable than all others",
    "yellow": "the declared crop is possible, another one may be as probable",
    "red": "the declared crop is improbable",
}
FIELD_COLOUR = "#1f2a24"

Line = tuple[Sequence[int], Sequence[float]]  # days and values


@dataclass(frozen=True)
class FieldCard:
    """A field on the page."""

    key: str
    scene: str
    declared: str
    mapped: str
    light: str
    p_value: float
    declared_probability: float
    probability: float
    curve: Line | None


def write_check_page(
    path: Path,
    facts: Mapping[str, Any],
    *,
    band: str,
    start: int,
    suspects: Sequence[FieldCard],
    reds: Sequence[FieldCard],
    survey: Sequence[FieldCard],
    medians: Mapping[str, Line],
) -> None:
    """Write one HTML file that needs nothing else. `start` is the first day of the season, as day of the year."""
    classes = {row["name"]: row["colour"] for row in tidy_classes(list(facts["classes"]))}
    span = _span(list(medians.values()), [card.curve for card in (*suspects, *reds, *survey) if card.curve])
    environment = html_templates("cropstar.reports")
    environment.filters.update(percent=percent, count=count, printable=printable)

    def shown(cards: Sequence[FieldCard]) -> list[dict[str, Any]]:
        return [
            {**vars(card), "plot": plot_field(card, medians, classes, span, start), "colours": classes}
            for card in cards
        ]

    html = environment.get_template("check.html.j2").render(
        facts=facts,
        store=Path(facts["store"]).name,  # not the folders of this machine: pages are passed on
        run=Path(facts["run"]).name,
        band=band,
        lights=LIGHTS,
        meanings=MEANINGS,
        classes=classes,
        suspects=shown(suspects),
        reds=shown(reds),
        survey=shown(survey),
    )
    write_html(path, html)


def plot_field(
    card: FieldCard,
    medians: Mapping[str, Line],
    colours: Mapping[str, str],
    span: tuple[float, float, float, float],
    start: int,
) -> str:
    """A small plot as SVG: the field in black, the middle of the declared class and of the probable one in colours."""
    first, last, low, high = span

    def points(line: Line) -> str:
        return " ".join(
            f"{MARGIN + (day - first) / (last - first) * (WIDTH - MARGIN - 4):.1f},"
            f"{HEIGHT - MARGIN - (value - low) / (high - low) * (HEIGHT - MARGIN - 6):.1f}"
            for day, value in zip(*line, strict=True)
        )

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'role="img" aria-label="the field through the season beside the middle of its class">',
        f'<path d="M{MARGIN} 4V{HEIGHT - MARGIN}H{WIDTH - 2}" fill="none" stroke="#c9d1cb"/>',
    ]
    for text, day in _months(first, last, start):
        x = MARGIN + (day - first) / (last - first) * (WIDTH - MARGIN - 4)
        parts.append(
            f'<text x="{x:.0f}" y="{HEIGHT - 5}" font-size="9" fill="#67726b" text-anchor="middle">{text}</text>'
        )
    for value in (low, high):
        y = HEIGHT - MARGIN - (value - low) / (high - low) * (HEIGHT - MARGIN - 6)
        parts.append(f'<text x="1" y="{y + 3:.0f}" font-size="8" fill="#67726b">{value:.1f}</text>')
    for name, dash in ((card.declared, "5 3"), (card.mapped, "")):
        if name in medians:
            style = f' stroke-dasharray="{dash}"' if dash else ""
            parts.append(
                f'<polyline points="{points(medians[name])}" fill="none" stroke="{colours.get(name, "#9aa39d")}" '
                f'stroke-width="3" opacity="0.8"{style}/>'
            )
    if card.curve is not None:
        parts.append(
            f'<polyline points="{points(card.curve)}" fill="none" stroke="{FIELD_COLOUR}" stroke-width="1.4"/>'
        )
    return "".join([*parts, "</svg>"])


def _span(lines: Sequence[Line], curves: Sequence[Line]) -> tuple[float, float, float, float]:
    """First and last day, lowest and highest value of all that is drawn, so that plots compare."""
    days = [day for line in (*lines, *curves) for day in line[0]]
    values = [value for line in (*lines, *curves) for value in line[1]]
    if not days:
        return 0.0, 1.0, 0.0, 1.0
    low, high = min(0.0, *values), max(values)
    return min(days), max(max(days), min(days) + 1), low, high if high > low else low + 1


def _months(first: float, last: float, start: int) -> list[tuple[str, int]]:
    """The first letters of months and the days of the season that they begin on, every second one of a long season."""
    begins = date(2021, 1, 1) + timedelta(days=start - 1)
    months = []
    for day in range(int(first), int(last) + 1):
        when = begins + timedelta(days=day)
        if when.day == 1:
            months.append((when.strftime("%b"), day))
    return months[:: 1 if len(months) <= 6 else 2]
