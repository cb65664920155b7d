"""Maps in half precision: nearly the same, never mixed with exact blocks, and no states of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.models.backends import half_type
from cropstar.prediction.job import load_predictor, open_job, predict
from cropstar.prediction.request import MapInput, MapRequest
from tests.prediction.making import untrained

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["convstar", "star", "tempcnn"])
def test_probabilities_are_nearly_those_of_single_precision(name: str, small_scene: Path, tmp_path: Path) -> None:
    tile = small_scene / "tile.tif"
    model = untrained(tmp_path / "model", tile, name=name)
    found, keys = [], set()
    for half in (False, True):
        options = MapRequest(model=model, device="cpu", half=half, window=32)
        predictor = load_predictor(options)
        with open_job(MapInput(tile), tmp_path / "map.tif", options, predictor) as job:
            found.append(predictor.probabilities(job.series, Window(0, 0, 24, 24))[0])
            keys.add(job.key)
    assert found[1].dtype == np.float32
    assert 0 < np.abs(found[0] - found[1]).max() < 0.03
    assert len(keys) == 2  # blocks of one are never those of the other


@pytest.mark.parametrize("backend", ["native", "onnx"])
def test_backends_of_single_precision_are_refused(backend: str, small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model", small_scene / "tile.tif")
    with pytest.raises(UsageError, match=f"--half with --backend {backend}"):
        load_predictor(MapRequest(model=model, device="cpu", half=True, backend=backend))


def test_no_state_of_it(small_scene: Path, tmp_path: Path) -> None:
    tile = small_scene / "tile.tif"
    model = untrained(tmp_path / "model", tile)
    chosen: tuple[dict[str, Any], ...] = ({"state": tmp_path / "season.h5"}, {"stable_confidence": 0.5})
    for more in chosen:
        with pytest.raises(UsageError, match="--half with --state"):
            predict(tile, tmp_path / "map.tif", MapRequest(model=model, device="cpu", half=True, **more))
    assert not (tmp_path / "map.tif").exists()


def test_what_a_device_computes_fast() -> None:
    assert half_type(CPU) == torch.bfloat16
    assert half_type(torch.device("cuda")) == torch.float16
