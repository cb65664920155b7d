"""A season of real Sentinel-2 products that grows by one product."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from cropstar.prediction.job import predict
from cropstar.prediction.request import MapInput, MapRequest, UpdateRequest
from cropstar.prediction.season import update
from tests.prediction.making import untrained
from tests.prediction.seasons import pixels, whole_state

CPU = torch.device("cpu")
PRODUCTS: dict[str, Any] = {"layers": ("probabilities",), "picture": False}
DATES = ["2018-01-23", "2018-01-28", "2018-04-18"]


def test_one_product_more(real_data: Path, small_scene: Path, tmp_path: Path) -> None:
    folder = real_data / "sentinel2-t31tej" / "safe"
    products = [next(folder.glob(f"*_{day.replace('-', '')}T*.SAFE")) for day in DATES]
    for name, some in {"early": products[:2], "all": products}.items():
        (tmp_path / name).mkdir()
        for product in some:
            (tmp_path / name / product.name).symlink_to(product)
    model = untrained(tmp_path / "model", small_scene / "tile.tif", seed=2)
    options = MapRequest(model=model, device="cpu", **PRODUCTS, any_dates=True)
    predict(tmp_path / "all", tmp_path / "full.tif", options)
    state = tmp_path / "season.h5"
    predict(tmp_path / "early", tmp_path / "map.tif", options.replace(state=state))
    update(state, [MapInput(products[2])], UpdateRequest(device="cpu", **PRODUCTS, any_dates=True))
    assert whole_state(state)[2] == DATES
    one, other = (pixels(tmp_path / f"{name}-probabilities.tif").astype(int) for name in ("map", "full"))
    assert np.abs(one - other).max() <= 1  # steps of 0.0001, rounded
    assert np.mean(pixels(tmp_path / "map.tif") == pixels(tmp_path / "full.tif")) > 0.999
