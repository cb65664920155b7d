"""Blocks on a Dask cluster: the maps of a serial run to the byte, whatever happens to workers.

Starting a process with torch takes seconds: two workers live in this one, and who is to be killed in another.
"""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from cropstar.errors import InputError, PartialResult, ResourceError
from cropstar.execution.dask import Machine
from cropstar.prediction.blocks import ENDS
from cropstar.prediction.cluster import PredictBlocks, WorkerJob, choose_cluster_device, device_of
from cropstar.prediction.job import predict, predict_all
from cropstar.prediction.predictor import WindowPlan
from cropstar.prediction.request import MapInput, MapRequest, Shard
from tests.execution.clusters import a_scheduler, a_worker, tasks_of, wait_for_workers
from tests.prediction.making import untrained

pytest.importorskip("distributed")

CPU = torch.device("cpu")
WORKERS = {"0", "1"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with a_scheduler(workers=len(WORKERS)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def tiles(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("tiles")
    return [Path(shutil.copy(small_scene / "tile.tif", folder / f"tile{number}.tif")) for number in range(3)]


@pytest.fixture(scope="module")
def serial(tiles: list[Path], tmp_path_factory: pytest.TempPathFactory) -> MapRequest:
    model = untrained(tmp_path_factory.mktemp("model") / "model.safetensors", tiles[0])
    return MapRequest(model=model, device="cpu", window=40, layers=("confidence",), picture=False)


@pytest.fixture(scope="module")
def expected(serial: MapRequest, tiles: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return made(tiles, tmp_path_factory.mktemp("serial"), serial)


@pytest.fixture
def options(serial: MapRequest, cluster: Any) -> MapRequest:
    wait_for_workers(cluster, WORKERS)
    return serial.replace(scheduler=cluster.scheduler_address)


def made(tiles: list[Path], folder: Path, options: MapRequest) -> dict[str, bytes]:
    """All that lies in the folder of the maps afterwards."""
    predict_all([MapInput(tile) for tile in tiles], [folder / f"{tile.stem}.tif" for tile in tiles], options)
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_maps_are_those_of_a_serial_run(
    options: MapRequest, tiles: list[Path], expected: dict[str, bytes], tmp_path: Path
) -> None:
    assert made(tiles, tmp_path, options) == expected
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert made(tiles, tmp_path, options) == expected  # a batch that is started again: all is there
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_it_goes_on_from_blocks_that_are_there(
    options: MapRequest, tiles: list[Path], expected: dict[str, bytes], tmp_path: Path
) -> None:
    predict(tiles[0], tmp_path / "tile0.tif", options.replace(scheduler=None, shard=Shard(1, 3)))
    blocks = {path: path.stat().st_mtime_ns for path in tmp_path.glob(".*/*.npz")}
    assert len(blocks) == 3
    made(tiles[1:2], tmp_path, options)
    broken = options.replace(device="mps")
    with pytest.raises(ResourceError, match="mps"):
        made(tiles[:1], tmp_path, broken)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob(".*/*.npz")} == blocks
    assert made(tiles, tmp_path, options) == expected


def test_a_killed_worker_is_replaced(
    options: MapRequest, cluster: Any, tiles: list[Path], expected: dict[str, bytes], tmp_path: Path
) -> None:
    with a_worker(cluster.scheduler_address, "victim") as victim:
        wait_for_workers(cluster, {*WORKERS, "victim"})
        killed = threading.Event()

        def kill() -> None:
            while victim.poll() is None and not killed.is_set():
                if tasks_of(cluster, "victim"):
                    os.kill(victim.pid, signal.SIGKILL)
                    killed.set()
                time.sleep(0.001)

        watcher = threading.Thread(target=kill)
        watcher.start()
        found = made(tiles, tmp_path, options)
        was_killed = killed.is_set()
        killed.set()
        watcher.join()
    assert was_killed
    assert found == expected


def test_one_bad_input_does_not_keep_the_others(
    options: MapRequest, tiles: list[Path], expected: dict[str, bytes], tmp_path: Path
) -> None:
    content = tiles[1].read_bytes()
    bad, folder = tmp_path / "bad.tif", tmp_path / "maps"
    bad.write_bytes(content[: len(content) // 2])
    with pytest.raises(PartialResult, match="1 of 3 inputs"):
        made([tiles[0], bad, tiles[2]], folder, options)
    found = contents(folder)
    assert {name: found[name] for name in expected if "tile1" not in name} == {
        name: content for name, content in expected.items() if "tile1" not in name
    }
    assert not list(folder.rglob("client-*"))


def test_what_a_worker_finds_wrong_is_told_in_one_line(options: MapRequest, tiles: list[Path], tmp_path: Path) -> None:
    tile = Path(shutil.copy(tiles[0], tmp_path / "tile.tif"))
    with tile.open("r+b") as handle:  # the header is good, and so are both ends
        handle.seek(ENDS)
        handle.write(bytes(tile.stat().st_size - 2 * ENDS))
    with pytest.raises(InputError) as failure:
        made([tile], tmp_path / "maps", options)
    assert str(tile) in str(failure.value)


@pytest.mark.parametrize(
    ("kind", "name", "count", "expected"),
    [
        ("cpu", "gpu-3", 4, "cpu"),
        ("cuda", "anything", 1, "cuda"),  # CUDA_VISIBLE_DEVICES shows it one
        ("cuda", "node7-2", 4, "cuda:2"),
        ("cuda", "node7-6", 4, "cuda:2"),
        ("cuda", 3, 4, "cuda:3"),
    ],
)
def test_workers_have_their_own_gpu(kind: str, name: object, count: int, expected: str) -> None:
    assert device_of(torch.device(kind), name, count) == torch.device(expected)


def test_a_name_without_a_number_has_always_the_same_gpu() -> None:
    chosen = {device_of(torch.device("cuda"), f"tcp://node{letter}", 4).index for letter in "abcdefghijklmnop"}
    assert len(chosen) > 1
    assert chosen <= set(range(4))


def test_all_workers_compute_on_one_kind_of_device() -> None:
    with_gpu, without = Machine(1, None, ("cpu", "cuda")), Machine(1, None, ("cpu",))
    assert choose_cluster_device("auto", [with_gpu, with_gpu]).type == "cuda"
    assert choose_cluster_device("auto", [with_gpu, without]).type == "cpu"
    assert choose_cluster_device("cpu", [with_gpu]).type == "cpu"
    with pytest.raises(ResourceError, match="no cuda device on the cluster: 1 of 2 workers have none"):
        choose_cluster_device("cuda", [with_gpu, without])


def test_a_worker_without_the_clients_folder_writes_nothing(
    serial: MapRequest, tiles: list[Path], tmp_path: Path
) -> None:
    job = WorkerJob(MapInput(tiles[0]), tmp_path / "maps" / "map.tif", serial, "key", WindowPlan(40, 1, 1), "token")
    with pytest.raises(ResourceError, match="not shared"):
        PredictBlocks(job, ()).run(None)
    assert not list(tmp_path.iterdir())
