"""How early each crop is known, drawn through the season: the course of the scores, and a strip a class below."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from cropstar.reports.axes import as_percent, flag, legend_above, quiet
from cropstar.reports.canvas import GREEN, HAIRLINE, INK, MUTED, ORANGE, encode, house_style, new_figure
from cropstar.reports.lettering import Ruler
from cropstar.reports.seasons import MONTHS
from cropstar.reports.wording import DASH, score

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 7.6  # inches
MARGIN = 0.08
CURVES = 1.75  # height of the upper plot
ABOVE = 0.34  # room for its legend
BETWEEN = 0.62  # months and the head of the columns
LONGEST_NAME = 1.7
SWATCH, SPACE = 0.11, 0.08
FROM, FINAL = 0.74, 0.55  # width of the columns on the right
GROUND = (0xF2, 0xF4, 0xF1)  # an F1 of 0
FULL = (0x2F, 0x6F, 0x4E)  # an F1 of 1
COMMON_YEAR = 2001  # of days without a year


def season_curve(
    earliness: dict[str, Any], classes: Sequence[dict[str, Any]], kind: Literal["svg", "png"] = "svg"
) -> bytes:
    """From figures by day as result.json holds them; only classes that occur get a strip, the earliest first."""
    shown = sorted(
        (number for number, count in enumerate(earliness["support"]) if count),
        key=lambda number: (_or_late(earliness["known_from"][number]), number),
    )
    row = 0.27 if len(shown) <= 12 else 0.20
    text_size = 8.5 if len(shown) <= 12 else 7.0
    with house_style():
        ruler = Ruler(text_size)
        names = {number: ruler.shorten(str(classes[number]["name"]), LONGEST_NAME) for number in shown}
        left = max(MARGIN + SWATCH + 2 * SPACE + ruler.widest(list(names.values())), 0.55)
        width = WIDTH - left - FROM - FINAL - MARGIN
        height = ABOVE + CURVES + BETWEEN + row * len(shown) + MARGIN
        figure = new_figure(WIDTH, height)

        def axes_at(top: float, tall: float) -> Axes:
            return figure.add_axes((left / WIDTH, 1 - (top + tall) / height, width / WIDTH, tall / height))

        upper = axes_at(ABOVE, CURVES)
        _curves(upper, earliness)
        _months(upper, earliness, width)
        if shown:
            lower = axes_at(ABOVE + CURVES + BETWEEN, row * len(shown))
            lower.set_xlim(upper.get_xlim())
            lower.set_ylim(len(shown), 0)
            lower.set_axis_off()
            _head(lower, earliness, width, row * len(shown))
            _strips(lower, earliness, shown)
            for place, number in enumerate(shown):
                _words(lower, place, earliness, number, str(classes[number]["colour"]), names[number], text_size, width)
        return encode(figure, kind)


def day_words(start: int, day: int) -> str:
    """A day of the season without its year: "3 Jun"."""
    there = date(COMMON_YEAR, 1, 1) + timedelta(days=start - 1 + day)
    return f"{there.day} {MONTHS[there.month - 1]}"


def _curves(axes: Axes, earliness: dict[str, Any]) -> None:
    days = earliness["days"]
    style: dict[str, Any] = {"linewidth": 1.7, "zorder": 3, "clip_on": False}  # a perfect score is a whole line, too
    if len(days) <= 40:
        style |= {"marker": "o", "markersize": 2.4}
    for key, label, colour in (("accuracy", "overall accuracy", GREEN), ("macro_f1", "macro-F1", ORANGE)):
        values = [math.nan if value is None else value for value in earliness[key]]
        axes.plot(days, values, color=colour, label=label, **style)
    margin = max((days[-1] - days[0]) * 0.012, 1.0)
    axes.set_xlim(days[0] - margin, days[-1] + margin)
    axes.set_ylim(0.0, 1.0)
    quiet(axes)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(as_percent())
    day = earliness["accurate_from"]
    if day is not None:
        words = f"{day_words(earliness['start'], day)}: {100 * earliness['known']:.0f} % of the final accuracy"
        flag(axes, day, words, late=day > days[-1] / 2)
    legend_above(axes, 2)


def _months(axes: Axes, earliness: dict[str, Any], width: float) -> None:
    """The first days of months; the ends of a season that is shorter than two."""
    start, days = earliness["start"], earliness["days"]
    beginning = date(COMMON_YEAR, 1, 1) + timedelta(days=start - 1)
    end = min(int(days[-1]), 3660)  # whatever a file claims
    firsts = [day for day in range(end + 1) if (beginning + timedelta(days=day)).day == 1]
    if len(firsts) >= 2:
        chosen = firsts[:: math.ceil(len(firsts) / max(int(width / 0.42), 2))]
        words = [MONTHS[(beginning + timedelta(days=day)).month - 1] for day in chosen]
    else:
        chosen = sorted({int(days[0]), int(days[-1])})
        words = [day_words(start, day) for day in chosen]
    axes.set_xticks(chosen, words)
    axes.tick_params(axis="x", length=2.5, color=HAIRLINE)


def _head(axes: Axes, earliness: dict[str, Any], width: float, tall: float) -> None:
    style: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 7.5, "color": MUTED, "va": "bottom"}
    above = 1 + 0.07 / tall
    axes.text(0.0, above, "F1 of each crop by day: the darker, the better", **style)
    axes.text(1 + FROM / width, above, "known from", ha="right", **style)
    axes.text(1 + (FROM + FINAL) / width, above, "final F1", ha="right", **style)


def _strips(axes: Axes, earliness: dict[str, Any], shown: list[int]) -> None:
    """A cell a day, which lasts until the next one; a mark where a class is known."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    edges = [*earliness["days"], axes.get_xlim()[1]]
    cells = [
        Rectangle((day, place + 0.14), following - day, 0.72)
        for place in range(len(shown))
        for day, following in pairwise(edges)
    ]
    shades = [_shade(value) for number in shown for value in earliness["class_f1"][number]]
    # Edges of the same colour close the hairs of white between neighbours.
    strips = PatchCollection(cells, facecolors=shades, edgecolors=shades, linewidths=0.3, zorder=1)
    axes.add_collection(strips, autolim=False)
    known = {place: earliness["known_from"][number] for place, number in enumerate(shown)}
    marked = {place: day for place, day in known.items() if day is not None}
    tops, bottoms = [place + 0.08 for place in marked], [place + 0.92 for place in marked]
    axes.vlines(list(marked.values()), tops, bottoms, color=INK, linewidth=1.6, zorder=3)


def _words(
    axes: Axes,
    place: int,
    earliness: dict[str, Any],
    number: int,
    colour: str,
    name: str,
    text_size: float,
    width: float,
) -> None:
    from matplotlib.transforms import blended_transform_factory

    beside: Any = blended_transform_factory(axes.transAxes, axes.transData)
    style: dict[str, Any] = {"transform": beside, "fontsize": text_size, "va": "center"}
    middle = place + 0.5
    axes.text(-SPACE / width, middle, "\u25a0", ha="right", **{**style, "color": colour})
    axes.text(-(2 * SPACE + SWATCH) / width, middle, name, ha="right", **style)
    known = earliness["known_from"][number]
    words = DASH if known is None else day_words(earliness["start"], known)
    axes.text(1 + FROM / width, middle, words, ha="right", **style)
    axes.text(1 + (FROM + FINAL) / width, middle, score(earliness["class_f1"][number][-1]), ha="right", **style)


def _shade(value: float | None) -> str:
    """The power parts good from better, which is what a reader looks for."""
    share = max(0.0, min(value or 0.0, 1.0)) ** 1.5
    return "#" + "".join(f"{round(one + (two - one) * share):02x}" for one, two in zip(GROUND, FULL, strict=True))


def _or_late(day: int | None) -> float:
    return math.inf if day is None else day
