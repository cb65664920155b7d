"""Workers of an ingest, on this machine and on a Dask cluster: the same store, to the byte."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from cropstar.errors import InputError, ResourceError, UsageError
from cropstar.execution import local
from cropstar.execution.dask import connected
from cropstar.execution.local import LocalPool
from cropstar.execution.pool import ClientToken
from cropstar.sources import decoding
from cropstar.sources import ingest as ingesting
from cropstar.sources.base import RasterScene, Scene
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.sources.ingest import IngestResult, MakePart, MakeTile, SceneTasks, ingest, parts_of, swept_when_killed
from cropstar.sources.tum import TumOptions, open_tum
from cropstar.sources.zuericrop import ZueriCropOptions, open_zuericrop
from cropstar.store.store import MANIFEST, TILES, tile_path
from tests.execution.clusters import a_scheduler
from tests.sources.examples.granules import write_granule
from tests.sources.examples.safe import band_file
from tests.sources.examples.tum_tiles import write_collection
from tests.sources.examples.zuericrop import a_collection


@pytest.fixture(scope="module")
def granule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_granule(tmp_path_factory.mktemp("granule"))


@pytest.fixture
def eager(eager_workers: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers also for a few small images."""
    monkeypatch.setattr(local, "SMALLEST_VOLUME", 1)


def scenes_of(folder: Path) -> list[RasterScene]:
    scenes = SOURCES["sentinel2"](IngestRequest(folder, folder / "parcels.gpkg", tile_size=48))
    return [scene for scene in scenes if isinstance(scene, RasterScene)]


def run(folder: Path, store: Path, count: int = 1) -> IngestResult:
    scenes = scenes_of(folder)
    try:
        return ingest(scenes, store, workers=count)
    finally:
        for scene in scenes:
            scene.close()


def content(store: Path) -> dict[str, bytes]:
    """Every file but the lock, hidden ones too."""
    return {path.name: path.read_bytes() for path in store.rglob("*") if path.is_file() and path.name != ".lock"}


@pytest.fixture(scope="module")
def plain(granule: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The store as one process makes it that reads every tile from the files."""
    store = tmp_path_factory.mktemp("plain") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RasterScene, "decoding", None)
        assert run(granule, store).written == 25
    return content(store)


# --- the same bytes


@pytest.mark.parametrize("count", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("limit", [2**40, 100_000])
@pytest.mark.usefixtures("eager")
def test_bytes_do_not_depend_on_workers_or_cells(
    granule: Path,
    plain: dict[str, bytes],
    started: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
    limit: int,
) -> None:
    monkeypatch.setattr(decoding, "MAXIMUM_SCRATCH_BYTES", limit)
    result = run(granule, tmp_path / "store", count)
    assert (result.written, result.kept) == (25, 0)
    assert content(tmp_path / "store") == plain
    assert len(started) == (count if count > 1 else 0)


@pytest.mark.usefixtures("eager")
def test_a_rerun_makes_only_what_is_missing(granule: Path, plain: dict[str, bytes], tmp_path: Path) -> None:
    store = tmp_path / "store"
    run(granule, store)
    tiles = sorted((store / TILES).iterdir())
    tiles[3].unlink()
    tiles[7].write_bytes(tiles[7].read_bytes()[:-50])
    untouched = {path: path.stat().st_ino for path in tiles if path not in (tiles[3], tiles[7])}
    result = run(granule, store, 2)
    assert (result.written, result.kept) == (2, 23)
    assert content(store) == plain
    assert {path: path.stat().st_ino for path in untouched} == untouched


def test_little_work_stays_in_this_process(granule: Path, started: list[int], tmp_path: Path) -> None:
    run(granule, tmp_path / "store", 4)
    assert started == []


@pytest.mark.usefixtures("eager")
def test_a_scene_that_cannot_be_sent_is_built_here(
    granule: Path, plain: dict[str, bytes], tmp_path: Path, started: list[int]
) -> None:
    scenes = scenes_of(granule)
    scenes[0].anchor = lambda: None  # type: ignore[attr-defined]
    ingest(scenes, tmp_path / "store", workers=2)
    scenes[0].close()
    assert started == []
    assert content(tmp_path / "store") == plain


# --- what goes wrong


@pytest.mark.usefixtures("eager")
def test_an_error_in_a_worker_is_the_error(granule: Path, tmp_path: Path) -> None:
    """A band that was cut off after it was opened: what, where, why and what to do come through."""
    broken = Path(shutil.copytree(granule, tmp_path / "broken"))
    scenes = scenes_of(broken)
    scenes[0].close()
    cut = band_file(sorted(broken.glob("*N0509*20230401T140000.SAFE"))[0], "B05", "tif")
    cut.write_bytes(cut.read_bytes()[:-5000])
    failures = []
    for count in (1, 2):
        with pytest.raises(InputError) as caught:
            ingest(scenes, tmp_path / f"store{count}", workers=count)
        failures.append((str(caught.value), caught.value.exit_code, type(caught.value)))
        assert not (tmp_path / f"store{count}" / MANIFEST).exists()
        assert not list((tmp_path / f"store{count}").rglob("*.partial"))
    assert failures[0] == failures[1]
    assert str(cut) in failures[0][0]
    assert "In a worker" in "".join(caught.value.__notes__)  # which --debug shows


def kill_one_of_two(scenes: list[RasterScene], folder: Path) -> None:
    pool = LocalPool(2)
    SceneTasks.of(scenes, folder, pool)
    with swept_when_killed(pool, folder), pool:
        for number, _ in enumerate(pool.run([MakeTile(0, spec, None) for spec in scenes[0].tile_specs()])):
            if number == 3:
                multiprocessing.active_children()[0].kill()


@pytest.mark.usefixtures("eager")
def test_a_killed_worker_is_a_lack_of_memory(granule: Path, tmp_path: Path) -> None:
    scenes = scenes_of(granule)
    with pytest.raises(ResourceError, match="a worker was killed: signal 9") as caught:
        kill_one_of_two(scenes, tmp_path)
    scenes[0].close()
    assert caught.value.exit_code == 6
    assert "--workers 1 or more memory" in str(caught.value)
    assert not multiprocessing.active_children()
    assert not list(tmp_path.rglob("*.partial"))


# --- Published data sets


def tum(folder: Path) -> Sequence[Scene]:
    if not folder.exists():
        write_collection(folder)
    return open_tum(folder, TumOptions(images_per_tile=1))


def zuericrop(folder: Path) -> Sequence[Scene]:
    path = folder / "ZueriCrop.hdf5"
    if not path.exists():
        a_collection(images=8, dates=3).write(folder)
    return open_zuericrop(path, ZueriCropOptions(images_per_tile=2))


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("opened", [tum, zuericrop])
def test_the_bytes_of_one_process(opened: object, tmp_path: Path) -> None:
    assert callable(opened)
    stores = []
    for count in (1, 2):
        store = tmp_path / str(count)
        scenes = opened(tmp_path / "source")
        assert all(scene.volume > 0 for scene in scenes)
        ingest(scenes, store, workers=count)
        stores.append({path.name: path.read_bytes() for path in store.rglob("*.*") if path.name != ".lock"})
    assert len(stores[0]) >= 5
    assert stores[0] == stores[1]


# --- A Dask cluster

pytest.importorskip("distributed")

WORKERS = 2
Opener = Callable[[Path], Sequence[Scene]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with a_scheduler(workers=WORKERS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def serial(granule: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The granule's store as one process makes it."""
    store = tmp_path_factory.mktemp("serial") / "store"
    run_on(granule, store, None)
    return store


def run_on(folder: Path, store: Path, cluster: Any, opened: Opener = scenes_of) -> IngestResult:
    scenes = opened(folder)
    try:
        if cluster is None:
            return ingest(scenes, store)
        with connected(cluster.scheduler_address) as connection:
            return ingest(scenes, store, cluster=connection)
    finally:
        for scene in scenes:
            scene.close()


def test_a_cluster_makes_the_bytes_of_one_process(granule: Path, serial: Path, cluster: Any, tmp_path: Path) -> None:
    """A series that is decoded in parts, then the same once more: all is there."""
    result = run_on(granule, tmp_path / "store", cluster)
    assert (result.written, result.kept) == (25, 0)
    assert content(tmp_path / "store") == content(serial)
    result = run_on(granule, tmp_path / "store", cluster)
    assert (result.written, result.kept) == (0, 25)
    assert content(tmp_path / "store") == content(serial)


def stack(folder: Path) -> Sequence[Scene]:
    return SOURCES["stack"](IngestRequest(folder / "tile.tif", tile_size=48))


@pytest.mark.parametrize("opened", [stack, tum, zuericrop])
def test_series_that_are_read_tile_by_tile(opened: Opener, cluster: Any, small_scene: Path, tmp_path: Path) -> None:
    folder = small_scene if opened is stack else tmp_path / "source"
    run_on(folder, tmp_path / "serial", None, opened)
    run_on(folder, tmp_path / "store", cluster, opened)
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
    result = run_on(granule, store, cluster)
    assert (result.written, result.kept) == (2, 23)
    assert content(store) == content(serial)
    assert {path: path.stat().st_ino for path in untouched} == untouched
    assert run_on(granule, store, None).kept == 25


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
    with pytest.raises(UsageError, match=r"cannot be ingested on a cluster: .* leave --scheduler out"):
        run_on(table, tmp_path / "store", cluster, lambda path: SOURCES["table"](IngestRequest(path)))
    assert not (tmp_path / "store").exists()


def test_a_scene_that_cannot_be_sent_is_refused(granule: Path, cluster: Any, tmp_path: Path) -> None:
    def with_a_lock(folder: Path) -> Sequence[Scene]:
        scenes = scenes_of(folder)
        scenes[0].lock = threading.Lock()  # type: ignore[attr-defined]
        return scenes

    with pytest.raises(UsageError, match="cannot be sent"):
        run_on(granule, tmp_path / "store", cluster, with_a_lock)
    assert not (tmp_path / "store").exists()


# --- what a worker does


def test_a_worker_that_does_not_see_the_clients_token_writes_nothing(granule: Path, tmp_path: Path) -> None:
    scene = scenes_of(granule)[0]
    job = MakeTile(0, scene.tile_specs()[0], None)
    with pytest.raises(ResourceError, match="the folder of the store is not shared"):
        job.run(SceneTasks([scene], tmp_path / "store", ClientToken(tmp_path / "token", "the store", tmp_path)))
    assert not list(tmp_path.iterdir())


def test_a_part_goes_on_from_the_tiles_that_are_there(granule: Path, serial: Path, tmp_path: Path) -> None:
    """As another worker does when one has died, also with half a tile left behind."""
    scene = scenes_of(granule)[0]
    specs = tuple(scene.tile_specs()[:4])
    for spec in specs[:2]:
        target = tile_path(tmp_path, spec.name)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(tile_path(serial, spec.name), target)
    damaged = tile_path(tmp_path, specs[1].name)
    damaged.write_bytes(damaged.read_bytes()[:-50])
    first = tile_path(tmp_path, specs[0].name).stat().st_ino
    shared = SceneTasks([scene], tmp_path)
    MakePart(0, specs).make(shared, tmp_path)
    scene.close()
    assert tile_path(tmp_path, specs[0].name).stat().st_ino == first
    for spec in specs:
        assert tile_path(tmp_path, spec.name).read_bytes() == tile_path(serial, spec.name).read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == [TILES]  # the scratch file is gone
    inodes = [tile_path(tmp_path, spec.name).stat().st_ino for spec in specs]
    MakePart(0, specs).make(shared, tmp_path)
    assert [tile_path(tmp_path, spec.name).stat().st_ino for spec in specs] == inodes


def test_parts_are_many_enough_for_the_threads_and_small_enough_for_a_disk(
    granule: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene: RasterScene = scenes_of(granule)[0]
    scene.close()
    specs = scene.tile_specs()
    parts = parts_of(scene, specs, threads=2)
    assert len(parts) >= 2 * ingesting.PARTS_PER_THREAD
    assert {spec for part in parts for spec in part} == set(specs)
    monkeypatch.setattr(ingesting, "PART_BYTES", 1)
    assert [len(part) for part in parts_of(scene, specs, threads=2)] == [1] * 25
    assert parts_of(scene, [], threads=2) == []
