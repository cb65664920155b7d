"""The curves of a class, drawn as small multiples: one little plot a class, the others in grey behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

import numpy as np

from cropstar.geo.calendar import from_days, to_days
from cropstar.reports.axes import quiet
from cropstar.reports.canvas import HAIRLINE, INK
from cropstar.reports.curves import Curves
from cropstar.reports.lettering import Ruler

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
MOST = 24  # plots on a sheet
NARROWEST, LOWEST = 1.5, 0.98  # inches of a plot with its title
LEFT, BOTTOM = 0.32, 0.24  # room for the numbers
TITLE = 0.2
GAP = 0.16
BAND = (0.1, 0.9)
SHADOW = "#e3e7e3"


@dataclass(frozen=True)
class Multiples:
    """So many plots in so many columns, which know the room that they need before they are drawn."""

    curves: Curves
    shown: list[int]
    columns: int

    @classmethod
    def for_width(cls, curves: Curves, width: float) -> Multiples:
        shown = curves.present()[:MOST]
        columns = max(1, min(len(shown), int((width - LEFT + GAP) / NARROWEST)))
        rows = math.ceil(len(shown) / columns)
        return cls(curves, shown, math.ceil(len(shown) / max(rows, 1)) or 1)

    @property
    def rows(self) -> int:
        return math.ceil(len(self.shown) / self.columns)

    @property
    def least_height(self) -> float:
        return self.rows * LOWEST + BOTTOM

    def draw(self, figure: Figure, left: float, top: float, width: float, height: float) -> None:
        across, down = figure.get_size_inches()
        cell_width = (width - LEFT + GAP) / self.columns
        cell_height = (height - BOTTOM) / max(self.rows, 1)
        low, high = self._limits()
        for place, number in enumerate(self.shown):
            row, column = divmod(place, self.columns)
            x, y = left + LEFT + column * cell_width, top + row * cell_height + TITLE
            plot_width, plot_height = cell_width - GAP, cell_height - TITLE - 0.06
            box = (x / across, 1 - (y + plot_height) / down, plot_width / across, plot_height / down)
            axes = figure.add_axes(box)
            self._plot(axes, number)
            axes.set_ylim(low, high)
            self._tidy(axes, first=column == 0, last=place + self.columns >= len(self.shown), width=plot_width)
            entry = self.curves.fingerprint.classes[number]
            name = Ruler(7.5).shorten(entry.name, plot_width - 0.14)
            axes.text(0.0, 1.0, "\u25a0", transform=_points(axes, 0, 3.4), fontsize=7.5, color=entry.colour)
            axes.text(0.0, 1.0, name, transform=_points(axes, 8.5, 4), fontsize=7.5, color=INK)

    def _plot(self, axes: Axes, number: int) -> None:
        days = self.curves.positions
        for other in self.shown:
            if other != number:
                mean = self.curves.mean(0, other)
                known = np.isfinite(mean)
                axes.plot(days[known], mean[known], color=SHADOW, linewidth=0.6, zorder=1)
        colour = self.curves.fingerprint.classes[number].colour
        for quantity in range(len(self.curves.quantities)):
            mean = self.curves.mean(quantity, number)
            known = np.isfinite(mean)
            if quantity == 0:
                lower, upper = (self.curves.percentile(0, number, share)[known] for share in BAND)
                axes.fill_between(days[known], lower, upper, color=colour, alpha=0.32, linewidth=0, zorder=2)
            style = "-" if quantity == 0 else (0, (3, 1.5))
            marker = {"marker": "o", "markersize": 1.8} if known.sum() <= 30 else {}
            axes.plot(days[known], mean[known], color=_darker(colour), lw=1.3, linestyle=style, zorder=3, **marker)  # type: ignore[arg-type]

    def _limits(self) -> tuple[float, float]:
        """One axis for all plots, so that classes compare; from zero unless something lies below."""
        edges = [0.0]
        for number in self.shown:
            for quantity in range(len(self.curves.quantities)):
                edges += [float(value) for value in self.curves.mean(quantity, number)]
            for share in BAND:
                edges += [float(value) for value in self.curves.percentile(0, number, share)]
        known = [value for value in edges if math.isfinite(value)]
        step = 0.1 if max(known) > 0.4 else 0.05
        return max(math.floor(min(known) / step) * step, -0.3), max(math.ceil(max(known) / step), 1) * step

    def _tidy(self, axes: Axes, *, first: bool, last: bool, width: float) -> None:
        from matplotlib.ticker import MaxNLocator

        quiet(axes, label_size=6.2, line=0.4, pad=2)
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        ticks, words = month_ticks(self.curves.positions, room=max(2, int(width / 0.36)))
        axes.set_xticks(ticks, words if last else [""] * len(words))
        axes.tick_params(axis="x", length=2, color=HAIRLINE)
        if len(ticks) == 2:  # the ends of a short season: their words stay within the plot
            early, late = axes.get_xticklabels()
            early.set_horizontalalignment("left")
            late.set_horizontalalignment("right")
        days = self.curves.positions
        margin = max((int(days[-1]) - int(days[0])) * 0.03, 1.0)
        axes.set_xlim(float(days[0]) - margin, float(days[-1]) + margin)
        if not first:
            axes.set_yticklabels([])


def month_ticks(days: np.ndarray[tuple[int, ...], np.dtype[np.int32]], room: int) -> tuple[list[int], list[str]]:
    """The first days of months within the dates, no more than there is room for; the dates themselves if short."""
    first, last = from_days([int(days[0]), int(days[-1])])
    months = []
    month = date(first.year, first.month, 1)
    while month <= last:
        if month >= first:
            months.append(month)
        month = (month + timedelta(days=32)).replace(day=1)
    if len(months) < 2:
        ends = [first] if first == last else [first, last]
        return [int(day) for day in to_days(ends)], [f"{day.day} {MONTHS[day.month - 1]}" for day in ends]
    months = months[:: math.ceil(len(months) / room)]
    years = len({day.year for day in months}) > 1
    words = [f"{MONTHS[day.month - 1]}{f' {day.year % 100:02d}' if years else ''}" for day in months]
    return [int(day) for day in to_days(months)], words


def _points(axes: Axes, right: float, up: float):  # type: ignore[no-untyped-def]
    """The upper left corner of a plot, moved by some points."""
    from matplotlib.transforms import offset_copy

    return offset_copy(axes.transAxes, fig=axes.figure, x=right, y=up, units="points")  # type: ignore[arg-type]


def _darker(colour: str) -> str:
    """A pale class must still be a line on white."""
    return "#" + "".join(f"{round(int(colour[place : place + 2], 16) * 0.78):02x}" for place in (1, 3, 5))
