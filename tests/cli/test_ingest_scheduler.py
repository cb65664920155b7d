"""`cropstar ingest --scheduler`: workers in processes of their own, as users start them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cropstar.store.store import MANIFEST, TILES
from tests.cli.test_scheduler import WORKERS, contents, wait_until, wait_until_idle
from tests.execution.clusters import a_cluster, tasks_of
from tests.sources.examples.granules import write_granule

pytest.importorskip("distributed")

Run = Callable[..., subprocess.CompletedProcess[str]]
BANDS = ("B02", "B03", "B04", "B08")
INGEST = ("ingest", "sentinel2", "granule", "--parcels", "granule/parcels.gpkg", "--tile-size", "50")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Sentinel-2 products, all named by relative paths: workers were started elsewhere."""
    folder = tmp_path_factory.mktemp("place")
    write_granule(folder / "granule", side=700, dates=6, bands=BANDS)
    return folder


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, bytes]:
    """The store as one process makes it."""
    process = start(place, "-o", "serial", "--workers", "1")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    return contents(place / "serial")


@pytest.fixture
def cluster() -> Iterator[Any]:
    with a_cluster(WORKERS) as cluster:
        yield cluster


def start(place: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cropstar", *INGEST, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)


def tiles(store: Path) -> list[Path]:
    return list((store / TILES).glob("[!.]*.h5"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demonstration_by_two_processes(run_cli: Run, tmp_path: Path, cluster: Any) -> None:
    for folder, options in (("serial", ()), ("cluster", ("--scheduler", cluster.scheduler_address))):
        (tmp_path / folder).mkdir()
        answer = run_cli("ingest", *options, cwd=tmp_path / folder)
        assert answer.returncode == 0, answer.stderr
    assert f"cluster {cluster.scheduler_address}: 2 workers, 2 threads; dashboard" in answer.stderr
    assert contents(tmp_path / "cluster") == contents(tmp_path / "serial")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_worker_killed_on_the_way(place: Path, expected: dict[str, bytes], cluster: Any) -> None:
    process = start(place, "-o", "killed", "--scheduler", cluster.scheduler_address)
    wait_until(lambda: tiles(place / "killed") and tasks_of(cluster, WORKERS[1]), process)
    cluster.processes[WORKERS[1]].kill()
    done = len(tiles(place / "killed"))
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert done < len(tiles(place / "killed"))
    assert contents(place / "killed") == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_and_the_next_call_goes_on(
    place: Path, expected: dict[str, bytes], cluster: Any, number: int, code: int
) -> None:
    store = f"stopped-{code}"
    process = start(place, "-q", "-o", store, "--scheduler", cluster.scheduler_address)
    wait_until(lambda: tiles(place / store), process)
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert said.splitlines()[-1].startswith("error: stopped by a signal")
    assert "Traceback" not in said
    assert not list((place / store).glob(".client-*"))
    assert not (place / store / MANIFEST).exists()
    wait_until_idle(cluster)
    kept = {path: path.stat().st_ino for path in tiles(place / store)}
    assert 0 < len(kept) < len(expected) - 1
    process = start(place, "-o", store, "--scheduler", cluster.scheduler_address)
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert f"{len(kept)} kept" in said
    assert {path: path.stat().st_ino for path in kept} == kept
    assert contents(place / store) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_scheduler_that_goes_away(place: Path, expected: dict[str, bytes], cluster: Any) -> None:
    process = start(place, "-q", "-o", "gone", "--scheduler", cluster.scheduler_address)
    wait_until(lambda: tiles(place / "gone"), process)
    cluster.close()
    _, said = process.communicate(timeout=100)
    assert process.returncode == 6, said
    assert said.splitlines()[-1].startswith("error: the scheduler stopped answering")
    assert "Traceback" not in said
    process = start(place, "-o", "gone", "--workers", "1")  # what was finished is good for one process, too
    _, said = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert " 0 kept" not in said
    assert contents(place / "gone") == expected
