"""Labelled points: the same pixels as a naive look-up, seasons, and fields that no split tears apart."""

from __future__ import annotations

import logging
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from pyproj import Geod
from shapely.geometry import MultiPoint, Point

import cropstar
from cropstar.config import SplitConfig
from cropstar.datasets.splits import split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.sources.labels import Parcels, read_parcels
from cropstar.sources.points import fields_by_distance
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from tests.examples import a_grid

GRID = a_grid(20, 30)
LEFT, _, _, TOP = GRID.bounds


def place(row: float, column: float) -> Point:
    """A point of the grid of the examples; whole numbers are corners of pixels."""
    return Point(LEFT + 10 * column, TOP - 10 * row)


def write_points(path: Path, places: list[Point], crops: list[Any], **columns: Any) -> Path:
    frame = geopandas.GeoDataFrame({**columns, "crop": crops}, geometry=places, crs=GRID.rasterio_crs)
    if path.suffix != ".csv":
        frame.to_file(path)
        return path
    degrees = frame.to_crs("EPSG:4326").geometry
    frame.drop(columns="geometry").assign(longitude=degrees.x, latitude=degrees.y).to_csv(path, index=False)
    return path


def names_at(parcels: Parcels) -> dict[tuple[int, int], str]:
    labels, numbers = parcels.burn(GRID)
    assert np.array_equal(labels == UNLABELLED, numbers == 0)
    return {
        (int(row), int(column)): parcels.classes[labels[row, column]].name
        for row, column in np.argwhere(labels != UNLABELLED)
    }


# --- pixels


@pytest.mark.parametrize("ending", ["gpkg", "csv"])
def test_points_drawn_from_parcels_label_the_pixels_that_they_lie_in(
    small_scene: Path, tmp_path: Path, ending: str
) -> None:
    """300 points within the demonstration's parcels, through the whole of ingest, against a look-up of each."""
    parcels = geopandas.read_file(small_scene / "parcels.gpkg")
    generator = np.random.default_rng(5)
    rows = generator.choice(len(parcels), 300, p=parcels.area / parcels.area.sum())
    points = parcels.geometry.iloc[rows].sample_points(1, rng=generator).centroid
    crops = parcels["crop"].iloc[rows].tolist()
    frame = geopandas.GeoDataFrame({"label": crops}, geometry=points.to_list(), crs=parcels.crs)
    path = tmp_path / f"points.{ending}"
    if ending == "csv":
        degrees = frame.to_crs("EPSG:4326").geometry
        pd.DataFrame({"longitude": degrees.x, "latitude": degrees.y, "label": crops}).to_csv(path, index=False)
        back = geopandas.points_from_xy(degrees.x, degrees.y, crs="EPSG:4326").to_crs(parcels.crs)
        frame = frame.set_geometry(list(back), crs=parcels.crs)
    else:
        frame.to_file(path)
    with rasterio.open(small_scene / "tile.tif") as dataset:
        shape, indexes = dataset.shape, [dataset.index(point.x, point.y) for point in frame.geometry]
    crops_in: dict[tuple[int, int], set[str]] = {}
    for index, crop in zip(indexes, crops, strict=True):
        crops_in.setdefault((int(index[0]), int(index[1])), set()).add(crop)
    expected = np.full(shape, "", dtype=object)
    for (row, column), found in crops_in.items():
        if len(found) == 1 and 0 <= row < shape[0] and 0 <= column < shape[1]:
            expected[row, column] = found.pop()
    cropstar.ingest(small_scene / "tile.tif", parcels=path, tile_size=48, output=tmp_path / "store")
    store = Store.open(tmp_path / "store")
    names = np.array([*store.fingerprint.classes.names, ""], dtype=object)
    labels = np.full(shape, "?", dtype=object)
    for entry, reader in store.readers():
        top, left = (int(part[1:]) for part in entry.name.split("-")[-2:])
        own = names[reader.labels()]
        labels[top : top + own.shape[0], left : left + own.shape[1]] = own
    store.close()
    assert (expected != "").sum() > 200
    assert np.array_equal(labels, expected)


@given(
    places=st.lists(st.tuples(st.floats(0.01, 19.99), st.floats(0.01, 29.99)), min_size=1, max_size=8),
    radius=st.sampled_from([0.0, 3.0, 12.0, 35.0]),
)
def test_a_radius_labels_what_is_near(places: list[tuple[float, float]], radius: float) -> None:
    """Naively, pixel by pixel: its own, or the centres within the radius of points of one class."""
    crops = [("wheat", "maize")[number % 2] for number in range(len(places))]
    pixels = [(int(row), int(column)) for row, column in places]
    for number, pixel in enumerate(pixels):  # of two classes in one pixel there is a test of its own
        crops[number] = crops[pixels.index(pixel)]
    with TemporaryDirectory() as folder:
        path = write_points(Path(folder) / "p.geojson", [place(*each) for each in places], crops)
        found = names_at(read_parcels(path, GRID, point_radius=radius))
    for row in range(20):
        for column in range(30):
            if (row, column) in pixels:
                assert found[row, column] == crops[pixels.index((row, column))]
                continue
            away = [np.hypot(row + 0.5 - y, column + 0.5 - x) * 10 for y, x in places]
            near = {crop for crop, metres in zip(crops, away, strict=True) if metres < radius * 0.999}
            maybe = {crop for crop, metres in zip(crops, away, strict=True) if metres < radius * 1.001}
            if near == maybe:  # the circle is drawn with 128 corners
                assert found.get((row, column)) == (near.pop() if len(near) == 1 else None)


def test_points_in_one_pixel(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = [place(2.5, 2.5), place(2.6, 2.7), place(5.5, 5.5), place(5.2, 5.2), place(8, 8)]
    path = write_points(tmp_path / "p.gpkg", places, ["wheat", "maize", "wheat", "wheat", "maize"])
    with caplog.at_level(logging.INFO):
        parcels = read_parcels(path, GRID)
    assert names_at(parcels) == {(5, 5): "wheat", (8, 8): "maize"}  # a corner belongs to the pixel after it
    assert "2 in one pixel with a point of another class, 1 in one pixel with another of its class" in caplog.text
    path = write_points(tmp_path / "q.gpkg", places[:2], ["wheat", "maize"])
    with pytest.raises(InputError, match="no labelled point is left"):
        read_parcels(path, GRID)


def test_edges_and_what_lies_outside(tmp_path: Path) -> None:
    places = [place(0, 0), place(19.99, 29.99), place(20, 3), place(3, 30), place(-1, 5), place(7.5, 7.5)]
    path = write_points(tmp_path / "p.gpkg", places, ["a", "b", "c", "d", "e", None])
    assert names_at(read_parcels(path, GRID)) == {(0, 0): "a", (19, 29): "b"}
    outside = write_points(tmp_path / "q.csv", [place(-500, 5)] * 3, ["a", "b", "c"])
    with pytest.raises(InputError, match=r"no labelled parcel lies on the scene .*: 3 beside the scene; check"):
        read_parcels(outside, GRID)


# --- files and seasons


def test_sits_and_lucas(tmp_path: Path) -> None:
    degrees = geopandas.GeoSeries([place(3.5, 4.5), place(9.5, 9.5)], crs=GRID.rasterio_crs).to_crs("EPSG:4326")
    sits = pd.DataFrame({"id": [1, 2], "longitude": degrees.x, "latitude": degrees.y})
    sits = sits.assign(start_date="2022-09-01", end_date=["2023-08-31", "2022-12-31"], label=["Soy", "Corn"])
    sits.to_csv(tmp_path / "sits.csv", index=False)
    days = (date(2023, 4, 1), date(2023, 7, 1))
    parcels = read_parcels(tmp_path / "sits.csv", GRID, dates=days)
    assert names_at(parcels) == {(3, 4): "Soy"}
    assert parcels.table.keys == ["1"]
    lucas = pd.DataFrame({"POINT_ID": [11, 12], "TH_LAT": degrees.y, "TH_LONG": degrees.x, "LC1": ["B11", "B16"]})
    lucas.assign(SURVEY_DATE=["07/06/23", "07-06-18"]).to_csv(tmp_path / "lucas.csv", index=False)
    assert names_at(read_parcels(tmp_path / "lucas.csv", GRID, dates=days)) == {(3, 4): "B11"}
    lucas.assign(YEAR=[2022, 2023]).to_csv(tmp_path / "years.csv", index=False)
    assert names_at(read_parcels(tmp_path / "years.csv", GRID, dates=days)) == {(9, 9): "B16"}
    lucas.assign(date=["", "2023-05-05T10:00"]).to_parquet(tmp_path / "dates.parquet")
    assert len(names_at(read_parcels(tmp_path / "dates.parquet", GRID, dates=days))) == 2  # without a date, of any


def test_all_points_of_another_season(tmp_path: Path) -> None:
    path = write_points(tmp_path / "p.csv", [place(3, 3)] * 2, ["a", "b"], date=["2019-05-01", "2019-06-01"])
    with pytest.raises(InputError, match=r"2 of another season than the images"):
        read_parcels(path, GRID, dates=(date(2023, 4, 1), date(2023, 9, 1)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("crop,name\nwheat,x\n", "no coordinates .* call the columns longitude and latitude"),
        ("longitude,latitude,crop\n612345,5412345,wheat\n", "not degrees .* row 1 has longitude 612345"),
        ("longitude,latitude,crop,date\n9,48,wheat,soon\n", "not a date .* 'soon' in row 1 of column 'date'"),
        ("longitude,latitude,name\n9,48,wheat\n", "no label column .* --label-column"),
        ("longitude,latitude,crop\nx,,wheat\n", "no labelled parcel .* 1 without a geometry"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(InputError, match=why):
        read_parcels(tmp_path / "p.csv", GRID, dates=(date(2023, 4, 1),))


def test_options_that_do_not_apply(tmp_path: Path) -> None:
    points = write_points(tmp_path / "p.gpkg", [place(3, 3)], ["a"])
    with pytest.raises(UsageError, match="--erode does not apply to points"):
        read_parcels(points, GRID, erode=5)
    areas = tmp_path / "areas.gpkg"
    geopandas.GeoDataFrame({"crop": ["a"]}, geometry=[place(3, 3).buffer(50)], crs=GRID.rasterio_crs).to_file(areas)
    with pytest.raises(UsageError, match="--point-radius does not apply to parcels"):
        read_parcels(areas, GRID, point_radius=5)
    with pytest.raises(UsageError, match="no column 'plot'"):
        read_parcels(areas, GRID, field_column="plot")


# --- fields


@given(
    places=st.lists(st.tuples(st.floats(-0.01, 0.01), st.floats(-0.01, 0.01)), min_size=1, max_size=25),
    latitude=st.sampled_from([0.0, 47.0, -69.0]),
    metres=st.sampled_from([0.0, 120.0, 400.0]),
)
def test_fields_are_chains_of_near_points(places: list[tuple[float, float]], latitude: float, metres: float) -> None:
    """Against a search from point to point with geodesic distances."""
    labels = [("a", "b", "a")[number % 3] for number in range(len(places))]
    points = np.array([Point(10 + x, latitude + y) for x, y in places], dtype=object)
    found = fields_by_distance(points, labels, [str(number) for number in range(len(places))], metres)
    geod = Geod(ellps="WGS84")
    distance = np.array([[geod.inv(p.x, p.y, q.x, q.y)[2] for q in points] for p in points])
    if metres and (np.abs(distance / metres - 1) < 0.01).any():
        return  # the ellipsoid is no sphere
    for start in range(len(places)):
        reached, front = {start}, [start]
        while front:
            here = front.pop()
            for other in range(len(places)):
                if other not in reached and labels[other] == labels[start] and distance[here, other] < metres:
                    reached.add(other)
                    front.append(other)
        assert {number for number in range(len(places)) if found[number] == found[start]} == reached
        assert found[start] == str(min(reached))


@pytest.mark.parametrize("by", ["distance", "column"])
def test_splits_do_not_leak(small_scene: Path, tmp_path: Path, by: str) -> None:
    """Several points a parcel, ingested and split: points of one field are in one part, with every seed."""
    parcels = geopandas.read_file(small_scene / "parcels.gpkg")
    points = parcels.geometry.buffer(-5).sample_points(4, rng=3).explode(ignore_index=False)
    frame = geopandas.GeoDataFrame(
        {"crop": parcels["crop"].loc[points.index].to_numpy(), "plot": [f"plot {row}" for row in points.index]},
        geometry=points.to_list(),
        crs=parcels.crs,
    )
    frame.to_file(tmp_path / "points.gpkg")
    options: dict[str, Any] = {"field_column": "plot"} if by == "column" else {"group_distance": 60.0}
    cropstar.ingest(small_scene / "tile.tif", parcels=tmp_path / "points.gpkg", output=tmp_path / "store", **options)
    store = Store.open(tmp_path / "store")
    rows = {
        (reader.scene, int(number)): int(key) - 1
        for _, reader in store.readers()
        for number, key in zip(reader.table.numbers, reader.table.keys, strict=True)
    }
    used = frame.iloc[list(rows.values())]
    if by == "column":
        same = used["plot"].to_numpy()[:, None] == used["plot"].to_numpy()
    else:
        x, y = used.geometry.x.to_numpy(), used.geometry.y.to_numpy()
        same = used["crop"].to_numpy()[:, None] == used["crop"].to_numpy()
        same &= np.hypot(x[:, None] - x, y[:, None] - y) < 59.9
    assert same.sum() > 2 * len(used)  # there is something to tear apart
    for seed in range(5):
        part_of = split_parcels(store, SplitConfig(), seed).part_of
        parts = np.array([part_of[parcel] for parcel in rows])
        assert len(set(parts)) == 3
        assert (parts[:, None] == parts)[same].all()
    store.close()


def test_a_row_of_several_points_is_one_field(tmp_path: Path) -> None:
    rows = [MultiPoint([place(2.5, 2.5), place(15.5, 25.5)]), place(9.5, 9.5)]
    geopandas.GeoDataFrame({"crop": ["a", "a"]}, geometry=rows, crs=GRID.rasterio_crs).to_file(tmp_path / "p.gpkg")
    parcels = read_parcels(tmp_path / "p.gpkg", GRID, group_distance=0)
    assert set(names_at(parcels)) == {(2, 2), (15, 25), (9, 9)}
    assert parcels.table.fields is not None
    assert len(set(parcels.table.fields)) == 2


def test_one_chain_of_all_points_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    places = [place(0.5 + 0.6 * number, 2 + 0.6 * number) for number in range(30)]
    path = write_points(tmp_path / "p.gpkg", places, ["a"] * 30)
    with caplog.at_level(logging.WARNING):
        read_parcels(path, GRID)
    assert "30 of 30 points are one field" in caplog.text
