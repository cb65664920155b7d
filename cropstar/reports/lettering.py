"""How much room a piece of text takes, and how to make it fit."""

from __future__ import annotations

from typing import Any

from cropstar.reports.canvas import DPI

ELLIPSIS = "\u2026"


def printable(text: str) -> str:
    """One line without control characters, which fonts cannot draw."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


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
        """Break at spaces into at most so many lines; the last one is shortened where it must."""
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
    """The first and the last letters, so many in all."""
    return text[: (kept + 1) // 2].rstrip() + ELLIPSIS + text[len(text) - kept // 2 :].lstrip()
