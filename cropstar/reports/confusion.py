"""The confusion matrix as a drawing: a row is what grew there, a column what the map says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cropstar.reports.canvas import HAIRLINE, INK, MUTED, encode, house_style, new_sheet
from cropstar.reports.lettering import Ruler

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LONGEST_NAME = 1.45  # inches
SWATCH = 0.11
GAP = 0.08
MARGIN = 0.06
TITLE = 0.24
RIGHT_SHADE = (0x2F, 0x6F, 0x4E)  # the diagonal
WRONG_SHADE = (0xB5, 0x52, 0x1F)  # everything else
TRUE, PREDICTED = "in the field", "on the map"
EMPTY = "#f4f5f3"


def confusion_matrix(confusion: Sequence[Sequence[int]], classes: Sequence[dict[str, Any]]) -> bytes:
    """An SVG; cells show the share of their row in percent, and the count where there is room."""
    size = len(classes)
    cell = 0.56 if size <= 8 else 0.46 if size <= 14 else 0.31
    text_size = 8.5 if size <= 14 else 7.0
    with house_style():
        ruler = Ruler(text_size)
        names = [ruler.shorten(str(entry["name"]), LONGEST_NAME) for entry in classes]
        totals = [f"{sum(row):,}" for row in confusion]
        labels = max(ruler.widest(names) + SWATCH + 2 * GAP, 0.7)
        left = MARGIN + TITLE + labels
        top = MARGIN + TITLE + labels
        right = left + size * cell
        width = right + GAP + max(ruler.widest(totals), Ruler(7.5).width("total")) + MARGIN
        # The words at the margins need their room even beside a matrix of one class.
        width = max(width, left + Ruler(8).width(PREDICTED) + MARGIN)
        height = top + max(size * cell, Ruler(8).width(TRUE)) + MARGIN
        figure, axes = new_sheet(width, height)
        axes.text(left, MARGIN + 0.12, PREDICTED, fontsize=8, color=MUTED)
        axes.text(MARGIN + 0.12, top, TRUE, fontsize=8, color=MUTED, rotation=90, ha="center", va="top")
        axes.text(right + GAP, top - GAP, "total", fontsize=7.5, color=MUTED, va="baseline")
        _ground(axes, left, top, size, cell)
        for number, (entry, name) in enumerate(zip(classes, names, strict=True)):
            middle = (number + 0.5) * cell
            _swatch(axes, left - GAP - SWATCH, top + middle - SWATCH / 2, str(entry["colour"]))
            _swatch(axes, left + middle - SWATCH / 2, top - GAP - SWATCH, str(entry["colour"]))
            across = left - 2 * GAP - SWATCH
            axes.text(across, top + middle, name, fontsize=text_size, ha="right", va="center")
            above = top - 2 * GAP - SWATCH
            axes.text(left + middle, above, name, fontsize=text_size, rotation=90, ha="center", va="bottom")
            axes.text(right + GAP, top + middle, totals[number], fontsize=text_size, color=MUTED, va="center")
            _row(axes, number, confusion[number], left, top + number * cell, cell, text_size)
        return encode(figure, "svg")


def _ground(axes: Axes, left: float, top: float, size: int, cell: float) -> None:
    """The empty matrix as one piece: most cells of a large one stay empty."""
    from matplotlib.patches import Rectangle

    side = size * cell
    axes.add_patch(Rectangle((left, top), side, side, facecolor=EMPTY, edgecolor="none", zorder=0.1))
    steps = [step * cell for step in range(size + 1)]
    axes.hlines([top + step for step in steps], left, left + side, color="white", linewidth=1.2, zorder=0.2)
    axes.vlines([left + step for step in steps], top, top + side, color="white", linewidth=1.2, zorder=0.2)


def _row(
    axes: Axes, number: int, counts: Sequence[int], left: float, top: float, cell: float, text_size: float
) -> None:
    from matplotlib.patches import Rectangle

    total = sum(counts)
    for column, value in enumerate(counts):
        if not value:
            continue
        share = value / total
        corner = left + column * cell
        colour = _shade(share, RIGHT_SHADE if column == number else WRONG_SHADE)
        # add_artist, since add_patch would look for new limits of the axes a thousand times.
        axes.add_artist(Rectangle((corner, top), cell, cell, facecolor=colour, edgecolor="white", linewidth=1.2))
        ink = "white" if share > 0.7 else INK
        percent = "<1" if share < 0.005 else ">99" if 0.995 <= share < 1 else f"{100 * share:.0f}"
        middle = corner + cell / 2
        if cell > 0.4:  # room for a second line
            axes.text(middle, top + 0.47 * cell, percent, fontsize=text_size + 0.5, color=ink, ha="center")
            small = {"fontsize": 6.2, "color": ink, "alpha": 0.8, "ha": "center"}
            axes.text(middle, top + 0.78 * cell, _compact(value), **small)  # type: ignore[arg-type]
        else:
            axes.text(middle, top + cell / 2, percent, fontsize=text_size, color=ink, ha="center", va="center")


def _compact(count: int) -> str:
    """Counts of pixels run into millions, cells do not."""
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1000:.0f}k" if count < 999_500 else f"{count / 1_000_000:.1f}M"


def _shade(share: float, full: tuple[int, int, int]) -> str:
    """From nearly white to the full colour; the root makes small confusions visible."""
    strength = 0.06 + 0.94 * share**0.75
    return "#" + "".join(f"{round(255 + (part - 255) * strength):02x}" for part in full)


def _swatch(axes: Axes, left: float, top: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((left, top), SWATCH, SWATCH, facecolor=colour, edgecolor=HAIRLINE, linewidth=0.3))
