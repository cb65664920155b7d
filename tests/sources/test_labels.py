"""Parcels from vector files burnt onto the grid; erosion; the user's class table."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import geopandas
import numpy as np
import pytest
import rasterio
import shapely
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from shapely.geometry import GeometryCollection, LineString, MultiPolygon, Point, Polygon, box

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import split
from cropstar.runtime import peak_memory_megabytes
from cropstar.sources import labels
from cropstar.sources.base import RasterScene
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.sources.class_rules import EVERY_LABEL, ClassRules, read_rules
from cropstar.sources.labels import Parcels, read_parcels
from cropstar.sources.stack import StackSeries
from cropstar.sources.vectors import open_vector
from cropstar.store.classes import UNLABELLED, ClassTable
from tests.examples import a_grid
from tests.sources.examples.safe import CORNER, write_product
from tests.sources.examples.stacks import square, write_four_fields, write_parcels, write_stack

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


def test_keys_that_are_lists(tmp_path: Path) -> None:
    path = write_parcels(tmp_path / "p.geojson", [square(1, 1, 5), square(1, 8, 5)], ["wheat", "maize"])
    content = json.loads(path.read_text(encoding="utf-8"))
    for number, feature in enumerate(content["features"]):
        feature["properties"]["id"] = [number, 7]
    path.write_text(json.dumps(content), encoding="utf-8")
    assert len(set(read_parcels(path, GRID).table.keys)) == 2


@pytest.mark.parametrize("column", ["EC_hcat_n", "CODE_CULTU", "NUTZUNG", "lc1"])
def test_the_label_column_of_a_public_register_is_known(tmp_path: Path, column: str) -> None:
    shape = geopandas.GeoDataFrame({"SURF": [1.2], column: ["rye"]}, geometry=[square(1, 1, 5)], crs="EPSG:32632")
    shape.to_file(tmp_path / "p.gpkg")
    assert read_parcels(tmp_path / "p.gpkg", GRID).classes.names == ["rye"]
    shape.assign(crop=["winter rye"]).to_file(tmp_path / "q.gpkg")  # a plain name goes first
    assert read_parcels(tmp_path / "q.gpkg", GRID).classes.names == ["winter rye"]


def test_parcels_of_another_place(tmp_path: Path) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(500, 500, 5)], ["wheat"])
    with pytest.raises(InputError, match="no labelled parcel lies on the scene"):
        read_parcels(path, GRID)
    path = write_parcels(tmp_path / "q.gpkg", [square(1, 1, 5)], [None])
    with pytest.raises(InputError, match="no labelled parcel lies on the scene"):
        read_parcels(path, GRID)


def test_an_outline_that_crosses_itself_everywhere(tmp_path: Path) -> None:
    """GEOS would take minutes and gigabytes to mend it."""
    tangle = Polygon(np.random.default_rng(0).random((2000, 2)) * 100 + square(1, 1, 5).bounds[:2])
    path = write_parcels(tmp_path / "p.gpkg", [square(1, 8, 5), tangle], ["rye", "oat"])
    with pytest.raises(InputError, match=r"no parcel in row 2 in .*: its outline crosses itself some \d+,\d+ times"):
        read_parcels(path, GRID)


@pytest.mark.parametrize("name", ["p.geojson", "p.parquet", "p.fgb"])
def test_too_many_columns(tmp_path: Path, name: str) -> None:
    pytest.importorskip("pyarrow")
    frame = geopandas.GeoDataFrame(
        {"crop": ["rye"], **{f"k{number}": [number] for number in range(2100)}}, geometry=[square(1, 1, 5)], crs=32632
    )
    frame.to_parquet(tmp_path / name) if name.endswith("parquet") else frame.to_file(tmp_path / name)
    with pytest.raises(InputError, match="too many columns"):
        read_parcels(tmp_path / name, GRID)


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


# --- Rules

LEFT, BOTTOM, RIGHT, TOP = GRID.bounds
X, Y = np.meshgrid(LEFT + 5 + 10 * np.arange(30), TOP - 5 - 10 * np.arange(20))  # pixel centres
Said = Callable[[], list[str]]


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Said:
    caplog.set_level(logging.INFO, "cropstar")
    return lambda: [record.getMessage() for record in caplog.records]


def heard(said: Said, part: str) -> bool:
    return any(part in message for message in said())


# --- erosion


@st.composite
def polygons(draw: st.DrawFn) -> list[Polygon]:
    """Hulls of a few points: any size, at any angle, overlapping or not."""
    place = st.tuples(st.floats(LEFT, RIGHT), st.floats(BOTTOM, TOP))
    shapes = [shapely.MultiPoint(draw(st.lists(place, min_size=3, max_size=7))).convex_hull for _ in range(3)]
    return [*(shape for shape in shapes if shape.area > 1), square(2, 2, 9), square(14, 22, 4)]


@settings(max_examples=25, phases=[Phase.generate])  # a file an example: shrinking would take minutes
@given(polygons(), st.floats(0.5, 60))
def test_an_eroded_parcel_is_its_inner_part(shapes: list[Polygon], metres: float) -> None:
    keys = [f"field {number}" for number in range(len(shapes))]
    with TemporaryDirectory() as folder:
        crops = [f"crop {number % 2}" for number in range(len(shapes))]
        path = write_parcels(Path(folder, "p.geojson"), shapes, crops, parcel_id=keys)
        plain = read_parcels(path, GRID)
        try:
            eroded = read_parcels(path, GRID, erode=metres)
        except InputError:
            assert all(shape.buffer(-metres).is_empty for shape in shapes)
            return
    before, after = keys_at(plain), keys_at(eroded)
    assert np.isin(after, ["", *keys]).all()
    assert (after[after != ""] == before[after != ""]).all()  # a subset, parcel by parcel
    for key, shape in zip(keys, shapes, strict=True):
        distance = shapely.distance(shape.exterior, shapely.points(X, Y))
        assert not (after[distance < 0.99 * metres] == key).any()
        deep = (before == key) & (distance > 1.01 * metres)
        assert (after[deep] == key).all()
    assert np.array_equal(eroded.burn(GRID)[0] == UNLABELLED, after == "")


def keys_at(parcels: Parcels) -> np.ndarray[tuple[int, ...], np.dtype[np.str_]]:
    names = dict(zip(parcels.table.numbers.tolist(), parcels.table.keys, strict=True))
    return np.array([[names.get(number, "") for number in row] for row in parcels.burn(GRID)[1].tolist()])


def test_squares_lose_their_edge_and_small_ones_vanish(tmp_path: Path, said: Said) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(1, 1, 6), square(10, 10, 2)], ["wheat", "maize"])
    parcels = read_parcels(path, GRID, erode=10)
    labels, numbers = parcels.burn(GRID)
    assert (labels[2:6, 2:6] == 1).all()
    assert (labels >= 0).sum() == 16
    assert len(parcels.table.keys) == 1
    assert set(np.unique(numbers)) == {0, 1}
    assert heard(said, "1 parcels are too small for --erode 10")
    with pytest.raises(InputError, match="--erode 500 leaves nothing of 2; erode less"):
        read_parcels(path, GRID, erode=500)


def test_the_edge_of_a_small_parcel_is_no_part_of_the_large_one_around_it(tmp_path: Path) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(0, 0, 16), square(5, 5, 5)], ["wheat", "maize"])
    labels, _ = read_parcels(path, GRID, erode=10).burn(GRID)
    assert (labels[6:9, 6:9] == 0).all()
    assert (labels[5:10, 5:10] == UNLABELLED).sum() == 25 - 9
    assert (labels[1:15, 1:15] == 1).sum() == 14 * 14 - 25


def test_eroded_pieces_put_together_are_the_whole(tmp_path: Path) -> None:
    shapes = [square(0, 0, 16), square(5, 5, 5), square(8, 12, 9)]
    parcels = read_parcels(write_parcels(tmp_path / "p.gpkg", shapes, "abc"), GRID, erode=12)
    labels, numbers = parcels.burn(GRID)
    for window in split(GRID.shape, 7):
        piece_labels, piece_numbers = parcels.burn(GRID.crop(window))
        assert np.array_equal(piece_labels, labels[window.slices])
        assert np.array_equal(piece_numbers, numbers[window.slices])


def test_metres_on_a_grid_of_feet(tmp_path: Path) -> None:
    feet = Grid(CRS.from_epsg(2263).to_wkt(), (30.0, 0.0, 980_000.0, 0.0, -30.0, 200_000.0), 20, 20)
    shape = shapely.box(980_090, 199_610, 980_390, 199_910)  # ten pixels of 30 feet a side
    path = tmp_path / "p.gpkg"
    import geopandas

    geopandas.GeoDataFrame({"crop": ["rye"]}, geometry=[shape], crs="EPSG:2263").to_file(path)
    assert (read_parcels(path, feet).burn(feet)[0] == 0).sum() == 100
    assert (read_parcels(path, feet, erode=30 * 0.3048).burn(feet)[0] == 0).sum() == 64


def test_erosion_needs_metres(tmp_path: Path) -> None:
    path = write_four_fields(tmp_path / "p.gpkg")
    degrees = Grid(CRS.from_epsg(4326).to_wkt(), (1e-4, 0.0, 10.5, 0.0, -1e-4, 48.9), 900, 900)
    with pytest.raises(UsageError, match="--erode 10 is not possible here: the scene's coordinates are degrees"):
        read_parcels(path, degrees, erode=10)
    for metres in (-1, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="not a distance in metres"):
            read_parcels(path, GRID, erode=metres)


# --- outlines


def test_an_outline_that_crosses_itself_is_repaired(tmp_path: Path, said: Said) -> None:
    bow_tie = Polygon([(LEFT, TOP), (LEFT + 100, TOP - 100), (LEFT + 100, TOP), (LEFT, TOP - 100)])
    spike = Polygon(
        [
            (RIGHT - 100, TOP),
            (RIGHT, TOP),
            (RIGHT, TOP - 100),
            (RIGHT - 100, TOP - 100),
            (RIGHT - 100, TOP - 180),
            (RIGHT - 100, TOP),
        ]
    )
    path = write_parcels(tmp_path / "p.gpkg", [bow_tie, spike, square(15, 15, 3)], ["rye", "oat", "hemp"])
    parcels = read_parcels(path, GRID)
    labels, _ = parcels.burn(GRID)
    assert (labels == parcels.classes.number_of("oat")).sum() == 100
    assert 40 <= (labels == parcels.classes.number_of("rye")).sum() <= 60
    assert heard(said, "2 parcels with an invalid outline were repaired")
    assert all(shape.geom_type in ("Polygon", "MultiPolygon") and shape.is_valid for shape in parcels.shapes)
    read_parcels(path, GRID, erode=10)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_an_outline_beyond_repair_is_not_used(tmp_path: Path, said: Said) -> None:
    broken = Polygon([(LEFT, TOP), (LEFT + 50, float("nan")), (LEFT + 50, TOP - 50), (LEFT, TOP - 50)])
    flat = Polygon([(LEFT, TOP), (LEFT + 50, TOP - 50), (LEFT, TOP)])
    path = write_parcels(tmp_path / "p.gpkg", [broken, flat, square(1, 10, 5)], ["rye", "rye", "oat"])
    assert read_parcels(path, GRID).classes.names == ["oat"]
    assert heard(said, "2 without an area")
    assert not heard(said, "were repaired")


def test_of_a_mixture_the_polygons_are_taken(tmp_path: Path) -> None:
    mixed = GeometryCollection([square(1, 1, 5), LineString([(LEFT, TOP), (RIGHT, BOTTOM)])])
    path = write_parcels(tmp_path / "p.gpkg", [mixed, square(1, 10, 5)], ["rye", "oat"])
    labels, _ = read_parcels(path, GRID).burn(GRID)
    assert (labels == 1).sum() == 25


def test_what_is_not_used_is_counted(tmp_path: Path, said: Said) -> None:
    shapes = [square(1, 1, 5), None, Polygon(), square(1, 8, 5), square(500, 500, 5), square(1, 15, 5).centroid]
    path = write_parcels(tmp_path / "p.gpkg", shapes, ["rye", "rye", "rye", " ", "rye", "rye"])
    assert len(read_parcels(path, GRID).table.keys) == 1
    expected = "2 without a geometry, 1 without a label, 1 beside the scene, 1 without an area"
    assert heard(said, f"parcels not used: {expected}")
    path = write_parcels(tmp_path / "q.gpkg", shapes[1:], ["rye", "rye", "", "rye", "rye"])
    with pytest.raises(InputError, match=f"no labelled parcel lies on the scene .*: {expected}; check that both"):
        read_parcels(path, GRID)


def test_places_that_the_projection_cannot_reach_are_beside_the_scene(tmp_path: Path) -> None:
    import geopandas

    shapes = [shapely.box(0, 89.9, 179, 90), *geopandas.GeoSeries([square(1, 1, 5)], crs=32632).to_crs(4326)]
    path = tmp_path / "p.gpkg"
    geopandas.GeoDataFrame({"crop": ["ice", "rye"]}, geometry=shapes, crs="EPSG:4326").to_file(path)
    assert read_parcels(path, GRID).classes.names == ["rye"]


@pytest.mark.parametrize(("second", "loud"), [(square(4, 4, 5), True), (square(1, 6, 5), False)])
def test_overlap_is_told_and_a_common_border_is_not(tmp_path: Path, said: Said, second: Polygon, loud: bool) -> None:
    path = write_parcels(tmp_path / "p.gpkg", [square(1, 1, 5), second], ["rye", "oat"])
    read_parcels(path, GRID)
    assert heard(said, "parcels overlap on about 8 % of their area; the smaller one wins") == loud


def test_parcels_too_small_for_a_pixel_are_kept_and_told(tmp_path: Path, said: Said) -> None:
    corner = shapely.box(LEFT + 101, TOP - 103, LEFT + 103, TOP - 101)
    thin = shapely.box(LEFT + 150, TOP - 152, LEFT + 290, TOP - 150)
    beside = shapely.box(LEFT - 300, TOP - 150, LEFT + 3, TOP - 100)  # its end on the grid is too thin
    partly = shapely.box(LEFT - 300, TOP - 190, LEFT + 30, TOP - 160)
    ring = Polygon(square(1, 1, 5).exterior, [square(2, 2, 3).exterior])
    shapes = [corner, thin, beside, partly, ring, square(1, 20, 1)]
    parcels = read_parcels(write_parcels(tmp_path / "p.gpkg", shapes, ["rye"] * 6), GRID)
    assert len(parcels.table.keys) == 6
    assert len(np.unique(parcels.burn(GRID)[1])) - 1 == 3
    assert heard(said, "3 parcels are too small for a pixel")


# --- labels


@pytest.mark.parametrize("name", ["p.gpkg", "p.shp", "p.geojson", "p.fgb"])
def test_whole_numbers_with_gaps(tmp_path: Path, name: str) -> None:
    shapes = [square(1, column, 5) for column in (1, 8, 15)]
    parcels = read_parcels(write_parcels(tmp_path / name, shapes, [1, None, 35]), GRID)
    assert parcels.classes.names == ["1", "35"]
    assert len(parcels.table.keys) == 2
    path = write_parcels(tmp_path / f"other-{name}", shapes, [1.5, 2.0, float("nan")])
    assert read_parcels(path, GRID).classes.names == ["1.5", "2"]


def test_classes_of_the_table_on_the_grid(tmp_path: Path) -> None:
    fields = write_four_fields(tmp_path / "p.gpkg", ("wheat", "rye", "house", "maize"))
    table = tmp_path / "classes.yaml"
    table.write_text("maize: [maize]\ncereals: [wheat, rye]\nhops: [hop]\ndrop: [house]")
    parcels = read_parcels(fields, GRID, rules=read_rules(table))
    labels, numbers = parcels.burn(GRID)
    assert parcels.classes.names == ["maize", "cereals", "hops"]
    assert np.unique(labels, return_counts=True)[1].tolist() == [525, 25, 50]
    assert (labels[1:6, 15:20] == UNLABELLED).all()  # dropped is not class 0
    assert (numbers[1:6, 15:20] == 0).all()
    table.write_text("a: [house]\nothers: drop\ndrop: [hop]")
    assert read_parcels(fields, GRID, rules=read_rules(table)).classes.names == ["a"]
    table.write_text("a: [hop]\nothers: drop")
    with pytest.raises(InputError, match=r"no labelled parcel lies on the scene .* 4 left out by the class table"):
        read_parcels(fields, GRID, rules=read_rules(table))


# --- requests


def recipe(stack: Path, **special: object) -> str:
    (scene,) = SOURCES["stack"](IngestRequest(stack, special=special))
    scene.close()
    return scene.recipe


def test_the_recipe_knows_the_rules_and_the_erosion(tmp_path: Path) -> None:
    stack = write_stack(tmp_path / "tile.tif")
    write_four_fields(tmp_path / "fields.gpkg")
    one, same, other = (tmp_path / f"{name}.yaml" for name in ("one", "same", "other"))
    one.write_text("a: [wheat]\nb: [maize]")
    same.write_text("a: [wheat]  # the same\nb: [maize]")
    other.write_text("b: [wheat]\na: [maize]")
    assert recipe(stack, erode=0.0) == recipe(stack)
    assert recipe(stack, classes=one) == recipe(stack, classes=same)
    assert len({recipe(stack), recipe(stack, classes=one), recipe(stack, classes=other), recipe(stack, erode=5.0)}) == 4


def test_tables_have_no_use_for_them(tmp_path: Path) -> None:
    for name in ("classes", "erode"):
        with pytest.raises(UsageError, match=f"--{name} does not apply to the source 'table'"):
            SOURCES["table"](IngestRequest(tmp_path / "t.csv", special={name: 1}))


def test_a_tile_without_parcels_is_left_out(tmp_path: Path, said: Said) -> None:
    x, y = CORNER
    write_product(tmp_path / "safe", tile="T31UGP", corner=(x - 50_000, y))
    write_product(tmp_path / "safe", tile="T32UPU")
    write_product(tmp_path / "safe", tile="T32UQU", corner=(x + 50_000, y))
    field = shapely.box(x + 20, y - 100, x + 120, y - 20)
    away = shapely.box(x + 20, y - 100_100, x + 120, y - 100_020)
    special = {"bands": ("B02", "B05")}
    fields = write_parcels(tmp_path / "p.gpkg", [field, away], ["rye", "oat"])
    scenes = SOURCES["sentinel2"](IngestRequest(tmp_path / "safe", fields, special=special))
    assert [scene.name for scene in scenes] == ["T32UPU-2023"]
    assert isinstance(scenes[0], RasterScene)
    for name in ("T31UGP-2023", "T32UQU-2023"):
        assert heard(said, f"{name} is left out: no labelled parcel lies on the scene")
    for scene in scenes:
        scene.close()
    fields = write_parcels(tmp_path / "q.gpkg", [away], ["rye"])
    with pytest.raises(InputError, match="no labelled parcel lies on the scene"):
        SOURCES["sentinel2"](IngestRequest(tmp_path / "safe", fields, special=special))


# --- The class table

TABLE = """
winter cereals: [winter wheat, winter barley]
maize: {labels: [corn, 211], colour: "#123ABC"}
grass: [meadow]
drop: [unknown, house]
"""


def rules_of(folder: Path, text: str) -> ClassRules:
    path = folder / "classes.yaml"
    path.write_text(text, encoding="utf-8")
    return read_rules(path)


def test_merge_rename_and_drop(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, TABLE)
    labels = ["winter wheat", "211", "house", "winter barley", "corn", "meadow"]
    assert rules.apply(labels) == ["winter cereals", "maize", None, "winter cereals", "maize", "grass"]


def test_numbers_in_the_order_of_the_file_and_colours_by_file_or_chosen(tmp_path: Path) -> None:
    table = rules_of(tmp_path, TABLE).table(["maize"])
    assert table.names == ["winter cereals", "maize", "grass"]  # also those without a parcel
    assert [entry.number for entry in table] == [0, 1, 2]
    assert table[1].colour == "#123abc"
    assert len({entry.colour for entry in table}) == 3


def test_a_colour_of_the_file_is_not_chosen_again(tmp_path: Path) -> None:
    table = rules_of(tmp_path, 'hemp: {labels: [h], colour: "#e67e22"}\nmaize: [m]\nwheat: [w]').table([])
    assert table[0].colour == "#e67e22"  # which is the familiar one of maize
    assert len({entry.colour for entry in table}) == 3


@pytest.mark.parametrize(
    ("others", "expected"), [("drop", ["a", None, None]), ("keep", ["a", "zebra", "b"]), ("error", None)]
)
def test_others(tmp_path: Path, others: str, expected: list[str | None] | None) -> None:
    rules = rules_of(tmp_path, f"a: [x]\nothers: {others}")
    if expected is None:
        with pytest.raises(InputError, match="the label 'b' is not in the class table"):
            rules.apply(["x", "zebra", "b"])
        return
    assert rules.apply(["x", "zebra", "b"]) == expected
    assert rules.table(name for name in expected if name).names == ["a", *sorted(filter(None, expected[1:]))]


def test_a_label_that_is_not_in_the_table(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        rules_of(tmp_path, TABLE).apply(["winter weat", "corn", "oats", "winter weat"])
    line = str(caught.value)
    assert "the label 'winter weat' is not in the class table in" in line
    assert "2 parcels have it, the nearest known label is 'winter wheat', and 1 more labels are missing" in line
    assert "others: drop" in line


def test_what_others_drops_and_what_nobody_has_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cropstar"):
        rules_of(tmp_path, TABLE + "others: drop").apply(["oats", "oats", "rye", "corn"])
    assert "labels left out by " in caplog.text
    assert ": oats (2), rye (1)" in caplog.text
    assert "that no parcel has: unknown, house, winter wheat, winter barley, 211 and 1" in caplog.text


def test_labels_are_taken_as_they_are_written(tmp_path: Path) -> None:
    rules = rules_of(tmp_path, "a: [010, no, 1:30, 2020-01-01, 1e3]\nyes: [~, 8]\n7: ['  x ']")
    assert rules.apply(["010", "no", "1:30", "2020-01-01", "1e3", "~", "8", "x"]) == ["a"] * 5 + ["yes"] * 2 + ["7"]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [x]\na: [y]", "line 2: the key 'a' appears twice"),
        ("a: {labels: [x], labels: [y]}", "'labels' appears twice"),
        ("a: [x", "not valid YAML"),
        ("", "no keys at the top"),
        ("- x", "no keys at the top"),
        ("a: x", "'a' has no list of labels"),
        ("a:", "'a' has no list of labels"),
        ("a: []", "'a' has no list of labels"),
        ("a: [[x]]", "in 'a' is not a label"),
        ("a: ['']", "in 'a' is not a label"),
        ("a: {colour: '#ffffff'}", "'a' has no list of labels"),
        ("a: {labels: [x], color: '#ffffff'}", "did you mean 'colour'?"),
        ("a: {labels: [x], colour: red}", "the colour of 'a' is 'red'; write it in quotes"),
        ("a:\n  labels: [x]\n  colour: #ffffff", "the colour of 'a' is ''; write it in quotes"),
        ("a: [x, x]", "'x' is under 'a' and 'a'"),
        ("a: [x]\nb: [x]", "'x' is under 'a' and 'b'"),
        ("a: [x]\ndrop: [x]", "'x' is under 'a' and 'drop'"),
        ("a: [x]\nothers: maybe", "'others' is 'maybe'; choose one of error, drop, keep"),
        ("a: [x]\nothers: [y]", "'others' is ['y']"),
        ("a: [x]\ndrop: y", "'drop' has no list"),
        ("drop: [x]", "no class is left"),
        ("a: [x]\nDrop: [y]", "'Drop' would be a class; write 'drop'"),
        ("a: [x]\nOthers: [y]", "'Others' would be a class; write 'others'"),
        ("'': [x]", "a class without a name"),
        ("\n".join(f"c{number}: [{number}]" for number in range(256)), "256 classes"),
        ("a: !!python/object:os.system [x]", "not valid YAML"),
    ],
)
def test_what_is_no_class_table(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        rules_of(tmp_path, text)
    assert part in str(caught.value)
    assert "classes.yaml" in str(caught.value)
    assert caught.value.remedy


def test_what_is_no_text_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read_rules(tmp_path / "absent.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not a text file"):
        read_rules(tmp_path / "binary.yaml")


def test_the_recipe_sees_the_content_alone(tmp_path: Path) -> None:
    first = rules_of(tmp_path, "a: [x, y]\nb: [z]").to_json()
    assert rules_of(tmp_path, "# said otherwise\na: {labels: [y, x]}\nb:\n- z\nothers: error").to_json() == first
    for text in (
        "b: [z]\na: [x, y]",
        "a: [x]\nb: [z]",
        "a: [x, y]\nb: [z]\nothers: drop",
        "a: [x, y]\nb: [z]\ndrop: [u]",
    ):
        assert rules_of(tmp_path, text).to_json() != first


@given(st.lists(st.text(min_size=1), min_size=1))
def test_without_rules_each_label_is_a_class_of_its_own(labels: list[str]) -> None:
    assert EVERY_LABEL.apply(labels) == labels
    assert EVERY_LABEL.table(labels) == ClassTable.from_names(labels)


@pytest.mark.parametrize("noise", [0.0, 3.0, 12.0])
def test_outlines_of_many_vertices_lose_the_same_margin(
    noise: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, angles = np.random.default_rng(0), np.linspace(0, 2 * np.pi, 400, endpoint=False)
    radius = 70 + random.normal(0, noise, len(angles))
    left, bottom, right, top = GRID.bounds
    middle = np.array([(left + right) / 2, (bottom + top) / 2])
    ring = middle + radius[:, None] * np.column_stack([np.cos(angles), np.sin(angles)])
    hole = middle + 15 * np.column_stack([np.cos(angles), np.sin(angles)])
    path = write_parcels(tmp_path / "p.gpkg", [shapely.make_valid(Polygon(ring, [hole]))], ["wheat"])
    exact = read_parcels(path, GRID, erode=11).burn(GRID)
    monkeypatch.setattr(labels, "MOST_ARCS", 100)
    by_pixels = read_parcels(path, GRID, erode=11).burn(GRID)
    assert (exact[0] != UNLABELLED).any()
    np.testing.assert_array_equal(by_pixels[0], exact[0])
    np.testing.assert_array_equal(by_pixels[1], exact[1])


@pytest.mark.parametrize("vertices", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_many_vertices_are_eroded_in_little_memory(vertices: int, tmp_path: Path) -> None:
    """Closer to each other than the margin, and noisy: once five gigabytes of a million, and hours."""
    random, angles = np.random.default_rng(0), np.linspace(0, 2 * np.pi, vertices, endpoint=False)
    grid = a_grid(400, 400)
    left, bottom, right, top = grid.bounds
    radius = (right - left) / 2.5 + random.normal(0, 5, len(angles))
    around = np.column_stack([np.cos(angles), np.sin(angles)])
    ring = np.array([(left + right) / 2, (bottom + top) / 2]) + radius[:, None] * around
    path = write_parcels(tmp_path / "p.gpkg", [Polygon(ring)], ["wheat"])
    before = peak_memory_megabytes()
    burnt, _ = read_parcels(path, grid, erode=10).burn(grid)
    assert peak_memory_megabytes() - before < 1000
    assert (burnt == 0).sum() > 10_000


# --- GeoPackages that are not what they seem

ENDLESS = "with recursive c(x) as (select 1 union all select x + 1 from c) select stored.* from c, stored"


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        (["update gpkg_ogr_contents set feature_count = 2147483647"], "claims 2,147,483,647 parcels"),
        (
            [
                "alter table parcels rename to stored",
                f"create view parcels as {ENDLESS}",
                "delete from gpkg_ogr_contents",
                "delete from gpkg_extensions",
            ],
            "not stored there but computed",
        ),
        (
            ["alter table parcels rename to stored", f"create view parcels as {ENDLESS} where x < 0"],  # no first row
            "not stored there but computed",
        ),
        (
            [
                "alter table gpkg_contents rename to stored",
                f"create view gpkg_contents as {ENDLESS} where x < 0",
            ],
            "'gpkg_contents' is not stored there but computed",
        ),
        (["delete from gpkg_contents"], "no layer has outlines"),
        (["alter table parcels add column more text generated always as (hex(zeroblob(500000000)))"], "but computed"),
    ],
)
def test_geopackages_that_have_no_end(statements: list[str], words: str, tmp_path: Path) -> None:
    path = tmp_path / "parcels.gpkg"
    geopandas.GeoDataFrame({"crop": ["maize"]}, geometry=[box(0, 0, 1, 1)], crs="EPSG:32632").to_file(path)
    with closing(sqlite3.connect(path)) as base:
        for (trigger,) in base.execute("select name from sqlite_master where type = 'trigger'").fetchall():
            base.execute(f'drop trigger "{trigger}"')  # they call functions that only GDAL has
        for statement in statements:
            base.execute(statement)
        base.commit()
    with pytest.raises(InputError, match=words):
        open_vector(path)


def test_views_beside_the_parcels_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "parcels.gpkg"
    geopandas.GeoDataFrame({"crop": ["maize"]}, geometry=[box(0, 0, 1, 1)], crs="EPSG:32632").to_file(path)
    with closing(sqlite3.connect(path)) as base:
        base.execute(f"create view other as {ENDLESS.replace('stored', 'parcels')} where x < 0")
        for table in ("gpkg_contents", "gpkg_geometry_columns"):
            rest = [
                row[1]
                for row in base.execute(f"pragma table_info({table})")
                if row[1] not in ("table_name", "identifier")
            ]
            more, value = (", identifier", ", 'other'") if table == "gpkg_contents" else ("", "")
            columns = ", ".join(rest)
            base.execute(
                f"insert into {table} (table_name{more}, {columns}) select 'other'{value}, {columns} from {table}"
            )
        base.commit()
    assert open_vector(path)["crop"].tolist() == ["maize"]


def test_a_geopackage_with_an_unfinished_change(tmp_path: Path) -> None:
    path = tmp_path / "parcels.gpkg"
    geopandas.GeoDataFrame({"crop": ["maize"]}, geometry=[box(0, 0, 1, 1)], crs="EPSG:32632").to_file(path)
    (tmp_path / "parcels.gpkg-journal").write_bytes(bytes.fromhex("d9d505f920a163d7") + bytes(504))
    with pytest.raises(InputError, match="parcels that were being written"):
        open_vector(path)


def test_a_pipe_beside_a_geopackage(tmp_path: Path) -> None:
    path = tmp_path / "parcels.gpkg"
    geopandas.GeoDataFrame({"crop": ["maize"]}, geometry=[box(0, 0, 1, 1)], crs="EPSG:32632").to_file(path)
    os.mkfifo(tmp_path / "parcels.gpkg-wal")
    with pytest.raises(InputError, match="pipe"):
        open_vector(path)
