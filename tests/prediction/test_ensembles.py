"""Maps of ensembles: exact in windows, and an update gives what the whole season gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.api.model import export_model
from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.geo.windows import Window, split
from cropstar.models.zoo import Ensemble, describe_model, restore_model, weights_of
from cropstar.prediction.job import predict
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.request import MapRequest
from cropstar.sources.stack import StackSeries
from cropstar.store.model_file import read_model, write_model
from tests.prediction.making import untrained
from tests.prediction.seasons import cut, pixels, take_in, whole_state

CPU = torch.device("cpu")
PLAIN: dict[str, Any] = {"picture": False}


def joined(path: Path, raster: Path, *names: str) -> Path:
    """A model file of several untrained models."""
    cards, members = [], []
    for number, name in enumerate(names):
        settings: dict[str, Any] = {"pool": "mean"} if number == 1 else {}
        file = untrained(path.with_name(f"{path.name}-{number}"), raster, name, seed=number, **settings)
        card, weights, _ = read_model(file)
        cards.append(card)
        members.append(restore_model(card.model, card.shape, weights, file))
    model = Ensemble(members, cards[0].shape["bands"])
    model.calibrate([0.5 + number for number in range(len(names))])
    described = describe_model([ModelConfig.model_validate(card.model) for card in cards])
    write_model(path, replace(cards[0], model=described), weights_of(model))
    return path


@pytest.mark.parametrize("names", [("convstar", "convgru"), ("star", "lstm", "star"), ("tempcnn", "star")])
def test_windows_are_exact(names: tuple[str, ...], small_scene: Path, tmp_path: Path) -> None:
    predictor = Predictor(joined(tmp_path / "model", small_scene / "tile.tif", *names), CPU)
    series = StackSeries(small_scene / "tile.tif")
    try:
        whole, _ = predictor.probabilities(series, Window(0, 0, *series.grid.shape))
        for window in split(series.grid.shape, 37):
            part, _ = predictor.probabilities(series, window)
            np.testing.assert_allclose(part, whole[:, *window.slices], rtol=0, atol=1e-5)
        members = [Predictor(tmp_path / f"model-{number}", CPU) for number in range(len(names))]
        for number, own in enumerate(members):
            own.temperature = 0.5 + number
        apart = [own.probabilities(series, Window(0, 0, *series.grid.shape))[0] for own in members]
        np.testing.assert_allclose(whole, np.mean(apart, axis=0), rtol=0, atol=1e-5)
    finally:
        series.close()


@pytest.mark.parametrize("names", [("convstar", "convgru"), ("star", "lstm")])
def test_an_update_gives_what_the_whole_season_gives(names: tuple[str, ...], small_scene: Path, tmp_path: Path) -> None:
    model = joined(tmp_path / "model", small_scene / "tile.tif", *names)
    shape = {"height": 50, "width": 40}
    whole, early, late = (
        cut(small_scene / "tile.tif", tmp_path / f"{name}.tif", dates, **shape)
        for name, dates in (("whole", slice(0, 5)), ("early", slice(0, 4)), ("late", slice(4, 5)))
    )
    for name, raster in (("full", whole), ("season", early)):
        state = tmp_path / f"{name}.h5"
        predict(raster, tmp_path / f"{name}-map.tif", MapRequest(model=model, device="cpu", **PLAIN, state=state))
    take_in(tmp_path / "season.h5", late, output=tmp_path / "updated.tif", **PLAIN)
    assert np.array_equal(pixels(tmp_path / "updated.tif"), pixels(tmp_path / "full-map.tif"))
    (parts, counts, dates), (wanted, seen, days) = (whole_state(tmp_path / f"{name}.h5") for name in ("season", "full"))
    assert dates == days
    assert np.array_equal(counts, seen)
    assert len(parts) == len(wanted) > 4
    for part, own in zip(parts, wanted, strict=True):
        np.testing.assert_allclose(part, own, rtol=0, atol=1e-6)


def test_recurrent_ensembles_are_exported_and_others_refused(small_scene: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    raster = small_scene / "tile.tif"
    written = export_model(joined(tmp_path / "model", raster, "star", "gru"), tmp_path / "model.onnx", dates=2)
    assert [path.name for path in written] == ["model.onnx", "model-step.onnx"]
    with pytest.raises(UsageError, match="only recurrent models"):
        export_model(joined(tmp_path / "other", raster, "tempcnn", "star"), tmp_path / "other.onnx", dates=2)
