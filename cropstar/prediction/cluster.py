"""Maps on a Dask cluster: this process plans, hands groups of blocks out and counts; workers compute and assemble.

Inputs are planned one after the other, as room for their blocks appears, so that many small tiles keep a large cluster
as busy as one large tile. Workers put maps together, too: one process could not keep up with hundreds. The folder of
blocks is that of a call without a cluster, and so is the map, to the byte; either goes on where the other was stopped.
"""

from __future__ import annotations

import copy
import re
import secrets
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cropstar.errors import CropstarError, MismatchError, ResourceError
from cropstar.execution.dask import DaskPool, Machine, connected, own_worker
from cropstar.execution.pool import Answer, ClientToken, PoolTask
from cropstar.execution.threads import ThreadCache
from cropstar.geo.windows import Window
from cropstar.prediction.blocks import BlockFolder
from cropstar.prediction.job import MapBatch, MapJob, load_predictor, open_job, require_possible
from cropstar.prediction.outputs import MapResult
from cropstar.prediction.predictor import Predictor, WindowPlan
from cropstar.prediction.request import MapInput, MapRequest
from cropstar.runtime import event, logger, progress_bar
from cropstar.store.files import locked

LARGEST_GROUP = 4  # blocks a task: one is read while another is computed
GROUPS = 3  # a thread, at least, of an input large enough: the last ones end at about the same time


@dataclass
class _Active:
    """A map in the making."""

    turn: int
    job: WorkerJob
    todo: list[Window]
    held: ExitStack  # its lock and token
    left: int = field(init=False)  # blocks that no worker has answered for
    failed: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.todo)


def predict_on_cluster(
    inputs: Sequence[MapInput],
    outputs: Sequence[Path],
    request: MapRequest,
    batch: MapBatch,
) -> None:
    """Maps of all inputs; what became of each goes into the batch."""
    assert request.scheduler is not None
    with connected(request.scheduler) as pool:
        device = choose_cluster_device(request.device, pool.machines)
        _warn_of_memory(request.memory, pool.machines)
        request = _absolute(request).replace(device=device.type)
        predictor = load_predictor(request, torch.device("cpu"))
        predictor.backend = pool.run_once(FindBackend(request))
        predictor.device = device  # it only plans here, for machines that need not be like this one
        with ExitStack() as held:
            _Feed(pool, batch, request, predictor, held).run(inputs, outputs)


def choose_cluster_device(name: str, machines: Sequence[Machine]) -> torch.device:
    """One kind for all workers, or the blocks of a map would differ; `auto` takes GPUs where every worker has one."""
    if name == "auto":
        return torch.device("cuda" if all("cuda" in machine.devices for machine in machines) else "cpu")
    lacking = sum(name not in machine.devices for machine in machines)
    if lacking:
        why = f"{lacking} of {len(machines)} workers have none"
        raise ResourceError(f"no {name} device on the cluster", why=why, remedy="use --device auto or --device cpu")
    return torch.device(name)


@dataclass
class _Feed:
    """Keeps the cluster supplied."""

    pool: DaskPool
    batch: MapBatch
    request: MapRequest
    predictor: Predictor
    held: ExitStack
    active: dict[str, _Active] = field(default_factory=dict)  # by the token of the job
    bar: Any = None
    pixels: int = 0

    def run(self, inputs: Sequence[MapInput], outputs: Sequence[Path]) -> None:
        started = time.monotonic()
        with progress_bar(0, "predict", "px", scale=True) as self.bar:
            for task, answer in self.pool.answers(self._tasks(inputs, outputs)):
                assert isinstance(task, PredictBlocks | AssembleMap)
                self._note(self.active[task.job.token], task.windows, answer)
        seconds = time.monotonic() - started
        if self.pixels:
            rate = f"{self.pixels / seconds:,.0f} px/s"
            event(f"{self.pixels:,} pixels in {seconds:.1f} s: {rate}", pixels=self.pixels, seconds=seconds)

    def _tasks(self, inputs: Sequence[MapInput], outputs: Sequence[Path]) -> Iterator[PoolTask]:
        """Groups of blocks, input after input; an input that lacks none is only put together."""
        for turn, (source, output) in enumerate(zip(inputs, outputs, strict=True)):
            try:
                active = self._plan(turn, replace(source, path=source.path.absolute()), output.absolute())
            except (CropstarError, OSError) as failure:
                self.batch.failed(failure, turn)
                continue
            if active is None:
                continue
            self.active[active.job.token] = active
            self._grow_bar(active)
            if not active.todo:
                yield AssembleMap(active.job)
            size = min(max(len(active.todo) // (self.pool.threads * GROUPS), 1), LARGEST_GROUP)
            for start in range(0, len(active.todo), size):
                if active.failed:
                    break
                yield PredictBlocks(active.job, tuple(active.todo[start : start + size]))

    def _plan(self, turn: int, source: MapInput, output: Path) -> _Active | None:
        """Lock and look at what is there; None of a map that is finished."""
        require_possible(source, output, self.request)
        with open_job(source, output, self.request, self.predictor) as job, ExitStack() as stack:
            stack.enter_context(job.holding_targets())
            if job.is_done():
                self.batch.done(job.result(None))
                return None
            job.require_room()
            windows = job.windows
            job.announce(len(windows), len(windows))
            sent = WorkerJob(source, output, self.request, job.key, job.plan, secrets.token_hex(8))
            stack.enter_context(locked(job.folder.folder, "the prediction"))
            stack.enter_context(sent.client.present())
            return _Active(turn, sent, job.missing(windows), self.held.enter_context(stack.pop_all()))

    def _note(self, active: _Active, windows: Sequence[Window], answer: Answer) -> None:
        """Count what a worker has answered; the last block of a map has it put together."""
        if active.failed:
            return
        if isinstance(answer, CropstarError):
            active.failed = True
            active.held.close()  # without the token, workers leave the rest of it alone
            self.batch.failed(answer, active.turn)
            return
        if not windows:
            active.held.close()
            active.job.folder.remove()  # which a worker could not while the lock was open, on some file systems
            self.batch.done(answer)
            return
        active.left -= len(windows)
        done = sum(window.height * window.width for window in windows)
        self.pixels += done
        self.bar.update(done)
        if active.left == 0:
            self.pool.submit(AssembleMap(active.job))

    def _grow_bar(self, active: _Active) -> None:
        self.bar.total += sum(window.height * window.width for window in active.todo)
        self.bar.refresh()


def _absolute(request: MapRequest) -> MapRequest:
    """Paths as they are called on every machine, whatever folder a worker was started in."""
    reading = dict(request.reading)
    if isinstance(reading.get("dates"), str):
        reading["dates"] = _absolute_list(reading["dates"])
    return request.replace(
        model=request.model.absolute(),
        state=request.state and request.state.absolute(),
        parcels=request.parcels and request.parcels.absolute(),
        mask=request.mask and request.mask.absolute(),
        reading=reading,
    )


def _absolute_list(value: str) -> str:
    """Dates, or the file in which they stand."""
    name = value.removeprefix("@")
    return f"@{Path(name).absolute()}" if value.startswith("@") or Path(name).is_file() else value


def _warn_of_memory(window: int, machines: Sequence[Machine]) -> None:
    """A nanny ends its worker without asking when that passes its limit."""
    shares = [machine.memory / machine.threads for machine in machines if machine.memory]
    if shares and min(shares) < window:
        logger.warning(
            "a worker has %.1f GB per thread, and windows may take %.1f GB; lower --memory, or give workers more",
            min(shares) / 1e9,
            window / 1e9,
        )


# --- In a worker
#
# Blocks go into the job's folder, which all machines share, just as those of shards: what is finished survives worker,
# scheduler and client, and no pixel passes through the scheduler. The client keeps a token in the folder. A worker that
# does not see it looks at another file system, or its client is gone; either way it must not write. One model is loaded
# in a process; every thread of it has its own open series.

REMEDY = "lower --memory, or give the worker more memory"


@dataclass(frozen=True)
class WorkerJob:
    """One map, as it is sent to workers."""

    source: MapInput
    output: Path
    request: MapRequest
    key: str
    plan: WindowPlan
    token: str  # of the client that wants it

    @property
    def folder(self) -> BlockFolder:
        return BlockFolder(self.output, self.key)

    @property
    def client(self) -> ClientToken:
        return ClientToken(self.folder.folder / f"client-{self.token}", "the map", self.output.parent)


@dataclass
class _Process:
    """What a worker process keeps between tasks."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    predictors: dict[tuple[Any, ...], Predictor] = field(default_factory=dict)  # one of them
    jobs: ThreadCache[MapJob] = field(default_factory=ThreadCache)


_process = _Process()


@dataclass(frozen=True)
class FindBackend:
    """Finds the backend that computes the model on workers, which the key of a job needs."""

    request: MapRequest

    def run(self, _: None) -> str:
        with _gpu_memory():
            return _predictor(self.request).backend


@dataclass(frozen=True)
class PredictBlocks:
    """Blocks, as far as they are not there: another worker may have died over the same task."""

    job: WorkerJob
    windows: tuple[Window, ...]

    def run(self, _: None) -> None:
        with (
            _gpu_memory(),
            _open(self.job) as opened,
            closing(opened.make(opened.folder.missing(self.windows))) as made,
        ):
            for _window in made:
                self.job.client.require_seen()


@dataclass(frozen=True)
class AssembleMap:
    """The map of its blocks. Done twice, because a worker died with the answer, it only looks."""

    job: WorkerJob
    windows: tuple[Window, ...] = ()

    def run(self, _: None) -> MapResult:
        with _gpu_memory():
            if not self.job.folder.folder.exists():
                with _open(self.job, seen=False) as opened:
                    if opened.is_complete():
                        return opened.result(None)
            # A client that gave up may have left another worker at it.
            with _open(self.job) as opened, locked(self.job.folder.folder / "assembly", "the map"):
                return opened.assemble()


def device_of(kind: torch.device, name: object, count: int) -> torch.device:
    """Which GPU is the worker's own, where it sees several: they are dealt out by the number that its name ends in."""
    if kind.type != "cuda" or count < 2:
        return kind
    number = re.search(r"(\d+)$", str(name))
    return torch.device("cuda", (int(number[1]) if number else zlib.crc32(str(name).encode())) % count)


@contextmanager
def _open(job: WorkerJob, *, seen: bool = True) -> Iterator[MapJob]:
    """The job with its series and model, opened by the thread's first task of it."""
    if seen:
        job.client.require_seen()
    with _process.jobs.opened(job.key, lambda stack: _newly_opened(job, stack)) as opened:
        files = replace(opened.files, map=job.output, options=job.request, state=job.request.state)
        yield replace(opened, request=job.request, files=files)


def _newly_opened(job: WorkerJob, stack: ExitStack) -> MapJob:
    request = job.request
    predictor = copy.copy(_predictor(request))  # whose weights are shared, and not how many series go at once
    opened = stack.enter_context(open_job(job.source, job.output, request, predictor, job.plan))
    if opened.key != job.key:
        why = "its model, its images or its backend differ from those of the client"
        remedy = "run workers with the same folders and the same cropstar as the client"
        raise MismatchError("the worker sees another job", path=job.source.path, why=why, remedy=remedy)
    return opened


def _predictor(request: MapRequest) -> Predictor:
    """The process's model; another one takes its place."""
    status = request.model.stat()
    file = (request.model, status.st_size, status.st_mtime_ns)
    key = (*file, request.device, request.halo, request.backend, request.unknown)
    with _process.guard:
        if key not in _process.predictors:
            _process.predictors.clear()
            kind = torch.device(request.device)
            count = torch.cuda.device_count() if kind.type == "cuda" else 0
            if kind.type == "cuda" and not count:
                raise ResourceError("no cuda device on a worker", remedy="give --device cpu, or workers with GPUs only")
            _process.predictors[key] = load_predictor(request, device_of(kind, own_worker().name, count))
        return _process.predictors[key]


@contextmanager
def _gpu_memory() -> Iterator[None]:
    """A GPU without memory, as one of our errors."""
    try:
        yield
    except torch.OutOfMemoryError as failure:
        why = str(failure).partition("\n")[0]
        raise ResourceError("a worker is out of memory", why=why, remedy=REMEDY) from None
