"""Figures at the coarser levels of a class table, beside those of the classes themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cropstar.reports.findings import tidy_classes
from cropstar.reports.judged import Table, tables
from cropstar.reports.wording import plural
from cropstar.store.classes import choose_colours


@dataclass(frozen=True)
class Coarser:
    """One level: its classes, and its figures in the tables that the classes themselves have."""

    name: str
    classes: list[dict[str, Any]]
    tables: list[Table]

    @property
    def title(self) -> str:
        return f"{self.name}, {plural(len(self.classes), 'class', 'classes')}"


def coarser_levels(test: dict[str, Any], *, split_by_pixel: bool = False) -> list[Coarser]:
    """The coarsest first; none of a flat class table."""
    found = []
    for level in test.get("levels") or ():
        names = [str(name) for name in level["classes"]]
        # Two of one name under different parents are two classes, and get two colours.
        colours = choose_colours([f"{name} {names[:place].count(name)}" for place, name in enumerate(names)])
        classes = tidy_classes([{"name": name, "colour": colour} for name, colour in zip(names, colours, strict=True)])
        own = tables({**level, "unit": test.get("unit")}, split_by_pixel=split_by_pixel)
        found.append(Coarser(str(level["name"]), classes, own))
    return found
