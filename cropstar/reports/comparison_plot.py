"""The picture of a comparison: the macro-F1 of every run with its interval, and how validation went."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from cropstar.reports.axes import quiet
from cropstar.reports.canvas import INK, MUTED, encode, house_style, new_figure
from cropstar.reports.comparison import Comparison, Level, RunRow
from cropstar.reports.lettering import Ruler
from cropstar.reports.wording import plural, score
from cropstar.store.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 11.0  # inches
TOP, BOTTOM, ROW = 0.85, 0.62, 0.42
LEAST = 2.6  # height of the panels
NAMES = 2.1
MOST_ROWS = 60
# Told apart by the colour-blind too; runs beyond them are grey.
COLOURS = ("#2f6f4e", "#c8701b", "#3b6fb5", "#a8327d", "#8a7a17", "#2aa1a8", "#7a4fb0", "#6b4a34")
REST = "#a9b1ac"


def draw_comparison(path: Path, comparison: Comparison) -> None:
    """The best runs first; of very many those that are shown are said."""
    rows = comparison.rows[:MOST_ROWS]
    colours = [COLOURS[place] if place < len(COLOURS) else REST for place in range(len(rows))]
    panel = max(LEAST, ROW * len(rows))
    height = TOP + panel + BOTTOM
    with house_style():
        figure = new_figure(WIDTH, height)
        lower, share = BOTTOM / height, panel / height
        left = figure.add_axes(((NAMES + 0.25) / WIDTH, lower, 3.7 / WIDTH, share))
        right = figure.add_axes(((NAMES + 4.75) / WIDTH, lower, (WIDTH - NAMES - 5.0) / WIDTH, share))
        _draw_scores(left, comparison, rows, colours)
        _draw_curves(right, rows, colours)
        first = f", the best {len(rows)} of {len(comparison.rows)}" if len(rows) < len(comparison.rows) else ""
        title = f"{plural(len(comparison.rows), 'run')} on their test parcels{first}"
        figure.text(0.2 / WIDTH, 1 - 0.3 / height, title, fontsize=12, fontweight="bold", va="center")
        if len(comparison.groups) > 1:
            note = "Tested on different data: only runs with the same letter compare."
            figure.text(1 - 0.25 / WIDTH, 1 - 0.3 / height, note, fontsize=9, va="center", ha="right", color=COLOURS[1])
        picture = encode(figure, "png")
    with atomic_path(path) as partial:
        partial.write_bytes(picture)


def _draw_scores(axes: Axes, comparison: Comparison, rows: list[RunRow], colours: list[str]) -> None:
    ruler, small = Ruler(8.5, "bold"), Ruler(7)
    finer = comparison.finer.replace("pixels", "pixel").replace("dates", "date")
    for place, (row, colour) in enumerate(zip(rows, colours, strict=True)):
        if place % 2 == 0:
            axes.axhspan(place - 0.5, place + 0.5, color="#f5f7f5", linewidth=0, zorder=0)
        _draw_level(axes, row.parcel, place - (0.14 if row.pixel else 0.0), colour, filled=True)
        if row.pixel:
            _draw_level(axes, row.pixel, place + 0.18, colour, filled=False)
        letter = f" {comparison.group_of(row)}" if len(comparison.groups) > 1 else ""
        name = ruler.shorten(row.run, NAMES - 0.1 - ruler.width(letter)) + letter
        about = small.shorten(f"{row.model} {row.layers}\u00d7{row.hidden}, {row.split}", NAMES - 0.1)
        right_of = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right", "va": "center"}
        name_colour = INK if colour == REST else colour
        axes.annotate(name, (0, place), xytext=(-8, 5), fontsize=8.5, fontweight="bold", color=name_colour, **right_of)  # type: ignore[arg-type]
        axes.annotate(about, (0, place), xytext=(-8, -6), fontsize=7, color=MUTED, **right_of)  # type: ignore[arg-type]
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(*_limits(rows))
    axes.set_yticks([])
    axes.set_xticks([tick for tick in axes.get_xticks() if axes.get_xlim()[0] <= tick < 1 + 1e-9])  # no F1 is above 1
    quiet(axes, "x")
    axes.set_xlabel("macro-F1, with its 95 % interval", fontsize=8.5, color=MUTED)
    key = f"\u25cf by parcel   \u25cb by {finer}" if finer else "\u25cf by parcel"
    axes.set_title(f"Test   {key}", loc="left", fontsize=9.5, color=INK)


def _draw_level(axes: Axes, level: Level, height: float, colour: str, *, filled: bool) -> None:
    if level.macro_f1 is None:
        return
    if level.macro_f1_interval:
        width = 2.2 if filled else 1.2
        axes.plot(level.macro_f1_interval, [height, height], color=colour, linewidth=width, zorder=2, alpha=0.75)
    face = colour if filled else "white"
    axes.plot([level.macro_f1], [height], "o", markersize=6, color=face, mec=colour, mew=1.4, zorder=3, clip_on=False)
    axes.annotate(
        score(level.macro_f1),
        (max([level.macro_f1, *(level.macro_f1_interval or [])]), height),
        xytext=(6, -0.5),
        textcoords="offset points",
        fontsize=7,
        color=MUTED,
        va="center",
    )


def _limits(rows: list[RunRow]) -> tuple[float, float]:
    """All intervals, and room for the figures beside them."""
    levels = [level for row in rows for level in (row.parcel, row.pixel) if level]
    values = [value for level in levels for value in (level.macro_f1, *(level.macro_f1_interval or ()))]
    known = [value for value in values if value is not None] or [0.0, 1.0]
    low, high = max(0.0, math.floor(min(known) * 20 - 0.5) / 20), min(1.0, math.ceil(max(known) * 20) / 20)
    return low, high + 0.12 * max(high - low, 0.05)


def _draw_curves(axes: Axes, rows: list[RunRow], colours: list[str]) -> None:
    from matplotlib.ticker import MaxNLocator

    # The best is drawn last, above the others.
    for place in reversed(range(len(rows))):
        row, colour = rows[place], colours[place]
        values = [math.nan if value is None else value for value in row.validation]
        above = 3 + (len(rows) - place) / len(rows)
        dots = "o" if len(values) <= 30 else None
        axes.plot(row.epochs, values, color=colour, linewidth=1.5, marker=dots, markersize=2.6, zorder=above)
        if row.best_epoch in row.epochs:
            best = row.epochs.index(row.best_epoch)
            ring = {"markersize": 7, "color": "white", "mec": colour, "mew": 1.6, "zorder": above}
            axes.plot([row.best_epoch], [values[best]], "o", **ring)  # type: ignore[arg-type]
    last = max((epoch for row in rows for epoch in row.epochs), default=1)
    axes.set_xlim(0.5, last + 0.5)
    axes.margins(y=0.1)
    lowest, highest = axes.get_ylim()
    axes.set_ylim(max(lowest, -0.02), min(highest, 1.02))
    quiet(axes)
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
    axes.set_xlabel("epoch; a ring is the one that was kept", fontsize=8.5, color=MUTED)
    axes.set_title("Validation   macro-F1 epoch by epoch", loc="left", fontsize=9.5, color=INK)
