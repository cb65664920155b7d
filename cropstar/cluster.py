"""A Dask cluster at work: hand tasks out and take the answers in.

A few tasks a thread are on the way at any time, so that no worker stands still and none is buried; each answer makes
room for the next task. A task whose worker dies is done by another one. What a task raises comes back as its answer.
Workers that are gone are not waited for without end.
"""

from __future__ import annotations

import importlib
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import CropstarError, ResourceError, UsageError, from_os_error, harmless

LOST_SECONDS = 600.0  # for one to come back: machines that were taken away are often replaced
ASK_SECONDS = 2.0  # between two looks at how many workers there are
AHEAD = 3  # tasks a thread: one in work, one waiting beside it, one whose answer is on the way
RETRIES = 2  # of a task that raises: a network's file system may fail once
AGAIN = "run the same command again to go on"


@dataclass(frozen=True)
class Machine:
    """What a worker says of itself."""

    threads: int
    memory: int | None  # bytes after which its nanny ends it
    devices: tuple[str, ...]  # that it can compute on


@dataclass(frozen=True)
class Task:
    """`function(*arguments)`, with what is shared as the last argument; `item` comes back with the answer."""

    label: str  # that dashboards show
    item: Any
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    shared: Any = None  # an answer of `Cluster.share`


class Cluster:
    """Tasks on the way. `submit` while there is `room`, then `take` an answer, and so on: `through` does both."""

    def __init__(self, client: Any, machines: Sequence[Machine], *, patience: float = LOST_SECONDS) -> None:
        distributed = require_distributed()
        self.machines = machines
        self._client = client
        self._killed: type[Exception] = distributed.KilledWorker
        self._answers = distributed.as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._items: dict[str, Any] = {}
        self._patience = patience
        self._threads = sum(machine.threads for machine in machines)
        self._asked = self._alive = time.monotonic()

    @property
    def threads(self) -> int:
        return max(self._threads, 1)

    @property
    def waiting(self) -> int:
        """Tasks whose answers were not taken."""
        return len(self._items)

    @property
    def room(self) -> bool:
        return self.waiting < AHEAD * self.threads

    def submit(self, label: str, item: Any, function: Callable[..., Any], *arguments: Any, shared: Any = None) -> None:
        """Have a task done; see `Task`."""
        key = f"{label}-{uuid.uuid4().hex}"
        given = () if shared is None else (shared,)
        try:
            payload = pack((function, arguments))
            future = self._client.submit(perform, payload, *given, key=key, pure=False, retries=RETRIES)
            self._items[key] = item
            self._answers.add(future)
        except Exception as failure:  # of a connection that broke, told in many ways
            raise gone(failure) from None

    def share(self, label: str, content: bytes) -> Any:
        """What many tasks want: workers pass it on to each other, and it comes back if all that had it die."""
        try:
            return self._client.submit(perform, pack((bytes, (content,))), key=f"{label}-{uuid.uuid4().hex}")
        except Exception as failure:
            raise gone(failure) from None

    def through(self, tasks: Iterator[Task]) -> Iterator[tuple[Any, Any]]:
        """The items of all tasks with their answers, as they come; meanwhile more may be submitted."""
        exhausted = False
        while not exhausted or self.waiting:
            while self.room and not exhausted:
                task = next(tasks, None)
                if task is None:
                    exhausted = True
                else:
                    self.submit(task.label, task.item, task.function, *task.arguments, shared=task.shared)
            if self.waiting:
                yield self.take()

    def take(self) -> tuple[Any, Any]:
        """The next item that is done, with the answer or the error that came of it."""
        while not self._answers.has_ready():
            self._look_around()
            time.sleep(0.02)
        future, answer = next(self._answers)
        item = self._items.pop(future.key)
        if future.status == "finished":
            return item, answer
        if future.status == "error":
            return item, self._translate(answer[1])
        raise gone(answer)

    def ask(self, label: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """The answer of any worker, before there are other tasks."""
        self.submit(label, None, function, *arguments)
        _, answer = self.take()
        if isinstance(answer, CropstarError):
            raise answer
        return answer

    def on_all(self, function: Callable[..., Any]) -> None:
        """Run something on every worker at the end; one that is gone needs it no more."""
        with suppress(Exception):
            self._client.run(function, on_error="ignore")

    def cancel(self) -> None:
        """Tasks that were not begun never will be."""
        with suppress(Exception):
            self._client.cancel(list(self._answers.futures), force=True)

    def _look_around(self) -> None:
        """How many workers are there? A cluster may grow and shrink; one without any is only waited for so long."""
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        self._asked = now
        try:
            self._threads = sum(self._client.nthreads().values())
        except Exception as failure:
            raise gone(failure) from None
        if self._threads:
            self._alive = now
        elif now - self._alive > self._patience:
            why = f"none came back for {self._patience:.0f} seconds; what was finished is kept"
            raise ResourceError("all workers of the cluster are gone", why=why, remedy=f"start some, then {AGAIN}")

    def _translate(self, failure: BaseException) -> CropstarError:
        if isinstance(failure, CropstarError):
            return failure
        if isinstance(failure, self._killed):
            why = "several died one after the other; systems kill processes when memory runs out"
            remedy = "give workers more memory, or less to do: --memory of predict, --tile-size of ingest"
            return ResourceError("a task ends every worker that gets it", why=why, remedy=remedy)
        if isinstance(failure, OSError):
            return from_os_error(failure)
        why = f"{type(failure).__name__}: {failure}"
        return CropstarError("a worker failed", why=why, remedy="look at the log of the worker")


def require_distributed() -> Any:
    """dask.distributed, or the word what to install."""
    try:
        return importlib.import_module("distributed")
    except ImportError:
        why = "dask.distributed is not installed"
        raise UsageError("--scheduler cannot be used", why=why, remedy="pip install 'cropstar[cluster]'") from None


def perform(payload: bytes, *shared: Any) -> Any:
    """What Dask knows of a task. Packed, since the scheduler would unpack it on the way and import torch to do so."""
    function, arguments = unpack(payload)
    return function(*arguments, *shared)


def pack(content: Any) -> bytes:
    """For `unpack` on a worker."""
    packed: bytes = _packing().dumps(content)
    return packed


def unpack(packed: bytes) -> Any:
    return _packing().loads(packed)


def _packing() -> Any:
    """Dask's own. It runs what it unpacks, as all of Dask does: whoever may talk to a worker may run anything there."""
    return importlib.import_module("distributed.protocol.pickle")


def require_seen(token: Path, what: str, place: Path) -> None:
    """Refuse to write where the client's token is not seen: on another file system, or after the client has gone."""
    if not token.exists():
        why = "a worker does not see what the client wrote there"
        remedy = "run workers where the same folders are mounted under the same names"
        raise ResourceError(f"the folder of {what} is not shared", path=place, why=why, remedy=remedy)


def gone(failure: object) -> ResourceError:
    why = f"{one_line(failure)}; what was finished is kept"
    return ResourceError("the scheduler is gone", why=why, remedy=f"start it, then {AGAIN}")


def one_line(failure: object) -> str:
    text = " ".join(str(failure).split()) or type(failure).__name__
    return harmless(text)[:200]
