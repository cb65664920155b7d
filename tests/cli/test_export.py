"""`cropstar export`: files that a program without cropstar can use, or one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cropstar.cli.export import export
from cropstar.errors import ArtifactError, UsageError
from cropstar.models.zoo import restore_model
from cropstar.store.model_file import read_model
from tests.cli.invoking import InProcess
from tests.prediction.making import untrained

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


run = InProcess(export)


@pytest.fixture(scope="module")
def model(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("run") / "model.safetensors", small_scene / "tile.tif", "star")


def test_files_with_all_that_is_needed_to_use_them(model: Path, tmp_path: Path) -> None:
    assert run(model, "-o", tmp_path / "crops.onnx", "--dates", "4").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["crops-step.onnx", "crops.onnx"]
    card, weights, digest = read_model(model)
    for path in tmp_path.iterdir():
        facts = {each.key: each.value for each in onnx.load(path).metadata_props}
        assert facts["cropstar.model"] == digest
        assert tuple(json.loads(facts["cropstar.bands"])) == card.fingerprint.bands
        assert [each["name"] for each in json.loads(facts["cropstar.classes"])] == card.fingerprint.classes.names
        assert json.loads(facts["cropstar.normalisation"]) == card.normalisation.to_json()
        assert json.loads(facts["cropstar.temperature"]) == 1
        assert "days since 1970-01-01" in facts["cropstar.usage"]
    x = np.random.default_rng(0).normal(size=(3, 4, len(card.fingerprint.bands))).astype(np.float32)
    valid, days = np.ones((3, 4), dtype=bool), np.tile(np.arange(19_500, 19_540, 10), (3, 1))
    session = runtime.InferenceSession(tmp_path / "crops.onnx", providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"x": x, "valid": valid, "days": days})
    with torch.inference_mode():
        wanted = restore_model(card.model, card.shape, weights, model)(*map(torch.from_numpy, (x, valid, days)))
    np.testing.assert_allclose(scores, wanted.numpy(), atol=1e-5)


def test_a_run_is_exported_into_its_folder_and_nothing_is_overwritten(model: Path) -> None:
    assert run(model.parent).exit_code == 0
    written = model.parent / "model.onnx"
    before = written.read_bytes()
    refused = run(model.parent)
    assert isinstance(refused.exception, UsageError)
    assert "--overwrite" in str(refused.exception)
    assert written.read_bytes() == before
    assert run(model.parent, "--overwrite").exit_code == 0
    assert written.read_bytes() == before


def test_what_cannot_be_exported(model: Path, small_scene: Path, tmp_path: Path) -> None:
    other = run(model, "-o", tmp_path / "crops.txt").exception
    assert isinstance(other, UsageError)
    assert ".onnx" in str(other)
    damaged = tmp_path / "model.safetensors"
    damaged.write_bytes(model.read_bytes()[:200])
    assert isinstance(run(damaged).exception, ArtifactError)
    network = untrained(tmp_path / "tcn.safetensors", small_scene / "tile.tif", "tcn")
    refused = run(network).exception
    assert isinstance(refused, UsageError)
    assert "recurrent" in str(refused)
    assert not list(tmp_path.glob("*.onnx"))
