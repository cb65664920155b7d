"""ONNX: the same scores as PyTorch by onnxruntime, at any batch and image size, with masks and one date at a time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from cropstar.config import ModelConfig
from cropstar.errors import ArtifactError, UsageError
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Shape
from cropstar.models.export import export_forward, export_step
from cropstar.models.zoo import build_model

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

BANDS, CLASSES, DATES = 4, 3, 4


def a_model(name: str, **settings: Any) -> RecurrentClassifier:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"name": name, "layers": 2, "hidden": 6, **settings})
    model = build_model(config, Shape(BANDS, CLASSES, DATES)).eval()
    assert isinstance(model, RecurrentClassifier)
    return model


def a_season(model: RecurrentClassifier, batch: int, size: tuple[int, int], share: float) -> list[torch.Tensor]:
    space = size if model.spatial else ()
    x = torch.randn(batch, DATES, BANDS, *space)
    valid = torch.rand(batch, DATES, *space) < share
    days = 18_500 + torch.randint(0, 400, (batch, DATES)).sort(dim=1).values
    return [x, valid, days]


def run(content: bytes, feeds: dict[str, Any]) -> dict[str, Any]:
    session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = {each.name for each in session.get_inputs()}
    found = session.run(None, {name: np.asarray(values) for name, values in feeds.items() if name in names})
    return dict(zip((each.name for each in session.get_outputs()), found, strict=True))


@pytest.mark.parametrize("name", ["star", "convstar"])
def test_forward_gives_the_scores_of_the_model(name: str) -> None:
    model = a_model(name)
    content = export_forward(model, BANDS, DATES, {"cropstar.bands": '["B02"]'})
    for batch, size, share in ((1, (1, 1), 1.0), (4, (13, 8), 0.5), (2, (3, 20), 0.0)):
        season = a_season(model, batch, size, share)
        with torch.inference_mode():
            wanted = model(*season).numpy()
        found = run(content, dict(zip(("x", "valid", "days"), season, strict=True)))["scores"]
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    facts = {each.key: each.value for each in onnx.load_model_from_string(content).metadata_props}
    assert facts == {"cropstar.bands": '["B02"]', "cropstar.kind": "forward", "cropstar.dates": str(DATES)}


@pytest.mark.parametrize("settings", [{}, {"pool": "mean"}, {"revisit": 5.0, "normalise": True}])
@pytest.mark.parametrize("name", ["star", "convstar"])
def test_steps_give_the_scores_of_the_whole_season(name: str, settings: dict[str, Any]) -> None:
    model = a_model(name, **settings)
    content = export_step(model, BANDS, {})
    facts = {each.key: each.value for each in onnx.load_model_from_string(content).metadata_props}
    x, valid, days = a_season(model, 3, (9, 5), 0.6)
    # Begun as the metadata say, by somebody who knows nothing else of the model.
    state = {
        part["name"]: np.full((3, part["channels"], *x.shape[3:]), float(part["value"]), dtype=np.float32)
        for part in json.loads(facts["cropstar.state"])
    }
    for t in range(DATES):
        found = run(content, {"x": x[:, t], "valid": valid[:, t], "days": days[:, t], **state})
        state = {name: found[name.replace("state", "next")] for name in state}
    with torch.inference_mode():
        wanted = model(x, valid, days).numpy()
    np.testing.assert_allclose(found["scores"], wanted, atol=1e-5)
    assert not model.training


def test_dates_that_are_not_valid_fill_a_season_up() -> None:
    model = a_model("star")
    content = export_forward(model, BANDS, DATES, {})
    x, valid, days = a_season(model, 4, (1, 1), 0.8)
    valid[:, 3:] = False
    with torch.inference_mode():
        wanted = model(x[:, :3], valid[:, :3], days[:, :3]).numpy()
    x[:, 3:], days[:, 3:] = 0, 0
    np.testing.assert_allclose(run(content, {"x": x, "valid": valid, "days": days})["scores"], wanted, atol=1e-5)


def test_both_directions_have_a_forward_alone() -> None:
    model = a_model("bistar")
    assert export_forward(model, BANDS, 3, {})
    with pytest.raises(UsageError, match="no step"):
        export_step(model, BANDS, {})


def test_others_are_refused() -> None:
    config = ModelConfig.model_validate({"name": "tcn", "layers": 2, "hidden": 6})
    model = build_model(config, Shape(BANDS, CLASSES, DATES)).eval()
    with pytest.raises(UsageError, match="only recurrent models"):
        export_forward(model, BANDS, DATES, {})


def test_a_difference_is_found() -> None:
    """The comparison can fail: here the model computes something else while it is exported."""
    model = a_model("star")

    def differ(_: object, __: object, scores: torch.Tensor) -> torch.Tensor:
        return scores + 0.01 if torch.onnx.is_in_onnx_export() else scores

    model.head.scores.register_forward_hook(differ)
    with pytest.raises(ArtifactError, match="differs"):
        export_forward(model, BANDS, DATES, {})


def test_the_same_model_is_the_same_bytes() -> None:
    model = a_model("star")
    assert export_step(model, BANDS, {"b": "1", "a": "2"}) == export_step(model, BANDS, {"a": "2", "b": "1"})
