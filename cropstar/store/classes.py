"""The class table: what each label means, what it is called and how a map paints it."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

UNLABELLED = -1  # in label rasters: no class here, never counted as class 0

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
    "sunflower": "#ff9f1c",
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


@dataclass(frozen=True)
class CropClass:
    """One row of the class table; `number` is the value in label rasters and maps."""

    number: int
    name: str
    colour: str  # "#rrggbb"

    @property
    def rgb(self) -> tuple[int, int, int]:
        return int(self.colour[1:3], 16), int(self.colour[3:5], 16), int(self.colour[5:7], 16)


class ClassTable(tuple[CropClass, ...]):
    """The classes in the order of their numbers, which run from 0 without gaps."""

    __slots__ = ()

    @classmethod
    def from_names(cls, names: Iterable[str]) -> ClassTable:
        """Number the names in alphabetical order and give each a colour of its own."""
        ordered = sorted(set(names))
        return cls(
            CropClass(number, name, colour)
            for number, (name, colour) in enumerate(zip(ordered, choose_colours(ordered), strict=True))
        )

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def number_of(self, name: str) -> int:
        return self.names.index(name)

    def to_json(self) -> list[dict[str, Any]]:
        return [{"number": entry.number, "name": entry.name, "colour": entry.colour} for entry in self]

    @classmethod
    def from_json(cls, rows: Sequence[dict[str, Any]]) -> ClassTable:
        return cls(CropClass(int(row["number"]), str(row["name"]), str(row["colour"])) for row in rows)


def choose_colours(names: Sequence[str]) -> list[str]:
    """A familiar colour where the name has one that is still free, else a hue far from its neighbours."""
    colours: list[str] = []
    for name in names:
        words = name.lower().replace("_", " ").split()
        familiar = (FAMILIAR_COLOURS[word] for word in reversed(words) if word in FAMILIAR_COLOURS)
        colour = next((candidate for candidate in familiar if candidate not in colours), None)
        spare = 0
        while colour is None:
            # Steps of the golden ratio around the colour wheel never come close to an earlier step.
            hue = ((len(colours) + spare) * 0.618034) % 1.0
            red, green, blue = colorsys.hsv_to_rgb(hue, 0.55, 0.80)
            candidate = f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
            colour = None if candidate in colours else candidate
            spare += 1
        colours.append(colour)
    return colours
