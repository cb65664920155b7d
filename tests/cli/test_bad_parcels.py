"""Parcels of which some would be lost without a word."""

from __future__ import annotations

import shutil
from pathlib import Path

import geopandas
import pytest

from cropstar.cli.ingest import ingest
from tests.cli.invoking import InProcess


@pytest.fixture
def place(small_scene: Path, tmp_path: Path) -> Path:
    """The scene, its parcels as a shapefile, and the first few of them as another."""
    shutil.copy(small_scene / "tile.tif", tmp_path)
    parcels = geopandas.read_file(small_scene / "parcels.gpkg")
    parcels.to_file(tmp_path / "all.shp")
    parcels.iloc[:3].to_file(tmp_path / "few.shp")
    parcels.to_file(tmp_path / "layers.gpkg", layer="whole")
    parcels.iloc[:3].to_file(tmp_path / "layers.gpkg", layer="few")
    return tmp_path


MIXED = {
    "labels of others": ((".dbf",), "parcels and its .dbf 3"),
    "fewer outlines": ((".shp",), "its .shx is not of its .shp"),
    "fewer of both": ((".shp", ".shx"), "its .shx has 3 parcels"),
    "fewer places": ((".shx",), "its .shx has 3 parcels"),
}


@pytest.mark.parametrize(("endings", "why"), MIXED.values(), ids=MIXED.keys())
def test_parts_of_two_shapefiles(endings: tuple[str, ...], why: str, place: Path) -> None:
    """GDAL takes as many parcels as the smallest part has."""
    for ending in endings:
        shutil.copy(place / f"few{ending}", place / f"all{ending}")
    failure = InProcess(ingest).refusal(place / "tile.tif", "--parcels", place / "all.shp", "-o", place / "store")
    assert failure.path == str(place / "all.shp")
    assert why in str(failure)
    assert failure.remedy


def test_a_shapefile_that_was_cut_off(place: Path) -> None:
    content = (place / "all.shp").read_bytes()
    (place / "all.shp").write_bytes(content[: len(content) * 2 // 3])
    failure = InProcess(ingest).refusal(place / "tile.tif", "--parcels", place / "all.shp", "-o", place / "store")
    assert "its .shp has" in str(failure)


def test_whole_shapefiles(place: Path) -> None:
    for name in ("all.shp", "few.shp"):
        done = InProcess(ingest)(place / "tile.tif", "--parcels", place / name, "-o", place / Path(name).stem)
        assert done.exit_code == 0, done.exception


def test_the_layer_that_is_read_is_named(place: Path) -> None:
    done = InProcess(ingest)(place / "tile.tif", "--parcels", place / "layers.gpkg", "-o", place / "store")
    assert done.exit_code == 0
    assert "has several layers of outlines" in done.stderr
    assert "'whole' is read" in done.stderr
