"""How sure the model says it is against how often it is right, before and after calibration, each as an SVG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from cropstar.reports.axes import as_percent, quiet
from cropstar.reports.canvas import GREEN, INK, MUTED, ORANGE, encode, house_style, new_figure
from cropstar.reports.wording import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.6, 3.9  # inches
LEFT, ACROSS = 0.13, 0.825  # shares of the width
FEW = 20  # samples in a bin, below which its accuracy is mostly chance
GAP_SHADE = "#f3e3d3"


def reliability_plots(calibration: dict[str, Any], kind: Literal["svg", "png"] = "svg") -> tuple[bytes, bytes]:
    """From a calibration as result.json holds it: the plot before, the plot after; the same axes for both."""
    before, after = calibration["before"], calibration["after"]
    warmth = f"After calibration, temperature {calibration['temperature']:.2f}"
    tallest = max((each["share"] for table in (before, after) for each in table["bins"]), default=1.0)
    return (
        _plot(before, "As trained", ORANGE, tallest, kind),
        _plot(after, warmth, GREEN, tallest, kind),
    )


def _plot(table: dict[str, Any], title: str, colour: str, tallest: float, kind: Literal["svg", "png"]) -> bytes:
    with house_style():
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.add_axes((LEFT, 0.325, ACROSS, 0.57))
        _steps(axes, table["bins"], colour)
        _tidy(axes)
        errors = percent(table["ece"]), percent(table["ece_equal_mass"])
        note = "off by {} on average (ECE); with bins of equal mass {}".format(*errors)
        axes.text(0.0, 1.095, title, transform=axes.transAxes, fontsize=9.5, fontweight="bold", color=INK)
        axes.text(0.0, 1.03, note, transform=axes.transAxes, fontsize=8, color=MUTED)
        axes.set_ylabel("how often it is right", fontsize=8, color=MUTED, labelpad=3)

        below = figure.add_axes((LEFT, 0.12, ACROSS, 0.15))
        _masses(below, table, colour)
        _tidy(below)
        below.set_ylim(0.0, tallest * 1.08)
        below.set_yticks([tallest])
        below.set_ylabel("share", fontsize=8, color=MUTED, labelpad=3)
        below.set_xlabel("how sure it says it is", fontsize=8, color=MUTED, labelpad=3)
        axes.set_xticklabels([])
        return encode(figure, kind)


def _steps(axes: Axes, bins: list[dict[str, Any]], colour: str) -> None:
    """A dot a bin, and its distance from the diagonal as a bar; a line joins the dots that are more than chance."""
    from matplotlib.patches import Rectangle

    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), zorder=2)
    firm = [each for each in bins if each["count"] >= FEW]
    for each in firm:
        low, high = sorted((each["confidence"], each["accuracy"]))
        width = each["high"] - each["low"]
        corner = (each["low"] + 0.06 * width, low)
        axes.add_artist(Rectangle(corner, 0.88 * width, high - low, facecolor=GAP_SHADE, zorder=1))
    axes.plot(*_places(firm), color=colour, linewidth=1.4, zorder=3)
    # The area of a dot grows with what it stands for: a bin of fifty pixels must not look like one of a million.
    dots: dict[str, Any] = {"zorder": 4, "clip_on": False}
    axes.scatter(
        *_places(firm), s=[12 + 110 * each["share"] for each in firm], color=colour, ec="white", lw=0.8, **dots
    )
    axes.scatter(
        *_places([each for each in bins if each["count"] < FEW]), s=9, color="white", ec=colour, lw=0.9, **dots
    )
    axes.set_ylim(0.0, 1.0)
    axes.text(0.025, 0.93, "above the dashes: too modest", fontsize=7, color=MUTED, zorder=5)
    axes.text(0.985, 0.04, "below the dashes: too sure", fontsize=7, color=MUTED, ha="right", zorder=5)


def _places(bins: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [each["confidence"] for each in bins], [each["accuracy"] for each in bins]


def _masses(axes: Axes, table: dict[str, Any], colour: str) -> None:
    for each in table["bins"]:
        width = each["high"] - each["low"]
        axes.bar(each["low"] + width / 2, each["share"], width * 0.88, color=colour, alpha=0.45, linewidth=0, zorder=2)


def _tidy(axes: Axes) -> None:
    quiet(axes)
    axes.set_xlim(0.0, 1.0)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.xaxis.set_major_formatter(as_percent())
    axes.yaxis.set_major_formatter(as_percent())
