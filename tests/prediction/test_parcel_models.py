"""A model of parcels through `predict`: parcels by their own series, pixels with a warning, room on the disk."""

from __future__ import annotations

import logging
from pathlib import Path

import geopandas
import pytest
import torch

from cropstar.errors import ResourceError
from cropstar.prediction import blocks
from cropstar.prediction.job import predict
from cropstar.prediction.parcels import AGREEMENT, CLASS, classify_parcel_series
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.request import MapRequest
from cropstar.sources.stack import StackSeries
from tests.prediction.making import untrained

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
    classify_parcel_series(parcels, tmp_path / "expected.gpkg", series, Predictor(model, CPU))
    series.close()
    found, expected = (geopandas.read_file(tmp_path / name) for name in ("map-parcels.gpkg", "expected.gpkg"))
    assert found.equals(expected)
    assert found[AGREEMENT].isna().all()
    assert found[CLASS].notna().any()
    assert (tmp_path / "map.html").exists()


def test_no_room_for_the_map(small_scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raster = small_scene / "tile.tif"
    model = untrained(tmp_path / "model", raster, "star")
    monkeypatch.setattr(blocks, "LEAST_MAP", 1e15)  # as if no disk were large enough
    with pytest.raises(ResourceError, match="the disk is too small"):
        predict(raster, tmp_path / "map.tif", MapRequest(model=model, device="cpu"))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
