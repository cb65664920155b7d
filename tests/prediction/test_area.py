"""Masks of maps: known codes, other grids and coordinate systems, outlines, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rasterio.transform import Affine, from_origin
from rasterio.warp import transform

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.landcover import background_values, mapped_values
from cropstar.geo.windows import Window, split
from cropstar.prediction.area import open_area
from cropstar.prediction.request import MapOptions
from tests.examples import UTM

HERE = Path("cover.tif")


def a_grid(height: int = 40, width: int = 50) -> Grid:
    return Grid(UTM, tuple(from_origin(600_000, 5_400_000, 10, 10))[:6], height, width)


def raster(path: Path, values: NDArray[Any], place: Affine, crs: Any, **more: Any) -> Path:
    kind = {"height": values.shape[0], "width": values.shape[1], "count": 1, "dtype": values.dtype, **more}
    with rasterio.open(path, "w", driver="GTiff", crs=crs, transform=place, **kind) as dataset:
        dataset.write(values, 1)
    return path


def inside(options: MapOptions, grid: Grid, side: int = 16) -> NDArray[np.bool_]:
    """Of the whole grid, read in windows."""
    found = np.zeros(grid.shape, dtype=bool)
    with open_area(options, grid) as area:
        for window in split(grid.shape, side):
            part = area.inside(window)
            assert part is not None
            found[window.slices] = part
    return found


@pytest.mark.parametrize(
    ("codes", "mapped"),
    [((0, 1), 1), ((10, 30, 40, 50, 80), 40), ((0, 40, 95, 100), 40), ((0, 100), 100), ((0, 100, 254, 255), 100)],
)
def test_known_codes_on_the_same_grid(codes: tuple[int, ...], mapped: int, tmp_path: Path) -> None:
    grid = a_grid()
    values = np.random.default_rng(0).choice(np.array(codes, dtype=np.uint8), grid.shape)
    mask = raster(tmp_path / "mask.tif", values, grid.affine, grid.rasterio_crs)
    np.testing.assert_array_equal(inside(MapOptions(mask=mask), grid), values == mapped)


def test_values_that_are_named(tmp_path: Path) -> None:
    grid = a_grid()
    values = np.random.default_rng(0).integers(0, 9, grid.shape).astype(np.int16)
    mask = raster(tmp_path / "mask.tif", values, grid.affine, grid.rasterio_crs, nodata=3)
    options = MapOptions(mask=mask, mask_classes=(3, 4, 7))
    np.testing.assert_array_equal(inside(options, grid), np.isin(values, (4, 7)))  # nodata is never mapped
    with pytest.raises(UsageError, match=r"unknown codes .*: its values there are 0, 1, 2, 4.*--mask-classes"):
        inside(MapOptions(mask=mask), grid)
    with pytest.raises(UsageError, match="41 is not among its values"):
        inside(MapOptions(mask=mask, mask_classes=(41,)), grid)


@pytest.mark.parametrize("crs", ["EPSG:4326", "EPSG:3857", "EPSG:32633"])
def test_another_grid_is_read_by_the_nearest_pixel(crs: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Compared with a naive look-up: the centre of each pixel, transformed, and the value under it."""
    grid = a_grid()
    rows, columns = np.mgrid[0 : grid.height, 0 : grid.width] + 0.5
    x, y = (each.ravel() for each in grid.affine @ (columns, rows))
    their_x, their_y = (np.array(each).reshape(grid.shape) for each in transform(grid.rasterio_crs, crs, x, y))
    step = (their_x.max() - their_x.min()) / 33
    place = from_origin(their_x.min() - 3 * step, their_y.max() + 3 * step, step, step)
    count = int(np.ceil((their_y.max() - their_y.min()) / step)) + 6
    values = np.random.default_rng(1).integers(0, 2, (count, 39)).astype(np.uint8)
    mask = raster(tmp_path / "mask.tif", values, place, crs)
    own_columns, own_rows = ~place @ (their_x, their_y)
    # GDAL's transformer is approximate to an eighth of a pixel: centres near an edge may fall on either side.
    clear = (np.abs(own_rows % 1 - 0.5) < 0.3) & (np.abs(own_columns % 1 - 0.5) < 0.3)
    expected = values[own_rows.astype(int), own_columns.astype(int)] == 1
    with caplog.at_level("INFO"):
        found = inside(MapOptions(mask=mask), grid)
    np.testing.assert_array_equal(found[clear], expected[clear])
    assert "brought to the grid of the scene" in caplog.text


def test_a_mask_that_ends_leaves_out_the_rest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = a_grid()
    mask = raster(tmp_path / "mask.tif", np.ones((40, 25), np.uint8), grid.affine, grid.rasterio_crs)
    with caplog.at_level("INFO"):
        found = inside(MapOptions(mask=mask), grid)
    assert found[:, :25].all()
    assert not found[:, 25:].any()
    assert "it covers 50% of the scene" in caplog.text


def test_a_mask_elsewhere_and_of_wrong_kinds(tmp_path: Path) -> None:
    grid = a_grid()
    far = raster(tmp_path / "far.tif", np.ones((9, 9), np.uint8), from_origin(0, 0, 10, 10), grid.rasterio_crs)
    with pytest.raises(InputError, match="does not cover the scene"):
        inside(MapOptions(mask=far), grid)
    empty = raster(tmp_path / "empty.tif", np.full((40, 50), 255, np.uint8), grid.affine, grid.rasterio_crs, nodata=255)
    with pytest.raises(InputError, match="nodata all over the scene"):
        inside(MapOptions(mask=empty), grid)
    floats = raster(tmp_path / "f.tif", np.ones((9, 9), np.float32), grid.affine, grid.rasterio_crs)
    with pytest.raises(InputError, match="a mask needs whole numbers"):
        inside(MapOptions(mask=floats), grid)
    nowhere = raster(tmp_path / "n.tif", np.ones((9, 9), np.uint8), grid.affine, None)
    with pytest.raises(InputError, match="no coordinate system"):
        inside(MapOptions(mask=nowhere), grid)
    with pytest.raises(InputError):
        inside(MapOptions(mask=tmp_path / "missing.tif"), grid)
    outlines = tmp_path / "far.gpkg"
    geopandas.GeoDataFrame(geometry=[shapely.box(0, 0, 9, 9)], crs=grid.rasterio_crs).to_file(outlines)
    with pytest.raises(InputError, match="no outline meets the map"):
        inside(MapOptions(mask=outlines), grid)
    with pytest.raises(UsageError, match="--mask-classes for outlines"):
        inside(MapOptions(mask=outlines, mask_classes=(1,)), grid)


def test_outlines_and_parcels_together(tmp_path: Path) -> None:
    grid = a_grid()
    left, bottom, right, top = grid.bounds
    half = shapely.box(left, bottom, left + 255, top)
    lower = shapely.box(left, bottom, right, bottom + 95)
    for name, shape in (("half", half), ("lower", lower)):
        frame = geopandas.GeoDataFrame(geometry=[shape, None], crs=grid.rasterio_crs)
        frame.to_crs(4326).to_file(tmp_path / f"{name}.gpkg")
    options = MapOptions(mask=tmp_path / "half.gpkg", parcels=tmp_path / "lower.gpkg", only_parcels=True)
    expected = np.zeros(grid.shape, dtype=bool)
    expected[-9:, :25] = True  # centres 95 m and 255 m away lie on the edge
    found = inside(options, grid)
    np.testing.assert_array_equal(found[-9:, :25], expected[-9:, :25])
    assert not found[:-10].any()
    assert not found[:, 26:].any()


@given(values=st.sets(st.integers(0, 255), min_size=1, max_size=20))
def test_any_codes_are_understood_or_refused(values: set[int]) -> None:
    found = tuple(sorted(values))
    try:
        mapped, meaning = mapped_values(found, None, HERE)
    except UsageError:
        assert not values <= {0, 1}
        return
    assert len(mapped) == 1
    assert meaning
    try:
        others = background_values(found, None, HERE)
    except InputError:
        return
    assert set(others) <= values - set(mapped)


def test_a_window_beyond_the_outlines_is_empty(tmp_path: Path) -> None:
    grid = a_grid()
    left, _, _, top = grid.bounds
    geopandas.GeoDataFrame(geometry=[shapely.box(left, top - 50, left + 50, top)], crs=grid.rasterio_crs).to_file(
        tmp_path / "corner.gpkg"
    )
    with open_area(MapOptions(mask=tmp_path / "corner.gpkg"), grid) as area:
        part = area.inside(Window(20, 20, 10, 10))
        assert part is not None
        assert not part.any()
    with open_area(MapOptions(), grid) as area:
        assert area.inside(Window(0, 0, 5, 5)) is None
