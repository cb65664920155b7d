"""`cropstar predict` as a user starts it: shards, margins, memory, and what is refused in one line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import rasterio

from tests.cli.test_bad_input import assert_refused
from tests.prediction.making import untrained

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def model(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained(tmp_path_factory.mktemp("model") / "model.safetensors", small_scene / "tile.tif")


@pytest.mark.parametrize("shard", ["3/3", "x/3", "auto/3"])
def test_a_shard_out_of_range(run_cli: Cli, shard: str, tmp_path: Path) -> None:
    answer = run_cli("predict", "tile.tif", "--shard", shard, cwd=tmp_path)
    assert_refused(answer, 2, "--shard")
    assert len(answer.stderr.splitlines()) == 1


def test_array_jobs_share_the_work(run_cli: Cli, model: Path, small_scene: Path, tmp_path: Path) -> None:
    command = ["predict", small_scene / "tile.tif", "-o", "map.tif", "--model", model, "--window", "48"]
    first = run_cli(*command, "--shard", "auto/2", cwd=tmp_path, env={"JOB_COMPLETION_INDEX": "0"})
    assert first.returncode == 0, first.stderr
    assert "2 of 4 blocks are left to other shards" in first.stderr
    assert not (tmp_path / "map.tif").exists()
    second = run_cli(*command, "--shard", "auto/2", cwd=tmp_path, env={"SLURM_ARRAY_TASK_ID": "1"})
    assert second.returncode == 0, second.stderr
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert dataset.shape == (96, 96)


def test_a_smaller_margin_says_what_it_gives_up(run_cli: Cli, model: Path, small_scene: Path, tmp_path: Path) -> None:
    answer = run_cli(
        "predict", small_scene / "tile.tif", "-o", "map.tif", "--model", model, "--halo", "2", cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    assert "--halo 2 is faster and not exact" in answer.stderr
    assert "a margin of 9 pixels is exact" in answer.stderr


def test_too_little_memory(run_cli: Cli, model: Path, small_scene: Path, tmp_path: Path) -> None:
    answer = run_cli(
        "predict", small_scene / "tile.tif", "-o", "map.tif", "--model", model, "--memory", "100MB", cwd=tmp_path
    )
    assert_refused(answer, 6, "0.10 GB are not enough", "--memory")
    assert list(tmp_path.iterdir()) == []


def test_a_truncated_raster(run_cli: Cli, model: Path, small_scene: Path, tmp_path: Path) -> None:
    whole = (small_scene / "tile.tif").read_bytes()
    (tmp_path / "tile.tif").write_bytes(whole[: len(whole) // 2])
    answer = run_cli("predict", "tile.tif", "-o", "map.tif", "--model", model, cwd=tmp_path)
    assert_refused(answer, 3, "tile.tif")
    assert not (tmp_path / "map.tif").exists()


def test_bands_without_dates(run_cli: Cli, model: Path, small_scene: Path, tmp_path: Path) -> None:
    with (
        rasterio.open(small_scene / "tile.tif") as old,
        rasterio.open(tmp_path / "bare.tif", "w", **old.profile) as new,
    ):
        new.write(old.read())
    answer = run_cli("predict", "bare.tif", "-o", "map.tif", "--model", model, cwd=tmp_path)
    assert_refused(answer, 3, "unknown bands in bare.tif", "YYYY-MM-DD BAND")
