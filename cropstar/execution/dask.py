"""The workers of a Dask cluster.

A few tasks per thread are on the way at any time, so that no worker stands still and none is buried; each answer makes
room for the next task. A task whose worker dies is done by another one. What a task raises comes back as its answer.
Workers that are gone are not waited for without end, and neither is a scheduler.
"""

from __future__ import annotations

import gc
import importlib
import logging
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import CropstarError, MismatchError, ResourceError, UsageError, expected_error, harmless
from cropstar.execution.pool import Answer, PoolTask, WorkerPool, as_cropstar_error
from cropstar.execution.threads import ThreadCache, close_idle
from cropstar.geo.raster import bound_gdal
from cropstar.runtime import event, logger

LOST_SECONDS = 600.0  # for a worker to come back: machines that were taken away are often replaced
ASK_SECONDS = 2.0  # between two looks at how many workers there are
AHEAD = 3  # tasks per thread: one in work, one waiting beside it, one whose answer is on the way
RETRIES = 2  # of a task that raises: a network's file system may fail once
AGAIN = "run the same command again to continue"
REMEDY = "give workers more memory, or lower --memory of predict or --tile-size of ingest"
CONNECT_SECONDS = 10.0
WORKER_SECONDS = 30.0  # for a first worker
CLOSE_SECONDS = 5.0
# What must be the same everywhere, or blocks of one map and tiles of one store would differ.
PACKAGES = ("cropstar", "torch", "numpy", "rasterio", "h5py")


@dataclass(frozen=True)
class Machine:
    """Threads, memory and devices of a worker."""

    threads: int
    memory: int | None  # bytes after which its nanny ends it
    devices: tuple[str, ...]  # that it can compute on


class DaskPool(WorkerPool):
    """The workers of a cluster; `connected` makes one.

    `submit` while there is `room`, then `take` an answer, and so on: `answers` does both.
    """

    one_disk = False

    def __init__(self, client: Any, machines: Sequence[Machine], *, patience: float = LOST_SECONDS) -> None:
        distributed = require_distributed()
        self.machines = machines
        self._client = client
        self._killed: type[Exception] = distributed.KilledWorker
        self._answers = distributed.as_completed(loop=client.loop, with_results=True, raise_errors=False)
        self._tasks: dict[str, PoolTask] = {}
        self._shared: tuple[Any, ...] | None = None
        self._patience = patience
        self._threads = sum(machine.threads for machine in machines)
        self._asked = self._alive = time.monotonic()

    def __exit__(self, *_: object) -> None:
        """Nothing to close: `connected` closes the connection that it opened."""

    @property
    def threads(self) -> int:
        return max(self._threads, 1)

    @property
    def waiting(self) -> int:
        """Tasks whose answers were not taken."""
        return len(self._tasks)

    @property
    def room(self) -> bool:
        return self.waiting < AHEAD * self.threads

    def share(self, content: Any) -> None:
        """Workers pass it on to each other, and it comes back if all that had it die. Every thread has its own copy."""
        packed = pack(content)
        key = f"shared-{uuid.uuid4().hex}"
        with _scheduler_errors():
            self._shared = (key, self._client.submit(bytes, packed, key=key))

    def submit(self, task: PoolTask) -> None:
        name = type(task).__name__.lower()  # that dashboards show
        key = f"{name}-{uuid.uuid4().hex}"
        shared_key, *shared = self._shared or (None,)
        packed = pack((task, shared_key))
        with _scheduler_errors():
            future = self._client.submit(_perform, packed, *shared, key=key, pure=False, retries=RETRIES)
            self._tasks[key] = task
            self._answers.add(future)

    def answers(self, tasks: Iterable[PoolTask], *, volume: int | None = None) -> Iterator[tuple[PoolTask, Answer]]:
        coming, exhausted = iter(tasks), False
        while not exhausted or self.waiting:
            while self.room and not exhausted:
                task = next(coming, None)
                if task is None:
                    exhausted = True
                else:
                    self.submit(task)
            if self.waiting:
                yield self.next_answer()

    def next_answer(self) -> tuple[PoolTask, Answer]:
        """The next task that is done, with the answer or the error that came of it."""
        while not self._answers.has_ready():
            self._check_workers()
            time.sleep(0.02)
        future, answer = next(self._answers)
        task = self._tasks.pop(future.key)
        if future.status == "finished":
            return task, answer
        if future.status == "error":
            return task, self._translate(answer[1])
        raise _scheduler_lost(answer)

    def run_once(self, task: PoolTask) -> Any:
        """Run one task on any worker and return its answer, before other tasks are submitted."""
        self.submit(task)
        _, answer = self.next_answer()
        if isinstance(answer, CropstarError):
            raise answer
        return answer

    def close_idle(self) -> None:
        """Ask workers to close files that no task uses."""
        with suppress(Exception):
            self._client.run(close_idle, on_error="ignore")

    def cancel(self) -> None:
        """Tasks that were not begun never will be."""
        with suppress(Exception):
            self._client.cancel(list(self._answers.futures), force=True)

    def _check_workers(self) -> None:
        """How many workers are there? A cluster may grow and shrink; one without any is only waited for so long."""
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS:
            return
        self._asked = now
        with _scheduler_errors():
            self._threads = sum(self._client.nthreads().values())
        if self._threads:
            self._alive = now
        elif now - self._alive > self._patience:
            why = f"none came back for {self._patience:.0f} seconds; finished parts are kept"
            raise ResourceError("the cluster has lost all its workers", why=why, remedy=f"start some, then {AGAIN}")

    def _translate(self, failure: BaseException) -> CropstarError:
        if isinstance(failure, self._killed):
            why = "several died one after the other; systems kill processes when memory runs out"
            return ResourceError("a task kills every worker that runs it", why=why, remedy=REMEDY)
        if (error := expected_error(failure)) is not None:
            return error
        why = f"{type(failure).__name__}: {failure}"
        return CropstarError("a worker failed", why=why, remedy="look at the log of the worker")


def require_distributed() -> Any:
    """dask.distributed, or an error that says what to install."""
    try:
        return importlib.import_module("distributed")
    except ImportError:
        why = "dask.distributed is not installed"
        raise UsageError("--scheduler cannot be used", why=why, remedy="pip install 'cropstar[cluster]'") from None


def pack(content: Any) -> bytes:
    """Serialise an object for `unpack` on a worker."""
    packed: bytes = _packing().dumps(content)
    return packed


def unpack(packed: bytes) -> Any:
    return _packing().loads(packed)


def _packing() -> Any:
    """Dask's own. It runs what it unpacks, as all of Dask does: whoever may talk to a worker may run anything there."""
    return importlib.import_module("distributed.protocol.pickle")


# --- In a worker

_shared: ThreadCache[Any] = ThreadCache()


def _perform(payload: bytes, *packed: bytes) -> Any:
    """A task with what it shares. Packed, since the scheduler would unpack it on the way and import torch to do so."""
    error: CropstarError | None = None
    try:
        task, key = unpack(payload)
        if not packed:
            return task.run(None)
        with _shared.opened(key, lambda stack: _unpack_shared(packed[0], stack)) as content:
            return task.run(content)
    except Exception as failure:
        error = as_cropstar_error(failure, REMEDY)
    # Dask would send what a failure came of, too, and libraries have errors that cannot be: the note tells it.
    error.__cause__ = error.__context__ = None
    raise error


def _unpack_shared(packed: bytes, stack: ExitStack) -> Any:
    bound_gdal(threads=1)  # every thread of a worker reads on its own
    content = unpack(packed)
    stack.callback(content.close)
    return content


def own_worker() -> Any:
    """Dask's object of the worker that runs this."""
    return importlib.import_module("distributed").get_worker()


def worker_folder() -> Path:
    """The folder that Dask gives a worker on its machine, and removes after it."""
    return Path(own_worker().local_directory)


# --- The way to a cluster: find its scheduler, wait for workers, and see that they fit, each with a limit of time


@contextmanager
def connected(address: str, *, patience: float = WORKER_SECONDS) -> Iterator[DaskPool]:
    """A pool of a cluster whose workers fit. Leaving early cancels the tasks that are submitted."""
    distributed = require_distributed()
    _redirect_logs()
    client = _connect(distributed, address)
    try:
        _require_workers(client, address, patience)
        _require_same(client)
        machines = _machines(client)
        threads = sum(machine.threads for machine in machines)
        board = _dashboard(client)
        event(
            f"cluster {address}: {len(machines)} workers, {threads} threads; dashboard {board or 'not running'}",
            scheduler=address,
            workers=len(machines),
            threads=threads,
            dashboard=board,
        )
        pool = DaskPool(client, machines)
        try:
            yield pool
        except BaseException:
            pool.cancel()
            raise
        pool.close_idle()
    finally:
        with suppress(Exception):
            client.close(timeout=CLOSE_SECONDS)


def describe_worker(dask_worker: Any) -> Machine:
    """Describe the worker that runs this; Dask passes it as `dask_worker`."""
    import torch

    limit = getattr(dask_worker.memory_manager, "memory_limit", None)
    found = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    devices = tuple(name for name, there in found.items() if there)
    return Machine(dask_worker.state.nthreads, int(limit) if limit else None, devices)


def _connect(distributed: Any, address: str) -> Any:
    remedy = "give the address that the scheduler prints, as in --scheduler tcp://10.0.0.1:8786"
    if not address.strip():
        raise UsageError("--scheduler got no address", remedy=remedy)
    try:
        return _within(
            CONNECT_SECONDS, lambda seconds: distributed.Client(address, timeout=seconds, set_as_default=False)
        )
    except Exception as failure:  # from a closed port to a server that speaks another language
        sys.unraisablehook = _ignore  # half a client complains, in many lines, when the program ends
        why = _one_line(failure)
        if isinstance(failure, ValueError):  # of the address itself
            refusal: CropstarError = UsageError(f"--scheduler {address}", why=why, remedy=remedy)
        else:
            refusal = ResourceError(f"no scheduler answers at {address}", why=why, remedy=remedy)
    gc.collect()  # half a client that is found later, while another one starts, waits for itself for ever
    raise refusal


def _within(seconds: float, make: Callable[[float], Any]) -> Any:
    """What `make` returns or raises. Dask's own limit does not hold with a server that talks, but not Dask's language:
    then the thread is left alone."""
    outcome: queue.Queue[tuple[Any, Exception | None]] = queue.Queue()

    def run() -> None:
        try:
            outcome.put((make(seconds), None))
        except Exception as failure:
            outcome.put((None, failure))

    threading.Thread(target=run, name="connect", daemon=True).start()
    try:
        made, failure = outcome.get(timeout=seconds * 1.5)
    except queue.Empty:
        raise TimeoutError(f"no valid answer within {seconds:.0f} seconds") from None
    if failure is not None:
        raise failure
    return made


def _require_workers(client: Any, address: str, patience: float) -> None:
    with _scheduler_errors():
        try:
            client.wait_for_workers(1, timeout=patience)
        except TimeoutError:
            why, remedy = f"none came within {patience:.0f} seconds", f"start some with 'dask worker {address}'"
            raise ResourceError(f"the cluster at {address} has no workers", why=why, remedy=remedy) from None


def _require_same(client: Any) -> None:
    """Refuse workers with other versions, by the names of the packages; the scheduler needs no torch."""
    with _scheduler_errors():
        versions = client.get_versions(packages=list(PACKAGES))
    here = _relevant(versions["client"])
    others = [(f"the worker {address}", own, tuple(here)) for address, own in versions["workers"].items()]
    for who, own, names in [("the scheduler", versions["scheduler"], ("python", "cropstar")), *others]:
        worker = _relevant(own)
        for name in names:
            if worker[name] != here[name]:
                why = f"{name} {worker[name] or 'is missing'} there and {here[name]} here"
                raise MismatchError(f"{who} does not fit", why=why, remedy=f"install the same {name} on both")


def _relevant(versions: Any) -> dict[str, str | None]:
    """Versions as far as they matter: 3.11 of Python, 2.6.0 of torch 2.6.0+cpu."""
    packages = versions["packages"] if isinstance(versions, dict) else {}
    python = packages.get("python")
    relevant: dict[str, str | None] = {"python": ".".join(python.split(".")[:2]) if python else None}
    return relevant | {name: (packages.get(name) or "").partition("+")[0] or None for name in PACKAGES}


def _machines(client: Any) -> list[Machine]:
    """The descriptions of all workers; one that dies while answering is left out."""
    with _scheduler_errors():
        answers = list(client.run(describe_worker, on_error="return").values())
    machines = [answer for answer in answers if isinstance(answer, Machine)]
    if not machines:
        why = _one_line(answers[0]) if answers else "the last one has just left"
        raise ResourceError("no worker of the cluster answers", why=why, remedy="look at the log of a worker")
    return machines


def _dashboard(client: Any) -> str | None:
    with _scheduler_errors():
        try:
            link: str | None = client.dashboard_link
        except KeyError:  # a scheduler without one
            return None
    return link


class _Forward(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        logger.debug("%s: %s", record.name, " ".join(record.getMessage().split()))


def _redirect_logs() -> None:
    """Show Dask's own log of lost workers and connections only with --verbose, in one line each."""
    for name in ("distributed", "tornado"):
        log = logging.getLogger(name)
        log.handlers[:] = [_Forward()]
        log.propagate = False
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("distributed."):
            logging.getLogger(name).handlers[:] = []
            logging.getLogger(name).propagate = True


def _ignore(_: object) -> None:
    """Says nothing."""


@contextmanager
def _scheduler_errors() -> Iterator[None]:
    """Turn all errors of a broken connection (Dask's, tornado's, asyncio's, the system's) into one."""
    try:
        yield
    except CropstarError:
        raise
    except Exception as failure:
        raise _scheduler_lost(failure) from None


def _scheduler_lost(failure: object) -> ResourceError:
    why = f"{_one_line(failure)}; finished parts are kept"
    return ResourceError("the scheduler stopped answering", why=why, remedy=f"start it, then {AGAIN}")


def _one_line(failure: object) -> str:
    text = " ".join(str(failure).split()) or type(failure).__name__
    return harmless(text)[:200]
