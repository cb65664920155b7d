"""Dates on the grid: the bands that each is made of, and which of them hold nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date
from itertools import islice
from pathlib import Path

from cropstar.errors import InputError
from cropstar.geo.resampling import Alignment
from cropstar.geo.windows import Window
from cropstar.logs import logger
from cropstar.sources.base import empty_dates_note
from cropstar.sources.stack.bands import Entry
from cropstar.sources.stack.handles import OpenRasters
from cropstar.sources.stack.headers import Header
from cropstar.sources.stack.values import is_data

LEAST_PIXELS, MOST_PIXELS = 2**16, 2**24  # of a look for data: thin strips are read together, as are bands


@dataclass(frozen=True)
class Layer:
    """One band of a file on the grid."""

    path: Path
    index: int
    alignment: Alignment
    nodata: float | None
    size: tuple[int, int]
    block: tuple[int, int]

    @classmethod
    def of(cls, entry: Entry, header: Header, alignment: Alignment) -> Layer:
        nodata = header.nodata[entry.index - 1]
        return cls(entry.path, entry.index, alignment, nodata, header.grid.shape, header.block)


@dataclass(frozen=True)
class Day:
    """One date on the grid."""

    layers: tuple[Layer, ...]  # in the order of the bands
    scene_classes: Layer | None
    mask: Layer | None = None

    @property
    def paths(self) -> set[Path]:
        return {layer.path for layer in (*self.layers, self.scene_classes, self.mask) if layer}


Days = dict[date, Day]


def part(days: Days, files: OpenRasters, where: Path) -> tuple[Days, Days]:
    """The dates with data, of which there must be one, and those without any; most answer at the first look."""
    needs = {day: _needs(taken) for day, taken in days.items()}
    seen = _with_data((layer for groups in needs.values() for group in groups for layer in group), files, looks=1)
    empty: set[date] = set()
    while unclear := {
        day: next(group for group in groups if not seen & group)
        for day, groups in needs.items()
        if day not in empty and not all(seen & group for group in groups)
    }:
        found = _with_data((layer for group in unclear.values() for layer in group), files)
        empty |= {day for day, group in unclear.items() if not found & group}
        seen |= found
    if len(empty) == len(days):
        why = f"none of {len(days)} dates has any data"
        raise InputError("no usable date", path=where, why=why, remedy="get others")
    kept = {day: taken for day, taken in days.items() if day not in empty}
    return kept, {day: taken for day, taken in days.items() if day in empty}


def announce(name: str, kept: Days, empty: Days) -> list[str]:
    """Log what a user should know of a series; these are its notes."""
    notes = empty_dates_note(empty, len(kept))
    if not any(day.scene_classes or day.mask for day in kept.values()):
        notes.append("neither scene classification (SCL) nor masks are there: clouds are not masked")
    for note in notes:
        logger.warning("%s: %s", name, note)
    return notes


def _needs(day: Day) -> list[frozenset[Layer]]:
    """Layers of which one of each group must have data for a pixel to be valid, clouds aside.

    As `geo.sensors.observed` has it: each band that knows its nodata, and of the others one.
    """
    known = [layer for layer in day.layers if layer.nodata is not None]
    if day.scene_classes:
        known.insert(0, day.scene_classes)
    unknown = frozenset(layer for layer in day.layers if layer.nodata is None)
    return [*(frozenset([layer]) for layer in known), *([unknown] if unknown else [])]


def _with_data(layers: Iterable[Layer], files: OpenRasters, looks: int | None = None) -> set[Layer]:
    """Those of the layers that have data in the first looks, or anywhere.

    The layers of a file are looked at together: where bands lie pixel by pixel, one block holds them all.
    """
    seen: set[Layer] = set()
    pending: dict[Path, list[Layer]] = defaultdict(list)
    for layer in sorted(layers, key=lambda layer: (layer.path, layer.index)):
        pending[layer.path].append(layer)
    for path, left in pending.items():
        for look in islice(_looks(left[0].size, left[0].block), looks):
            most = max(MOST_PIXELS // (look.height * look.width), 1)
            for some in (left[start : start + most] for start in range(0, len(left), most)):
                pixels = files.read(path, [layer.index for layer in some], look)
                seen.update(layer for layer, own in zip(some, pixels, strict=True) if is_data(own, layer.nodata).any())
            left = [layer for layer in left if layer not in seen]
            if not left:
                break
    return seen


def _looks(size: tuple[int, int], block: tuple[int, int]) -> Iterator[Window]:
    """A file in whole blocks, from the middle row on: there the swath's edge is rarest."""
    height, width = size
    across = min(block[1], width)
    rows = block[0] * max(LEAST_PIXELS // (block[0] * block[1]), 1)
    tops = list(range(0, height, rows))
    middle = len(tops) // 2
    for top in (*tops[middle:], *tops[:middle]):
        for left in range(0, width, across):
            yield Window(top, left, min(rows, height - top), min(across, width - left))
