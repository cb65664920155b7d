"""A pipe in place of any file is told at once: nobody writes to it, and reading would wait for ever."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cropstar.cli.main import cropstar
from cropstar.errors import expected_error
from cropstar.prediction.job import predict
from cropstar.prediction.request import MapRequest
from tests.prediction.making import untrained

pytestmark = pytest.mark.timeout(60)


class Place:
    """Everything that commands read, to be replaced by pipes."""

    def __init__(self, folder: Path, scene: Path, store: Path) -> None:
        self.folder = folder
        shutil.copytree(store, folder / "store")
        for name in ("tile.tif", "parcels.gpkg"):
            shutil.copy(scene / name, folder / name)
        self.model = untrained(folder / "run" / "model.safetensors", folder / "tile.tif")
        (folder / "classes.yaml").write_text("wheat: cereal\n")
        (folder / "settings.yaml").write_text("epochs: 1\n")
        (folder / "table.csv").write_text("field,date,crop,ndvi\n1,2023-05-01,wheat,0.5\n")
        (folder / "result").mkdir()
        (folder / "result" / "config.yaml").write_text("epochs: 1\n")
        (folder / "result" / "result.json").write_text("{}")


@pytest.fixture(scope="module")
def whole(small_scene: Path, small_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "place"
    folder.mkdir()
    place = Place(folder, small_scene, small_store)
    predict(
        folder / "tile.tif", folder / "map.tif", MapRequest(model=place.model, device="cpu", state=folder / "season.h5")
    )
    return folder


def first_tile(folder: Path) -> Path:
    return min((folder / "store" / "tiles").glob("*.h5"))


PIPES: dict[str, tuple[Callable[[Path], Path], list[str]]] = {
    "manifest": (lambda at: at / "store/manifest.json", ["inspect", "store"]),
    "manifest of a training": (lambda at: at / "store/manifest.json", ["train", "--store", "store"]),
    "tile": (first_tile, ["inspect", "store"]),
    "tile of a training": (first_tile, ["train", "--store", "store", "--epochs", "1"]),
    "lock": (lambda at: at / "store/.lock", ["ingest", "tile.tif", "-o", "store"]),
    "model": (lambda at: at / "run/model.safetensors", ["predict", "tile.tif", "--model", "run/model.safetensors"]),
    "model of a run": (lambda at: at / "run/model.safetensors", ["predict", "tile.tif", "--model", "run"]),
    "raster": (lambda at: at / "tile.tif", ["ingest", "tile.tif", "-o", "new"]),
    "raster of a map": (lambda at: at / "tile.tif", ["predict", "tile.tif", "--model", "run/model.safetensors"]),
    "parcels": (lambda at: at / "parcels.gpkg", ["ingest", "tile.tif", "--parcels", "parcels.gpkg", "-o", "new"]),
    "parcels of a map": (
        lambda at: at / "parcels.gpkg",
        ["predict", "tile.tif", "--model", "run/model.safetensors", "--parcels", "parcels.gpkg", "-o", "n.tif"],
    ),
    "classes": (lambda at: at / "classes.yaml", ["ingest", "tile.tif", "--classes", "classes.yaml", "-o", "new"]),
    "configuration": (
        lambda at: at / "settings.yaml",
        ["train", "--store", "store", "--config", "settings.yaml", "--print-config"],
    ),
    "state": (lambda at: at / "season.h5", ["update", "season.h5", "tile.tif"]),
    "state shown": (lambda at: at / "season.h5", ["inspect", "season.h5"]),
    "table": (lambda at: at / "table.csv", ["ingest", "table", "table.csv", "-o", "new"]),
    "result": (lambda at: at / "result/result.json", ["compare", "result"]),
    "configuration of a run": (lambda at: at / "result/config.yaml", ["train", "--resume", "result"]),
}


@pytest.mark.parametrize("which", PIPES)
def test_pipes_are_refused(which: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    shutil.copytree(whole, place)
    monkeypatch.chdir(place)
    choose, command = PIPES[which]
    path = choose(place)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    answer: Any = CliRunner().invoke(cropstar, command, obj={})
    assert answer.exit_code != 0, answer.output
    if not isinstance(answer.exception, SystemExit):
        error = expected_error(answer.exception)
        assert error is not None, repr(answer.exception)
        assert error.exit_code in (2, 3, 4), str(error)
