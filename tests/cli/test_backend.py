"""--backend on the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cropstar.native import available, why_not
from tests.prediction.making import untrained
from tests.prediction.seasons import pixels

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.slow
def test_a_forced_backend_is_said_and_makes_the_same_map(run_cli: Run, small_scene: Path, tmp_path: Path) -> None:
    if not available():
        pytest.skip(why_not())
    model = untrained(tmp_path / "model", small_scene / "tile.tif")
    for backend in ("native", "torch"):
        asked = ("predict", small_scene / "tile.tif", "-o", f"{backend}.tif", "--model", model)
        done = run_cli(*asked, "--backend", backend, "-v", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert f"backend {backend}" in done.stderr
    differ = pixels(tmp_path / "native.tif") != pixels(tmp_path / "torch.tif")
    assert differ.mean() < 0.001


def test_what_cannot_be_had_is_one_line(run_cli: Run, small_scene: Path, tmp_path: Path) -> None:
    model = untrained(tmp_path / "model", small_scene / "tile.tif")
    done = run_cli(
        *("predict", small_scene / "tile.tif", "-o", "map.tif", "--model", model, "--backend", "native"),
        cwd=tmp_path,
        env={"CROPSTAR_NATIVE": "0"},
    )
    assert done.returncode == 6
    assert done.stderr.splitlines()[-1].startswith("error: no backend native here: CROPSTAR_NATIVE=0 switches")
