"""Clusters that cannot be used: one line each, and never a wait without end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cropstar.errors import CropstarError, InputError, MismatchError, ResourceError, UsageError
from cropstar.execution import dask
from cropstar.execution.dask import AHEAD, DaskPool, Machine, connected
from tests.execution.clusters import REPOSITORY, a_scheduler, a_worker, pretend_version, wait_for_workers

distributed = pytest.importorskip("distributed")


CONNECT = """
import sys
from cropstar.execution import dask
from cropstar.errors import CropstarError
dask.CONNECT_SECONDS = 1.0
try:
    with dask.connected(sys.argv[1]):
        pass
except CropstarError as failure:
    print(type(failure).__name__, failure)
"""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "CONNECT_SECONDS", 0.5)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # pytest's own comes back


@pytest.fixture(scope="module")
def empty() -> Iterator[Any]:
    with a_scheduler(**{"allowed-failures": 0}) as cluster:
        yield cluster


def refusal(address: str, kind: type[CropstarError], *, patience: float = 0.3) -> str:
    with pytest.raises(kind) as failure, connected(address, patience=patience):
        pass
    line = str(failure.value)
    assert "; " in line
    assert "\n" not in line
    return line


@pytest.mark.usefixtures("impatient")
def test_nobody_listens() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # and does not listen: nobody else will
        address = f"tcp://127.0.0.1:{held.getsockname()[1]}"
        assert f"no scheduler answers at {address}" in refusal(address, ResourceError)


@pytest.mark.usefixtures("impatient")
def test_somebody_listens_and_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = refusal(f"tcp://127.0.0.1:{server.getsockname()[1]}", ResourceError)
    assert "no scheduler answers" in line


def test_somebody_speaks_another_language() -> None:
    """In a process of its own: Dask's threads do not get over it."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", CONNECT, address], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
        )
    assert done.stdout.startswith(f"ResourceError no scheduler answers at {address}: "), done
    assert done.stderr == ""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "address", ["", "  ", "gopher://127.0.0.1:1", "tcp://127.0.0.1:port", "tcp://127.0.0.1:99999999"]
)
def test_what_is_no_address(address: str) -> None:
    assert "--scheduler" in refusal(address, (UsageError, ResourceError))  # type: ignore[arg-type]


def test_no_worker_comes(empty: Any) -> None:
    line = refusal(empty.scheduler_address, ResourceError)
    assert "has no workers" in line
    assert f"dask worker {empty.scheduler_address}" in line


@pytest.mark.parametrize("package", ["torch", "cropstar"])
def test_a_worker_of_another_version(empty: Any, package: str, tmp_path: Path) -> None:
    pretended = pretend_version(tmp_path, package, "0.0.77")
    path = os.pathsep.join([str(pretended), str(REPOSITORY)])
    with a_worker(empty.scheduler_address, "old", PYTHONPATH=path):
        wait_for_workers(empty, {"old"})
        line = refusal(empty.scheduler_address, MismatchError)
    wait_for_workers(empty, set())
    assert f"{package} 0.0.77 there and" in line
    assert f"install the same {package}" in line


def test_a_task_that_ends_its_worker(empty: Any) -> None:
    with distributed.Client(empty.scheduler_address, set_as_default=False) as client:
        cluster = DaskPool(client, [Machine(1, None, ("cpu",))], patience=0.1)
        with a_worker(empty.scheduler_address, "victim"):
            wait_for_workers(empty, {"victim"})
            cluster.submit(End(9))
            task, answer = cluster.next_answer()
        assert task == End(9)
        assert isinstance(answer, ResourceError)
        assert "kills every worker" in str(answer)
        wait_for_workers(empty, set())
        cluster.submit(End(9))  # nobody is left to do it
        with pytest.raises(ResourceError, match="the cluster has lost all its workers"):
            cluster.next_answer()


def test_what_tasks_raise_and_how_many_are_on_the_way() -> None:
    with (
        a_scheduler(workers=1) as scheduler,
        distributed.Client(scheduler.scheduler_address, set_as_default=False) as client,
    ):
        cluster = DaskPool(client, [Machine(1, None, ("cpu",))])
        while cluster.room:
            cluster.submit(Fail(f"/x{cluster.waiting}"))
        assert cluster.waiting == AHEAD
        answers = dict(cluster.next_answer() for _ in range(AHEAD))
        assert cluster.room
        assert cluster.waiting == 0
    assert sorted(task.path for task in answers) == ["/x0", "/x1", "/x2"]
    assert {type(answer) for answer in answers.values()} == {InputError}
    assert answers[Fail("/x1")].path == "/x1"


def test_without_dask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert "pip install 'cropstar[cluster]'" in refusal("tcp://127.0.0.1:1", UsageError)


@dataclass(frozen=True)
class Fail:
    path: str

    def run(self, _: None) -> None:
        raise FileNotFoundError(2, "No such file or directory", self.path)


@dataclass(frozen=True)
class End:
    code: int

    def run(self, _: None) -> None:
        os._exit(self.code)
