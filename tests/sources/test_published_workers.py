"""Published collections are built by workers too, with the bytes of one process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cropstar.sources import workers
from cropstar.sources.ingest import ingest
from cropstar.sources.scene import Scene
from cropstar.sources.tum import TumOptions, open_tum
from cropstar.sources.zuericrop import ZueriCropOptions, open_zuericrop
from tests.sources.tum.tiles import write_collection
from tests.sources.zuericrop.collections import a_collection


def tum(folder: Path) -> Sequence[Scene]:
    if not folder.exists():
        write_collection(folder)
    return open_tum(folder, TumOptions(images_per_tile=1))


def zuericrop(folder: Path) -> Sequence[Scene]:
    path = folder / "ZueriCrop.hdf5"
    if not path.exists():
        a_collection(images=8, dates=3).write(folder)
    return open_zuericrop(path, ZueriCropOptions(images_per_tile=2))


@pytest.mark.parametrize("opened", [tum, zuericrop])
def test_the_bytes_of_one_process(opened: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert callable(opened)
    monkeypatch.setattr(workers, "SMALLEST_VOLUME", 1)
    stores = []
    for count in (1, 2):
        store = tmp_path / str(count)
        scenes = opened(tmp_path / "source")
        assert all(scene.volume > 0 for scene in scenes)
        ingest(scenes, store, workers=count)
        stores.append({path.name: path.read_bytes() for path in store.rglob("*.*") if path.name != ".lock"})
    assert len(stores[0]) >= 5
    assert stores[0] == stores[1]
