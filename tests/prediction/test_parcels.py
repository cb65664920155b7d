"""Parcels: by the map that they lie on, and by models that learnt parcels."""

from __future__ import annotations

import logging
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pandas
import pytest
import shapely
import torch
from numpy.typing import NDArray

from cropstar.config import TrainConfig
from cropstar.errors import InputError, ResourceError, UsageError, expected_error
from cropstar.geo.windows import Window
from cropstar.prediction import blocks
from cropstar.prediction.job import predict
from cropstar.prediction.parcels import (
    CLASS,
    HECTARES,
    NUMBER,
    PIXELS,
    PROBABILITY,
    SHARE,
    ParcelProduct,
    classify_parcel_series,
    hectares_of,
    is_parcel_model,
    pool_parcels,
    require_parcels,
    warn_of_parcel_model,
    write_frame,
)
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.request import MapFiles, MapOptions, MapRequest, StoredSeries, scenes_of
from cropstar.sources.base import Observations, Series
from cropstar.sources.stack import StackSeries
from cropstar.store.store import Store
from cropstar.training.accuracy import score
from cropstar.training.evaluate import ALL, all_parcels, open_samples
from tests.prediction.making import CLASSES as MODEL_CLASSES
from tests.prediction.making import untrained
from tests.prediction.maps import CLASSES, Landscape, a_landscape, place, square, write
from tests.prediction.test_outputs import largest_file

pytest.importorskip("exactextract")


def frame_of(shapes: list[Any], landscape: Landscape, **columns: list[Any]) -> Any:
    return geopandas.GeoDataFrame(columns, geometry=shapes, crs=landscape.grid.rasterio_crs)


def classify(folder: Path, landscape: Landscape, frame: Any, name: str = "fields.gpkg", **changes: Any) -> Any:
    """The parcels as the map's file has them."""
    given = folder / name
    if given.suffix == ".gpkg":
        frame.to_file(given, driver="GPKG")
    else:
        frame.to_parquet(given)
    files = write(folder, landscape, MapOptions(parcels=given, picture=False), **changes).files
    if files.parcels.suffix == ".gpkg":
        return geopandas.read_file(files.parcels, layer=files.parcels.stem)
    return geopandas.read_parquet(files.parcels)


def expected(landscape: Landscape, row: int, column: int, side: float) -> tuple[int, float, float, float]:
    """Number, probability, agreement and pixels of a square, its edge pixels weighed by hand."""
    cover = np.ones(int(np.ceil(side)))
    cover[-1] = side - np.floor(side) or 1
    weight = np.outer(cover, cover)
    part = np.s_[row : row + len(cover), column : column + len(cover)]
    weight = weight * landscape.seen[part]
    means = (landscape.probabilities[:, *part] * weight).sum(axis=(1, 2)) / weight.sum()
    number = int(means.argmax())
    agreement = float((weight * (landscape.classes[part] == number)).sum() / weight.sum())
    return number, float(means[number]), agreement, float(weight.sum())


@pytest.mark.parametrize("crs", [None, "EPSG:4326", "IGNF:LAMB93"])
def test_parcels_are_pooled_by_exact_cover(crs: str | None, tmp_path: Path) -> None:
    landscape = a_landscape()
    places = [(8, 16, 8.0), (20, 30, 5.5), (40, 70, 11.25), (0, 3, 9.0)]  # the last lies partly where nothing was seen
    frame = frame_of([square(*each, landscape.grid) for each in places], landscape, name=["a", "b", "c", "d"])
    found = classify(tmp_path, landscape, frame if crs is None else frame.to_crs(crs))
    assert found["name"].tolist() == ["a", "b", "c", "d"]
    assert found.crs == geopandas.read_file(tmp_path / "fields.gpkg").crs
    slack = 1e-4 if crs is None else 2e-3  # straight lines bend a little on their way through coordinate systems
    for each, (_, facts) in zip(places, found.iterrows(), strict=True):
        number, probability, agreement, pixels = expected(landscape, *each)
        assert (facts[NUMBER], facts[CLASS]) == (number, CLASSES.names[number])
        assert facts[PROBABILITY] == pytest.approx(probability, abs=slack)
        assert facts[SHARE] == pytest.approx(agreement, abs=slack)
        assert facts[PIXELS] == pytest.approx(pixels, rel=1e-3)
        own = [facts[f"p_{name}"] for name in CLASSES.names]
        assert sum(own) == pytest.approx(1, abs=1e-3)
        assert max(own) == facts[PROBABILITY]
    # A square of UTM, some kilometres beside its meridian: 0.01 % of its area is the projection's.
    assert found[HECTARES].to_numpy() == pytest.approx([side * side / 100 for _, _, side in places], rel=2e-3)


@pytest.mark.parametrize("turned", [(10.0, 0.0, 0.0, 10.0), (10.0, 1.0, 1.0, -10.0), (6.0, 8.0, 8.0, -6.0)])
def test_rasters_that_do_not_go_from_north_to_south(turned: tuple[float, float, float, float], tmp_path: Path) -> None:
    landscape = a_landscape()
    (a, b, d, e), (_, _, c, _, _, f) = turned, landscape.grid.transform
    landscape = replace(landscape, grid=replace(landscape.grid, transform=(a, b, c, d, e, f)))
    places = [(8, 16, 8.0), (20, 30, 5.5)]
    corners = [[(x, y), (x + side, y), (x + side, y + side), (x, y + side)] for y, x, side in places]
    shapes = [shapely.Polygon([place(*each, landscape.grid) for each in ring]) for ring in corners]
    found = classify(tmp_path, landscape, frame_of(shapes, landscape))
    for each, (_, facts) in zip(places, found.iterrows(), strict=True):
        number, probability, agreement, pixels = expected(landscape, *each)
        assert facts[NUMBER] == number
        wanted = probability, agreement, pixels
        assert facts[[PROBABILITY, SHARE, PIXELS]].tolist() == pytest.approx(wanted, abs=1e-4, rel=1e-3)


def test_every_parcel_is_kept(tmp_path: Path) -> None:
    landscape = a_landscape()
    grid = landscape.grid
    bow = shapely.Polygon([place(*corner, grid) for corner in ((10, 10), (20, 20), (20, 10), (10, 20))])
    shapes = [
        square(-900, 0, 5, grid),  # beside the map
        square(0, 0, 4, grid),  # nothing was seen there
        None,
        shapely.Polygon(),
        shapely.Point(place(30, 30, grid)),
        bow,  # crosses itself
        square(-5, 80, 12, grid),  # half of it on the map
        square(30.2, 30.2, 0.3, grid),  # within one pixel
    ]
    found = classify(tmp_path, landscape, frame_of(shapes, landscape, row=list(range(len(shapes)))))
    assert found["row"].tolist() == list(range(len(shapes)))
    known = found[CLASS].notna().tolist()
    assert known == [False] * 5 + [True] * 3
    assert found[NUMBER].notna().tolist() == found[PROBABILITY].notna().tolist() == known
    assert (found[PIXELS] > 0).tolist() == known
    assert found[PIXELS].iloc[5] == pytest.approx(50, rel=1e-3)
    assert found[PIXELS].iloc[7] == pytest.approx(0.09, rel=1e-3)
    assert found[SHARE].iloc[7] == 1
    assert found.geometry.iloc[5].equals(bow)  # as it was given
    assert found.geometry.iloc[2] is None


def test_parcels_far_away_alone(tmp_path: Path) -> None:
    landscape = a_landscape()
    found = classify(tmp_path, landscape, frame_of([square(-900, 0, 5, landscape.grid)], landscape))
    assert found[CLASS].isna().all()
    assert found[HECTARES].iloc[0] == pytest.approx(0.25, rel=1e-2)


def test_geoparquet_in_and_out(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    landscape = a_landscape()
    frame = frame_of([square(8, 16, 8, landscape.grid)], landscape, tags=[["a", "b"]])
    found = classify(tmp_path, landscape, frame, "fields.parquet")
    assert found[CLASS].iloc[0] in CLASSES.names
    assert list(found["tags"].iloc[0]) == ["a", "b"]


def test_columns_of_the_user_stay(tmp_path: Path) -> None:
    """Even one called fid, which GeoPackages have for themselves, or a class from an earlier map."""
    landscape = a_landscape()
    shapes = [square(8, 16, 8, landscape.grid), square(8, 32, 8, landscape.grid)]
    frame = frame_of(
        shapes, landscape, FID=["x", "x"], crop=["mine", None], Mapped=["old", "old"], Pixel_Share=[1.0, 1.0]
    )
    frame.to_parquet(tmp_path / "fields.parquet")
    found = classify(tmp_path, landscape, frame, "fields.parquet")
    assert found["FID"].tolist() == ["x", "x"]
    assert found["crop"].iloc[0] == "mine"
    assert not {"Mapped", "Pixel_Share", "Mapped_input"} & set(found.columns)
    from cropstar.prediction.parcels import write_frame

    write_frame(found, tmp_path / "again.gpkg")
    assert geopandas.read_file(tmp_path / "again.gpkg")["FID"].tolist() == ["x", "x"]


def test_the_same_parcels_are_the_same_bytes(tmp_path: Path) -> None:
    landscape = a_landscape()
    contents = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        classify(tmp_path / name, landscape, frame_of([square(8, 16, 8, landscape.grid)], landscape))
        contents.append((tmp_path / name / "map-parcels.gpkg").read_bytes())
    assert contents[0] == contents[1]
    with sqlite3.connect(tmp_path / "one" / "map-parcels.gpkg") as database:
        tables = database.execute("select table_name, data_type from gpkg_contents").fetchall()
        assert tables == [("map-parcels", "features"), ("layer_styles", "attributes")]
        style = (tmp_path / "one" / "map-parcels.qml").read_text(encoding="utf-8")
        embedded = "select f_table_name, f_geometry_column, styleQML, useAsDefault from layer_styles"
        assert database.execute(embedded).fetchall() == [("map-parcels", "geom", style, 1)]
        (version,) = database.execute("pragma user_version").fetchone()
        assert version == 10300, "older QGIS warns of later versions"


def test_areas_have_holes_and_parts() -> None:
    outer, hole = shapely.box(9, 48, 9.1, 48.1), shapely.box(9.02, 48.02, 9.04, 48.04)
    whole, lost = (hectares_of(geopandas.GeoSeries([shape], crs=4326))[0] for shape in (outer, hole))
    apart = shapely.MultiPolygon([shapely.difference(outer, hole), shapely.box(10, 48, 10.1, 48.1)])
    turned = shapely.reverse(apart)
    nowhere = shapely.Polygon([(9, 48), (9.1, np.nan), (9.1, 48.1), (9, 48)])
    for shape in (apart, turned):
        found = hectares_of(geopandas.GeoSeries([shape, None, shapely.Point(1, 1), nowhere], crs=4326))
        assert found[0] == pytest.approx(2 * whole - lost, rel=1e-9)
        assert np.isnan(found[[1, 3]]).all()
        assert found[2] == 0


def test_what_cannot_be_parcels_is_refused_before_there_is_a_map(tmp_path: Path) -> None:
    broken = tmp_path / "fields.gpkg"
    broken.write_text("no parcels")
    with pytest.raises(InputError, match=r"fields\.gpkg"):
        require_parcels(broken, tmp_path / "map-parcels.gpkg")
    mine = tmp_path / "map-parcels.gpkg"
    frame_of([square(8, 16, 8, a_landscape().grid)], a_landscape()).to_file(mine, driver="GPKG")
    with pytest.raises(UsageError, match="the output is the input"):
        MapFiles(tmp_path / "map.tif", MapOptions(parcels=mine)).require_apart([mine])


def test_names_that_a_database_takes_for_one() -> None:
    from cropstar.prediction.parcels import probability_columns

    columns = probability_columns(["Maize", "maize", "maize_2"])
    assert len({column.lower() for column in columns}) == 3
    assert pandas.Index(columns).is_unique


# --- models that learnt parcels


CPU = torch.device("cpu")
OF_PARCELS = {"target": "parcel"}


def evaluated(predictor: Predictor, folder: Path) -> dict[str, NDArray[Any]]:
    """Probabilities of every parcel of a store as `cropstar evaluate` computes them, by the parcel's key."""
    store = Store.open(folder)
    try:
        split = all_parcels(store)
        keys = {(reader.scene, int(n)): key for reader in store.tiles for n, key in zip(*_named(reader), strict=True)}
        config = TrainConfig(store=folder, target="parcel")
        numbers = [0] * len(store.fingerprint.classes)
        samples = open_samples(predictor.card, store, split, ALL, config, numbers)
        scored = score(predictor.model, samples.batch(list(range(len(samples)))), CPU)
    finally:
        store.close()
    probabilities = torch.softmax(scored.scores.detach().double(), dim=1).numpy()
    members = sorted(split.part_of)
    return {
        keys[members[running]]: each
        for running, each, seen in zip(scored.parcels.tolist(), probabilities, scored.seen.tolist(), strict=True)
        if seen
    }


def _named(reader: Any) -> tuple[list[int], list[str]]:
    return reader.table.numbers.tolist(), reader.table.keys


@pytest.mark.parametrize(("name", "provenance"), [("star", {}), ("tempcnn", {}), ("star", {"regular": {"every": 20}})])
def test_probabilities_are_those_of_the_evaluation(
    small_scene: Path, small_store: Path, tmp_path: Path, name: str, provenance: dict[str, Any]
) -> None:
    raster, parcels = small_scene / "tile.tif", small_scene / "parcels.gpkg"
    predictor = Predictor(untrained(tmp_path / "m", raster, name, provenance=OF_PARCELS | provenance), CPU)
    series = StackSeries(raster)
    count = classify_parcel_series(parcels, ParcelProduct(tmp_path / "out.gpkg", MODEL_CLASSES), series, predictor)
    series.close()
    expected = evaluated(predictor, small_store)
    found = geopandas.read_file(tmp_path / "out.gpkg").set_index("parcel_id")
    assert len(found) >= count.classified >= len(expected) > 10
    names = [f"p_{each}" for each in MODEL_CLASSES.names]
    for key, probabilities in expected.items():
        own = found.loc[int(key) if found.index.dtype.kind == "i" else key]
        np.testing.assert_allclose(own[names].to_numpy(dtype=float), probabilities, atol=1e-5)
        assert own[NUMBER] == probabilities.argmax()
        assert own[CLASS] == MODEL_CLASSES.names[probabilities.argmax()]
        assert own[PROBABILITY] == pytest.approx(probabilities.max(), abs=1e-5)
        assert own[PIXELS] > 0
        assert own[HECTARES] > 0
    assert found[SHARE].isna().all()


def test_a_store_gives_the_same_as_its_images(small_scene: Path, small_store: Path, tmp_path: Path) -> None:
    raster, parcels = small_scene / "tile.tif", small_scene / "parcels.gpkg"
    predictor = Predictor(untrained(tmp_path / "m", raster, "star", provenance=OF_PARCELS), CPU)
    opened: list[Series] = [StackSeries(raster), StoredSeries(small_store, scenes_of(small_store)[0])]
    for number, series in enumerate(opened):
        classify_parcel_series(parcels, ParcelProduct(tmp_path / f"{number}.gpkg", MODEL_CLASSES), series, predictor)
        series.close()
    one, other = (geopandas.read_file(tmp_path / f"{number}.gpkg") for number in range(2))
    assert one.equals(other)


def test_pooled_in_groups_as_in_one(small_scene: Path) -> None:
    frame = geopandas.read_file(small_scene / "parcels.gpkg")
    series = StackSeries(small_scene / "tile.tif")
    shapes = frame.geometry.to_crs(series.grid.rasterio_crs).to_numpy()
    (whole,) = pool_parcels(series, shapes)
    groups = list(pool_parcels(series, shapes, most=5 * 8 * 6 * (len(series.bands) + 1)))
    series.close()
    assert len(groups) == -(-len(shapes) // 5)
    assert sorted(np.concatenate([group.rows for group in groups])) == list(range(len(shapes)))
    for group in groups:
        for one, other in ((group.sums, whole.sums), (group.counts, whole.counts), (group.sizes, whole.sizes)):
            np.testing.assert_array_equal(one, other[group.rows])


class Clouded(StackSeries):
    """A series of which the first dates are all cloud."""

    clouded: int

    def read(self, window: Window) -> Observations:
        seen = super().read(window)
        seen.valid[: self.clouded] = False
        return replace(seen, values=seen.values * seen.valid[:, None])


def test_parcels_that_nothing_is_known_of_keep_nulls(small_scene: Path, tmp_path: Path) -> None:
    raster = small_scene / "tile.tif"
    predictor = Predictor(untrained(tmp_path / "m", raster, "star", provenance=OF_PARCELS), CPU)
    series = Clouded(raster)
    series.clouded = 0
    frame = geopandas.read_file(small_scene / "parcels.gpkg").to_crs(series.grid.rasterio_crs)[:4].copy()
    frame.loc[1, "geometry"] = None
    frame.loc[2, "geometry"] = frame.geometry[2].centroid.buffer(0.01)  # smaller than a pixel
    frame["geometry"] = frame.geometry.where(frame.index != 3, frame.geometry.translate(1e5))
    frame.to_file(tmp_path / "some.gpkg")
    assert classify_parcel_series(
        tmp_path / "some.gpkg", ParcelProduct(tmp_path / "out.gpkg", MODEL_CLASSES), series, predictor
    ).classified in (1, 2)
    found = geopandas.read_file(tmp_path / "out.gpkg")
    assert len(found) == 4
    assert found[CLASS].isna()[[1, 3]].all()
    assert found[CLASS].notna()[0]
    series.clouded = len(series.dates)
    assert (
        classify_parcel_series(
            tmp_path / "some.gpkg", ParcelProduct(tmp_path / "none.gpkg", MODEL_CLASSES), series, predictor
        ).classified
        == 0
    )
    series.close()
    nothing = geopandas.read_file(tmp_path / "none.gpkg")
    assert nothing[[CLASS, NUMBER, PROBABILITY, *(f"p_{name}" for name in MODEL_CLASSES.names)]].isna().all(axis=None)
    assert (nothing[PIXELS] == 0).all()


def test_no_parcels_at_all(small_scene: Path, tmp_path: Path) -> None:
    raster = small_scene / "tile.tif"
    predictor = Predictor(untrained(tmp_path / "m", raster, "star", provenance=OF_PARCELS), CPU)
    series = StackSeries(raster)
    with pytest.raises(InputError):
        classify_parcel_series(
            tmp_path / "missing.gpkg", ParcelProduct(tmp_path / "out.gpkg", MODEL_CLASSES), series, predictor
        )
    series.close()


def test_pixels_of_a_model_of_parcels_come_with_a_warning(
    small_scene: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raster = small_scene / "tile.tif"
    of_parcel = Predictor(untrained(tmp_path / "m", raster, "star", provenance=OF_PARCELS), CPU).card
    of_pixels = Predictor(untrained(tmp_path / "n", raster, "star"), CPU).card
    assert (is_parcel_model(of_parcel), is_parcel_model(of_pixels)) == (True, False)
    with caplog.at_level(logging.WARNING, logger="cropstar"):
        warn_of_parcel_model(of_pixels, None)
        warn_of_parcel_model(of_parcel, small_scene / "parcels.gpkg")
        assert not caplog.records
        warn_of_parcel_model(of_parcel, None)
    assert "--parcels" in caplog.text


# --- the whole way


pytest.importorskip("exactextract")
CPU = torch.device("cpu")


def test_parcels_by_their_own_series(small_scene: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raster, parcels = small_scene / "tile.tif", small_scene / "parcels.gpkg"
    model = untrained(tmp_path / "model", raster, "star", provenance={"target": "parcel"})
    options = MapRequest(model=model, device="cpu", parcels=parcels, page=True)
    with caplog.at_level(logging.WARNING, logger="cropstar"):
        predict(raster, tmp_path / "map.tif", options)
        assert "whole parcels" not in caplog.text
        predict(raster, tmp_path / "pixels.tif", options.replace(parcels=None, page=False, picture=False))
    assert "maps single pixels" in caplog.text
    series = StackSeries(raster)
    classify_parcel_series(
        parcels, ParcelProduct(tmp_path / "expected.gpkg", MODEL_CLASSES), series, Predictor(model, CPU)
    )
    series.close()
    found, expected = (geopandas.read_file(tmp_path / name) for name in ("map-parcels.gpkg", "expected.gpkg"))
    assert found.equals(expected)
    assert found[SHARE].isna().all()
    assert found[CLASS].notna().any()
    assert (tmp_path / "map.html").exists()


def test_no_room_for_the_map(small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raster = small_scene / "tile.tif"
    model = untrained(tmp_path / "model", raster, "star")
    monkeypatch.setattr(blocks, "LEAST_MAP", 1e15)  # as if no disk were large enough
    with pytest.raises(ResourceError, match="the disk is too small"):
        predict(raster, tmp_path / "map.tif", MapRequest(model=model, device="cpu"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_style_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    frame = geopandas.GeoDataFrame(geometry=[shapely.box(0, 0, 1, 1)], crs="EPSG:32632")
    write_frame(frame, tmp_path / "parcels.gpkg")
    plain = (tmp_path / "parcels.gpkg").stat().st_size
    (tmp_path / "parcels.gpkg").unlink()
    with largest_file(plain), pytest.raises(ResourceError, match="cannot write"):
        write_frame(frame, tmp_path / "parcels.gpkg", style="x" * 50_000)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["parcels.gpkg", "parcels.parquet"])
def test_a_full_disk_is_not_blamed_on_a_column(name: str, tmp_path: Path) -> None:
    squares = [shapely.box(side, 0, side + 1, 1) for side in range(300)]
    frame = geopandas.GeoDataFrame(
        {"crop": [f"wheat {n}" * 20 for n in range(300)]}, geometry=squares, crs="EPSG:32632"
    )
    write_frame(frame, tmp_path / name)
    whole = (tmp_path / name).stat().st_size
    (tmp_path / name).unlink()
    for largest in range(0, whole, max(whole // 25, 1)):
        with largest_file(largest), pytest.raises((ResourceError, OSError)) as caught:
            write_frame(frame, tmp_path / name)
        error = expected_error(caught.value)
        assert error is not None
        assert error.exit_code == 6, error
        assert "free some disk space" in str(error)
        assert list(tmp_path.iterdir()) == []
