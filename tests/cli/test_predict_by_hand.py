"""`cropstar predict --dates --bands`: a file that says nothing of its bands, as a user has it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio

from cropstar.prediction.job import predict
from cropstar.prediction.request import MapRequest
from tests.cli.test_bad_input import assert_refused
from tests.prediction.making import untrained

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bare(small_scene: Path, tmp_path: Path) -> tuple[list[str], list[str]]:
    """bare.tif in the test's folder, without any description; its dates and bands."""
    with (
        rasterio.open(small_scene / "tile.tif") as old,
        rasterio.open(tmp_path / "bare.tif", "w", **old.profile) as new,
    ):
        new.write(old.read())
        new.scales, new.offsets = old.scales, old.offsets
        texts = [(old.tags(index)["DATE"], old.tags(index)["BAND"]) for index in old.indexes]
    return list(dict.fromkeys(day for day, _ in texts)), list(dict.fromkeys(band for _, band in texts))


def test_the_map_of_a_bare_file_is_that_of_the_described_one(
    small_scene: Path, bare: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    days, bands = bare
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif", "star", layers=1)
    (tmp_path / "dates.txt").write_text("\n".join(days))
    by_hand = {"dates": f"@{tmp_path}/dates.txt", "bands": tuple(bands)}
    options = MapRequest(model=model, device="cpu", picture=False)
    predict(small_scene / "tile.tif", tmp_path / "a.tif", options)
    predict(tmp_path / "bare.tif", tmp_path / "b.tif", options.replace(reading=by_hand))
    with rasterio.open(tmp_path / "a.tif") as one, rasterio.open(tmp_path / "b.tif") as other:
        np.testing.assert_array_equal(one.read(), other.read())
        assert one.tags()["CROPSTAR_DATES"] == other.tags()["CROPSTAR_DATES"] == " ".join(days)


def test_a_wrong_count_is_one_line(
    run_cli: Cli, small_scene: Path, bare: tuple[list[str], list[str]], tmp_path: Path
) -> None:
    days, bands = bare
    model = untrained(tmp_path / "model.safetensors", small_scene / "tile.tif", "star", layers=1)
    few = ["--dates", ",".join(days[:-1]), "--bands", ",".join(bands)]
    answer = run_cli("predict", "bare.tif", "-o", "map.tif", "--model", model, *few, cwd=tmp_path)
    there, said = len(days) * len(bands), (len(days) - 1) * len(bands)
    words = (f"{there} bands are in the file", f"are {said}", f"give {len(days)} dates")
    assert_refused(answer, 3, "bare.tif", *words)
    assert not (tmp_path / "map.tif").exists()
