"""A model file that fits a raster, of untrained weights: how long a map takes does not depend on them.

Of trees it does: they are grown on made-up fields whose classes differ a little.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cropstar.config import ModelConfig
from cropstar.geo.calendar import Season
from cropstar.models.contract import Shape
from cropstar.models.networks.trees import DayGrid, FittedClassifier
from cropstar.models.zoo import build_model, weights_of
from cropstar.sources.catalogue import open_raster_series
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint, Normalisation
from cropstar.store.model_file import ModelCard, write_model


def write_untrained(path: Path, raster: Path, settings: dict[str, Any]) -> None:
    """Ten classes; `settings` is the model's section of a configuration, `raster` a file or a folder of dated files."""
    series = open_raster_series(raster, (), {})
    classes = ClassTable.from_names([f"crop {number}" for number in range(10)])
    season = Season.of(series.dates)
    fingerprint = Fingerprint(series.bands, series.scale, series.offset, series.grid.resolution, season, classes)
    shape = Shape(len(series.bands), len(classes), len(series.dates))
    series.close()
    config = ModelConfig.model_validate(settings)
    normalisation = Normalisation((0.3,) * shape.bands, (0.2,) * shape.bands)
    card = ModelCard(config.model_dump(mode="json"), shape.to_json(), fingerprint, normalisation, {})
    model = build_model(config, shape)
    if isinstance(model, FittedClassifier):
        grid, random = DayGrid(season.start, season.length), np.random.default_rng(0)
        labels = random.integers(0, len(classes), 1200)
        features = random.normal(size=(len(labels), grid.features(shape.bands))) + 0.1 * labels[:, None]
        model.fit(features.astype(np.float32), labels, grid, 0, lambda done, of: None)
    write_model(path, card, weights_of(model))
