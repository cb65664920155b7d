"""Rectangles of pixels: nothing twice, nothing left out, margins that stay inside."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cropstar.geo.windows import Window, split

shapes = st.tuples(st.integers(1, 70), st.integers(1, 70))


@st.composite
def windows_in_shapes(draw: st.DrawFn) -> tuple[Window, tuple[int, int]]:
    height, width = draw(shapes)
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    window = Window(top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))
    return window, (height, width)


@given(shapes, st.integers(1, 80))
def test_split_covers_every_pixel_exactly_once(shape: tuple[int, int], size: int) -> None:
    seen = np.zeros(shape, dtype=int)
    for window in split(shape, size):
        assert 1 <= window.height <= size
        assert 1 <= window.width <= size
        assert seen[window.slices].shape == (window.height, window.width)
        seen[window.slices] += 1
    assert (seen == 1).all()


def test_split_goes_row_by_row() -> None:
    assert list(split((5, 4), 3)) == [Window(0, 0, 3, 3), Window(0, 3, 3, 1), Window(3, 0, 2, 3), Window(3, 3, 2, 1)]
    assert list(split((0, 4), 3)) == []


@given(windows_in_shapes(), st.integers(0, 90))
def test_expand_contains_the_window_and_stays_inside(place: tuple[Window, tuple[int, int]], margin: int) -> None:
    window, (height, width) = place
    wide = window.expand(margin, (height, width))
    assert 0 <= wide.top <= window.top
    assert 0 <= wide.left <= window.left
    assert window.bottom <= wide.bottom <= height
    assert window.right <= wide.right <= width
    # On each side the margin is whole, or the raster ends there.
    assert wide.top in (window.top - margin, 0)
    assert wide.left in (window.left - margin, 0)
    assert wide.bottom in (window.bottom + margin, height)
    assert wide.right in (window.right + margin, width)


@given(windows_in_shapes(), st.integers(0, 20))
def test_relative_to_finds_the_same_pixels_again(place: tuple[Window, tuple[int, int]], margin: int) -> None:
    window, shape = place
    raster = np.arange(shape[0] * shape[1]).reshape(shape)
    outer = window.expand(margin, shape)
    inner = window.relative_to(outer)
    assert np.array_equal(raster[outer.slices][inner.slices], raster[window.slices])
    assert Window(inner.top + outer.top, inner.left + outer.left, inner.height, inner.width) == window


def test_windows_are_values() -> None:
    assert Window(1, 2, 3, 4) == Window(1, 2, 3, 4)
    assert len({Window(1, 2, 3, 4), Window(1, 2, 3, 4)}) == 1
    assert sorted([Window(2, 0, 1, 1), Window(1, 5, 1, 1)])[0].top == 1


@given(windows_in_shapes(), windows_in_shapes())
def test_the_overlap_is_what_lies_in_both(
    one: tuple[Window, tuple[int, int]], other: tuple[Window, tuple[int, int]]
) -> None:
    counts = np.zeros((140, 140), dtype=int)
    for window, _ in (one, other):
        counts[window.slices] += 1
    shared = one[0].overlap(other[0])
    assert shared == other[0].overlap(one[0])
    assert shared.height * shared.width == (counts == 2).sum()
    assert (counts[shared.slices] == 2).all()
