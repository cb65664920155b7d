"""The class table: numbers, names and colours of the classes."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Distances = NDArray[np.float64]

UNLABELLED = -1  # in label rasters: no class here, never counted as class 0
NODATA = 255  # in maps: a pixel that was never seen clearly
UNKNOWN = 254  # in maps that tell: a pixel that is unlike all that the model knows, or too doubtful
MASKED = 253  # in maps with a mask: a pixel outside of it
NOT_A_FIELD = "not a field"  # the class of `ingest --background`
MARKS = {UNKNOWN: ("unknown", "#55555c"), MASKED: ("outside the mask", "#e3e3de")}  # names and colours

# Colours people expect on a crop map; matched as whole words so that "winter wheat" finds "wheat".
FAMILIAR_COLOURS = {
    "wheat": "#d9a441",
    "barley": "#e8d27a",
    "rye": "#b98b3c",
    "oat": "#c9b458",
    "triticale": "#a9742c",
    "spelt": "#c98f52",
    "rapeseed": "#f6e11a",
    "rape": "#f6e11a",
    "maize": "#e67e22",
    "corn": "#e67e22",
    "beet": "#b03a78",
    "potatoes": "#8c5a3c",
    "potato": "#8c5a3c",
    "sunflower": "#d1495b",
    "soybeans": "#5b8c2a",
    "soybean": "#5b8c2a",
    "peas": "#7fc8a9",
    "beans": "#3c8d7d",
    "alfalfa": "#2e8b9e",
    "clover": "#3aa6a0",
    "grassland": "#8fd175",
    "meadow": "#8fd175",
    "meadows": "#8fd175",
    "pasture": "#a8dd8f",
    "fallow": "#c2b8a3",
    "orchards": "#c0392b",
    "orchard": "#c0392b",
    "vineyard": "#7d3c98",
    "hop": "#27632a",
    "forest": "#1e6b34",
    "water": "#3b82c4",
}

WHEEL = ((0.55, 0.80), (0.85, 0.55), (0.30, 0.95), (0.95, 0.90), (0.40, 0.60), (0.75, 0.35))  # saturation, brightness
SHADES = (0.68, 1.25, 0.5)
MOST_SHADED = 1000  # classes: beyond them no two are told apart by their colour anyway
DISTINCT = 0.14  # of the distance from black to white


@dataclass(frozen=True)
class CropClass:
    """One row of the class table; `number` is the value in label rasters and maps."""

    number: int
    name: str
    colour: str  # "#rrggbb"
    lineage: tuple[str, ...] = ()  # the coarser classes it belongs to, coarsest first, where the table has levels

    @property
    def rgb(self) -> tuple[int, int, int]:
        return rgb(self.colour)


@dataclass(frozen=True)
class ClassTree:
    """The levels of a class table, coarse to fine; the last one holds the classes themselves."""

    lineages: tuple[tuple[int, ...], ...]  # of each class: the number of its node on every level
    names: tuple[tuple[str, ...], ...]  # of each level: the names of its nodes, in the order of their numbers


class ClassTable(tuple[CropClass, ...]):
    """The classes in the order of their numbers, which run from 0 without gaps."""

    __slots__ = ()

    @classmethod
    def from_names(cls, names: Iterable[str]) -> ClassTable:
        """Number the names in alphabetical order and give each a colour of its own."""
        return cls.in_order(sorted(set(names)))

    @classmethod
    def in_order(cls, names: Sequence[str]) -> ClassTable:
        """Number the names, which differ, as they come and give each a colour of its own."""
        return cls(CropClass(number, *row) for number, row in enumerate(zip(names, choose_colours(names), strict=True)))

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def number_of(self, name: str) -> int:
        return self.names.index(name)

    def find(self, text: str) -> str | None:
        """The class of this name, or else the only one that is spelt otherwise: in capitals, with other signs."""
        alike = [name for name in self.names if _letters(name) == _letters(text)]
        return text if text in alike else alike[0] if len(alike) == 1 else None

    def spelt_twice(self) -> list[list[str]]:
        """Names that differ in capitals, blanks and signs alone: most often one crop, written in several ways."""
        groups: dict[str, list[str]] = {}
        for name in self.names:
            groups.setdefault(_letters(name), []).append(name)
        return [group for group in groups.values() if len(group) > 1]

    def with_marks(self, marks: Iterable[int]) -> ClassTable:
        """The classes and marks of a map, for its legend: numbers then have a gap before the marks."""
        return ClassTable((*self, *(CropClass(number, *MARKS[number]) for number in sorted(marks))))

    @property
    def levels(self) -> int:
        """How many levels the table has; a flat one has one."""
        return 1 + max((len(entry.lineage) for entry in self), default=0)

    def with_lineages(self, lineages: Mapping[str, Sequence[str]]) -> ClassTable:
        """The table with the coarser classes of each class, by its name."""
        return ClassTable(replace(entry, lineage=tuple(lineages[entry.name])) for entry in self)

    def tree(self) -> ClassTree:
        """The levels with numbered nodes. A class without coarser ones is a node of its own on their levels, too.

        A node is known by its whole lineage: 'other' crops and 'other' trees are two.
        """
        depth = self.levels - 1
        paths = [(*entry.lineage, *[entry.name] * (depth - len(entry.lineage))) for entry in self]
        levels = [list(dict.fromkeys(path[: level + 1] for path in paths)) for level in range(depth)]
        numbers = [{node: number for number, node in enumerate(nodes)} for nodes in levels]
        lineages = (
            (*(found[path[: level + 1]] for level, found in enumerate(numbers)), place)
            for place, path in enumerate(paths)
        )
        return ClassTree(tuple(lineages), (*(tuple(node[-1] for node in nodes) for nodes in levels), tuple(self.names)))

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {"number": entry.number, "name": entry.name, "colour": entry.colour}
            | ({"lineage": list(entry.lineage)} if entry.lineage else {})
            for entry in self
        ]

    @classmethod
    def from_json(cls, rows: Sequence[dict[str, Any]]) -> ClassTable:
        return cls(
            CropClass(int(row["number"]), str(row["name"]), str(row["colour"]), tuple(map(str, row.get("lineage", ()))))
            for row in rows
        )


def choose_colours(names: Sequence[str]) -> list[str]:
    """A familiar colour where the name has one that is still free, else the candidate least like all others."""
    chosen: dict[str, str] = {}
    used: set[str] = set()
    for name in names:
        free = [colour for colour in _familiar(name) if colour not in used]
        if free:
            chosen[name] = free[0]
            used.add(free[0])
    taken = [_parts(colour) for colour in chosen.values()]
    wheel = [_hex(colorsys.hsv_to_rgb(hue / 48, depth, light)) for depth, light in WHEEL for hue in range(0, 48, 2)]
    wheel += [_hex(colorsys.hsv_to_rgb(hue / 48, depth, light)) for depth, light in WHEEL for hue in range(1, 48, 2)]
    on_wheel = np.array([_parts(colour) for colour in wheel])
    wheel_distances = _distances(on_wheel, np.array(taken).reshape(-1, 3))
    for name in names:
        if name not in chosen:
            # A second barley is a darker or a paler barley, unless another crop looks like that already.
            candidates, distances = wheel, wheel_distances
            if len(taken) < MOST_SHADED and (familiar := _familiar(name)):
                shades = [_shade(colour, factor) for colour in familiar for factor in SHADES]
                shaded = _distances(np.array([_parts(colour) for colour in shades]), np.array(taken))
                candidates, distances = shades + wheel, np.concatenate([shaded, wheel_distances])
            distinct = np.flatnonzero(distances >= DISTINCT)
            chosen[name] = candidates[int(distinct[0]) if len(distinct) else int(distances.argmax())]
            taken.append(_parts(chosen[name]))
            wheel_distances = np.minimum(wheel_distances, _distances(on_wheel, np.array(taken[-1:])))
    return [chosen[name] for name in names]


def _letters(name: str) -> str:
    """A name without capitals, blanks and signs; unchanged if it has no letters, since 1.1 and 11 are two codes."""
    return "".join(sign for sign in name.casefold() if sign.isalnum()) if any(map(str.isalpha, name)) else name.strip()


def _familiar(name: str) -> list[str]:
    words = name.lower().replace("_", " ").split()
    return [FAMILIAR_COLOURS[word] for word in reversed(words) if word in FAMILIAR_COLOURS]


def rgb(colour: str) -> tuple[int, int, int]:
    """Red, green and blue of "#rrggbb"."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _parts(colour: str) -> tuple[float, float, float]:
    red, green, blue = rgb(colour)
    return red / 255, green / 255, blue / 255


def _hex(parts: tuple[float, float, float]) -> str:
    red, green, blue = (round(min(part, 1.0) * 255) for part in parts)
    return f"#{red:02x}{green:02x}{blue:02x}"


def _shade(colour: str, factor: float) -> str:
    red, green, blue = _parts(colour)
    return _hex((red * factor, green * factor, blue * factor))


def _distances(candidates: Distances, taken: Distances) -> Distances:
    """How different each candidate looks from the nearest taken colour: the eye tells greens apart best."""
    if not len(taken):
        return np.ones(len(candidates))
    differences = candidates[:, None] - taken[None]
    distances: Distances = np.sqrt((np.square(differences) @ np.array([0.30, 0.59, 0.11])).min(axis=1))
    return distances
