"""The figure of a diagnosis: gradients, weights and states over the first epoch, one line a layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cropstar.reports.axes import quiet
from cropstar.reports.canvas import INK, MUTED, encode, house_style, new_figure
from cropstar.store.atomic import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 10.0, 3.3  # inches
MANY = 8  # layers that the legend can name one by one
# Depth from the input up, told apart in print and by the colour-blind: light and warm below, dark and cold above.
RAMP = ("#e0a13c", "#b9742b", "#7b8c4a", "#2f6f4e", "#1d4a5a", "#23284f")


@dataclass(frozen=True)
class Panel:
    title: str
    note: str
    lines: list[list[float]]  # one a layer
    scale: Literal["logarithmic", "change", "size"]


def draw_diagnosis(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows as diagnosis.jsonl holds them; a value that was not a number is a gap."""
    names = list(rows[-1]["layers"])
    with house_style():
        from matplotlib.colors import LinearSegmentedColormap

        ramp = LinearSegmentedColormap.from_list("depth", list(RAMP))
        colours = [ramp(place / max(len(names) - 1, 1)) for place in range(len(names))]
        figure = new_figure(WIDTH, HEIGHT)
        for place, panel in enumerate(_panels(rows, len(names))):
            axes = figure.add_axes((0.055 + 0.325 * place, 0.225, 0.275, 0.60))
            _draw(axes, [int(row["step"]) for row in rows], panel, colours)
        chosen = range(len(names)) if len(names) <= MANY else (0, len(names) // 2, len(names) - 1)
        lines = figure.axes[0].get_lines()
        figure.legend(
            [lines[layer] for layer in chosen],
            [names[layer] for layer in chosen],
            loc="lower center",
            ncols=MANY,
            frameon=False,
            fontsize=8.5,
            handlelength=1.4,
            borderpad=0.1,
            columnspacing=1.6,
        )
        picture = encode(figure, "png")
    with atomic_path(path) as partial:
        partial.write_bytes(picture)


def _panels(rows: Sequence[dict[str, Any]], layers: int) -> list[Panel]:
    gradients, weights, states = (
        [[_number(row[key], layer) for row in rows] for layer in range(layers)]
        for key in ("gradient_norm", "weight_norm", "mean_state")
    )
    # Norms of hundreds of weights change by little: their change is what can be seen.
    first = [values[0] for values in weights]
    known = [value for value in first if value > 0]
    span = f", at first {min(known):.3g} to {max(known):.3g}" if known else ""
    changes = [
        [100 * (value / start - 1) if start > 0 else math.nan for value in values]
        for start, values in zip(first, weights, strict=True)
    ]
    return [
        Panel("Norm of the gradient", "before it is bounded", gradients, "logarithmic"),
        Panel("Norm of the weights", f"change in %{span}", changes, "change"),
        Panel("Mean |h|", "over samples, pixels and dates", states, "size"),
    ]


def _draw(axes: Axes, steps: list[int], panel: Panel, colours: Sequence[Any]) -> None:
    marker = {"marker": "o", "markersize": 2.6} if len(steps) <= 30 else {}  # a single batch is a dot
    for depth, (values, colour) in enumerate(zip(panel.lines, colours, strict=True)):
        axes.plot(steps, values, color=colour, linewidth=1.3, zorder=3 + depth, **marker)  # type: ignore[arg-type]
    axes.margins(y=0.10)
    _scale(axes, panel)
    quiet(axes)
    axes.set_xlabel("batch of the first epoch", fontsize=8, color=MUTED, labelpad=3)
    axes.text(0.0, 1.12, panel.title, transform=axes.transAxes, fontsize=9.5, fontweight="bold", color=INK)
    axes.text(0.0, 1.035, panel.note, transform=axes.transAxes, fontsize=8, color=MUTED)


def _scale(axes: Axes, panel: Panel) -> None:
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


def _number(values: Sequence[float | None], layer: int) -> float:
    value = values[layer] if layer < len(values) else None
    return math.nan if value is None else value
