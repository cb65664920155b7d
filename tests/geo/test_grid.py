"""Where a raster lies: cropping, bounds, and the way to JSON and back."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from rasterio.transform import Affine

from cropstar.geo.grid import Grid
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
