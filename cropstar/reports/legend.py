"""The legend of a map: swatch, name, hectares and share, in as many columns as the room asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cropstar.reports.canvas import HAIRLINE, INK, MUTED
from cropstar.reports.lettering import Ruler
from cropstar.reports.painting import NODATA_GROUND, NODATA_LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = 8.5
HEAD_SIZE = 7.0
ROW = 0.235  # inches
HEAD = 0.23
SWATCH = 0.15
GAP = 0.09
COLUMN_GAP = 0.34
SHORTEST_NAME = 0.6
LONGEST_NAME = 2.5


@dataclass(frozen=True)
class Entry:
    """One line; `colour` None is the hatch of pixels without data."""

    name: str
    colour: str | None
    area: str
    share: str


class Legend:
    """Knows its size before it is drawn, so that the sheet can be made to measure."""

    def __init__(self, entries: list[Entry], rows: int) -> None:
        self._ruler = Ruler(SIZE)
        self._entries = [replace(entry, name=self._ruler.shorten(entry.name, LONGEST_NAME)) for entry in entries]
        self._area_width = self._ruler.widest([entry.area for entry in entries])
        if self._area_width:
            self._area_width = max(self._area_width, Ruler(HEAD_SIZE).width("hectares")) + GAP * 1.6
        self._share_width = max(self._ruler.widest([entry.share for entry in entries]), 0.36) + GAP
        self._fill_columns(math.ceil(len(entries) / max(rows, 1)))

    @classmethod
    def across(cls, entries: list[Entry], width: float) -> Legend:
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

    def _width_of(self, column: list[Entry]) -> float:
        names = max(self._ruler.widest([entry.name for entry in column]), SHORTEST_NAME)
        return SWATCH + GAP + names + self._area_width + self._share_width

    @property
    def width(self) -> float:
        return sum(self._widths) + (len(self._widths) - 1) * COLUMN_GAP

    @property
    def height(self) -> float:
        return HEAD + self._rows * ROW

    def draw(self, axes: Axes, left: float, top: float) -> None:
        for column, width in zip(self._columns, self._widths, strict=True):
            self._draw_head(axes, left, left + width, top)
            for row, entry in enumerate(column):
                self._draw_entry(axes, entry, left, left + width, top + HEAD + row * ROW)
            left += width + COLUMN_GAP

    def _draw_head(self, axes: Axes, left: float, right: float, top: float) -> None:
        baseline = top + 0.1
        axes.text(left, baseline, "class", fontsize=HEAD_SIZE, color=MUTED)
        if self._area_width:
            axes.text(right - self._share_width, baseline, "hectares", fontsize=HEAD_SIZE, color=MUTED, ha="right")
        axes.text(right, baseline, "%", fontsize=HEAD_SIZE, color=MUTED, ha="right")
        axes.plot([left, right], [top + 0.17, top + 0.17], color=HAIRLINE, linewidth=0.8)

    def _draw_entry(self, axes: Axes, entry: Entry, left: float, right: float, top: float) -> None:
        from matplotlib.patches import Rectangle

        middle = top + ROW / 2
        swatch = Rectangle((left, middle - SWATCH / 2), SWATCH, SWATCH, linewidth=0)
        if entry.colour is None:
            swatch.set(facecolor=NODATA_GROUND, edgecolor=NODATA_LINES, hatch="///////")
        else:
            swatch.set(facecolor=entry.colour, edgecolor="none")
        axes.add_patch(swatch)
        baseline = middle + 0.042  # half the height of a capital letter
        axes.text(left + SWATCH + GAP, baseline, entry.name, fontsize=SIZE, color=INK if entry.colour else MUTED)
        axes.text(right - self._share_width, baseline, entry.area, fontsize=SIZE, color=INK, ha="right")
        axes.text(right, baseline, entry.share, fontsize=SIZE, color=MUTED, ha="right")
