"""Model files without training: the geometry of prediction asks for a model, not for a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from cropstar.config import ModelConfig
from cropstar.geo.calendar import Season
from cropstar.models.contract import Shape
from cropstar.models.zoo import build_model, weights_of
from cropstar.sources.stack import StackSeries
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint, Normalisation
from cropstar.store.model_file import ModelCard, write_model

CLASSES = ClassTable.from_names(["maize", "wheat", "rape", "grass"])


def untrained(
    path: Path,
    raster: Path,
    name: str = "convstar",
    *,
    seed: int = 0,
    provenance: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    """A model with random weights, large enough for neighbours to matter, that fits a raster."""
    torch.manual_seed(seed)
    series = StackSeries(raster)
    try:
        shape = Shape(len(series.bands), len(CLASSES), len(series.dates))
        config = ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 5, **settings})
        model = build_model(config, shape)
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(0.1 * torch.randn_like(weights))
        fingerprint = Fingerprint(
            series.bands, series.scale, series.offset, series.grid.resolution, Season.of(series.dates), CLASSES
        )
        normalisation = Normalisation((0.2,) * shape.bands, (0.1,) * shape.bands)
        card = ModelCard(config.model_dump(mode="json"), shape.to_json(), fingerprint, normalisation, provenance or {})
        write_model(path, card, weights_of(model))
    finally:
        series.close()
    return path
