"""Models of parcels: what is written of a parcel is what the evaluation on a store says of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from cropstar.config import TrainConfig
from cropstar.errors import InputError
from cropstar.geo.windows import Window
from cropstar.prediction.parcels import (
    AGREEMENT,
    CLASS,
    HECTARES,
    NUMBER,
    PIXELS,
    PROBABILITY,
    announce_target,
    classify_parcel_series,
    learnt_parcels,
    pool_parcels,
)
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.request import StoredSeries, scenes_of
from cropstar.sources.base import Observations, Series
from cropstar.sources.stack import StackSeries
from cropstar.store.store import Store
from cropstar.training.evaluate import ALL, all_parcels, open_samples
from cropstar.training.evaluation import score
from tests.prediction.making import CLASSES, untrained

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
    count = classify_parcel_series(parcels, tmp_path / "out.gpkg", series, predictor)
    series.close()
    expected = evaluated(predictor, small_store)
    found = geopandas.read_file(tmp_path / "out.gpkg").set_index("parcel_id")
    assert len(found) >= count >= len(expected) > 10
    names = [f"p_{each}" for each in CLASSES.names]
    for key, probabilities in expected.items():
        own = found.loc[int(key) if found.index.dtype.kind == "i" else key]
        np.testing.assert_allclose(own[names].to_numpy(dtype=float), probabilities, atol=1e-5)
        assert own[NUMBER] == probabilities.argmax()
        assert own[CLASS] == CLASSES.names[probabilities.argmax()]
        assert own[PROBABILITY] == pytest.approx(probabilities.max(), abs=1e-5)
        assert own[PIXELS] > 0
        assert own[HECTARES] > 0
    assert found[AGREEMENT].isna().all()


def test_a_store_gives_the_same_as_its_images(small_scene: Path, small_store: Path, tmp_path: Path) -> None:
    raster, parcels = small_scene / "tile.tif", small_scene / "parcels.gpkg"
    predictor = Predictor(untrained(tmp_path / "m", raster, "star", provenance=OF_PARCELS), CPU)
    opened: list[Series] = [StackSeries(raster), StoredSeries(small_store, scenes_of(small_store)[0])]
    for number, series in enumerate(opened):
        classify_parcel_series(parcels, tmp_path / f"{number}.gpkg", series, predictor)
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
    assert classify_parcel_series(tmp_path / "some.gpkg", tmp_path / "out.gpkg", series, predictor) in (1, 2)
    found = geopandas.read_file(tmp_path / "out.gpkg")
    assert len(found) == 4
    assert found[CLASS].isna()[[1, 3]].all()
    assert found[CLASS].notna()[0]
    series.clouded = len(series.dates)
    assert classify_parcel_series(tmp_path / "some.gpkg", tmp_path / "none.gpkg", series, predictor) == 0
    series.close()
    nothing = geopandas.read_file(tmp_path / "none.gpkg")
    assert nothing[[CLASS, NUMBER, PROBABILITY, *(f"p_{name}" for name in CLASSES.names)]].isna().all(axis=None)
    assert (nothing[PIXELS] == 0).all()


def test_no_parcels_at_all(small_scene: Path, tmp_path: Path) -> None:
    raster = small_scene / "tile.tif"
    predictor = Predictor(untrained(tmp_path / "m", raster, "star", provenance=OF_PARCELS), CPU)
    series = StackSeries(raster)
    with pytest.raises(InputError):
        classify_parcel_series(tmp_path / "missing.gpkg", tmp_path / "out.gpkg", series, predictor)
    series.close()


def test_pixels_of_a_model_of_parcels_come_with_a_warning(
    small_scene: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raster = small_scene / "tile.tif"
    of_parcel = Predictor(untrained(tmp_path / "m", raster, "star", provenance=OF_PARCELS), CPU).card
    of_pixels = Predictor(untrained(tmp_path / "n", raster, "star"), CPU).card
    assert (learnt_parcels(of_parcel), learnt_parcels(of_pixels)) == (True, False)
    with caplog.at_level(logging.WARNING, logger="cropstar"):
        announce_target(of_pixels, None)
        announce_target(of_parcel, small_scene / "parcels.gpkg")
        assert not caplog.records
        announce_target(of_parcel, None)
    assert "--parcels" in caplog.text
