"""Signals during prediction: finished blocks stay, and the map is byte for byte that of an unbroken run."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import rasterio

from tests.faults.killing import kill_repeatedly, run_to_the_end, start
from tests.prediction.making import untrained


@pytest.fixture(scope="module")
def command(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    tile = small_scene / "tile.tif"
    model = untrained(tmp_path_factory.mktemp("model") / "model.safetensors", tile, layers=3, hidden=24)
    return ["predict", str(tile), "--model", str(model), "-o", "maps/map.tif", "--window", "16", "--confidence"]


def blocks_in(folder: Path) -> list[Path]:
    return list(folder.glob("maps/.map.tif.*.blocks/*.npz"))


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kills", [1, pytest.param(50, marks=pytest.mark.slow)])
def test_killed_prediction_ends_with_the_same_map(kills: int, command: list[str], tmp_path: Path) -> None:
    for place in ("unbroken", "killed"):
        (tmp_path / place).mkdir()
    _, seconds = run_to_the_end(command, tmp_path / "unbroken")

    def still_whole() -> None:
        for path in blocks_in(tmp_path / "killed"):
            with np.load(path, allow_pickle=False) as block:
                assert block["classes"].shape == (16, 16)
        if (tmp_path / "killed" / "maps" / "map.tif").exists():
            with rasterio.open(tmp_path / "killed" / "maps" / "map.tif") as dataset:
                dataset.read()
            start_over()  # hit on its way out: the same command would refuse to write over it

    def start_over() -> None:
        shutil.rmtree(tmp_path / "killed" / "maps", ignore_errors=True)

    kill_repeatedly(
        command,
        tmp_path / "killed",
        kills=kills,
        seconds=seconds,
        seed=kills,
        after_each=still_whole,
        start_over=start_over,
    )
    run_to_the_end(command, tmp_path / "killed")
    unbroken, killed = (
        {path.name: path.read_bytes() for path in (tmp_path / place / "maps").iterdir()}
        for place in ("unbroken", "killed")
    )
    assert killed == unbroken  # the same files, no work folder among them


def test_a_polite_signal_keeps_finished_blocks(command: list[str], tmp_path: Path) -> None:
    process = start(command, tmp_path)
    deadline = time.monotonic() + 120
    while not blocks_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 143, said
    assert said.splitlines()[-1].startswith("error: stopped by a signal: finished parts are kept")
    kept = blocks_in(tmp_path)
    assert kept
    assert not list(tmp_path.rglob("*.partial"))
    assert not (tmp_path / "maps" / "map.tif").exists()
    said, _ = run_to_the_end(command, tmp_path)
    assert f"continuing: {len(kept)} of 36 blocks are finished" in said
