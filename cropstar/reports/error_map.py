"""The map of errors: the judged parcels of a scene where they lie, green where the crop is right, brown where wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.reports.canvas import HAIRLINE, INK, encode, house_style, new_sheet
from cropstar.reports.error_codes import NOTHING, OTHER, RIGHT, UNSEEN, WRONG, unpack
from cropstar.reports.lettering import Ruler
from cropstar.reports.scalebar import draw_scale
from cropstar.reports.wording import count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST = 5.2  # inches a side of the map
SMALLEST = 0.8
MARGIN = 0.06
HEAD = 0.34  # room of the legend above
STRIP = 0.34  # and of the scale below
TEXT_SIZE = 8.5
SWATCH, SPACE = 0.12, 0.07
# The shades of the confusion matrix, so that right and wrong look the same throughout the report.
COLOURS = {NOTHING: "#ffffff", OTHER: "#e4e8e5", UNSEEN: "#a9b7c9", RIGHT: "#2f6f4e", WRONG: "#c8501b"}


def error_map(scene: dict[str, Any], kind: Literal["svg", "png"] = "svg") -> bytes:
    """From one scene as result.json holds it."""
    grid = Grid.from_json(scene["grid"])
    picture = _paint(unpack(str(scene["codes"]), grid.shape))
    scale = LARGEST / max(grid.shape)
    wide, tall = (max(side * scale, SMALLEST) for side in (grid.width, grid.height))
    with house_style():
        entries = _entries(scene)
        ruler = Ruler(TEXT_SIZE)
        legend = sum(SWATCH + SPACE + ruler.width(words) + 3 * SPACE for _, words in entries)
        width, height = max(wide, legend) + 2 * MARGIN, HEAD + tall + STRIP
        figure, axes = new_sheet(width, height)
        _legend(axes, entries, ruler)
        inner = figure.add_axes((MARGIN / width, STRIP / height, wide / width, tall / height))
        inner.imshow(picture, interpolation="nearest", aspect="auto")
        inner.set_xticks([])
        inner.set_yticks([])
        for spine in inner.spines.values():
            spine.set(color=HAIRLINE, linewidth=0.6)
        draw_scale(axes, grid, MARGIN, HEAD + tall + 0.13, wide)
        return encode(figure, kind)


def _paint(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    table = [[int(colour[place : place + 2], 16) for place in (1, 3, 5)] for _, colour in sorted(COLOURS.items())]
    painted: NDArray[np.uint8] = np.array(table, dtype=np.uint8)[codes]  # (h, w, 3)
    return painted


def _entries(scene: dict[str, Any]) -> list[tuple[str, str]]:
    entries = [
        (COLOURS[RIGHT], f"right ({count(scene['right'])})"),
        (COLOURS[WRONG], f"wrong ({count(scene['wrong'])})"),
        (COLOURS[UNSEEN], f"never clear ({count(scene['unseen'])})"),
        (COLOURS[OTHER], "not judged"),
    ]
    return [entry for place, entry in enumerate(entries) if place != 2 or scene["unseen"]]


def _legend(axes: Axes, entries: list[tuple[str, str]], ruler: Ruler) -> None:
    from matplotlib.patches import Rectangle

    left = MARGIN
    for colour, words in entries:
        axes.add_patch(Rectangle((left, 0.09), SWATCH, SWATCH, facecolor=colour, edgecolor=HAIRLINE, linewidth=0.3))
        axes.text(left + SWATCH + SPACE, 0.15, words, fontsize=TEXT_SIZE, color=INK, va="center")
        left += SWATCH + SPACE + ruler.width(words) + 3 * SPACE
