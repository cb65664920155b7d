"""Metres and hectares of a pixel, where the coordinate system or the data tell them."""

from __future__ import annotations

import pytest
from rasterio.crs import CRS

from cropstar.geo.grid import Grid
from cropstar.geo.ground import hectares_per_pixel, metres_per_unit
from tests.examples import UTM

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
