"""Every member of the zoo maps a raster without seams, whatever the window; some are trained before."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cropstar.config import TrainConfig
from cropstar.geo.windows import Window, split
from cropstar.models.zoo import known_models
from cropstar.prediction.predictor import Predictor
from cropstar.sources.stack import StackSeries
from cropstar.training.train import TrainOptions, train
from tests.prediction.making import untrained

CPU = torch.device("cpu")
COMPOSED = ["biconvgru", "convlstm+star", "convstar+gru", "lstm_forget+star"]
MEMBERS = sorted({*known_models(), *COMPOSED})
TRAINED = ["ltae"]


def assert_seamless(predictor: Predictor, raster: Path, size: int) -> None:
    series = StackSeries(raster)
    try:
        whole, seen = predictor.probabilities(series, Window(0, 0, *series.grid.shape))
        for window in split(series.grid.shape, size):
            part, clear = predictor.probabilities(series, window)
            assert np.abs(part - whole[:, *window.slices]).max() <= 1e-5
            assert np.array_equal(clear, seen[window.slices])
    finally:
        series.close()


@pytest.mark.parametrize("name", MEMBERS)
def test_windows_give_the_map_of_one_pass(name: str, small_scene: Path, tmp_path: Path) -> None:
    raster = small_scene / "tile.tif"
    predictor = Predictor(untrained(tmp_path / "model", raster, name), CPU)
    assert_seamless(predictor, raster, 37)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in TRAINED else pytest.mark.slow) for name in MEMBERS]
)
def test_trained_and_mapped(name: str, small_store: Path, small_scene: Path, tmp_path: Path) -> None:
    config = TrainConfig.model_validate(
        {"store": small_store, "model": {"name": name, "layers": 2, "hidden": 8}, "epochs": 1, "batch": 4, "patch": 24}
    )
    run, result = train(config, TrainOptions(tmp_path, CPU))
    assert 0 <= result["test"]["pixel"]["overall_accuracy"] <= 1
    assert_seamless(Predictor(run.model, CPU), small_scene / "tile.tif", 37)
