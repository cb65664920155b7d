"""Whether two grids are one: no pixel of either may lie anywhere else, up to the rounding of a georeference."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rasterio.crs import CRS

from cropstar.geo.alignment import TOLERANCE, grid_difference
from cropstar.geo.grid import Grid
from tests.examples import a_grid

GRANULE = Grid(CRS.from_epsg(32631).to_wkt(), (10.0, 0.0, 499_980.0, 0.0, -10.0, 4_900_020.0), 10_980, 10_980)
SMALL = st.floats(-0.02, 0.02)


def moved(grid: Grid, *changes: float) -> Grid:
    a, b, c, d, e, f = (own + change for own, change in zip(grid.transform, changes, strict=True))
    return replace(grid, transform=(a, b, c, d, e, f))


def furthest(own: Grid, other: Grid) -> float:
    """By how many pixels a corner of one lies away from the same corner of the other."""
    places = [(x, y) for x in (0, own.width) for y in (0, own.height)]
    apart = [max(map(abs, _minus(own.affine @ place, other.affine @ place))) for place in places]
    return max(apart) / other.resolution


def _minus(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] - other[0], one[1] - other[1]


def test_a_small_error_of_a_pixel_is_a_large_one_at_the_far_corner() -> None:
    wrong = moved(GRANULE, 0.005, 0, 0, 0, -0.005, 0)
    assert furthest(wrong, GRANULE) == pytest.approx(5.49)
    assert grid_difference(wrong, GRANULE) == "pixels of 10.005 x 10.005 m instead of 10 x 10"
    assert grid_difference(moved(GRANULE, 0, 1e-4, 0, 0, 0, 0), GRANULE) == "another rotation or orientation"


@given(*[SMALL] * 6, st.sampled_from([0.0, 1e-6, 1.0]), st.sampled_from([GRANULE, a_grid(1, 1), a_grid(25, 40)]))
def test_what_is_called_the_same_is_nowhere_else(
    a: float, b: float, c: float, d: float, e: float, f: float, turn: float, grid: Grid
) -> None:
    other = moved(grid, a * turn, b * turn, c, d * turn, e * turn, f)
    apart = furthest(other, grid)
    if grid_difference(other, grid) is None:
        assert apart <= 3 * TOLERANCE  # shift, size and rotation each
    else:
        assert apart > TOLERANCE / 3


def test_other_differences_in_words() -> None:
    grid = a_grid(25, 20)
    assert grid_difference(grid, grid) is None
    assert grid_difference(moved(grid, 0, 0, 0.009, 0, 0, -0.009), grid) is None
    shift = "a shift of 5 x -10 m (0.5 x -1 pixels) instead of the same corner"
    assert grid_difference(moved(grid, 0, 0, 5, 0, 0, -10), grid) == shift
    assert grid_difference(replace(grid, width=21), grid) == "21 x 25 pixels instead of 20 x 25"
    elsewhere = replace(grid, crs=CRS.from_epsg(32633).to_wkt())
    assert grid_difference(elsewhere, grid) == "EPSG:32633 instead of EPSG:32632"
    nowhere = replace(grid, crs="")
    assert grid_difference(moved(nowhere, 0, 0, 1, 0, 0, 0), nowhere) == (
        "a shift of 1 x 0 units (0.1 x 0 pixels) instead of the same corner"
    )
