"""Coarse rasters on a finer grid: against a plain reference, by any window, and refused when pixels do not coincide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rasterio.crs import CRS

from cropstar.geo.grid import Grid
from cropstar.geo.resampling import Alignment, NotAligned, RasterPart, interpolate, nearest
from cropstar.geo.windows import Window

UTM = CRS.from_epsg(32632).to_wkt()
Numbers = NDArray[np.uint16]


def grid(resolution: float, height: int, width: int, x: float = 0.0, y: float = 0.0, crs: str = UTM) -> Grid:
    return Grid(crs, (resolution, 0.0, x, 0.0, -resolution, y), height, width)


def kernel(method: str, distance: float) -> float:
    distance = abs(distance)
    if method == "bilinear":
        return max(1 - distance, 0.0)
    if distance <= 1:
        return 1.5 * distance**3 - 2.5 * distance**2 + 1
    return -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2 if distance < 2 else 0.0


def reference(
    pixels: Numbers, alignment: Alignment, window: Window, method: str
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Pixel by pixel from the definition: coordinates of centres, weights by distance, nodata without weight."""
    values = np.zeros((window.height, window.width))
    present = np.zeros(values.shape, dtype=bool)
    for row, column in np.ndindex(values.shape):
        y = (window.top + row + 0.5 - alignment.top) / alignment.ratio
        x = (window.left + column + 0.5 - alignment.left) / alignment.ratio
        if not (0 <= y < pixels.shape[0] and 0 <= x < pixels.shape[1]) or pixels[int(y), int(x)] == 0:
            continue
        present[row, column] = True
        total = weights = 0.0
        for i, j in np.argwhere(pixels):
            weight = kernel(method, y - i - 0.5) * kernel(method, x - j - 0.5)
            total, weights = total + weight * int(pixels[i, j]), weights + weight
        values[row, column] = total / weights
    return values, present


def part(pixels: Numbers, alignment: Alignment, window: Window) -> RasterPart:
    place = alignment.source(window)
    return RasterPart(pixels[place.slices], place, alignment)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Numbers, Alignment, Window, Window]:
    """Pixels, how they lie on a grid, the whole grid, and a window of it."""
    ratio = draw(st.sampled_from([1, 2, 3, 6]))
    height, width = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    top, left = draw(st.integers(-ratio, ratio - 1)), draw(st.integers(-ratio, ratio - 1))
    rows = draw(st.integers(1, top + ratio * height + ratio - 1)) if top + ratio * height > 0 else 1
    columns = draw(st.integers(1, left + ratio * width + ratio - 1)) if left + ratio * width > 0 else 1
    seed, holes = draw(st.integers(0, 99)), draw(st.sampled_from([0.0, 0.3, 1.0]))
    generator = np.random.default_rng(seed)
    pixels = generator.integers(1, 65_536, (height, width)) * (generator.random((height, width)) >= holes)
    y, x = draw(st.integers(0, rows - 1)), draw(st.integers(0, columns - 1))
    window = Window(y, x, draw(st.integers(1, rows - y)), draw(st.integers(1, columns - x)))
    return pixels.astype(np.uint16), Alignment(ratio, top, left, height, width), Window(0, 0, rows, columns), window


@given(cases(), st.sampled_from(["bilinear", "cubic"]))
def test_interpolation_is_the_definition_and_the_same_by_any_window(
    case: tuple[Numbers, Alignment, Window, Window], method: str
) -> None:
    pixels, alignment, everything, window = case
    values, present = interpolate(part(pixels, alignment, everything), everything, method)
    wanted, there = reference(pixels, alignment, everything, method)
    assert np.array_equal(present, there)
    assert np.allclose(values[present], wanted[present], rtol=1e-6)
    piece, piece_present = interpolate(part(pixels, alignment, window), window, method)
    assert np.array_equal(piece_present, present[window.slices])
    assert np.array_equal(piece[piece_present], values[window.slices][piece_present])  # to the last bit


@given(cases())
def test_nearest_is_the_pixel_that_contains(case: tuple[Numbers, Alignment, Window, Window]) -> None:
    pixels, alignment, _, window = case
    taken = nearest(part(pixels, alignment, window), window)
    assert taken.shape == (window.height, window.width)
    for row, column in np.ndindex(taken.shape):
        y = (window.top + row - alignment.top) // alignment.ratio
        x = (window.left + column - alignment.left) // alignment.ratio
        inside = 0 <= y < pixels.shape[0] and 0 <= x < pixels.shape[1]
        assert taken[row, column] == (pixels[y, x] if inside else 0)


def test_a_window_asks_for_no_more_than_its_pixels_and_a_margin() -> None:
    alignment = Alignment(2, 0, 0, 5000, 5000)
    assert alignment.source(Window(1000, 2000, 100, 51)) == Window(498, 998, 54, 30)
    assert alignment.source(Window(0, 9990, 10, 10)) == Window(0, 4993, 7, 7)
    assert Alignment(1, 0, 0, 50, 50).source(Window(3, 4, 5, 6)) == Window(3, 4, 5, 6)


def test_the_lower_edge_may_lie_beyond_and_a_shift_may_be_half_a_coarse_pixel() -> None:
    assert Alignment.of(grid(20, 177, 116), grid(10, 353, 232)) == Alignment(2, 0, 0, 177, 116)
    assert Alignment.of(grid(20, 13, 11, x=-10, y=10), grid(10, 25, 20)) == Alignment(2, -1, -1, 13, 11)
    assert Alignment.of(grid(60, 5, 4, x=1e-3), grid(10, 25, 20)) == Alignment(6, 0, 0, 5, 4)


@pytest.mark.parametrize(
    ("raster", "words"),
    [
        (grid(20, 13, 10, x=3), "shifted by 0.3 x 0 pixels of 10 m"),
        (grid(20, 13, 10, y=5), "shifted by 0 x -0.5 pixels"),
        (grid(15, 20, 20), "its pixels are 1.5 x 1.5 of the grid's"),
        (grid(20.01, 13, 10), "its pixels are 2.001 x 2.001"),
        (grid(5, 50, 40), "its pixels are 0.5 x 0.5"),
        (grid(20, 11, 10), "does not cover"),
        (grid(20, 13, 10, x=100), "does not cover"),
        (grid(20, 13, 10, crs=CRS.from_epsg(32633).to_wkt()), "EPSG:32633 instead of EPSG:32632"),
        (Grid(UTM, (20, 1, 0, 0, -20, 0), 13, 10), "rotated"),
    ],
)
def test_what_does_not_coincide_is_refused(raster: Grid, words: str) -> None:
    with pytest.raises(NotAligned, match=words):
        Alignment.of(raster, grid(10, 25, 20))
