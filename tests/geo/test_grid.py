"""Grids: where they lie, how they differ, what a pixel measures on the ground."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from rasterio.crs import CRS
from rasterio.errors import CRSError
from rasterio.transform import Affine

from cropstar.geo.grid import Grid, hectares_per_pixel, metres_per_unit, parse_crs
from cropstar.geo.resampling import TOLERANCE, grid_difference
from cropstar.geo.windows import Window
from tests.examples import UTM, a_grid

numbers = st.floats(-1e7, 1e7, allow_nan=False)
pixels = st.sampled_from([10.0, 20.0, 60.0, 0.25, 30.0])
sides = st.integers(1, 200)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    size = draw(pixels)
    return Grid(UTM, (size, 0.0, draw(numbers), 0.0, -size, draw(numbers)), draw(sides), draw(sides))


@st.composite
def windows_in(draw: st.DrawFn, height: int, width: int) -> Window:
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return Window(top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left)))


@given(grids())
def test_json_and_back(grid: Grid) -> None:
    assert Grid.from_json(json.loads(json.dumps(grid.to_json()))) == grid


@given(grids(), st.data())
def test_a_crop_of_a_crop_is_a_crop(grid: Grid, data: st.DataObject) -> None:
    first = data.draw(windows_in(grid.height, grid.width))
    second = data.draw(windows_in(first.height, first.width))
    twice = grid.crop(first).crop(second)
    once = grid.crop(Window(first.top + second.top, first.left + second.left, second.height, second.width))
    assert twice.shape == once.shape == (second.height, second.width)
    assert twice.transform == pytest.approx(once.transform, abs=1e-6)
    assert twice.crs == grid.crs


@given(grids(), st.data())
def test_a_crop_lies_within(grid: Grid, data: st.DataObject) -> None:
    window = data.draw(windows_in(grid.height, grid.width))
    left, bottom, right, top = grid.crop(window).bounds
    size = grid.resolution
    assert left == pytest.approx(grid.bounds[0] + window.left * size, abs=1e-6)
    assert top == pytest.approx(grid.bounds[3] - window.top * size, abs=1e-6)
    assert right - left == pytest.approx(window.width * size, abs=1e-6)
    assert top - bottom == pytest.approx(window.height * size, abs=1e-6)


def test_the_whole_window_changes_nothing() -> None:
    grid = a_grid(20, 30)
    assert grid.crop(Window(0, 0, 20, 30)) == grid


def test_bounds_and_sizes() -> None:
    grid = a_grid(20, 30)
    assert grid.bounds == (612_000.0, 5_411_800.0, 612_300.0, 5_412_000.0)
    assert grid.shape == (20, 30)
    assert grid.resolution == 10
    assert grid.pixel_area == 100


def test_the_area_of_a_turned_pixel() -> None:
    cosine, sine = 10 * math.cos(0.5), 10 * math.sin(0.5)
    assert Grid(UTM, (cosine, sine, 0.0, sine, -cosine, 0.0), 4, 4).pixel_area == pytest.approx(100)


def test_the_grid_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "one.tif"
    profile = {"driver": "GTiff", "width": 7, "height": 5, "count": 1, "dtype": "uint8", "crs": "EPSG:32632"}
    with rasterio.open(path, "w", transform=Affine(20, 0, 500_000, 0, -20, 5_000_000), **profile) as dataset:
        dataset.write(np.ones((1, 5, 7), dtype=np.uint8))
    with rasterio.open(path) as dataset:
        grid = Grid.of(dataset)
        assert grid.bounds == tuple(dataset.bounds)
        assert grid.rasterio_crs == dataset.crs
    assert (grid.height, grid.width, grid.resolution) == (5, 7, 20)


@pytest.mark.parametrize(
    "transform",
    [
        (10.0, 0.0, 100.0, 0.0, -10.0, 900.0),
        (10.0, 0.0, 100.0, 0.0, 10.0, 500.0),  # rows run to the north
        (-10.0, 0.0, 400.0, 0.0, -10.0, 900.0),
        (0.0, 10.0, 100.0, -10.0, 0.0, 800.0),  # rows run to the east
    ],
)
def test_bounds_whichever_way_the_rows_run(transform: tuple[float, float, float, float, float, float]) -> None:
    grid = Grid(UTM, transform, 40, 30)
    left, bottom, right, top = grid.bounds
    corners = [
        (
            transform[0] * x + transform[1] * y + transform[2],
            transform[3] * x + transform[4] * y + transform[5],
        )
        for x in (0, 30)
        for y in (0, 40)
    ]
    assert (left, right) == (min(x for x, _ in corners), max(x for x, _ in corners))
    assert (bottom, top) == (min(y for _, y in corners), max(y for _, y in corners))


# --- Differences

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


# --- On the ground

FEET, DEGREES = CRS.from_epsg(2225).to_wkt(), CRS.from_epsg(4326).to_wkt()


def grid_in(crs: str, side: float = 10.0) -> Grid:
    return Grid(crs, (side, 0.0, 0.0, 0.0, -side, 0.0), 3, 4)


def test_units() -> None:
    assert metres_per_unit(grid_in(UTM)) == 1.0
    assert metres_per_unit(grid_in(FEET)) == pytest.approx(0.3048, rel=1e-4)
    assert metres_per_unit(grid_in(DEGREES)) is None
    assert metres_per_unit(grid_in("")) is None


def test_the_resolution_counts_where_there_is_no_coordinate_system() -> None:
    assert hectares_per_pixel(grid_in("", 1.0), 20.0) == pytest.approx(0.04)
    assert hectares_per_pixel(grid_in("")) is None
    assert hectares_per_pixel(grid_in(UTM), 20.0) == pytest.approx(0.01)
    assert hectares_per_pixel(grid_in(DEGREES), 20.0) is None


@pytest.mark.parametrize(
    "text",
    ["32632", "EPSG:32632", "epsg:32632", "+init=epsg:32632", "urn:ogc:def:crs:EPSG::32632", UTM, " EPSG:32632\n"],
)
def test_coordinate_systems_as_files_write_them(text: str) -> None:
    assert parse_crs(text) == CRS.from_epsg(32632)


@pytest.mark.parametrize("address", ["http://127.0.0.1:9/crs", "/vsicurl/http://127.0.0.1:9/crs", "FILE", "+init=FILE"])
def test_a_coordinate_system_is_neither_fetched_nor_read_from_a_file(tmp_path: Path, address: str) -> None:
    """As GDAL would do: a file of a stranger could name any."""
    path = tmp_path / "crs.wkt"
    path.write_text(UTM)
    with pytest.raises(CRSError, match="is not a coordinate system"):
        parse_crs(address.replace("FILE", str(path)))
