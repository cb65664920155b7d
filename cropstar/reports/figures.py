"""The drawings of a training report, each as the bytes of an SVG: sharp on a phone, a screen and on paper."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cropstar.reports.axes import as_percent, flag, legend_above, quiet
from cropstar.reports.canvas import GREEN, MUTED, ORANGE, encode, house_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 4.6, 2.7  # inches
SCORES = (("overall_accuracy", "overall accuracy", GREEN), ("macro_f1", "macro-F1", ORANGE))


def loss_curve(history: Sequence[dict[str, Any]], best_epoch: int | None) -> bytes:
    """Training loss per epoch."""
    lines = [("training loss", GREEN, [_number(row.get("loss")) for row in history])]
    return _curves(history, lines, best_epoch, shares=False)


def score_curve(history: Sequence[dict[str, Any]], best_epoch: int | None) -> bytes:
    """Overall accuracy and macro-F1 on the validation parcels per epoch."""
    lines = [
        (label, colour, [_number((row.get("validation") or {}).get(key)) for row in history])
        for key, label, colour in SCORES
    ]
    return _curves(history, lines, best_epoch, shares=True)


def _curves(
    history: Sequence[dict[str, Any]],
    lines: Sequence[tuple[str, str, list[float]]],
    best_epoch: int | None,
    *,
    shares: bool,
) -> bytes:
    with house_style():
        figure = new_figure(WIDTH, HEIGHT)
        axes = figure.add_axes((0.105, 0.165, 0.87, 0.70))
        epochs = [int(row["epoch"]) for row in history]
        for label, colour, values in lines:
            # A single epoch, or one between two gaps, is a dot: a line alone would not show it.
            marker = {"marker": "o", "markersize": 3.2} if len(epochs) <= 30 else {}
            axes.plot(epochs, values, color=colour, linewidth=1.7, label=label, zorder=3, **marker)  # type: ignore[arg-type]
        _tidy(axes, epochs, shares=shares)
        if best_epoch in epochs:
            _mark_best(axes, epochs.index(best_epoch), epochs, lines)
        legend_above(axes, len(lines))
        return encode(figure, "svg")


def _tidy(axes: Axes, epochs: list[int], *, shares: bool) -> None:
    from matplotlib.ticker import FixedLocator, MaxNLocator

    quiet(axes)
    axes.margins(y=0.12)
    axes.xaxis.set_major_locator(FixedLocator(epochs) if len(epochs) <= 8 else MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlim(min(epochs) - 0.5, max(epochs) + 0.5)
    axes.set_xlabel("epoch", fontsize=8, color=MUTED, labelpad=3)
    if shares:
        lowest, highest = axes.get_ylim()
        axes.set_ylim(max(0.0, lowest), min(1.0, highest) if highest > lowest else 1.0)
        axes.yaxis.set_major_formatter(as_percent())


def _mark_best(axes: Axes, index: int, epochs: list[int], lines: Sequence[tuple[str, str, list[float]]]) -> None:
    epoch = epochs[index]
    for _, colour, values in lines:
        if math.isfinite(values[index]):
            axes.plot([epoch], [values[index]], marker="o", markersize=7, color="white", mec=colour, mew=1.8, zorder=4)
    lowest, highest = axes.get_xlim()
    flag(axes, epoch, f"epoch {epoch} kept", late=epoch > (lowest + highest) / 2)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
