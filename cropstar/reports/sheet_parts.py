"""The parts that a picture sheet is put together from: title, headings, pictures with a hairline around them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.calendar import from_days
from cropstar.reports.canvas import DPI, HAIRLINE, MUTED
from cropstar.reports.lettering import Ruler
from cropstar.reports.panels import MASKED_GROUND, MASKED_LINES
from cropstar.reports.seasons import MONTHS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN = 0.35  # inches, as all lengths on the sheet
WIDTH = 12.0  # without the margins


def draw_title(axes: Axes, title: str, line: str, width: float = WIDTH) -> None:
    """The sheet's name and a line on what it shows."""
    axes.text(MARGIN, MARGIN + 0.12, Ruler(14, "bold").shorten(title, width), fontsize=14, weight="bold")
    axes.text(MARGIN, MARGIN + 0.36, Ruler(8.5).shorten(line, width), fontsize=8.5, color=MUTED)


def draw_heading(axes: Axes, left: float, top: float, head: str, note: str) -> float:
    """A section's name and a quiet word on it; returns where they end."""
    axes.text(left, top + 0.12, head, fontsize=9.5, weight="bold")
    start = left + Ruler(9.5, "bold").width(head) + 0.12
    axes.text(start, top + 0.12, note, fontsize=7.5, color=MUTED)
    return start + Ruler(7.5).width(note)


def draw_masked_key(axes: Axes, left: float, top: float) -> None:
    """What the hatch in the pictures means."""
    from matplotlib.patches import Rectangle

    box = Rectangle((left, top + 0.005), 0.2, 0.13, linewidth=0)
    box.set(facecolor=MASKED_GROUND, edgecolor=MASKED_LINES, hatch="//////")
    axes.add_patch(box)
    axes.text(left + 0.27, top + 0.12, "cloud, shadow or no data", fontsize=7.5, color=MUTED)


def place_image(figure: Figure, axes: Axes, picture: NDArray[np.uint8], left: float, top: float) -> None:
    """Pixel by pixel, with a hairline just outside."""
    from matplotlib.patches import Rectangle

    height, width = picture.shape[:2]
    sheet = round(figure.get_size_inches()[1] * DPI)
    column, row = round(left * DPI), round(top * DPI)
    figure.figimage(picture, column, sheet - row - height)
    corner = ((column - 0.5) / DPI, (row - 0.5) / DPI)
    axes.add_patch(Rectangle(corner, (width + 1) / DPI, (height + 1) / DPI, fill=False, edgecolor=HAIRLINE, lw=0.4))


def date_words(day: int, *, year: bool = True) -> str:
    """'3 Apr 2019'."""
    date = from_days([int(day)])[0]
    return f"{date.day} {MONTHS[date.month - 1]}" + (f" {date.year}" if year else "")


def whole_pixels(inches: float) -> float:
    """A length that ends with a pixel."""
    return math.ceil(inches * DPI) / DPI
