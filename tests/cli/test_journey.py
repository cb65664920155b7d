"""The three commands one after the other, as `make demo` runs them, on a small scene."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import rasterio

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ["--layers", "1", "--hidden", "4", "--epochs", "1", "--set", "split.validation=0.3"]


def succeed(answer: subprocess.CompletedProcess[str]) -> str:
    assert answer.returncode == 0, answer.stderr
    assert "Traceback" not in answer.stderr
    return answer.stderr


def test_ingest_train_predict(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    said = succeed(run_cli("ingest", small_scene / "tile.tif", "--tile-size", "48", cwd=tmp_path))
    assert "winter wheat" in said
    assert "store data/stores/tile: 4 tiles written, 0 kept" in said
    assert "0 tiles written, 4 kept" in succeed(
        run_cli("ingest", "stack", small_scene / "tile.tif", "--tile-size", "48", cwd=tmp_path)
    )
    said = succeed(run_cli("train", *SMALL, cwd=tmp_path))
    assert "parcels that training never saw" in said
    said = succeed(run_cli("predict", small_scene / "tile.tif", "-o", "maps/crops.tif", "--log-json", cwd=tmp_path))
    rows = [json.loads(line) for line in said.splitlines()]
    assert all(row["level"] == "info" for row in rows)
    assert any(row["message"].startswith("on ") for row in rows)
    with rasterio.open(tmp_path / "maps" / "crops.tif") as dataset:
        assert dataset.nodata == 255
    assert (tmp_path / "maps" / "crops.png").exists()
    assert succeed(run_cli("predict", small_scene / "tile.tif", "-o", "maps/quiet.tif", "--quiet", cwd=tmp_path)) == ""


def test_print_config_and_set(run_cli: Cli, tmp_path: Path) -> None:
    answer = run_cli(
        "train", "--config", "demo-star", "--layers", "2", "--set", "model.layers=3", "--print-config", cwd=tmp_path
    )
    assert answer.returncode == 0
    assert "layers: 3" in answer.stdout
    assert "name: star" in answer.stdout
