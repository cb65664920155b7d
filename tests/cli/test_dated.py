"""A folder of dated GeoTIFFs through the command line: the same tiles and the same map as from one stacked file."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio

from cropstar.geo.windows import Window
from cropstar.store.store import Store

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ["--layers", "1", "--hidden", "4", "--epochs", "1"]


@pytest.fixture
def folder(small_scene: Path, tmp_path: Path) -> Path:
    """The small scene, a file a band and date, its parcels beside them."""
    target = tmp_path / "season"
    target.mkdir()
    with rasterio.open(small_scene / "tile.tif") as stack:
        for index in stack.indexes:
            tags = stack.tags(index)
            day, band = (
                (tags["DATE"], tags["BAND"]) if "DATE" in tags else stack.descriptions[index - 1].split(maxsplit=1)
            )
            profile = {**stack.profile, "count": 1, "interleave": "band"}
            with rasterio.open(target / f"S2_32UPU_{band}_{day.replace('-', '')}.tif", "w", **profile) as single:
                single.write(stack.read(index), 1)
    for parcels in small_scene.glob("*.gpkg"):
        shutil.copy(parcels, target / parcels.name)
    return target


@pytest.mark.slow
def test_dated_files_give_the_tiles_and_the_map_of_one_stack(
    run_cli: Cli, small_scene: Path, folder: Path, tmp_path: Path
) -> None:
    for source, store in ((small_scene / "tile.tif", "stacked"), (folder, "dated")):
        answer = run_cli("ingest", source, "--tile-size", "48", "-o", store, cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
    stacked, dated = (Store.open(tmp_path / name) for name in ("stacked", "dated"))
    assert dated.fingerprint.bands == stacked.fingerprint.bands
    whole = Window(0, 0, 48, 48)
    for one, two in zip(stacked.tiles, dated.tiles, strict=True):
        assert np.array_equal(one.values(whole), two.values(whole))
        assert np.array_equal(one.whole_mask(), two.whole_mask())
        assert np.array_equal(one.labels(), two.labels())
    stacked.close()
    dated.close()

    answer = run_cli("train", "--store", "dated", *SMALL, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    maps = []
    for source in (small_scene / "tile.tif", folder):
        answer = run_cli("predict", source, "-o", "map.tif", "--overwrite", cwd=tmp_path)
        assert answer.returncode == 0, answer.stderr
        with rasterio.open(tmp_path / "map.tif") as dataset:
            maps.append(dataset.read(1))
    assert np.array_equal(*maps)


def test_a_missing_band_is_named(run_cli: Cli, folder: Path, tmp_path: Path) -> None:
    lost = min(folder.glob("*_B08_*.tif"))
    lost.unlink()
    answer = run_cli("ingest", folder, "-o", "store", cwd=tmp_path)
    assert answer.returncode == 3
    (line,) = [row for row in answer.stderr.splitlines() if row.startswith("error: ")]
    assert "B08" in line
    assert not (tmp_path / "store").exists()


def test_a_folder_of_images_can_be_looked_at_before_it_is_ingested(run_cli: Cli, folder: Path, tmp_path: Path) -> None:
    answer = run_cli("inspect", folder, "--json", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    with rasterio.open(next(folder.glob("*B08*.tif"))) as single:
        assert (told["what"], told["shape"]) == ("images", list(single.shape))
    assert (len(told["dates"]), "B08" in told["bands"]) == (6, True)
    assert "6 dates from" in run_cli("inspect", folder, cwd=tmp_path).stdout
    (tmp_path / "empty").mkdir()
    assert run_cli("inspect", "empty", cwd=tmp_path).returncode == 3
