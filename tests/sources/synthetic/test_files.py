"""The embedded scene as files: the same from the same seed, whole or not at all."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import geopandas as gpd
import numpy as np
import pytest
import rasterio
from rasterio.transform import from_origin

from cropstar.errors import InputError, UsageError
from cropstar.sources.synthetic import SceneOptions, make_scene, write_scene
from cropstar.sources.synthetic.landscape import BANDS, CROPS
from cropstar.sources.synthetic.scene import acquisition_dates

SMALL = SceneOptions(seed=3, size=64, dates=6)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_scene(tmp_path_factory.mktemp("scene"), SMALL)


def digest(*paths: Path) -> list[str]:
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


def test_equal_options_give_equal_bytes_also_in_another_process(written: tuple[Path, Path], tmp_path: Path) -> None:
    assert digest(*write_scene(tmp_path / "here", SMALL)) == digest(*written)
    program = (
        "import sys, pathlib; from cropstar.sources.synthetic import SceneOptions, write_scene;"
        "write_scene(pathlib.Path(sys.argv[1]), SceneOptions(seed=3, size=64, dates=6))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "GDAL_CACHEMAX": "4"}
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "there")], check=True, cwd=root, env=environment)
    assert digest(tmp_path / "there" / "tile.tif", tmp_path / "there" / "parcels.gpkg") == digest(*written)


def test_nothing_is_left_beside_the_two_files(written: tuple[Path, Path]) -> None:
    gpd.read_file(written[1])  # GDAL likes to drop .aux.xml files when it reads
    assert sorted(path.name for path in written[0].parent.iterdir()) == ["parcels.gpkg", "tile.tif"]


def test_the_tile_says_what_each_band_is(written: tuple[Path, Path]) -> None:
    with rasterio.open(written[0]) as tile:
        assert tile.count == 6 * (len(BANDS) + 1)
        assert tile.crs.to_epsg() == 32632
        assert tile.transform.a == 10.0
        assert set(tile.dtypes) == {"uint16"}
        assert set(tile.nodatavals) == {0.0}
        assert tile.profile["compress"] == "deflate"
        assert tile.profile["interleave"] == "band"
        stack = [(day.isoformat(), name) for day in acquisition_dates(SMALL) for name in (*BANDS, "SCL")]
        assert tile.descriptions == tuple(f"{day} {name}" for day, name in stack)
        for position, (day, name) in enumerate(stack, start=1):
            assert tile.tags(position) == {"DATE": day, "BAND": name}
            assert tile.scales[position - 1] == (1.0 if name == "SCL" else 1e-4)
            assert tile.offsets[position - 1] == 0.0
        assert tile.tags()["GENERATOR"] == "cropstar synthetic"
        assert (tile.tags()["SEED"], tile.tags()["SIZE"], tile.tags()["DATES"]) == ("3", "64", "6")


def test_the_tile_holds_the_scene(written: tuple[Path, Path]) -> None:
    scene = make_scene(SMALL)
    with rasterio.open(written[0]) as tile:
        stack = tile.read().reshape(6, len(BANDS) + 1, 64, 64)
    np.testing.assert_array_equal(stack[:, :-1], scene.values)
    np.testing.assert_array_equal(stack[:, -1], scene.classification)


def test_the_parcels_file(written: tuple[Path, Path]) -> None:
    parcels = gpd.read_file(written[1], layer="parcels")
    assert list(parcels.columns) == ["parcel_id", "crop", "geometry"]
    assert parcels.crs.to_epsg() == 32632
    assert parcels["parcel_id"].dtype.kind == "i"
    assert set(parcels["crop"]) <= {crop.name for crop in CROPS}


def test_a_rerun_leaves_the_files_alone_and_another_seed_writes_anew(tmp_path: Path) -> None:
    tile, parcels = write_scene(tmp_path, SMALL)
    before = [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (tile, parcels)]
    write_scene(tmp_path, SMALL)
    assert [(path.stat().st_mtime_ns, path.stat().st_ino) for path in (tile, parcels)] == before
    old = digest(tile, parcels)
    write_scene(tmp_path, SceneOptions(seed=4, size=64, dates=6))
    new = digest(tile, parcels)
    assert new[0] != old[0]
    assert new[1] != old[1]


def test_a_lost_file_is_written_again(tmp_path: Path) -> None:
    tile, parcels = write_scene(tmp_path, SMALL)
    whole = digest(tile, parcels)
    parcels.unlink()
    assert digest(*write_scene(tmp_path, SMALL)) == whole


def test_a_stranger_is_not_overwritten(tmp_path: Path) -> None:
    profile: dict[str, Any] = {"driver": "GTiff", "height": 8, "width": 8, "count": 1, "dtype": "uint16"}
    with rasterio.open(tmp_path / "tile.tif", "w", crs="EPSG:32632", transform=from_origin(0, 0, 10, 10), **profile):
        pass
    with pytest.raises(InputError, match="will not overwrite"):
        write_scene(tmp_path, SMALL)
    (tmp_path / "tile.tif").write_bytes(b"no raster at all")
    with pytest.raises(InputError, match="will not overwrite"):
        write_scene(tmp_path, SMALL)


def test_a_full_disk_leaves_no_torn_tile(tmp_path: Path) -> None:
    program = """
import pathlib, resource, signal, sys
from cropstar.errors import ResourceError
from cropstar.sources.synthetic import SceneOptions, write_scene
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    write_scene(pathlib.Path(sys.argv[1]), SceneOptions(seed=3, size=64, dates=6))
except ResourceError as failure:
    sys.exit(str(failure))
"""
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=False, cwd=root, capture_output=True, text=True)
    assert done.returncode == 1
    assert "it could not be written completely" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["parcels.gpkg"]


@pytest.mark.parametrize("wrong", [{"seed": -1}, {"size": 8}, {"size": 100_000}, {"dates": 2}, {"dates": 400}])
def test_unfit_options_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="invalid"):
        SceneOptions(**wrong)  # type: ignore[arg-type]
