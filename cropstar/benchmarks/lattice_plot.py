"""The gradient lattice as a drawing: a heat map per cell, of the mean magnitude and of its relative spread.

Square lattices are side by side, one column per cell; long ones are below each other, one row per cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cropstar.reports.drawing import HAIRLINE, INK, MUTED, Ruler, encode, house_style, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure


Floats = NDArray[np.float64]

TITLES = {
    "rnn": "vRNN",
    "lstm": "LSTM",
    "lstm_forget": "LSTM w/f",
    "gru": "GRU",
    "star": "STAR",
    "rhn": "RHN",
    "indrnn": "IndRNN",
    "mingru": "minGRU",
}
LOSS_TITLES = {"last": "loss on the last state", "all": "loss on all states"}
QUANTITIES = ("mean", "spread")
QUANTITY_TITLES = {"mean": "mean magnitude", "spread": "relative spread"}

LONG = 3.0  # steps per layer from which a lattice is drawn lying
MOST_COLUMNS = 256  # of one heat map; longer series are thinned
DECADES = {"mean": 6.0, "spread": 1.5}  # of the colours; what lies further below has the last one
EXPLODED = 1e3  # a cell's largest value may be so many times another's before it leaves the colours
ABSENT = "#e4e7e4"
TINY = 1e-30


@dataclass(frozen=True)
class Pattern:
    """Gradient magnitudes of one cell under one loss: (L, T) each, the layer that reads the input first."""

    cell: str
    loss: str
    mean: Floats
    spread: Floats  # standard deviation / mean; not a number where the mean is nothing


@dataclass(frozen=True)
class Frame:
    """The layout of the figure, in inches from the top left corner."""

    width: float
    height: float
    panel: tuple[float, float]
    gap: tuple[float, float]
    corner: tuple[float, float]
    lying: bool

    def place(self, cell: int, quantity: int) -> tuple[float, float]:
        """The top left corner of a heat map."""
        row, column = (cell, quantity) if self.lying else (quantity, cell)
        return (
            self.corner[0] + column * (self.panel[0] + self.gap[0]),
            self.corner[1] + row * (self.panel[1] + self.gap[1]),
        )

    def box(self, left: float, top: float, width: float, height: float) -> tuple[float, float, float, float]:
        """In matplotlib's order: left, bottom, width, height, as shares of the figure."""
        return left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height


def cell_title(cell: str) -> str:
    return TITLES.get(cell, cell)


def draw_lattice(
    patterns: Sequence[Pattern], caption: str, notes: Mapping[tuple[str, str, str], str] | None = None
) -> bytes:
    """A PNG of all patterns; every cell has the same losses.

    The caption says how they were made; a note stands above the heat map of its (cell, loss, quantity).
    """
    cells = list(dict.fromkeys(pattern.cell for pattern in patterns))
    losses = list(dict.fromkeys(pattern.loss for pattern in patterns))
    by_cell = {(pattern.cell, pattern.loss): pattern for pattern in patterns}
    kinds = [(loss, quantity) for loss in losses for quantity in QUANTITIES]
    with house_style():
        frame = _arrange(len(cells), len(kinds), patterns[0].mean.shape, caption)
        figure = new_figure(frame.width, frame.height)
        _headings(figure, frame, cells, kinds, caption)
        for number, (loss, quantity) in enumerate(kinds):
            maps = [_positive(thin_steps(getattr(by_cell[cell, loss], quantity)), quantity) for cell in cells]
            colours, scale = _colours(maps, quantity)
            for column, cell in enumerate(cells):
                box = frame.box(*frame.place(column, number), *frame.panel)
                axes = figure.add_axes(box)
                steps = by_cell[cell, loss].mean.shape[1]
                image = _heat_map(axes, maps[column], steps, colours, scale)
                first = number == 0 if frame.lying else column == 0
                last = column == len(cells) - 1 if frame.lying else number == len(kinds) - 1
                _label(axes, maps[column].shape[0], steps, left=first, below=last)
                note = (notes or {}).get((cell, loss, quantity), "")
                axes.set_title(note, loc="right", fontsize=7.5, color=MUTED, pad=2.5)
            _colour_bar(figure, frame, image, number, len(cells), _pointed(maps, scale))
        return encode(figure, "png")


def _arrange(cells: int, kinds: int, shape: tuple[int, ...], caption: str) -> Frame:
    layers, steps = shape
    lying = steps >= LONG * layers
    if lying:
        panel, gap, corner, margin = (2.9, 0.95), (0.22, 0.24), (1.45, 1.42), (0.3, 0.55)
        across, down = kinds, cells
    else:
        panel, gap, corner, margin = (1.45, 1.45), (0.14, 0.3), (1.12, 1.1), (0.95, 0.55)
        across, down = cells, kinds
    width = corner[0] + across * panel[0] + (across - 1) * gap[0] + margin[0]
    width = max(width, Ruler(8).width(caption) + 0.5)  # of few cells the caption is the widest
    height = corner[1] + down * panel[1] + (down - 1) * gap[1] + margin[1]
    return Frame(width, height, panel, gap, corner, lying)


def _headings(figure: Figure, frame: Frame, cells: list[str], kinds: list[tuple[str, str]], caption: str) -> None:
    def write(left: float, top: float, text: str, **style: Any) -> None:
        figure.text(left / frame.width, 1 - top / frame.height, text, **style)

    write(0.25, 0.3, "Gradient of the parameters at every layer and step", fontsize=11, fontweight="bold")
    write(0.25, 0.5, caption, fontsize=8, color=MUTED)
    width, height = frame.panel
    for number, cell in enumerate(cells):
        left, top = frame.place(number, 0)
        if frame.lying:
            write(0.25, top + height / 2, cell_title(cell), fontsize=10, fontweight="bold", va="center")
        else:
            write(left + width / 2, top - 0.21, cell_title(cell), fontsize=10, fontweight="bold", ha="center")
    for number, (loss, quantity) in enumerate(kinds):
        left, top = frame.place(0, number)
        if frame.lying:
            write(left, top - 0.62, f"{LOSS_TITLES[loss]}: {QUANTITY_TITLES[quantity]}", fontsize=8.5)
        else:
            beside = {"rotation": 90, "ha": "center", "va": "center"}
            write(0.5, top + height / 2, QUANTITY_TITLES[quantity], fontsize=8.5, **beside)
            if quantity == QUANTITIES[0]:
                middle = top + height + frame.gap[1] / 2
                write(0.3, middle, LOSS_TITLES[loss], fontsize=9, fontweight="bold", **beside)


def _colours(maps: Sequence[Floats], quantity: str) -> tuple[Colormap, Normalize]:
    """One scale for all cells, logarithmic, on which the cell with the smallest values still shows."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm, Normalize

    colours = colormaps["viridis" if quantity == "mean" else "YlOrBr"].with_extremes(bad=ABSENT)
    known = [part[np.isfinite(part)] for part in maps]
    known = [part for part in known if part.size]
    if not known:
        return colours, Normalize(0.0, 1.0)
    lowest, peaks = min(float(part.min()) for part in known), [float(part.max()) for part in known]
    highest = min(max(peaks), EXPLODED * min(peaks))
    lowest = max(lowest, highest * 10.0 ** -DECADES[quantity])
    return colours, LogNorm(lowest, max(highest, 2 * lowest))


def _positive(values: Floats, quantity: str) -> Floats:
    """Values that have a logarithm: a gradient of zero is absent, a spread of zero is the smallest there is."""
    return np.where(values > 0, values, np.where(values == 0, np.nan if quantity == "mean" else TINY, np.nan))


def _pointed(maps: Sequence[Floats], scale: Normalize) -> str:
    """The ends of the colour scale with values beyond them, in matplotlib's terms."""
    lowest, highest = scale.vmin or 0.0, scale.vmax or 0.0
    below = any(bool((part < lowest).any()) for part in maps)
    above = any(bool((part > highest).any()) for part in maps)
    return {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}[below, above]


def _heat_map(axes: Axes, values: Floats, steps: int, colours: Colormap, scale: Normalize) -> Any:
    shown = np.ma.masked_invalid(values)
    extent = (0.5, steps + 0.5, 0.5, len(values) + 0.5)
    style: dict[str, Any] = {"interpolation": "nearest", "aspect": "auto", "origin": "lower"}
    return axes.imshow(shown, extent=extent, cmap=colours, norm=scale, **style)


def _label(axes: Axes, layers: int, steps: int, *, left: bool, below: bool) -> None:
    """Numbers at the outer maps alone, the first and the last in any case."""
    for spine in axes.spines.values():
        spine.set_color(HAIRLINE)
        spine.set_linewidth(0.6)
    axes.set_xticks(_ticks(steps) if below else [])
    axes.set_yticks(_ticks(layers) if left else [])
    axes.tick_params(length=0, labelsize=7.5, labelcolor=MUTED, pad=3)
    if left:
        axes.set_ylabel("layer", fontsize=8, color=MUTED, labelpad=2)
    if below:
        axes.set_xlabel("step", fontsize=8, color=MUTED, labelpad=2)


def _ticks(count: int) -> list[int]:
    if count <= 3:
        return list(range(1, count + 1))
    return [1, (count + 1) // 2, count]


def _colour_bar(figure: Figure, frame: Frame, image: Any, number: int, cells: int, extend: str) -> None:
    """Beside the row of its quantity, or above its column; pointed where values lie beyond an end."""
    if not image.norm.vmin > 0:  # nothing to show
        return
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    if frame.lying:
        left, top = frame.place(0, number)
        box = frame.box(left, top - 0.53, frame.panel[0], 0.09)
    else:
        left, top = frame.place(cells - 1, number)
        box = frame.box(left + frame.panel[0] + 0.14, top, 0.1, frame.panel[1])
    axes = figure.add_axes(box)
    bar = figure.colorbar(image, cax=axes, orientation="horizontal" if frame.lying else "vertical", extend=extend)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2, width=0.5, labelsize=7.5, labelcolor=INK, color=MUTED, pad=2)
    wide = image.norm.vmax / image.norm.vmin > 100
    axis = bar.ax.xaxis if frame.lying else bar.ax.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0,) if wide else (1.0, 3.0), numticks=8))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())
    axis.set_minor_formatter(NullFormatter())


def thin_steps(values: Floats) -> Floats:
    """Thin steps out to a maximum number of columns, each the mean of its steps."""
    steps = values.shape[1]
    if steps <= MOST_COLUMNS:
        return values
    edges = np.linspace(0, steps, MOST_COLUMNS + 1).round().astype(int)
    groups = [values[:, start:end] for start, end in pairwise(edges)]
    thinned = np.full((len(values), MOST_COLUMNS), np.nan)
    for column, group in enumerate(groups):
        known = np.isfinite(group)
        counts = known.sum(axis=1)
        sums = np.where(known, group, 0.0).sum(axis=1)
        np.divide(sums, counts, out=thinned[:, column], where=counts > 0)
    return thinned
