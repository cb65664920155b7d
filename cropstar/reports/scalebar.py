"""The scale bar and the north arrow under a map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cropstar.geo.ground import metres_per_unit
from cropstar.reports.canvas import INK
from cropstar.reports.ground import is_north_up, round_length
from cropstar.reports.wording import length

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cropstar.geo.grid import Grid

THICKNESS = 0.05  # inches
LONGEST = 2.0
TEXT_SIZE = 8.0


def draw_scale(axes: Axes, grid: Grid, left: float, top: float, map_width: float) -> None:
    """A bar of a round length at the left, north at the right; the grid must be a projected one."""
    from matplotlib.patches import Polygon, Rectangle

    unit = metres_per_unit(grid)
    if unit is None:
        return
    inches_per_metre = map_width / (grid.width * grid.resolution * unit)
    metres = round_length(min(0.35 * map_width, LONGEST) / inches_per_metre)
    bar = metres * inches_per_metre
    axes.add_patch(Rectangle((left, top), bar, THICKNESS, facecolor="white", edgecolor=INK, lw=0.7))
    axes.add_patch(Rectangle((left, top), bar / 2, THICKNESS, facecolor=INK, edgecolor=INK, lw=0.7))
    axes.text(left + bar + 0.08, top + 0.065, length(metres), fontsize=TEXT_SIZE)
    if is_north_up(grid) and map_width > 1.6:  # on a narrower map the arrow would run into the bar's label
        tip = left + map_width - 0.2
        arrow = [(tip, top - 0.05), (tip + 0.055, top + 0.1), (tip, top + 0.065), (tip - 0.055, top + 0.1)]
        axes.add_patch(Polygon(arrow, closed=True, facecolor=INK, edgecolor="none"))
        axes.text(tip + 0.11, top + 0.065, "N", fontsize=TEXT_SIZE)
