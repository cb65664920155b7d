"""Dask clusters on the loopback: a scheduler in this process, workers in processes of their own that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
WORKER = "from distributed.cli.dask_worker import main; main()"


@contextmanager
def a_scheduler(workers: int = 0, **settings: Any) -> Iterator[Any]:
    """With workers in this process, named 0, 1, ...; its `scheduler_address` is where others go."""
    import dask
    from distributed import LocalCluster

    with (
        dask.config.set({f"distributed.scheduler.{name}": value for name, value in settings.items()}),
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=workers,
            threads_per_worker=1,
            processes=False,
            protocol="tcp",
            host="127.0.0.1",
            dashboard_address=None,
            memory_limit=0,
        ) as cluster,
    ):
        yield cluster


@contextmanager
def a_worker(address: str, name: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """One thread, and no nanny that would start it again."""
    arguments = [address, "--no-nanny", "--nthreads", "1", "--name", name, "--no-dashboard", "--memory-limit", "0"]
    process = subprocess.Popen(
        [sys.executable, "-c", WORKER, *arguments],
        cwd="/",  # it must not matter
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=20)


def wait_for_workers(cluster: Any, names: set[str], seconds: float = 120) -> None:
    """Until workers of these names, and no others, are there."""
    end = time.monotonic() + seconds
    while {str(worker.name) for worker in list(cluster.scheduler.workers.values())} != names:
        assert time.monotonic() < end, cluster.scheduler.workers
        time.sleep(0.02)


def tasks_of(cluster: Any, name: str) -> int:
    """How many tasks a worker has."""
    return sum(len(worker.processing) for worker in list(cluster.scheduler.workers.values()) if worker.name == name)


def pretend_version(folder: Path, package: str, version: str) -> Path:
    """A folder for PYTHONPATH whose word on a package comes before that of the real one."""
    metadata = folder / f"{package}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    return folder


@contextmanager
def a_cluster(names: Sequence[str]) -> Iterator[Any]:
    """A scheduler with a process for each worker; its `processes` are theirs, by name."""
    with a_scheduler() as cluster, ExitStack() as workers:
        cluster.processes = {name: workers.enter_context(a_worker(cluster.scheduler_address, name)) for name in names}
        wait_for_workers(cluster, set(names))
        yield cluster
