"""What all tests share: a small scene, its store, the command line, and the real data where they are at hand."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: two workers share the cores
os.environ.setdefault("TRITON_INTERPRET", "1")  # before triton is imported: its kernels run without a GPU

import logging
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest
from hypothesis import settings

from cropstar.runtime import logger
from tests.faults.forkserver import COMPILER, close_shared_server, shared_server
from tests.processes import run_process

REPOSITORY = Path(__file__).resolve().parents[1]

# The same examples on every machine: a test that fails here fails for everyone. Disks and imports may be slow.
settings.register_profile("cropstar", deadline=None, derandomize=True, max_examples=40, database=None)
settings.load_profile("cropstar")


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """Tests and what they start take Ctrl-C, also where a background job was told to ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_teardown() -> None:
    """What commands say goes to stderr from then on; the next test finds the logger as it was, or hears it twice."""
    logger.handlers[:] = []
    logger.propagate = True
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def eager_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes also for a single task, which would be done sooner without them."""
    from cropstar.execution import local

    monkeypatch.setattr(local, "FEWEST_TASKS", 1)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The process ids of the workers that were started so far."""
    numbers: list[int] = []
    start = SpawnProcess.start

    def counted(process: SpawnProcess) -> None:
        start(process)
        assert process.pid is not None
        numbers.append(process.pid)

    monkeypatch.setattr(SpawnProcess, "start", counted)
    return numbers


@pytest.fixture(scope="session")
def small_scene(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tile.tif (96 x 96 pixels, 6 dates) and parcels.gpkg. Copy before changing it."""
    from cropstar.sources.synthetic import SceneOptions, write_scene  # here: tests of models need no geopandas

    folder = tmp_path_factory.mktemp("small_scene")
    write_scene(folder, SceneOptions(size=96, dates=6))
    return folder


@pytest.fixture(scope="session")
def small_store(small_scene: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small scene ingested: four raster tiles of 48 x 48 pixels. Copy before changing it."""
    from cropstar.sources.catalogue import SOURCES, IngestRequest
    from cropstar.sources.ingest import ingest

    folder = tmp_path_factory.mktemp("small_store")
    scenes = SOURCES["stack"](IngestRequest(small_scene / "tile.tif", tile_size=48))
    try:
        ingest(scenes, folder)
    finally:
        for scene in scenes:
            scene.close()
    return folder


@pytest.fixture
def run_cli() -> Callable[..., subprocess.CompletedProcess[str]]:
    """`run_cli(*args, cwd=folder, env={...}, timeout=...)`: cropstar as a user starts it, in a process of its own.

    It is forked from one that has imported everything, which saves seconds, unless it needs another environment.
    """

    def run(
        *args: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 240
    ) -> subprocess.CompletedProcess[str]:
        if env or COMPILER is None:
            return run_process(sys.executable, "-m", "cropstar", *args, cwd=cwd, env=env, timeout=timeout)
        answer = shared_server().run(args, cwd, limit=timeout)
        assert not answer.late, f"no end after {timeout} s"
        return subprocess.CompletedProcess(args, answer.code, answer.stdout, answer.stderr)

    return run


def pytest_unconfigure() -> None:
    close_shared_server()


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real files; its README says what they are. Tests that want it are skipped without it."""
    folder = Path(os.environ.get("CROPSTAR_TEST_DATA") or REPOSITORY.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no real data in {folder}: set CROPSTAR_TEST_DATA to the folder that has them")
    return folder
