"""`cropstar predict --scheduler`: workers in processes of their own, as users start them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cropstar.store.files import PARTIAL
from tests.cli.refusing import error_line
from tests.execution.clusters import a_cluster, tasks_of
from tests.prediction.making import untrained

pytest.importorskip("distributed")

Run = Callable[..., subprocess.CompletedProcess[str]]
TILES = 12
WORKERS = ("worker-0", "worker-1")
PREDICT = ("predict", "tiles/*.tif", "--model", "model.safetensors", "--window", "32", "--confidence")


@pytest.fixture
def place(small_scene: Path, tmp_path: Path) -> Path:
    """A folder with twelve tiles and a model."""
    (tmp_path / "tiles").mkdir()
    for number in range(TILES):
        shutil.copy(small_scene / "tile.tif", tmp_path / "tiles" / f"tile{number:02d}.tif")
    untrained(tmp_path / "model.safetensors", small_scene / "tile.tif", hidden=16)
    return tmp_path


@pytest.fixture
def cluster() -> Iterator[Any]:
    with a_cluster(WORKERS) as cluster:
        yield cluster


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cropstar", *PREDICT, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)


def wait_until(happened: Callable[[], object], process: subprocess.Popen[str], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.005)


def contents(folder: Path) -> dict[str, bytes]:
    """What has its final name: a worker that is killed may leave the beginning of a file under a hidden one."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.suffix != PARTIAL]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_shards_and_a_cluster_are_two_ways(run_cli: Run, tmp_path: Path) -> None:
    answer = run_cli("predict", "x.tif", "--scheduler", "tcp://127.0.0.1:1", "--shard", "0/2", cwd=tmp_path)
    error_line(answer, 2, "--shard with --scheduler")


def test_without_the_extra(run_cli: Run, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "distributed.py").write_text("raise ImportError")
    hidden = {"PYTHONPATH": str(tmp_path / "hidden")}
    answer = run_cli("predict", "x.tif", "--scheduler", "tcp://127.0.0.1:1", cwd=tmp_path, env=hidden)
    error_line(answer, 2, "pip install 'cropstar[cluster]'")


@pytest.mark.slow
def test_nobody_answers(run_cli: Run, place: Path) -> None:
    before = contents(place)
    started = time.monotonic()
    answer = run_cli(*PREDICT, "-o", "maps", "--scheduler", "tcp://127.0.0.1:1", cwd=place)
    assert time.monotonic() - started < 60
    error_line(answer, 6, "no scheduler answers at tcp://127.0.0.1:1")
    assert contents(place) == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_twelve_tiles_and_a_worker_killed_on_the_way(run_cli: Run, place: Path, cluster: Any) -> None:
    serial = run_cli(*PREDICT, "-o", "serial", cwd=place)
    assert serial.returncode == 0, serial.stderr
    process = start(place, "-o", "maps", "--scheduler", cluster.scheduler_address)
    wait_until(lambda: list(place.glob("maps/*.tif")) and tasks_of(cluster, WORKERS[1]), process)
    cluster.processes[WORKERS[1]].kill()
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert f"cluster {cluster.scheduler_address}: 2 workers, 2 threads; dashboard" in said
    assert contents(place / "maps") == contents(place / "serial")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_and_the_next_call_goes_on(
    run_cli: Run, place: Path, cluster: Any, number: int, code: int
) -> None:
    process = start(place, "-q", "-o", "maps", "--scheduler", cluster.scheduler_address)
    wait_until(lambda: list(place.glob("maps/.*.blocks/*.npz")), process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert said.splitlines()[-1].startswith("error: stopped by a signal")
    assert "Traceback" not in said
    assert not list(place.glob("maps/.*.blocks/client-*"))
    wait_until_idle(cluster)
    assert len(list(place.glob("maps/*.tif"))) < TILES
    assert run_cli(*PREDICT, "-o", "maps", "--scheduler", cluster.scheduler_address, cwd=place).returncode == 0
    assert run_cli(*PREDICT, "-o", "serial", cwd=place).returncode == 0
    assert contents(place / "maps") == contents(place / "serial")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_scheduler_that_goes_away(place: Path, cluster: Any) -> None:
    process = start(place, "-q", "-o", "maps", "--scheduler", cluster.scheduler_address)
    wait_until(lambda: list(place.glob("maps/.*.blocks/*.npz")), process)
    cluster.close()
    _, said = process.communicate(timeout=100)
    assert process.returncode == 6, said
    *warnings, line = said.splitlines()
    assert all(warning.startswith("warning: ") for warning in warnings)
    assert line.startswith("error: the scheduler stopped answering")


def wait_until_idle(cluster: Any, seconds: float = 100) -> None:
    """Until no worker has a task of a client that is gone."""
    end = time.monotonic() + seconds
    while any(tasks_of(cluster, name) for name in WORKERS):
        assert time.monotonic() < end
        time.sleep(0.05)
