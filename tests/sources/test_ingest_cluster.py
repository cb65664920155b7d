"""Tiles made on a Dask cluster: the store of one process to the byte.

Starting a process takes seconds: both workers live in this one. tests/cli/test_ingest_scheduler.py has others.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cropstar.connecting import connected
from cropstar.errors import InputError, ResourceError, UsageError
from cropstar.sources import cluster as on_cluster
from cropstar.sources.catalogue import SOURCES
from cropstar.sources.ingest import IngestResult, ingest
from cropstar.sources.jobs import Make, Part
from cropstar.sources.remote import RemoteIngest, do_job
from cropstar.sources.request import Request
from cropstar.sources.scene import RasterScene, Scene
from cropstar.store.store import MANIFEST, TILES, tile_path
from tests.prediction.clusters import a_scheduler
from tests.sources.granules import write_granule
from tests.sources.sentinel2.safe import band_file
from tests.sources.test_ingest_workers import content, scenes_of
from tests.sources.test_published_workers import tum, zuericrop

pytest.importorskip("distributed")

WORKERS = 2
Opener = Callable[[Path], Sequence[Scene]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with a_scheduler(workers=WORKERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def granule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_granule(tmp_path_factory.mktemp("granule"))


@pytest.fixture(scope="module")
def serial(granule: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The granule's store as one process makes it."""
    store = tmp_path_factory.mktemp("serial") / "store"
    run(granule, store, None)
    return store


def run(folder: Path, store: Path, cluster: Any, opened: Opener = scenes_of) -> IngestResult:
    scenes = opened(folder)
    try:
        if cluster is None:
            return ingest(scenes, store)
        with connected(cluster.scheduler_address) as connection:
            return ingest(scenes, store, cluster=connection)
    finally:
        for scene in scenes:
            scene.close()


def test_the_bytes_of_one_process(granule: Path, serial: Path, cluster: Any, tmp_path: Path) -> None:
    """A series that is decoded in parts, then the same once more: all is there."""
    result = run(granule, tmp_path / "store", cluster)
    assert (result.written, result.kept) == (25, 0)
    assert content(tmp_path / "store") == content(serial)
    result = run(granule, tmp_path / "store", cluster)
    assert (result.written, result.kept) == (0, 25)
    assert content(tmp_path / "store") == content(serial)


def stack(folder: Path) -> Sequence[Scene]:
    return SOURCES["stack"](Request(folder / "tile.tif", tile_size=48))


@pytest.mark.parametrize("opened", [stack, tum, zuericrop])
def test_series_that_are_read_tile_by_tile(opened: Opener, cluster: Any, small_scene: Path, tmp_path: Path) -> None:
    folder = small_scene if opened is stack else tmp_path / "source"
    run(folder, tmp_path / "serial", None, opened)
    run(folder, tmp_path / "store", cluster, opened)
    expected = content(tmp_path / "serial")
    assert len(expected) >= 5
    assert content(tmp_path / "store") == expected


def test_either_way_goes_on_from_the_other(granule: Path, serial: Path, cluster: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(serial, store)
    (store / MANIFEST).unlink()
    tiles = sorted((store / TILES).iterdir())
    tiles[3].unlink()
    tiles[7].write_bytes(tiles[7].read_bytes()[:-50])
    untouched = {path: path.stat().st_ino for path in tiles if path not in (tiles[3], tiles[7])}
    result = run(granule, store, cluster)
    assert (result.written, result.kept) == (2, 23)
    assert content(store) == content(serial)
    assert {path: path.stat().st_ino for path in untouched} == untouched
    assert run(granule, store, None).kept == 25


def test_an_error_of_a_worker_is_the_error(granule: Path, cluster: Any, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(granule, tmp_path / "broken"))
    scenes = scenes_of(broken)
    scenes[0].close()
    cut = band_file(sorted(broken.glob("*N0509*20230401T140000.SAFE"))[0], "B05", "tif")
    cut.write_bytes(cut.read_bytes()[:-5000])
    with pytest.raises(InputError) as alone:
        ingest(scenes, tmp_path / "alone")
    with pytest.raises(InputError) as caught, connected(cluster.scheduler_address) as connection:
        ingest(scenes, tmp_path / "store", cluster=connection)
    assert str(cut) in str(caught.value)
    # Which block is met first is the workers' affair.
    assert str(caught.value).partition(" (")[0] == str(alone.value).partition(" (")[0]
    assert "In a worker" in "".join(caught.value.__notes__)  # which --debug shows
    assert not (tmp_path / "store" / MANIFEST).exists()
    assert not list((tmp_path / "store").glob(".client-*"))


def test_what_lies_in_memory_is_refused(cluster: Any, tmp_path: Path) -> None:
    table = tmp_path / "fields.csv"
    rows = [f"{field},2023-0{month}-01,wheat,{month}00" for field in ("a", "b") for month in (4, 5, 6)]
    table.write_text("\n".join(["id,date,crop,B04", *rows]), encoding="utf-8")
    with pytest.raises(UsageError, match=r"not for a cluster: .* leave --scheduler out"):
        run(table, tmp_path / "store", cluster, lambda path: SOURCES["table"](Request(path)))
    assert not (tmp_path / "store").exists()


def test_a_scene_that_cannot_be_sent_is_refused(granule: Path, cluster: Any, tmp_path: Path) -> None:
    def with_a_lock(folder: Path) -> Sequence[Scene]:
        scenes = scenes_of(folder)
        scenes[0].lock = threading.Lock()  # type: ignore[attr-defined]
        return scenes

    with pytest.raises(UsageError, match="cannot be sent"):
        run(granule, tmp_path / "store", cluster, with_a_lock)
    assert not (tmp_path / "store").exists()


# --- what a worker does


def test_a_worker_that_does_not_see_the_clients_token_writes_nothing(granule: Path, tmp_path: Path) -> None:
    scene = scenes_of(granule)[0]
    job = Make(0, scene.pieces()[0], None)
    with pytest.raises(ResourceError, match="the folder of the store is not shared"):
        do_job(RemoteIngest(tmp_path / "store", "token"), job, b"")
    assert not list(tmp_path.iterdir())


def test_a_part_goes_on_from_the_tiles_that_are_there(granule: Path, serial: Path, tmp_path: Path) -> None:
    """As another worker does when one has died, also with half a tile left behind."""
    scene = scenes_of(granule)[0]
    pieces = tuple(scene.pieces()[:4])
    for piece in pieces[:2]:
        target = tile_path(tmp_path, piece.name)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(tile_path(serial, piece.name), target)
    damaged = tile_path(tmp_path, pieces[1].name)
    damaged.write_bytes(damaged.read_bytes()[:-50])
    first = tile_path(tmp_path, pieces[0].name).stat().st_ino
    steps = list(Part(0, pieces).steps([scene], tmp_path, tmp_path))
    scene.close()
    assert len(steps) > 3
    assert tile_path(tmp_path, pieces[0].name).stat().st_ino == first
    for piece in pieces:
        assert tile_path(tmp_path, piece.name).read_bytes() == tile_path(serial, piece.name).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [TILES]  # the scratch file is gone
    assert list(Part(0, pieces).steps([scene], tmp_path, tmp_path)) == []


def test_parts_are_many_enough_for_the_threads_and_small_enough_for_a_disk(
    granule: Path, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene: RasterScene = scenes_of(granule)[0]
    with connected(cluster.scheduler_address) as connection:
        crew = on_cluster.ClusterCrew(connection, [scene], tmp_path)
        parts = crew._cells(scene, scene.pieces())
        assert len(parts) >= on_cluster.PARTS * connection.threads
        assert {piece for part in parts for piece in part} == set(scene.pieces())
        monkeypatch.setattr(on_cluster, "PART_BYTES", 1)
        assert [len(part) for part in crew._cells(scene, scene.pieces())] == [1] * 25
        assert crew._cells(scene, []) == []
    scene.close()
