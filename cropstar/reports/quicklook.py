"""The picture of a classified map: class colours, a legend with hectares, a scale bar."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.ground import hectares_per_pixel
from cropstar.reports.canvas import DPI, HAIRLINE, MUTED, encode, house_style, new_sheet
from cropstar.reports.ground import describe
from cropstar.reports.legend import ROW, Entry, Legend
from cropstar.reports.lettering import Ruler
from cropstar.reports.painting import NODATA, count_values, drawn_size, is_true_to_scale, paint
from cropstar.reports.scalebar import draw_scale
from cropstar.reports.wording import areas, shares
from cropstar.store.atomic import atomic_path
from cropstar.store.classes import ClassTable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cropstar.geo.grid import Grid

MARGIN = 0.3  # inches, as all lengths on the sheet
NARROWEST = 4.4
TITLE_SIZE = 13.0
TITLE_LINE = 0.25
STRIP = 0.42  # the scale bar's room under the map
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
) -> None:
    """Write a PNG of a classified map; 255 is no data and never painted as a class.

    With the counts of all values at hand, the raster may be thinned out: grid and counts are then the whole map's.
    """
    if counts is None:
        counts = count_values(classes_raster, grid, classes)
    below = grid.width > 1.6 * grid.height
    width, height = drawn_size(grid, LEGEND_BELOW if below else LEGEND_RIGHT)
    picture = paint(classes_raster, classes, width, height)
    with house_style():
        png = _compose(picture, grid, _entries(counts, grid, classes), title, below)
    with atomic_path(path) as partial:
        partial.write_bytes(png)


def _compose(picture: NDArray[np.uint8], grid: Grid, entries: list[Entry], title: str, below: bool) -> bytes:
    """Measure everything first, then cut the sheet to fit and draw."""
    height, width = picture.shape[:2]
    map_width, map_height = width / DPI, height / DPI
    stretched = not is_true_to_scale(grid, width, height)
    strip = STRIP if stretched or hectares_per_pixel(grid) is not None else MARGIN / 2
    if below:
        legend = Legend.across(entries, max(map_width, NARROWEST))
        inner = max(map_width, legend.width)
        body = map_height + strip + legend.height
    else:
        legend = Legend(entries, rows=max(int(map_height / ROW) - 1, 8))
        inner = map_width + MARGIN + legend.width
        body = max(map_height + strip, legend.height)
    inner = max(inner, NARROWEST)
    lines = Ruler(TITLE_SIZE, "bold").wrap(title, inner)
    top = _whole_pixels(MARGIN + len(lines) * TITLE_LINE + 0.28)
    bottom = _whole_pixels(top + body + 0.8 * MARGIN)

    figure, axes = new_sheet(_whole_pixels(inner + 2 * MARGIN), bottom)
    for number, line in enumerate(lines):
        axes.text(MARGIN, MARGIN + 0.12 + number * TITLE_LINE, line, fontsize=TITLE_SIZE, weight="bold")
    axes.text(MARGIN, top - 0.15, describe(grid), fontsize=8, color=MUTED)
    # figimage copies pixel by pixel: no colour appears that is not a class.
    figure.figimage(picture, round(MARGIN * DPI), round((bottom - top) * DPI) - height)
    _frame(axes, MARGIN, top, map_width, map_height)
    if stretched:
        axes.text(MARGIN, top + map_height + 0.2, "a narrow strip, drawn broader than it is", fontsize=7.5, color=MUTED)
    else:
        draw_scale(axes, grid, MARGIN, top + map_height + 0.13, map_width)
    if below:
        legend.draw(axes, MARGIN, top + map_height + strip)
    else:
        legend.draw(axes, 2 * MARGIN + map_width, top)
    return encode(figure, "png")


def _entries(counts: NDArray[np.int64], grid: Grid, classes: ClassTable) -> list[Entry]:
    """The classes present, the largest first; shares are of what was mapped."""
    present = sorted((entry for entry in classes if counts[entry.number]), key=lambda entry: -counts[entry.number])
    pixels = [int(counts[entry.number]) for entry in present] + [int(counts[NODATA])]
    mapped = sum(pixels[:-1]) or 1
    hectares = hectares_per_pixel(grid)
    area_texts = [""] * len(pixels) if hectares is None else areas([number * hectares for number in pixels])
    share_texts = shares([number / mapped for number in pixels])
    entries = [
        Entry(entry.name, entry.colour, area, share)
        for entry, area, share in zip(present, area_texts[:-1], share_texts[:-1], strict=True)
    ]
    return [*entries, Entry("no data", None, area_texts[-1], "")] if pixels[-1] else entries


def _frame(axes: Axes, left: float, top: float, width: float, height: float) -> None:
    from matplotlib.patches import Rectangle

    edge = 0.5 / DPI  # just outside, so that no pixel of the map is covered
    corner = (left - edge, top - edge)
    axes.add_patch(Rectangle(corner, width + 2 * edge, height + 2 * edge, fill=False, edgecolor=HAIRLINE, lw=0.4))


def _whole_pixels(inches: float) -> float:
    return math.ceil(inches * DPI) / DPI
