"""Quiet axes: a line below, faint lines across, small grey words. The curves are the message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from cropstar.reports.canvas import HAIRLINE, INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.ticker import Formatter

LABEL_SIZE = 8.0


def quiet(
    axes: Axes, grid: Literal["x", "y"] = "y", *, label_size: float = LABEL_SIZE, line: float = 0.6, pad: float = 3.5
) -> None:
    """The look of every plot; what is on the axes is left to the caller."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(HAIRLINE)
    axes.grid(axis=grid, color=HAIRLINE, linewidth=line)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=label_size, labelcolor=MUTED, pad=pad)


def as_percent() -> Formatter:
    """Shares from 0 to 1 as per cent."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{100 * value:.0f} %")


def legend_above(axes: Axes, columns: int) -> None:
    """In one line over the plot, where it covers nothing."""
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(-0.015, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=8.5,
        handlelength=1.4,
        borderpad=0.2,
        columnspacing=1.4,
    )


def flag(axes: Axes, place: float, words: str, *, late: bool) -> None:
    """A dashed upright at a place, with words on the side where there is room for them."""
    style: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "color": INK}
    axes.axvline(place, color=INK, linewidth=0.8, linestyle=(0, (3, 2)), zorder=2)
    axes.annotate(
        words,
        (place, 0.0),
        xytext=(-5 if late else 5, 5),
        ha="right" if late else "left",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85},
        zorder=5,
        **style,
    )
