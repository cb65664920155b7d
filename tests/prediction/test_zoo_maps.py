"""Every member of the zoo trains on the small store and maps the scene without seams."""

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

QUICK = ["biconvgru", "convgru", "lstm_forget+star", "ltae", "tcn"]
REST = sorted(set(known_models()) - {*QUICK, "star", "convstar"})


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in REST)])
def test_trained_and_mapped(name: str, small_store: Path, small_scene: Path, tmp_path: Path) -> None:
    config = TrainConfig.model_validate(
        {"store": small_store, "model": {"name": name, "layers": 2, "hidden": 8}, "epochs": 1, "batch": 4, "patch": 24}
    )
    run, result = train(config, TrainOptions(tmp_path, torch.device("cpu")))
    assert 0 <= result["test"]["pixel"]["overall_accuracy"] <= 1
    predictor = Predictor(run.model, torch.device("cpu"))
    series = StackSeries(small_scene / "tile.tif")
    try:
        everything = Window(0, 0, *series.grid.shape)
        whole, seen = predictor.probabilities(series, everything)
        for window in split(series.grid.shape, 37):
            part, clear = predictor.probabilities(series, window)
            assert np.abs(part - whole[:, *window.slices]).max() <= 1e-5
            assert np.array_equal(clear, seen[window.slices])
    finally:
        series.close()
