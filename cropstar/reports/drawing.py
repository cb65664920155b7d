"""Drawing tools: figures measured in inches, plain axes, fitted text, scale bar and north arrow.

The same drawing always gives the same bytes. matplotlib is imported inside the functions: importing this module costs
nothing until something is drawn.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import metres_per_unit
from cropstar.reports.wording import ELLIPSIS, length, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Formatter

    from cropstar.geo.grid import Grid


# --- figures

DPI = 200
INK = "#1f2a24"
MUTED = "#67726b"
HAIRLINE = "#d5dbd6"
GREEN = "#2f6f4e"
ORANGE = "#c8701b"


@contextmanager
def house_style() -> Iterator[None]:
    """Our own settings, whatever matplotlibrc the user has; class names are text, never mathematics."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": ["DejaVu Sans"],  # ships with matplotlib, so every machine draws the same
                "text.parse_math": False,
                "text.color": INK,
                "hatch.linewidth": 0.6,
                "svg.fonttype": "path",
                "svg.hashsalt": "cropstar",
            }
        )
        # Scripts that the font lacks are drawn as boxes, without a warning.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        warnings.filterwarnings("ignore", message="Matplotlib currently does not support .* natively")
        yield


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def new_sheet(width: float, height: float) -> tuple[Figure, Axes]:
    """A figure and axes over all of it, whose coordinates are inches to the right and down."""
    figure = new_figure(width, height)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0.0, width)
    axes.set_ylim(height, 0.0)
    return figure, axes


def place_pixels(figure: Figure, picture: NDArray[np.uint8], left: int, bottom: int) -> None:
    """Copy a picture (h, w, 3) into a figure pixel by pixel: no colour appears that it does not have.

    Matplotlib's own `figimage` does so by way of floats, which takes half a gigabyte of a large map.
    """
    from matplotlib.artist import Artist

    class PixelArtist(Artist):
        def draw(self, renderer: Any) -> None:
            opaque = np.full((*picture.shape[:2], 4), 255, dtype=np.uint8)
            opaque[..., :3] = picture[::-1]  # from below, as renderers count
            context = renderer.new_gc()
            renderer.draw_image(context, left, bottom, opaque)
            context.restore()

    figure.add_artist(PixelArtist()).set_zorder(0.5)  # above the axes, whose lines would cover its edge


def encode(figure: Figure, kind: Literal["png", "svg"]) -> bytes:
    """The finished picture, without the date and the software version that would make two runs differ."""
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    return buffer.getvalue()


def whole_pixels(inches: float) -> float:
    """A length that ends with a pixel."""
    return math.ceil(inches * DPI) / DPI


def nearest_pixels(shape: tuple[int, ...], width: int, height: int) -> tuple[NDArray[np.intp], ...]:
    """The index that resamples an array (h, w) to a picture: each pixel takes what lies under its centre."""
    rows = ((np.arange(height) + 0.5) * shape[0] / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * shape[1] / width).astype(np.intp)
    return np.ix_(rows, columns)


# --- axes

LABEL_SIZE = 8.0


def style_axes(
    axes: Axes, grid: Literal["x", "y"] = "y", *, label_size: float = LABEL_SIZE, line: float = 0.6, pad: float = 3.5
) -> None:
    """The look of every plot; what is on the axes is left to the caller."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(HAIRLINE)
    axes.grid(axis=grid, color=HAIRLINE, linewidth=line)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", length=0, labelsize=label_size, labelcolor=MUTED, pad=pad)


def percent_formatter() -> Formatter:
    """Shares from 0 to 1 as per cent."""
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: f"{100 * value:.0f} %")


def legend_above(axes: Axes, columns: int) -> None:
    """Place the legend in one line above the plot."""
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


def mark_position(axes: Axes, place: float, words: str, *, late: bool) -> None:
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


# --- text


class Ruler:
    """Measures text in inches at one font size."""

    def __init__(self, size: float, weight: str = "normal") -> None:
        from matplotlib.backends.backend_agg import RendererAgg
        from matplotlib.font_manager import FontProperties

        self._font = FontProperties(family=["DejaVu Sans"], size=size, weight=weight)
        renderer: Any = RendererAgg  # matplotlib leaves it without types
        self._renderer = renderer(DPI, DPI, DPI)
        self._known: dict[str, float] = {}

    def width(self, text: str) -> float:
        if text not in self._known:
            pixels, _, _ = self._renderer.get_text_width_height_descent(text, self._font, False)
            self._known[text] = float(pixels) / DPI
        return self._known[text]

    def widest(self, texts: list[str]) -> float:
        return max((self.width(text) for text in texts), default=0.0)

    def shorten(self, text: str, room: float) -> str:
        """Cut from the middle: names that share a beginning often differ at the end."""
        text = printable(text)
        if self.width(text) <= room:
            return text
        # Bisection: a name of a thousand letters is measured ten times, not a thousand.
        kept, too_many = 1, len(text)
        while too_many - kept > 1:
            middle = (kept + too_many) // 2
            if self.width(_cut(text, middle)) <= room:
                kept = middle
            else:
                too_many = middle
        return _cut(text, kept)

    def wrap(self, text: str, room: float, lines: int = 2) -> list[str]:
        """Break at spaces into at most `lines` lines; the last one is shortened if necessary."""
        words = printable(text).split(" ")
        wrapped: list[str] = []
        while words and len(wrapped) < lines - 1:
            taken = 1
            while taken < len(words) and self.width(" ".join(words[: taken + 1])) <= room:
                taken += 1
            wrapped.append(self.shorten(" ".join(words[:taken]), room))
            words = words[taken:]
        return [*wrapped, self.shorten(" ".join(words), room)] if words else wrapped


def _cut(text: str, kept: int) -> str:
    """Shorten a text to its first and last letters."""
    return text[: (kept + 1) // 2].rstrip() + ELLIPSIS + text[len(text) - kept // 2 :].lstrip()


# --- scale bar

BAR_HEIGHT = 0.05  # inches
LONGEST_BAR = 2.0
SCALE_TEXT = 8.0


def draw_scale(axes: Axes, grid: Grid, left: float, top: float, map_width: float) -> None:
    """A bar of a round length at the left, north at the right; the grid must be a projected one."""
    from matplotlib.patches import Polygon, Rectangle

    unit = metres_per_unit(grid)
    if unit is None:
        return
    inches_per_metre = map_width / (grid.width * grid.resolution * unit)
    metres = round_length(min(0.35 * map_width, LONGEST_BAR) / inches_per_metre)
    bar = metres * inches_per_metre
    axes.add_patch(Rectangle((left, top), bar, BAR_HEIGHT, facecolor="white", edgecolor=INK, lw=0.7))
    axes.add_patch(Rectangle((left, top), bar / 2, BAR_HEIGHT, facecolor=INK, edgecolor=INK, lw=0.7))
    axes.text(left + bar + 0.08, top + 0.065, length(metres), fontsize=SCALE_TEXT)
    if _is_north_up(grid) and map_width > 1.6:  # on a narrower map the arrow would run into the bar's label
        tip = left + map_width - 0.2
        arrow = [(tip, top - 0.05), (tip + 0.055, top + 0.1), (tip, top + 0.065), (tip - 0.055, top + 0.1)]
        axes.add_patch(Polygon(arrow, closed=True, facecolor=INK, edgecolor="none"))
        axes.text(tip + 0.11, top + 0.065, "N", fontsize=SCALE_TEXT)


def _is_north_up(grid: Grid) -> bool:
    a, b, _, d, e, _ = grid.transform
    return a > 0 and b == 0 and d == 0 and e < 0


def round_length(longest: float) -> float:
    """The largest of 1, 2, 5, 10, 20, 50, ... that does not exceed `longest`."""
    power = 10.0 ** math.floor(math.log10(longest))
    # The tolerance keeps 5 a 5 where binary fractions make it 4.9999999.
    return power * next(step for step in (5, 2, 1) if step * power <= longest * (1 + 1e-9) or step == 1)


def describe(grid: Grid, resolution: float = 0.0) -> str:
    """The line under a map's title: how large it is, how fine, and in which coordinates.

    Without a coordinate system a pixel is `resolution` metres wide, if that is given.
    """
    parts = [f"{grid.width:,} \u00d7 {grid.height:,} pixels"]
    unit = metres_per_unit(grid)
    side = resolution if not grid.crs else None if unit is None else grid.resolution * unit
    if side:
        parts.append(f"{length(float(f'{side:.4g}'))} each")
    if grid.crs:
        from rasterio.errors import CRSError

        try:
            code = grid.rasterio_crs.to_epsg()
        except CRSError:
            code = None
        if code:
            parts.append(f"EPSG:{code}")
    return " \u00b7 ".join(parts)
