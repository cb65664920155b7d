"""Numbers and names as text (an undefined value is a dash, never a zero), and the templates of HTML pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cropstar.store.files import write_text

if TYPE_CHECKING:
    from jinja2 import Environment

DASH = "\u2013"
ELLIPSIS = "\u2026"
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def is_missing(value: float | None) -> bool:
    return value is None or not math.isfinite(value)


def percent(value: float | None) -> str:
    """A share as a percentage; only a perfect score reads 100 and only nothing at all reads 0."""
    if value is None or is_missing(value):
        return DASH
    if 0.9995 <= value < 1.0:
        return "> 99.9 %"
    if 0.0 < value < 0.0005:
        return "< 0.1 %"
    return f"{100.0 * value:.1f} %"


def score(value: float | None) -> str:
    """A score between 0 and 1, such as F1; cut rather than rounded up where that would read as perfect."""
    if value is None or is_missing(value):
        return DASH
    return "0.99" if 0.995 <= value < 1.0 else f"{value:.2f}"


def count(value: float | None) -> str:
    return DASH if value is None or is_missing(value) else f"{value:,.0f}"


def amount(value: float | None, unit: str) -> str:
    """A count with its unit, or a bare dash."""
    return DASH if is_missing(value) else f"{count(value)} {unit}"


def rate(value: float | None) -> str:
    """A rate per second: slow ones keep two digits, fast ones are whole numbers."""
    if value is None or is_missing(value):
        return DASH
    return f"{value:.2g}" if 0 < value < 10 else count(value)


def in_hundred(value: float | None) -> str:
    """A share in words: "about 91 in 100"."""
    if value is None or is_missing(value):
        return "an unknown share"
    if value in (0.0, 1.0):
        return "all" if value else "none"
    rounded = round(100.0 * value)
    if rounded >= 100:
        return "more than 99 in 100"
    return f"about {rounded} in 100" if rounded else "fewer than 1 in 100"


def duration(seconds: float | None) -> str:
    if seconds is None or is_missing(seconds):
        return DASH
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def areas(hectares: Sequence[float]) -> list[str]:
    """Hectares with one precision for the whole column, so that they compare at a glance."""
    largest = max(hectares, default=0.0)
    decimals = 2 if largest < 100 else 1 if largest < 1000 else 0
    smallest = 10.0**-decimals
    return [f"< {smallest:g}" if 0 < area < smallest / 2 else f"{area:,.{decimals}f}" for area in hectares]


def shares(fractions: Sequence[float]) -> list[str]:
    """Percentages with one decimal, without the sign: the column's head carries it."""
    return ["< 0.1" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f}" for fraction in fractions]


def length(metres: float) -> str:
    return f"{metres / 1000:g} km" if metres >= 1000 else f"{metres:g} m"


def pixel_side(resolution: float) -> str:
    return f"{resolution:g} {'m' if resolution >= 0.02 else 'degrees'}"  # no satellite sees centimetres


def plural(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def printable(text: str) -> str:
    """One line without control characters, which fonts cannot draw."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def cut(text: str, width: int) -> str:
    """A text cut to a maximum length."""
    return text if len(text) <= width else text[: width - 1] + ELLIPSIS


def html_templates(package: str) -> Environment:
    """The Jinja templates of a package, with values escaped: names come from files of other people."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # here: the terminal needs none of it

    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_html(path: Path, html: str) -> None:
    """Write a page. Names of files in it may not be UTF-8; the page is all the same."""
    write_text(path, html.encode("utf-8", "replace").decode("utf-8"))
