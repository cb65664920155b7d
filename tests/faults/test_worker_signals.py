"""Signals to an ingest with workers: nobody works on, nothing half is left, and a rerun ends with the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cropstar.store.store import MANIFEST, TILES
from tests.faults.killing import usual_signals
from tests.faults.test_kill_ingest import content
from tests.sources.examples.granules import write_granule


@pytest.fixture(scope="module")
def granule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Just large enough to be worth workers."""
    bands = ("B02", "B03", "B04", "B08")
    return write_granule(tmp_path_factory.mktemp("granule"), side=1000, dates=8, bands=bands)


def command(granule: Path) -> list[str]:
    places = [str(granule), "--parcels", str(granule / "parcels.gpkg"), "-o", "store"]
    return [sys.executable, "-m", "cropstar", "ingest", "sentinel2", *places, "--tile-size", "100", "--workers", "2"]


def start(granule: Path, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(granule),
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=usual_signals,
    )


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """Not all children are: Python starts a helper of its own."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def works(number: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(happened: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def in_the_middle(granule: Path, cwd: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """An ingest that has made its first tiles, and its workers."""
    process = start(granule, cwd)
    wait_until(lambda: len(list((cwd / "store" / TILES).glob("[!.]*.h5"))) > 5 or process.poll() is not None)
    assert process.poll() is None
    workers = workers_of(process)
    assert len(workers) == 2
    return process, workers


def completes_to_the_same_bytes(granule: Path, cwd: Path) -> None:
    (cwd / "unbroken").mkdir()
    for place in (cwd, cwd / "unbroken"):
        process = start(granule, place)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert content(cwd / "store") == content(cwd / "unbroken" / "store")
    assert not list(cwd.rglob(".*.partial"))


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_to_all_stops_all(granule: Path, tmp_path: Path, number: int, code: int) -> None:
    """As Ctrl-C in a terminal does, and a batch system that ends a job."""
    process, workers = in_the_middle(granule, tmp_path)
    os.killpg(process.pid, number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == code
    assert said.splitlines()[-1].startswith("error: stopped by a signal: finished parts are kept")
    assert "Traceback" not in said
    assert not any(map(works, workers))
    assert not list(tmp_path.rglob(".*.partial"))
    assert not (tmp_path / "store" / MANIFEST).exists()


def test_a_signal_while_workers_start_is_one_line(granule: Path, tmp_path: Path) -> None:
    process = start(granule, tmp_path)
    wait_until(lambda: workers_of(process))
    workers = workers_of(process)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert not any(map(works, workers))
    assert not list(tmp_path.rglob(".*.partial"))


@pytest.mark.slow
def test_workers_of_a_killed_ingest_end(granule: Path, tmp_path: Path) -> None:
    process, workers = in_the_middle(granule, tmp_path)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(works, workers)), seconds=10)
    assert not (tmp_path / "store" / MANIFEST).exists()
    process.communicate()
    completes_to_the_same_bytes(granule, tmp_path)


def test_a_killed_worker_is_one_line(granule: Path, tmp_path: Path) -> None:
    """As the system kills when memory runs out."""
    process, workers = in_the_middle(granule, tmp_path)
    os.kill(workers[0], signal.SIGKILL)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 6, said
    line = said.splitlines()[-1]
    assert line.startswith("error: a worker was killed: signal 9")
    assert line.endswith("use --workers 1 or more memory")
    assert "Traceback" not in said
    assert not any(map(works, workers))
    assert not list(tmp_path.rglob(".*.partial"))
    assert not (tmp_path / "store" / MANIFEST).exists()
