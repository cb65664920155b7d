"""The real Sentinel-2 products and field tables, through the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import rasterio

from cropstar.store.store import Store

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = ["--layers", "1", "--hidden", "4", "--epochs", "1"]


def test_sentinel2_from_products_to_map(run_cli: Cli, real_data: Path, tmp_path: Path) -> None:
    """Ten products, of which one has no data, and 120 parcels in a coordinate system without an EPSG code."""
    scene = real_data / "sentinel2-t31tej"
    parcels = scene / "parcels" / "france_data_2018.shp"
    answer = run_cli(
        "ingest", scene / "safe", "--parcels", parcels, "--label-column", "EC_hcat_n", "-o", "store", cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    assert "1 of 10 dates left out, without any data: 2018-02-12" in answer.stderr
    assert "9 dates from 2018-01-23 to 2018-10-05" in answer.stderr
    store = Store.open(tmp_path / "store")
    labels = [reader.labels() for _, reader in store.readers()]
    assert sum(int((part >= 0).sum()) for part in labels) == 16_017
    assert len(store.fingerprint.classes) == 8
    store.close()

    answer = run_cli("train", "--store", "store", *SMALL, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    answer = run_cli("predict", scene / "safe", "-o", "map.tif", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    with rasterio.open(tmp_path / "map.tif") as dataset:
        assert dataset.shape == (353, 232)
        assert dataset.crs.to_epsg() == 32631


def test_bavarian_fields_from_table_to_model(run_cli: Cli, real_data: Path, tmp_path: Path) -> None:
    table = real_data / "bavaria" / "fields_2016_2017.parquet"
    answer = run_cli("ingest", table, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "1,199 samples, 28 dates" in answer.stderr
    answer = run_cli("train", "--model", "star", *SMALL, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "300 parcels that training never saw" in answer.stderr


def test_options_of_another_source_are_refused(run_cli: Cli, small_scene: Path, tmp_path: Path) -> None:
    answer = run_cli("ingest", small_scene / "tile.tif", "--id-column", "field", cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.startswith("error: --id-column does not apply to the source 'stack'; ")
    answer = run_cli("ingest", small_scene / "tile.tif", "--clear", "4,five", cwd=tmp_path)
    assert answer.returncode == 2
    assert "'4,five' is not a list of numbers" in answer.stderr
