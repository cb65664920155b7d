"""Windows of pixels: splitting a raster, and adding the margin that a model needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Window:
    """A rectangle of pixels; `top` and `left` are inside, `bottom` and `right` are one past the end."""

    top: int
    left: int
    height: int
    width: int

    @property
    def bottom(self) -> int:
        return self.top + self.height

    @property
    def right(self) -> int:
        return self.left + self.width

    @property
    def slices(self) -> tuple[slice, slice]:
        return slice(self.top, self.bottom), slice(self.left, self.right)

    def expand(self, margin: int, shape: tuple[int, int]) -> Window:
        """This window with a margin on each side, cut off at the raster's edge.

        At the edge nothing is invented: the model's own zero padding applies there, exactly as it
        does in one pass over the whole raster. That is what makes windowed maps free of seams.
        """
        top, left = max(self.top - margin, 0), max(self.left - margin, 0)
        bottom, right = min(self.bottom + margin, shape[0]), min(self.right + margin, shape[1])
        return Window(top, left, bottom - top, right - left)

    def relative_to(self, outer: Window) -> Window:
        """This window in the pixel coordinates of an enclosing one."""
        return Window(self.top - outer.top, self.left - outer.left, self.height, self.width)

    def overlap(self, other: Window) -> Window:
        """The intersection of both windows; its height or width is zero if there is none."""
        top, left = max(self.top, other.top), max(self.left, other.left)
        height, width = min(self.bottom, other.bottom) - top, min(self.right, other.right) - left
        return Window(top, left, max(height, 0), max(width, 0))


def split(shape: tuple[int, int], size: int, across: int | None = None) -> Iterator[Window]:
    """Cover a raster with windows of at most `size` pixels per side, row by row, nothing twice.

    `across` is how wide they are, where that is not `size`.
    """
    (height, width), across = shape, across or size
    for top in range(0, height, size):
        for left in range(0, width, across):
            yield Window(top, left, min(size, height - top), min(across, width - left))
