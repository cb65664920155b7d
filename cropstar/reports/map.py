"""The picture of a classified map: class colours, a legend with hectares, a scale bar."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, MismatchError
from cropstar.geo.grid import hectares_per_pixel
from cropstar.reports.drawing import (
    DPI,
    HAIRLINE,
    INK,
    MUTED,
    Ruler,
    describe,
    draw_scale,
    encode,
    house_style,
    nearest_pixels,
    new_sheet,
    place_pixels,
    whole_pixels,
)
from cropstar.reports.wording import areas, shares
from cropstar.store.classes import MARKS, MASKED, NODATA, ClassTable, CropClass, rgb
from cropstar.store.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cropstar.geo.grid import Grid


MARGIN = 0.3  # inches, as all lengths on the sheet
NARROWEST = 4.4
TITLE_SIZE = 13.0
TITLE_LINE = 0.25
NOTE_SIZE = 7.5
NOTE_LINE = 0.15
MOST_NOTES = 6
SCALE_STRIP = 0.42  # the scale bar's room under the map
LEGEND_RIGHT = 1500  # pixels of the map's long side where the legend stands at the right
LEGEND_BELOW = 2000  # and where it stands below


def draw_map(
    path: Path,
    classes_raster: NDArray[np.uint8],
    grid: Grid,
    classes: ClassTable,
    *,
    title: str,
    counts: NDArray[np.int64] | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write a PNG of a classified map; 255 is no data and never painted as a class. `notes` stand below it.

    With the counts of all values at hand, the raster may be thinned out: grid and counts are then the whole map's.
    """
    if counts is None:
        counts = count_values(classes_raster, grid, classes)
    below = grid.width > 1.6 * grid.height
    width, height = drawn_size(grid, LEGEND_BELOW if below else LEGEND_RIGHT)
    picture = paint(classes_raster, classes, width, height)
    with house_style():
        png = _compose(picture, grid, _entries(counts, grid, classes), title, below, notes)
    with atomic_path(path) as partial:
        partial.write_bytes(png)


def _compose(
    picture: NDArray[np.uint8],
    grid: Grid,
    entries: list[LegendEntry],
    title: str,
    below: bool,
    notes: Sequence[str] = (),
) -> bytes:
    """Measure everything first, then cut the sheet to fit and draw."""
    height, width = picture.shape[:2]
    map_width, map_height = width / DPI, height / DPI
    stretched = not is_true_to_scale(grid, width, height)
    strip = SCALE_STRIP if stretched or hectares_per_pixel(grid) is not None else MARGIN / 2
    if below:
        legend = Legend.across(entries, max(map_width, NARROWEST))
        inner = max(map_width, legend.width)
        body = map_height + strip + legend.height
    else:
        legend = Legend(entries, rows=max(int(map_height / ROW_HEIGHT) - 1, 8))
        inner = map_width + MARGIN + legend.width
        body = max(map_height + strip, legend.height)
    inner = max(inner, NARROWEST)
    lines = Ruler(TITLE_SIZE, "bold").wrap(title, inner)
    top = whole_pixels(MARGIN + len(lines) * TITLE_LINE + 0.28)
    ruler = Ruler(NOTE_SIZE)
    note_lines = [line for note in notes[:MOST_NOTES] for line in ruler.wrap(note, inner, 3)]
    under = top + body + (0.6 * MARGIN if note_lines else 0)
    bottom = whole_pixels(under + len(note_lines) * NOTE_LINE + 0.8 * MARGIN)

    figure, axes = new_sheet(whole_pixels(inner + 2 * MARGIN), bottom)
    for number, line in enumerate(lines):
        axes.text(MARGIN, MARGIN + 0.12 + number * TITLE_LINE, line, fontsize=TITLE_SIZE, weight="bold")
    axes.text(MARGIN, top - 0.15, describe(grid), fontsize=8, color=MUTED)
    place_pixels(figure, picture, round(MARGIN * DPI), round((bottom - top) * DPI) - height)
    _frame(axes, MARGIN, top, map_width, map_height)
    if stretched:
        axes.text(
            MARGIN,
            top + map_height + 0.2,
            "not to scale: a narrow strip, drawn wider than it is",
            fontsize=7.5,
            color=MUTED,
        )
    else:
        draw_scale(axes, grid, MARGIN, top + map_height + 0.13, map_width)
    for number, line in enumerate(note_lines):
        axes.text(MARGIN, under + (number + 0.5) * NOTE_LINE, line, fontsize=NOTE_SIZE, color=MUTED)
    if below:
        legend.draw(axes, MARGIN, top + map_height + strip)
    else:
        legend.draw(axes, 2 * MARGIN + map_width, top)
    return encode(figure, "png")


def _entries(counts: NDArray[np.int64], grid: Grid, classes: ClassTable) -> list[LegendEntry]:
    """The classes present, the largest first; shares are of what was mapped."""
    present = sorted((entry for entry in classes if counts[entry.number]), key=lambda entry: -counts[entry.number])
    pixels = [int(counts[entry.number]) for entry in present] + [int(counts[NODATA])]
    mapped = sum(number for entry, number in zip(present, pixels[:-1], strict=True) if not is_mask(entry)) or 1
    hectares = hectares_per_pixel(grid)
    area_texts = [""] * len(pixels) if hectares is None else areas([number * hectares for number in pixels])
    share_texts = shares([number / mapped for number in pixels])
    entries = [
        LegendEntry(entry.name, entry.colour, area, "" if is_mask(entry) else share)
        for entry, area, share in zip(present, area_texts[:-1], share_texts[:-1], strict=True)
    ]
    return [*entries, LegendEntry("no data", None, area_texts[-1], "")] if pixels[-1] else entries


def is_mask(entry: CropClass) -> bool:
    """Whether an entry of a legend is what lies outside the mask: no part of what was mapped."""
    return (entry.number, entry.name) == (MASKED, MARKS[MASKED][0])


def _frame(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    from matplotlib.patches import Rectangle

    edge = 0.5 / DPI  # just outside, so that no pixel of the map is covered
    corner = (left - edge, top - edge)
    axes.add_patch(Rectangle(corner, width + 2 * edge, height + 2 * edge, fill=False, edgecolor=HAIRLINE, lw=0.4))


# --- legend

TEXT_SIZE = 8.5
HEAD_TEXT = 7.0
ROW_HEIGHT = 0.235  # inches
HEAD_HEIGHT = 0.23
SWATCH = 0.15
GAP = 0.09
COLUMN_GAP = 0.34
SHORTEST_NAME = 0.6
LONGEST_NAME = 2.5


@dataclass(frozen=True)
class LegendEntry:
    """One line; `colour` None is the hatch of pixels without data."""

    name: str
    colour: str | None
    area: str
    share: str


class Legend:
    """A legend that knows its size before it is drawn, so that the sheet can be fitted to it."""

    def __init__(self, entries: list[LegendEntry], rows: int) -> None:
        self._ruler = Ruler(TEXT_SIZE)
        self._entries = [replace(entry, name=self._ruler.shorten(entry.name, LONGEST_NAME)) for entry in entries]
        self._area_width = self._ruler.widest([entry.area for entry in entries])
        if self._area_width:
            self._area_width = max(self._area_width, Ruler(HEAD_TEXT).width("hectares")) + GAP * 1.6
        self._share_width = max(self._ruler.widest([entry.share for entry in entries]), 0.36) + GAP
        self._fill_columns(math.ceil(len(entries) / max(rows, 1)))

    @classmethod
    def across(cls, entries: list[LegendEntry], width: float) -> Legend:
        """As many columns as a width holds, and one at least."""
        legend = cls(entries, rows=1)
        for columns in range(len(entries), 0, -1):
            legend._fill_columns(columns)
            if legend.width <= width:
                break
        return legend

    def _fill_columns(self, columns: int) -> None:
        # Dividing evenly avoids a last column with a single entry in it.
        self._rows = math.ceil(len(self._entries) / columns)
        self._columns = [
            self._entries[first : first + self._rows] for first in range(0, len(self._entries), self._rows)
        ]
        self._widths = [self._width_of(column) for column in self._columns]

    def _width_of(self, column: list[LegendEntry]) -> float:
        names = max(self._ruler.widest([entry.name for entry in column]), SHORTEST_NAME)
        return SWATCH + GAP + names + self._area_width + self._share_width

    @property
    def width(self) -> float:
        return sum(self._widths) + (len(self._widths) - 1) * COLUMN_GAP

    @property
    def height(self) -> float:
        return HEAD_HEIGHT + self._rows * ROW_HEIGHT

    def draw(self, axes: Axes, left: float, top: float) -> None:
        for column, width in zip(self._columns, self._widths, strict=True):
            self._draw_head(axes, left, left + width, top)
            for row, entry in enumerate(column):
                self._draw_entry(axes, entry, left, left + width, top + HEAD_HEIGHT + row * ROW_HEIGHT)
            left += width + COLUMN_GAP

    def _draw_head(self, axes: Axes, left: float, right: float, top: float) -> None:
        baseline = top + 0.1
        axes.text(left, baseline, "class", fontsize=HEAD_TEXT, color=MUTED)
        if self._area_width:
            axes.text(right - self._share_width, baseline, "hectares", fontsize=HEAD_TEXT, color=MUTED, ha="right")
        axes.text(right, baseline, "%", fontsize=HEAD_TEXT, color=MUTED, ha="right")
        axes.plot([left, right], [top + 0.17, top + 0.17], color=HAIRLINE, linewidth=0.8)

    def _draw_entry(self, axes: Axes, entry: LegendEntry, left: float, right: float, top: float) -> None:
        from matplotlib.patches import Rectangle

        middle = top + ROW_HEIGHT / 2
        swatch = Rectangle((left, middle - SWATCH / 2), SWATCH, SWATCH, linewidth=0)
        if entry.colour is None:
            swatch.set(facecolor=NODATA_GROUND, edgecolor=NODATA_LINES, hatch="///////")
        else:
            swatch.set(facecolor=entry.colour, edgecolor="none")
        axes.add_patch(swatch)
        baseline = middle + 0.042  # half the height of a capital letter
        axes.text(left + SWATCH + GAP, baseline, entry.name, fontsize=TEXT_SIZE, color=INK if entry.colour else MUTED)
        axes.text(right - self._share_width, baseline, entry.area, fontsize=TEXT_SIZE, color=INK, ha="right")
        axes.text(right, baseline, entry.share, fontsize=TEXT_SIZE, color=MUTED, ha="right")


# --- pixels

NODATA_GROUND = "#f1f1ee"
NODATA_LINES = "#cfcfca"
THINNEST = 60  # a strip of one pixel must still be seen


def count_values(raster: NDArray[np.uint8], grid: Grid, classes: ClassTable) -> NDArray[np.int64]:
    """Pixels of each value, checked against grid and class table before anything is drawn."""
    if raster.shape != grid.shape:
        raise MismatchError("map and grid differ in shape", why=f"{raster.shape} is not {grid.shape}")
    if not raster.size:
        raise InputError("the map has no pixels")
    counts = np.zeros(256, dtype=np.int64)
    for row in range(0, len(raster), 512):  # bincount widens to int64: a few rows at a time, not a whole scene
        counts += np.bincount(raster[row : row + 512].ravel(), minlength=256)
    known = {entry.number for entry in classes} | {NODATA}
    strangers = [str(value) for value in np.flatnonzero(counts) if int(value) not in known]
    if strangers:
        raise MismatchError("the map has values that its class table lacks", why=", ".join(strangers))
    return counts


def drawn_size(grid: Grid, longest: int) -> tuple[int, int]:
    """Width and height in the picture; small maps grow by a whole factor so that their pixels stay square."""
    factor = longest / max(grid.width, grid.height)
    if factor >= 3:
        factor = float(int(factor))
    return max(round(grid.width * factor), THINNEST), max(round(grid.height * factor), THINNEST)


def is_true_to_scale(grid: Grid, width: int, height: int) -> bool:
    """Whether both sides are scaled by the same factor; a narrow strip is drawn wider."""
    across, down = width / grid.width, height / grid.height
    return max(across, down) < 1.1 * min(across, down)


def paint(raster: NDArray[np.uint8], classes: ClassTable, width: int, height: int) -> NDArray[np.uint8]:
    """The map as (height, width, 3): each pixel takes the class under its centre, never a mixture of two."""
    values = raster[nearest_pixels(raster.shape, width, height)]  # (height, width)
    colours = np.zeros((256, 3), dtype=np.uint8)
    for entry in classes:
        colours[entry.number] = entry.rgb
    colours[NODATA] = rgb(NODATA_GROUND)
    picture = colours[values]  # (height, width, 3)
    # Diagonal lines set missing data apart from any pale class.
    lines = (np.add.outer(np.arange(height), np.arange(width)) % 14 < 2) & (values == NODATA)
    picture[lines] = rgb(NODATA_LINES)
    return picture
