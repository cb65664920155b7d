"""Edges taken off, outlines repaired, overlaps and slivers told, labels as text, tiles without parcels left out."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import shapely
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rasterio.crs import CRS
from shapely.geometry import GeometryCollection, LineString, Polygon

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import split
from cropstar.sources.catalogue import SOURCES
from cropstar.sources.class_rules import read_rules
from cropstar.sources.parcels import Parcels, read_parcels
from cropstar.sources.request import Request
from cropstar.sources.scene import RasterScene
from cropstar.store.classes import UNLABELLED
from tests.examples import a_grid
from tests.sources.sentinel2.safe import CORNER, write_product
from tests.sources.stacks import square, write_four_fields, write_parcels, write_stack

GRID = a_grid(20, 30)
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
    assert heard(said, "1 parcels vanish with --erode 10")
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
    (scene,) = SOURCES["stack"](Request(stack, special=special))
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
        with pytest.raises(UsageError, match=f"--{name} is not for the source 'table'"):
            SOURCES["table"](Request(tmp_path / "t.csv", special={name: 1}))


def test_a_tile_without_parcels_is_left_out(tmp_path: Path, said: Said) -> None:
    x, y = CORNER
    write_product(tmp_path / "safe", tile="T31UGP", corner=(x - 50_000, y))
    write_product(tmp_path / "safe", tile="T32UPU")
    write_product(tmp_path / "safe", tile="T32UQU", corner=(x + 50_000, y))
    field = shapely.box(x + 20, y - 100, x + 120, y - 20)
    away = shapely.box(x + 20, y - 100_100, x + 120, y - 100_020)
    special = {"bands": ("B02", "B05")}
    fields = write_parcels(tmp_path / "p.gpkg", [field, away], ["rye", "oat"])
    scenes = SOURCES["sentinel2"](Request(tmp_path / "safe", fields, special=special))
    assert [scene.name for scene in scenes] == ["T32UPU-2023"]
    assert isinstance(scenes[0], RasterScene)
    for name in ("T31UGP-2023", "T32UQU-2023"):
        assert heard(said, f"{name} is left out: no labelled parcel lies on the scene")
    for scene in scenes:
        scene.close()
    fields = write_parcels(tmp_path / "q.gpkg", [away], ["rye"])
    with pytest.raises(InputError, match="no labelled parcel lies on the scene"):
        SOURCES["sentinel2"](Request(tmp_path / "safe", fields, special=special))
