"""Figures of a training, each as the bytes of an SVG or PNG.

Learning curves, confusion matrix, reliability diagram, accuracy through the season, map of errors, and the diagnosis of
the first epoch.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.reports.drawing import (
    GREEN,
    HAIRLINE,
    INK,
    MUTED,
    ORANGE,
    Ruler,
    draw_scale,
    encode,
    house_style,
    legend_above,
    mark_position,
    new_figure,
    new_sheet,
    percent_formatter,
    style_axes,
)
from cropstar.reports.wording import DASH, MONTHS, count, percent, score
from cropstar.store.classes import rgb
from cropstar.store.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# --- learning curves

CURVES_WIDTH, CURVES_HEIGHT = 4.6, 2.7  # inches
SCORES = (("overall_accuracy", "overall accuracy", GREEN), ("macro_f1", "macro-F1", ORANGE))


def loss_curve(history: Sequence[dict[str, Any]], best_epoch: int | None) -> bytes:
    """Training loss per epoch."""
    lines = [("training loss", GREEN, [_number(row.get("loss")) for row in history])]
    return _learning_curves(history, lines, best_epoch, shares=False)


def score_curve(history: Sequence[dict[str, Any]], best_epoch: int | None) -> bytes:
    """Overall accuracy and macro-F1 on the validation parcels per epoch."""
    lines = [
        (label, colour, [_number((row.get("validation") or {}).get(key)) for row in history])
        for key, label, colour in SCORES
    ]
    return _learning_curves(history, lines, best_epoch, shares=True)


def _learning_curves(
    history: Sequence[dict[str, Any]],
    lines: Sequence[tuple[str, str, list[float]]],
    best_epoch: int | None,
    *,
    shares: bool,
) -> bytes:
    with house_style():
        figure = new_figure(CURVES_WIDTH, CURVES_HEIGHT)
        axes = figure.add_axes((0.105, 0.165, 0.87, 0.70))
        epochs = [int(row["epoch"]) for row in history]
        for label, colour, values in lines:
            # A single epoch, or one between two gaps, is a dot: a line alone would not show it.
            marker = {"marker": "o", "markersize": 3.2} if len(epochs) <= 30 else {}
            axes.plot(epochs, values, color=colour, linewidth=1.7, label=label, zorder=3, **marker)  # type: ignore[arg-type]
        _style_epochs(axes, epochs, shares=shares)
        if best_epoch in epochs:
            _mark_best(axes, epochs.index(best_epoch), epochs, lines)
        legend_above(axes, len(lines))
        return encode(figure, "svg")


def _style_epochs(axes: Axes, epochs: list[int], *, shares: bool) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    style_axes(axes)
    axes.margins(y=0.12)
    axes.xaxis.set_major_locator(FixedLocator(epochs) if len(epochs) <= 8 else MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
    axes.set_xlabel("epoch", fontsize=8, color=MUTED, labelpad=3)
    if shares:
        lowest, highest = axes.get_ylim()
        axes.set_ylim(max(0.0, lowest), min(1.0, highest) if highest > lowest else 1.0)
        axes.yaxis.set_major_formatter(percent_formatter())


def _mark_best(axes: Axes, index: int, epochs: list[int], lines: Sequence[tuple[str, str, list[float]]]) -> None:
    epoch = epochs[index]
    for _, colour, values in lines:
        if math.isfinite(values[index]):
            axes.plot([epoch], [values[index]], marker="o", markersize=7, color="white", mec=colour, mew=1.8, zorder=4)
    lowest, highest = axes.get_xlim()
    mark_position(axes, epoch, f"epoch {epoch} kept", late=epoch > (lowest + highest) / 2)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


# --- confusion matrix

MATRIX_NAME = 1.45  # inches
MATRIX_SWATCH = 0.11
MATRIX_GAP = 0.08
MATRIX_MARGIN = 0.06
MATRIX_TITLE = 0.24
RIGHT_SHADE = (0x2F, 0x6F, 0x4E)  # the diagonal
WRONG_SHADE = (0xB5, 0x52, 0x1F)  # everything else
TRUE_TITLE, PREDICTED_TITLE = "in the field", "on the map"
EMPTY_CELL = "#f4f5f3"


def confusion_matrix(confusion: Sequence[Sequence[int]], classes: Sequence[dict[str, Any]]) -> bytes:
    """An SVG; cells show the share of their row in percent, and the count where there is room."""
    size = len(classes)
    cell = 0.56 if size <= 8 else 0.46 if size <= 14 else 0.31
    text_size = 8.5 if size <= 14 else 7.0
    with house_style():
        ruler = Ruler(text_size)
        names = [ruler.shorten(str(entry["name"]), MATRIX_NAME) for entry in classes]
        totals = [f"{sum(row):,}" for row in confusion]
        labels = max(ruler.widest(names) + MATRIX_SWATCH + 2 * MATRIX_GAP, 0.7)
        left = MATRIX_MARGIN + MATRIX_TITLE + labels
        top = MATRIX_MARGIN + MATRIX_TITLE + labels
        right = left + size * cell
        width = right + MATRIX_GAP + max(ruler.widest(totals), Ruler(7.5).width("total")) + MATRIX_MARGIN
        # The words at the margins need their room even beside a matrix of one class.
        width = max(width, left + Ruler(8).width(PREDICTED_TITLE) + MATRIX_MARGIN)
        height = top + max(size * cell, Ruler(8).width(TRUE_TITLE)) + MATRIX_MARGIN
        figure, axes = new_sheet(width, height)
        axes.text(left, MATRIX_MARGIN + 0.12, PREDICTED_TITLE, fontsize=8, color=MUTED)
        axes.text(MATRIX_MARGIN + 0.12, top, TRUE_TITLE, fontsize=8, color=MUTED, rotation=90, ha="center", va="top")
        axes.text(right + MATRIX_GAP, top - MATRIX_GAP, "total", fontsize=7.5, color=MUTED, va="baseline")
        _empty_matrix(axes, left, top, size, cell)
        for number, (entry, name) in enumerate(zip(classes, names, strict=True)):
            middle = (number + 0.5) * cell
            _class_swatch(
                axes, left - MATRIX_GAP - MATRIX_SWATCH, top + middle - MATRIX_SWATCH / 2, str(entry["colour"])
            )
            _class_swatch(
                axes, left + middle - MATRIX_SWATCH / 2, top - MATRIX_GAP - MATRIX_SWATCH, str(entry["colour"])
            )
            across = left - 2 * MATRIX_GAP - MATRIX_SWATCH
            axes.text(across, top + middle, name, fontsize=text_size, ha="right", va="center")
            above = top - 2 * MATRIX_GAP - MATRIX_SWATCH
            axes.text(left + middle, above, name, fontsize=text_size, rotation=90, ha="center", va="bottom")
            axes.text(right + MATRIX_GAP, top + middle, totals[number], fontsize=text_size, color=MUTED, va="center")
            _matrix_row(axes, number, confusion[number], left, top + number * cell, cell, text_size)
        return encode(figure, "svg")


def _empty_matrix(axes: Axes, left: float, top: float, size: int, cell: float) -> None:
    """The empty matrix as one piece: most cells of a large one stay empty."""
    from matplotlib.patches import Rectangle

    side = size * cell
    axes.add_patch(Rectangle((left, top), side, side, facecolor=EMPTY_CELL, edgecolor="none", zorder=0.1))
    steps = [step * cell for step in range(size + 1)]
    axes.hlines([top + step for step in steps], left, left + side, color="white", linewidth=1.2, zorder=0.2)
    axes.vlines([left + step for step in steps], top, top + side, color="white", linewidth=1.2, zorder=0.2)


def _matrix_row(
    axes: Axes, number: int, counts: Sequence[int], left: float, top: float, cell: float, text_size: float
) -> None:
    from matplotlib.patches import Rectangle

    total = sum(counts)
    for column, value in enumerate(counts):
        if not value:
            continue
        share = value / total
        corner = left + column * cell
        colour = _cell_shade(share, RIGHT_SHADE if column == number else WRONG_SHADE)
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


def _cell_shade(share: float, full: tuple[int, int, int]) -> str:
    """From nearly white to the full colour; the root makes small confusions visible."""
    strength = 0.06 + 0.94 * share**0.75
    return "#" + "".join(f"{round(255 + (part - 255) * strength):02x}" for part in full)


def _class_swatch(axes: Axes, left: float, top: float, colour: str) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((left, top), MATRIX_SWATCH, MATRIX_SWATCH, facecolor=colour, edgecolor=HAIRLINE, linewidth=0.3)
    )


# --- reliability diagram

RELIABILITY_WIDTH, RELIABILITY_HEIGHT = 4.6, 3.9  # inches
RELIABILITY_LEFT, RELIABILITY_ACROSS = 0.13, 0.825  # shares of the width
FEW_SAMPLES = 20  # samples in a bin, below which its accuracy is mostly chance
GAP_SHADE = "#f3e3d3"


def reliability_plots(calibration: dict[str, Any], kind: Literal["svg", "png"] = "svg") -> tuple[bytes, bytes]:
    """From a calibration as result.json holds it: the plot before, the plot after; the same axes for both."""
    before, after = calibration["before"], calibration["after"]
    warmth = f"After calibration, temperature {calibration['temperature']:.2f}"
    tallest = max((each["share"] for table in (before, after) for each in table["bins"]), default=1.0)
    return (
        _reliability_plot(before, "As trained", ORANGE, tallest, kind),
        _reliability_plot(after, warmth, GREEN, tallest, kind),
    )


def _reliability_plot(
    table: dict[str, Any], title: str, colour: str, tallest: float, kind: Literal["svg", "png"]
) -> bytes:
    with house_style():
        figure = new_figure(RELIABILITY_WIDTH, RELIABILITY_HEIGHT)
        axes = figure.add_axes((RELIABILITY_LEFT, 0.325, RELIABILITY_ACROSS, 0.57))
        _steps(axes, table["bins"], colour)
        _style_confidence(axes)
        errors = percent(table["ece"]), percent(table["ece_equal_mass"])
        note = "ECE {}; with bins of equal mass {}".format(*errors)
        axes.text(0.0, 1.095, title, transform=axes.transAxes, fontsize=9.5, fontweight="bold", color=INK)
        axes.text(0.0, 1.03, note, transform=axes.transAxes, fontsize=8, color=MUTED)
        axes.set_ylabel("accuracy", fontsize=8, color=MUTED, labelpad=3)

        below = figure.add_axes((RELIABILITY_LEFT, 0.12, RELIABILITY_ACROSS, 0.15))
        _masses(below, table, colour)
        _style_confidence(below)
        below.set_ylim(0.0, tallest * 1.08)
        below.set_yticks([tallest])
        below.set_ylabel("share", fontsize=8, color=MUTED, labelpad=3)
        below.set_xlabel("confidence", fontsize=8, color=MUTED, labelpad=3)
        axes.set_xticklabels([])
        return encode(figure, kind)


def _steps(axes: Axes, bins: list[dict[str, Any]], colour: str) -> None:
    """A dot per bin, and its distance from the diagonal as a bar; a line joins the dots that are more than chance."""
    from matplotlib.patches import Rectangle

    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.9, linestyle=(0, (3, 2)), zorder=2)
    firm = [each for each in bins if each["count"] >= FEW_SAMPLES]
    for each in firm:
        low, high = sorted((each["confidence"], each["accuracy"]))
        width = each["high"] - each["low"]
        corner = (each["low"] + 0.06 * width, low)
        axes.add_artist(Rectangle(corner, 0.88 * width, high - low, facecolor=GAP_SHADE, zorder=1))
    axes.plot(*_points(firm), color=colour, linewidth=1.4, zorder=3)
    # The area of a dot grows with what it stands for: a bin of fifty pixels must not look like one of a million.
    dots: dict[str, Any] = {"zorder": 4, "clip_on": False}
    axes.scatter(
        *_points(firm), s=[12 + 110 * each["share"] for each in firm], color=colour, ec="white", lw=0.8, **dots
    )
    axes.scatter(
        *_points([each for each in bins if each["count"] < FEW_SAMPLES]), s=9, color="white", ec=colour, lw=0.9, **dots
    )
    axes.set_ylim(0.0, 1.0)
    axes.text(0.025, 0.93, "above the dashes: underconfident", fontsize=7, color=MUTED, zorder=5)
    axes.text(0.985, 0.04, "below the dashes: overconfident", fontsize=7, color=MUTED, ha="right", zorder=5)


def _points(bins: list[dict[str, Any]]) -> tuple[list[float], list[float]]:
    return [each["confidence"] for each in bins], [each["accuracy"] for each in bins]


def _masses(axes: Axes, table: dict[str, Any], colour: str) -> None:
    for each in table["bins"]:
        width = each["high"] - each["low"]
        axes.bar(each["low"] + width / 2, each["share"], width * 0.88, color=colour, alpha=0.45, linewidth=0, zorder=2)


def _style_confidence(axes: Axes) -> None:
    style_axes(axes)
    axes.set_xlim(0.0, 1.0)
    axes.set_xticks([0, 0.2, 0.4, 0.6, 0.8, 1])
    axes.xaxis.set_major_formatter(percent_formatter())
    axes.yaxis.set_major_formatter(percent_formatter())


# --- accuracy through the season

SEASON_WIDTH = 7.6  # inches
SEASON_MARGIN = 0.08
SEASON_CURVES = 1.75  # height of the upper plot
SEASON_ABOVE = 0.34  # room for its legend
SEASON_BETWEEN = 0.62  # months and the head of the columns
SEASON_NAME = 1.7
SEASON_SWATCH, SEASON_SPACE = 0.11, 0.08
KNOWN_FROM_WIDTH, FINAL_WIDTH = 0.74, 0.55  # width of the columns on the right
ZERO_SHADE = (0xF2, 0xF4, 0xF1)  # an F1 of 0
FULL_SHADE = (0x2F, 0x6F, 0x4E)  # an F1 of 1
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
        names = {number: ruler.shorten(str(classes[number]["name"]), SEASON_NAME) for number in shown}
        left = max(SEASON_MARGIN + SEASON_SWATCH + 2 * SEASON_SPACE + ruler.widest(list(names.values())), 0.55)
        width = SEASON_WIDTH - left - KNOWN_FROM_WIDTH - FINAL_WIDTH - SEASON_MARGIN
        height = SEASON_ABOVE + SEASON_CURVES + SEASON_BETWEEN + row * len(shown) + SEASON_MARGIN
        figure = new_figure(SEASON_WIDTH, height)

        def axes_at(top: float, tall: float) -> Axes:
            return figure.add_axes(
                (left / SEASON_WIDTH, 1 - (top + tall) / height, width / SEASON_WIDTH, tall / height)
            )

        upper = axes_at(SEASON_ABOVE, SEASON_CURVES)
        _season_curves(upper, earliness)
        _months(upper, earliness, width)
        if shown:
            lower = axes_at(SEASON_ABOVE + SEASON_CURVES + SEASON_BETWEEN, row * len(shown))
            lower.set_xlim(upper.get_xlim())
            lower.set_ylim(len(shown), 0)
            lower.set_axis_off()
            _season_head(lower, width, row * len(shown))
            _strips(lower, earliness, shown)
            for place, number in enumerate(shown):
                _season_row(
                    lower, place, earliness, number, str(classes[number]["colour"]), names[number], text_size, width
                )
        return encode(figure, kind)


def day_words(start: int, day: int) -> str:
    """A day of the season without its year: "3 Jun"."""
    shown = date(COMMON_YEAR, 1, 1) + timedelta(days=start - 1 + day)
    return f"{shown.day} {MONTHS[shown.month - 1]}"


def _season_curves(axes: Axes, earliness: dict[str, Any]) -> None:
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
    style_axes(axes)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(percent_formatter())
    day = earliness["accurate_from"]
    if day is not None:
        words = f"{day_words(earliness['start'], day)}: {100 * earliness['known']:.0f} % of the final accuracy"
        mark_position(axes, day, words, late=day > days[-1] / 2)
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


def _season_head(axes: Axes, width: float, tall: float) -> None:
    style: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 7.5, "color": MUTED, "va": "bottom"}
    above = 1 + 0.07 / tall
    axes.text(0.0, above, "F1 of each crop by day; darker is better", **style)
    axes.text(1 + KNOWN_FROM_WIDTH / width, above, "known from", ha="right", **style)
    axes.text(1 + (KNOWN_FROM_WIDTH + FINAL_WIDTH) / width, above, "final F1", ha="right", **style)


def _strips(axes: Axes, earliness: dict[str, Any], shown: list[int]) -> None:
    """A cell per day, which lasts until the next one; a mark where a class is known."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    edges = [*earliness["days"], axes.get_xlim()[1]]
    cells = [
        Rectangle((day, place + 0.14), following - day, 0.72)
        for place in range(len(shown))
        for day, following in pairwise(edges)
    ]
    shades = [_f1_shade(value) for number in shown for value in earliness["class_f1"][number]]
    # Edges of the same colour close the hairs of white between neighbours.
    strips = PatchCollection(cells, facecolors=shades, edgecolors=shades, linewidths=0.3, zorder=1)
    axes.add_collection(strips, autolim=False)
    known = {place: earliness["known_from"][number] for place, number in enumerate(shown)}
    marked = {place: day for place, day in known.items() if day is not None}
    tops, bottoms = [place + 0.08 for place in marked], [place + 0.92 for place in marked]
    axes.vlines(list(marked.values()), tops, bottoms, color=INK, linewidth=1.6, zorder=3)


def _season_row(
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
    axes.text(-SEASON_SPACE / width, middle, "\u25a0", ha="right", **{**style, "color": colour})
    axes.text(-(2 * SEASON_SPACE + SEASON_SWATCH) / width, middle, name, ha="right", **style)
    known = earliness["known_from"][number]
    words = DASH if known is None else day_words(earliness["start"], known)
    axes.text(1 + KNOWN_FROM_WIDTH / width, middle, words, ha="right", **style)
    axes.text(
        1 + (KNOWN_FROM_WIDTH + FINAL_WIDTH) / width,
        middle,
        score(earliness["class_f1"][number][-1]),
        ha="right",
        **style,
    )


def _f1_shade(value: float | None) -> str:
    """The power parts good from better, which is what a reader looks for."""
    share = max(0.0, min(value or 0.0, 1.0)) ** 1.5
    return "#" + "".join(
        f"{round(one + (two - one) * share):02x}" for one, two in zip(ZERO_SHADE, FULL_SHADE, strict=True)
    )


def _or_late(day: int | None) -> float:
    return math.inf if day is None else day


# --- map of errors

LONGEST_CANVAS = 400  # pixels a side of a canvas
NOTHING, OTHER, UNSEEN, RIGHT, WRONG = range(5)  # no parcel; of another part; never seen clearly; judged
LARGEST_MAP = 5.2  # inches a side of the map
SMALLEST_MAP = 0.8
MAP_MARGIN = 0.06
MAP_HEAD = 0.34  # room of the legend above
MAP_STRIP = 0.34  # and of the scale below
MAP_TEXT = 8.5
MAP_SWATCH, MAP_SPACE = 0.12, 0.07
# The shades of the confusion matrix, so that right and wrong look the same throughout the report.
ERROR_COLOURS = {NOTHING: "#ffffff", OTHER: "#e4e8e5", UNSEEN: "#a9b7c9", RIGHT: "#2f6f4e", WRONG: "#c8501b"}


def error_map(scene: dict[str, Any], kind: Literal["svg", "png"] = "svg") -> bytes:
    """From one scene as result.json holds it."""
    grid = Grid.from_json(scene["grid"])
    picture = _error_pixels(unpack_codes(str(scene["codes"]), grid.shape))
    scale = LARGEST_MAP / max(grid.shape)
    wide, tall = (max(side * scale, SMALLEST_MAP) for side in (grid.width, grid.height))
    with house_style():
        entries = _error_entries(scene)
        ruler = Ruler(MAP_TEXT)
        legend = sum(MAP_SWATCH + MAP_SPACE + ruler.width(words) + 3 * MAP_SPACE for _, words in entries)
        width, height = max(wide, legend) + 2 * MAP_MARGIN, MAP_HEAD + tall + MAP_STRIP
        figure, axes = new_sheet(width, height)
        _error_legend(axes, entries, ruler)
        inner = figure.add_axes((MAP_MARGIN / width, MAP_STRIP / height, wide / width, tall / height))
        inner.imshow(picture, interpolation="nearest", aspect="auto")
        inner.set_xticks([])
        inner.set_yticks([])
        for spine in inner.spines.values():
            spine.set(color=HAIRLINE, linewidth=0.6)
        draw_scale(axes, grid, MAP_MARGIN, MAP_HEAD + tall + 0.13, wide)
        return encode(figure, kind)


def _error_pixels(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    table = [rgb(colour) for _, colour in sorted(ERROR_COLOURS.items())]
    painted: NDArray[np.uint8] = np.array(table, dtype=np.uint8)[codes]  # (h, w, 3)
    return painted


def _error_entries(scene: dict[str, Any]) -> list[tuple[str, str]]:
    entries = [
        (ERROR_COLOURS[RIGHT], f"correct ({count(scene['right'])})"),
        (ERROR_COLOURS[WRONG], f"wrong ({count(scene['wrong'])})"),
        (ERROR_COLOURS[UNSEEN], f"never clear ({count(scene['unseen'])})"),
        (ERROR_COLOURS[OTHER], "not evaluated"),
    ]
    return [entry for place, entry in enumerate(entries) if place != 2 or scene["unseen"]]


def _error_legend(axes: Axes, entries: list[tuple[str, str]], ruler: Ruler) -> None:
    from matplotlib.patches import Rectangle

    left = MAP_MARGIN
    for colour, words in entries:
        axes.add_patch(
            Rectangle((left, 0.09), MAP_SWATCH, MAP_SWATCH, facecolor=colour, edgecolor=HAIRLINE, linewidth=0.3)
        )
        axes.text(left + MAP_SWATCH + MAP_SPACE, 0.15, words, fontsize=MAP_TEXT, color=INK, va="center")
        left += MAP_SWATCH + MAP_SPACE + ruler.width(words) + 3 * MAP_SPACE


def pack_codes(codes: NDArray[np.uint8]) -> str:
    return base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode("ascii")


def unpack_codes(text: str, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The canvas again; never more bytes than its shape has, whatever the text claims."""
    height, width = shape
    size = height * width
    why = None
    if not (0 < height <= LONGEST_CANVAS and 0 < width <= LONGEST_CANVAS):
        why = f"a canvas of {height} x {width} pixels"
    else:
        try:
            data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
        except (ValueError, zlib.error) as failure:
            why = str(failure)
        else:
            if len(data) == size and (not data or max(data) <= WRONG):
                return np.frombuffer(data, dtype=np.uint8).reshape(height, width)
            why = "its bytes do not fill its canvas"
    raise InputError("a map of errors cannot be read", why=why, remedy="train again with this version")


# --- diagnosis of the first epoch

DIAGNOSIS_WIDTH, DIAGNOSIS_HEIGHT = 10.0, 3.3  # inches
MANY_LAYERS = 8  # layers that the legend can name one by one
# Depth from the input up, told apart in print and by the colour-blind: light and warm below, dark and cold above.
DEPTH_RAMP = ("#e0a13c", "#b9742b", "#7b8c4a", "#2f6f4e", "#1d4a5a", "#23284f")


@dataclass(frozen=True)
class DiagnosisPanel:
    title: str
    note: str
    lines: list[list[float]]  # one per layer
    scale: Literal["logarithmic", "change", "size"]


def draw_diagnosis(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows as diagnosis.jsonl holds them; a value that was not a number is a gap."""
    names = list(rows[-1]["layers"])
    with house_style():
        from matplotlib.colors import LinearSegmentedColormap

        ramp = LinearSegmentedColormap.from_list("depth", list(DEPTH_RAMP))
        colours = [ramp(place / max(len(names) - 1, 1)) for place in range(len(names))]
        figure = new_figure(DIAGNOSIS_WIDTH, DIAGNOSIS_HEIGHT)
        for place, panel in enumerate(_diagnosis_panels(rows, len(names))):
            axes = figure.add_axes((0.055 + 0.325 * place, 0.225, 0.275, 0.60))
            _draw_layers(axes, [int(row["step"]) for row in rows], panel, colours)
        chosen = range(len(names)) if len(names) <= MANY_LAYERS else (0, len(names) // 2, len(names) - 1)
        lines = figure.axes[0].get_lines()
        figure.legend(
            [lines[layer] for layer in chosen],
            [names[layer] for layer in chosen],
            loc="lower center",
            ncols=MANY_LAYERS,
            frameon=False,
            fontsize=8.5,
            handlelength=1.4,
            borderpad=0.1,
            columnspacing=1.6,
        )
        picture = encode(figure, "png")
    with atomic_path(path) as partial:
        partial.write_bytes(picture)


def _diagnosis_panels(rows: Sequence[dict[str, Any]], layers: int) -> list[DiagnosisPanel]:
    gradients, weights, states = (
        [[_layer_value(row[key], layer) for row in rows] for layer in range(layers)]
        for key in ("gradient_norm", "weight_norm", "mean_state")
    )
    # Norms of hundreds of weights change by little: their change is what can be seen.
    first = [values[0] for values in weights]
    known = [value for value in first if value > 0]
    span = f", initially {min(known):.3g} to {max(known):.3g}" if known else ""
    changes = [
        [100 * (value / start - 1) if start > 0 else math.nan for value in values]
        for start, values in zip(first, weights, strict=True)
    ]
    return [
        DiagnosisPanel("Gradient norm", "before clipping", gradients, "logarithmic"),
        DiagnosisPanel("Weight norm", f"change in %{span}", changes, "change"),
        DiagnosisPanel("Mean |h|", "over samples, pixels and dates", states, "size"),
    ]


def _draw_layers(axes: Axes, steps: list[int], panel: DiagnosisPanel, colours: Sequence[Any]) -> None:
    marker = {"marker": "o", "markersize": 2.6} if len(steps) <= 30 else {}  # a single batch is a dot
    for depth, (values, colour) in enumerate(zip(panel.lines, colours, strict=True)):
        axes.plot(steps, values, color=colour, linewidth=1.3, zorder=3 + depth, **marker)  # type: ignore[arg-type]
    axes.margins(y=0.10)
    _scale_layers(axes, panel)
    style_axes(axes)
    axes.set_xlabel("batch of the first epoch", fontsize=8, color=MUTED, labelpad=3)
    axes.text(0.0, 1.12, panel.title, transform=axes.transAxes, fontsize=9.5, fontweight="bold", color=INK)
    axes.text(0.0, 1.035, panel.note, transform=axes.transAxes, fontsize=8, color=MUTED)


def _scale_layers(axes: Axes, panel: DiagnosisPanel) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    positive = [value for values in panel.lines for value in values if value > 0]
    if panel.scale == "logarithmic" and positive:
        axes.set_yscale("log")
        decades = math.log10(max(positive) / min(positive))
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if decades < 3 else (1.0,)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
        return
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
    if panel.scale == "change":
        axes.axhline(0.0, color=MUTED, linewidth=0.8, zorder=2)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+g}" if round(value, 9) else "0"))
    else:
        axes.set_ylim(bottom=0.0)


def _layer_value(values: Sequence[float | None], layer: int) -> float:
    value = values[layer] if layer < len(values) else None
    return math.nan if value is None else value
