"""The class table in words: counts and bars, and under each coarser class the classes that belong to it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from cropstar.reports.lettering import ELLIPSIS, printable
from cropstar.reports.wording import areas

WIDTH = 100  # of a line
WIDEST_NAME = 44
INDENT = 2
BAR = 10
COUNTS = ("parcels", "pixels", "hectares", "samples")

Row = dict[str, Any]


def class_lines(classes: Sequence[Row]) -> list[str]:
    """A line a class; where classes have coarser ones, these stand above them with the sums of what they hold."""
    columns = [name for name in COUNTS if name in classes[0]] if classes else []
    if any(row.get("hectares") is None for row in classes):
        columns = [name for name in columns if name != "hectares"]
    total = _sum("in all", classes, columns)
    lines = list(_ordered(classes, columns))
    # One precision for the column and its sums.
    texts = areas([line["hectares"] for _, line in [*lines, (0, total)]]) if "hectares" in columns else []
    measure = columns[-1] if columns else None
    largest = max((row[measure] for row in classes), default=0) if measure else 0
    width = max((INDENT * depth + len(printable(line["name"])) for depth, line in lines), default=0)
    width = min(width, WIDEST_NAME)

    def cells(place: int, line: Row) -> str:
        return "".join(f"{texts[place] if name == 'hectares' else f'{line[name]:,}':>11}" for name in columns)

    said = [f"  {'class':<{width + 2}}" + "".join(f"{name:>11}" for name in columns)]
    for place, (depth, line) in enumerate(lines):
        indent = " " * (INDENT * depth)
        if "colour" in line:
            blocks = "  " + bar(line[measure] / largest, ground=" ") if measure and largest else ""
            said.append(f"  {indent}{swatch(line)} {fit(line, width - len(indent))}{cells(place, line)}{blocks}")
        else:
            said.append(f"  {indent}{fit(line, width + 2 - len(indent))}{cells(place, line)}")
    if len(classes) > 1 and columns:
        said.append(f"    {'in all':<{width}}{cells(len(lines), total)}")
    return said


def class_columns(classes: Sequence[Row]) -> list[str]:
    """Numbers and names alone, in up to three columns."""
    width = min(max((len(printable(row["name"])) for row in classes), default=0), WIDEST_NAME)
    columns = max(1, min(3, (WIDTH - 2) // (width + 9), math.ceil(len(classes) / 4)))
    height = math.ceil(len(classes) / columns)
    cells = [f"{row['number']:>3} {swatch(row)} {fit(row, width)}" for row in classes]
    return [" " + "   ".join(cells[row::height]) for row in range(height)]


def level_sizes(classes: Sequence[Row]) -> list[int]:
    """How many classes each level has, the coarsest first; a flat table has one level."""
    depth = max((len(row.get("lineage", ())) for row in classes), default=0)
    coarser = [{tuple(row["lineage"][: level + 1]) for row in classes if "lineage" in row} for level in range(depth)]
    return [*(len(names) for names in coarser), len(classes)]


def bar(share: float, ground: str = "\u2591") -> str:
    """Ten blocks; only nothing at all is empty."""
    filled = min(BAR, max(math.floor(share * BAR + 0.5), 1 if share > 0 else 0))
    return "\u2588" * filled + ground * (BAR - filled)


def swatch(row: Row) -> str:
    colour = str(row["colour"])
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"\x1b[38;2;{red};{green};{blue}m\u25a0\x1b[0m"


def fit(row: Row, width: int) -> str:
    """A name filled up or cut to a width."""
    name = printable(row["name"])
    return f"{name if len(name) <= width else name[: width - 1] + ELLIPSIS:<{width}}"


def _ordered(classes: Sequence[Row], columns: list[str]) -> Iterator[tuple[int, Row]]:
    """The lines with how far each is moved in: classes, and coarser ones before the first of theirs."""
    open_groups: list[tuple[str, ...]] = []
    for row in sorted(classes, key=lambda row: tuple(row.get("lineage", ()))):  # stable: else in the table's order
        lineage = tuple(row.get("lineage", ()))
        groups = []
        for depth in range(1, len(lineage) + 1):
            members = [other for other in classes if tuple(other.get("lineage", ()))[:depth] == lineage[:depth]]
            if len(members) == 1 and lineage[depth - 1] == row["name"]:
                continue  # a class that is its only finer class as well
            groups.append(lineage[:depth])
            if lineage[:depth] not in open_groups:
                yield len(groups) - 1, _sum(lineage[depth - 1], members, columns)
        open_groups = groups
        yield len(groups), row


def _sum(name: str, rows: Sequence[Row], columns: list[str]) -> Row:
    return {"name": name, **{column: sum(row[column] for row in rows) for column in columns}}
