"""Parcels: any coordinate system, burnt the same whole or in pieces; nothing is guessed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
from shapely.geometry import LineString, MultiPolygon, Point, Polygon

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import split
from cropstar.sources.parcels import Parcels, read_parcels
from cropstar.sources.stack import StackSeries
from cropstar.store.classes import UNLABELLED
from tests.examples import a_grid
from tests.sources.stacks import square, write_four_fields, write_parcels

GRID = a_grid(20, 30)


def by_key(parcels: Parcels) -> dict[str, str]:
    return {
        key: parcels.classes[label].name for key, label in zip(parcels.table.keys, parcels.table.labels, strict=True)
    }


# --- reading and burning


def test_squares_of_pixels(tmp_path: Path) -> None:
    parcels = read_parcels(write_four_fields(tmp_path / "p.gpkg"), GRID)
    labels, numbers = parcels.burn(GRID)
    assert labels.dtype == np.int16
    assert numbers.dtype == np.int32
    assert parcels.classes.names == ["maize", "wheat"]
    assert (labels[1:6, 1:6] == 1).all()
    assert (labels[1:6, 8:13] == 0).all()
    assert (labels == UNLABELLED).sum() == 600 - 4 * 25
    assert np.array_equal(numbers == 0, labels == UNLABELLED)
    assert np.unique(numbers, return_counts=True)[1].tolist() == [500, 25, 25, 25, 25]


def test_rows_that_run_to_the_north(tmp_path: Path) -> None:
    """A raster stored upside down covers the same ground: the same parcels, upside down."""
    a, b, c, d, e, f = GRID.transform
    south_up = Grid(GRID.crs, (a, b, c, d, -e, f + e * GRID.height), GRID.height, GRID.width)
    assert south_up.bounds == GRID.bounds
    file = write_four_fields(tmp_path / "p.gpkg")
    labels, _ = read_parcels(file, GRID).burn(GRID)
    turned, _ = read_parcels(file, south_up).burn(south_up)
    assert np.array_equal(turned, labels[::-1])


@pytest.mark.parametrize("name", ["p.gpkg", "p.shp", "p.fgb", "p.geojson", "p.json", "weird ü:.geojson"])
def test_all_formats_give_the_same_raster(tmp_path: Path, name: str) -> None:
    parcels = read_parcels(write_four_fields(tmp_path / name), GRID)
    expected = read_parcels(write_four_fields(tmp_path / "other.gpkg"), GRID)
    assert np.array_equal(parcels.burn(GRID)[0], expected.burn(GRID)[0])


def test_geoparquet_gives_the_same_raster(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    usual = write_four_fields(tmp_path / "p.gpkg")
    geopandas.read_file(usual).to_parquet(tmp_path / "p.geoparquet")
    expected, _ = read_parcels(usual, GRID).burn(GRID)
    labels, _ = read_parcels(tmp_path / "p.geoparquet", GRID).burn(GRID)
    assert np.array_equal(labels, expected)
    geopandas.read_file(usual).drop(columns="geometry").to_parquet(tmp_path / "plain.parquet")
    with pytest.raises(InputError, match=r"unreadable parcels in .*plain\.parquet"):
        read_parcels(tmp_path / "plain.parquet", GRID)
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "p.geoparquet").read_bytes()[:300])
    with pytest.raises(InputError, match=r"unreadable parcels in .*cut\.parquet"):
        read_parcels(tmp_path / "cut.parquet", GRID)


def test_another_coordinate_system_gives_the_same_raster(small_scene: Path, tmp_path: Path) -> None:
    series = StackSeries(small_scene / "tile.tif")
    series.close()
    frame = geopandas.read_file(small_scene / "parcels.gpkg")
    frame.to_crs("EPSG:4326").to_file(tmp_path / "degrees.gpkg")
    straight = read_parcels(small_scene / "parcels.gpkg", series.grid)
    turned = read_parcels(tmp_path / "degrees.gpkg", series.grid)
    assert straight.classes == turned.classes
    assert by_key(straight) == by_key(turned)
    different = straight.burn(series.grid)[0] != turned.burn(series.grid)[0]
    assert different.sum() <= 5
    assert (straight.burn(series.grid)[0] >= 0).mean() > 0.5


@pytest.mark.parametrize("size", [48, 31])
def test_pieces_put_together_are_the_whole(small_scene: Path, size: int) -> None:
    series = StackSeries(small_scene / "tile.tif")
    series.close()
    parcels = read_parcels(small_scene / "parcels.gpkg", series.grid)
    labels, numbers = parcels.burn(series.grid)
    for window in split(series.grid.shape, size):
        piece_labels, piece_numbers = parcels.burn(series.grid.crop(window))
        assert np.array_equal(piece_labels, labels[window.slices])
        assert np.array_equal(piece_numbers, numbers[window.slices])


def test_the_smaller_of_two_overlapping_parcels_wins(tmp_path: Path) -> None:
    large, small = square(2, 2, 10), square(4, 4, 3)
    for name, shapes, crops in [
        ("a.gpkg", [large, small], ["wheat", "maize"]),
        ("b.gpkg", [small, large], ["maize", "wheat"]),
    ]:
        labels, _ = read_parcels(write_parcels(tmp_path / name, shapes, crops), GRID).burn(GRID)
        assert (labels[4:7, 4:7] == 0).all()
        assert (labels == 1).sum() == 100 - 9


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    shapes = [square(1, 1, 5), square(3, 4, 5), square(10, 10, 4), square(11, 12, 4)]
    crops, keys = ["wheat", "maize", "rye", "wheat"], ["d", "b", "a", "c"]
    one = read_parcels(write_parcels(tmp_path / "a.gpkg", shapes, crops, parcel_id=keys), GRID)
    two = read_parcels(write_parcels(tmp_path / "b.gpkg", shapes[::-1], crops[::-1], parcel_id=keys[::-1]), GRID)
    assert by_key(one) == by_key(two)
    assert one.table.keys == two.table.keys
    assert np.array_equal(one.burn(GRID)[1], two.burn(GRID)[1])


def test_holes_and_pieces(tmp_path: Path) -> None:
    ring = Polygon(square(2, 2, 8).exterior, [square(4, 4, 4).exterior])
    pieces = MultiPolygon([square(12, 2, 3), square(12, 20, 3)])
    labels, numbers = read_parcels(write_parcels(tmp_path / "p.gpkg", [ring, pieces], ["rye", "oat"]), GRID).burn(GRID)
    assert (labels[4:8, 4:8] == UNLABELLED).all()
    assert (labels == 1).sum() == 64 - 16
    assert (labels == 0).sum() == 18
    assert len(np.unique(numbers[labels == 0])) == 1


@pytest.mark.filterwarnings("error")
def test_null_labels_and_shapes_without_area_are_dropped(tmp_path: Path) -> None:
    middle = square(1, 15, 5).centroid
    line = LineString([middle, Point(middle.x + 50, middle.y)])
    shapes = [square(1, 1, 5), square(1, 8, 5), None, Polygon(), middle, line]
    crops = ["wheat", None, "maize", "rye", "hemp", "flax"]
    parcels = read_parcels(write_parcels(tmp_path / "p.gpkg", shapes, crops), GRID)
    assert parcels.classes.names == ["wheat"]
    assert len(parcels.table.keys) == 1
    assert (parcels.burn(GRID)[0] == 0).sum() == 25


def test_parcels_beside_the_scene_do_not_make_classes(tmp_path: Path) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(1, 1, 5), square(1, 500, 5)], ["wheat", "hemp"])
    assert read_parcels(path, GRID).classes.names == ["wheat"]


@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ({"parcel_id": ["x", "y"]}, ["x", "y"]),
        ({"ID_PARCEL": [12, 7]}, ["12", "7"]),
        ({"id": [None, None]}, ["1", "2"]),
        ({"id": [0, 0]}, ["1", "2"]),
        ({"id": [None, None], "field_id": ["p", "q"]}, ["p", "q"]),
        ({}, ["1", "2"]),
    ],
)
def test_keys_are_the_users_own_where_they_tell_apart(tmp_path: Path, columns: dict[str, Any], keys: list[str]) -> None:
    path = write_parcels(tmp_path / "p.shp", [square(1, 1, 5), square(1, 8, 5)], ["wheat", "maize"], **columns)
    assert by_key(read_parcels(path, GRID)) == dict(zip(keys, ["wheat", "maize"], strict=True))


@pytest.mark.parametrize("column", ["crop", "label", "CULTURE", "Crop_Name"])
def test_usual_label_columns_are_found(tmp_path: Path, column: str) -> None:
    frame = geopandas.GeoDataFrame({"area": [3], column: ["rye"]}, geometry=[square(1, 1, 5)], crs="EPSG:32632")
    frame.to_file(tmp_path / "p.gpkg")
    assert read_parcels(tmp_path / "p.gpkg", GRID).classes.names == ["rye"]


def test_numbers_as_labels(tmp_path: Path) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(1, 1, 5), square(1, 8, 5)], [200, 35])
    assert read_parcels(path, GRID).classes.names == ["200", "35"]


# --- what is refused


def test_a_label_column_that_is_missing(tmp_path: Path) -> None:
    path = write_four_fields(tmp_path / "p.gpkg")
    with pytest.raises(InputError, match="no column 'CODE'") as caught:
        read_parcels(path, GRID, label_column="CODE")
    assert "the columns are crop; name it with --label-column" in str(caught.value)
    frame = geopandas.GeoDataFrame({"size": [3]}, geometry=[square(1, 1, 5)], crs="EPSG:32632")
    frame.to_file(tmp_path / "q.gpkg")
    with pytest.raises(InputError, match="no label column"):
        read_parcels(tmp_path / "q.gpkg", GRID)


def test_a_named_label_column_is_taken(tmp_path: Path) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(1, 1, 5)], ["wheat"], EC_hcat_n=["winter wheat"])
    assert read_parcels(path, GRID, label_column="EC_hcat_n").classes.names == ["winter wheat"]


def test_parcels_of_another_place(tmp_path: Path) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(500, 500, 5)], ["wheat"])
    with pytest.raises(InputError, match="no labelled parcel lies on the scene"):
        read_parcels(path, GRID)
    path = write_parcels(tmp_path / "q.gpkg", [square(1, 1, 5)], [None])
    with pytest.raises(InputError, match="no labelled parcel lies on the scene"):
        read_parcels(path, GRID)


def test_too_many_classes(tmp_path: Path) -> None:
    crops = [f"crop {number}" for number in range(256)]
    path = write_parcels(tmp_path / "p.gpkg", [square(1, 1, 5)] * 256, crops)
    with pytest.raises(InputError, match="256 different values in column 'crop'"):
        read_parcels(path, GRID)


@pytest.mark.filterwarnings("ignore:'crs' was not provided")
def test_parcels_without_coordinate_system(tmp_path: Path) -> None:
    frame = geopandas.GeoDataFrame({"crop": ["rye"]}, geometry=[square(1, 1, 5)])
    frame.to_file(tmp_path / "p.shp")
    with pytest.raises(InputError, match="no coordinate system"):
        read_parcels(tmp_path / "p.shp", GRID)


def test_a_table_without_shapes(tmp_path: Path) -> None:
    path = tmp_path / "p.geojson"
    path.write_text(json.dumps({"type": "FeatureCollection", "features": []}))
    with pytest.raises(InputError, match="no label column"):
        read_parcels(path, GRID)


@pytest.mark.parametrize("content", [b"", b"just text", b"crop,geometry\nrye,\n", b"SQLite format 3\0", b"{}", b"PAR1"])
def test_what_is_no_vector_file(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p.gpkg"
    path.write_bytes(content)
    with pytest.raises(InputError, match="unreadable parcels") as caught:
        read_parcels(path, GRID)
    assert "give a GeoPackage" in str(caught.value)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.gpkg"):
        with pytest.raises(InputError, match="no such file"):
            read_parcels(path, GRID)


@pytest.mark.parametrize("name", ["p.gpkg", "p.geojson", "p.vrt"])
@pytest.mark.parametrize("kind", ["vrt", "pipeline"])
def test_a_file_that_points_to_another_is_not_followed(tmp_path: Path, name: str, kind: str) -> None:
    secret = write_four_fields(tmp_path / "secret.gpkg")
    command = f"gdal vector pipeline ! read {secret} ! write --of=stream streamed_dataset"
    content = {
        "vrt": f'<OGRVRTDataSource><OGRVRTLayer name="secret"><SrcDataSource>{secret}</SrcDataSource>'
        "</OGRVRTLayer></OGRVRTDataSource>",
        "pipeline": json.dumps({"type": "gdal_streamed_alg", "command_line": command}),
    }
    path = tmp_path / name
    path.write_text(content[kind])
    with pytest.raises(InputError, match="unreadable parcels"):
        read_parcels(path, GRID)


# --- real files


def test_real_parcels_in_a_national_coordinate_system(real_data: Path) -> None:
    """120 French parcels in IGNF:LAMB93 on the grid of a real Sentinel-2 cut-out."""
    folder = real_data / "sentinel2-t31tej"
    band = min((folder / "safe").rglob("*_B04_10m.*"))
    with rasterio.open(band) as dataset:
        grid = Grid.of(dataset)
    shapes = folder / "parcels" / "france_data_2018.shp"
    parcels = read_parcels(shapes, grid, label_column="EC_hcat_n")
    labels, _ = parcels.burn(grid)
    assert len(parcels.classes) == 8
    assert (labels >= 0).sum() == pytest.approx(16_017, rel=0.001)
