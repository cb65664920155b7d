"""Sheets to draw on, measured in inches from the top left corner; the same drawing is always the same bytes.

matplotlib is imported inside the functions: importing this module costs nothing until something is drawn.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
        # A script that the font lacks is drawn as boxes; that is no reason to alarm the user of a map.
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


def encode(figure: Figure, kind: Literal["png", "svg"]) -> bytes:
    """The finished picture, without the date and the software version that would make two runs differ."""
    metadata: dict[str, Any] = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DPI, metadata=metadata)
    return buffer.getvalue()
