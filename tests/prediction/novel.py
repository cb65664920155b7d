"""Model files that learnt what is ordinary, without training: from their own features of a raster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from cropstar.geo.windows import Window
from cropstar.models.novelty import (
    LEVELS,
    RATES,
    UNKNOWN,
    ClassDistances,
    NoveltyScale,
    NoveltyStage,
    features_of_state,
)
from cropstar.models.zoo import weights_of
from cropstar.prediction.predictor import Predictor
from cropstar.sources.stack import StackSeries
from cropstar.store.model_file import write_model

CPU = torch.device("cpu")


def teach_ordinary(model: Path, raster: Path, *, stages: int = 2) -> Path:
    """Give a streaming model distances from one mean of its features, and limits that call a part of all unknown."""
    predictor, series = Predictor(model, CPU), StackSeries(raster)
    window = Window(0, 0, *series.grid.shape)
    observed = predictor.read(series, window)
    with torch.inference_mode():
        if predictor.model.spatial:
            *_, (state, _) = predictor.images_by_date(series, window, observed)
        else:
            flat = replace(
                observed,
                values=observed.values.reshape(*observed.values.shape[:2], -1),
                valid=observed.valid.reshape(len(observed.valid), -1),
            )
            state = predictor.model.advance(*predictor.inputs(series, flat))
        _, features = features_of_state(predictor.model, state)
    table = torch.cat([part.movedim(1, -1).reshape(-1, part.shape[1]) for part in features], dim=1).double().numpy()
    series.close()
    random = np.random.default_rng(3)
    found, days = [], tuple(int(day) for day in np.linspace(50, predictor.card.fingerprint.season.length, stages))
    scales = []
    for _ in range(stages):
        whitening = random.normal(size=(6, table.shape[1])) / table.std(axis=0).clip(1e-3)
        means = random.normal(size=(3, 6)) + table.mean(axis=0) @ whitening.T
        own = ClassDistances(means.astype(np.float32).astype(float), whitening.astype(np.float32).astype(float))
        found.append(own)
        distance = own.of([torch.from_numpy(table)]).numpy()
        knots = tuple(float(value) for value in np.quantile(distance, LEVELS))
        stage = NoveltyStage(knots, (1.0,) * len(LEVELS), (None,) * len(RATES))
        oddness = stage.oddness(distance, np.zeros(len(distance)))
        limits = tuple(float(np.quantile(oddness, 1 - rate)) for rate in RATES)
        scales.append(replace(stage, limits=limits))
    scale = NoveltyScale(days, 100, tuple(scales), tuple(found))
    card = replace(
        predictor.card,
        calibration={"temperature": {"temperature": 1.0}, UNKNOWN: scale.to_json()},
        novelty=scale.arrays(),
    )
    write_model(model, card, weights_of(predictor.model))
    return model
