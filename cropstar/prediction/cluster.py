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

from cropstar.cluster import Cluster, Machine, Task, require_seen
from cropstar.connecting import connected
from cropstar.errors import CropstarError, MismatchError, ResourceError
from cropstar.geo.windows import Window
from cropstar.holding import Holder
from cropstar.prediction.blocks import BlockFolder
from cropstar.prediction.job import Batch, MapJob, load_predictor, open_job, require_possible
from cropstar.prediction.outputs import MapResult
from cropstar.prediction.predictor import Predictor, WindowPlan
from cropstar.prediction.request import MapInput, MapRequest
from cropstar.runtime import event, logger, progress_bar
from cropstar.sources.workers import one_line_failures
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
    batch: Batch,
) -> None:
    """Maps of all inputs; what became of each goes into the batch."""
    assert request.scheduler is not None
    with connected(request.scheduler) as cluster:
        device = choose_cluster_device(request.device, cluster.machines)
        _warn_of_memory(request.memory, cluster.machines)
        request = _absolute(request).replace(device=device.type)
        predictor = load_predictor(request, torch.device("cpu"))
        predictor.backend = cluster.ask("model", backend_of, request)
        predictor.device = device  # it only plans here, for machines that need not be like this one
        with ExitStack() as held:
            _Feed(cluster, batch, request, predictor, held).run(inputs, outputs)
        cluster.on_all(forget)


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

    cluster: Cluster
    batch: Batch
    request: MapRequest
    predictor: Predictor
    held: ExitStack
    bar: Any = None
    pixels: int = 0

    def run(self, inputs: Sequence[MapInput], outputs: Sequence[Path]) -> None:
        started = time.monotonic()
        with progress_bar(0, "predict", "px", scale=True) as self.bar:
            for (active, windows), answer in self.cluster.through(self._tasks(inputs, outputs)):
                self._note(active, windows, answer)
        seconds = time.monotonic() - started
        if self.pixels:
            rate = f"{self.pixels / seconds:,.0f} px/s"
            event(f"{self.pixels:,} pixels in {seconds:.1f} s: {rate}", pixels=self.pixels, seconds=seconds)

    def _tasks(self, inputs: Sequence[MapInput], outputs: Sequence[Path]) -> Iterator[Task]:
        """Groups of blocks, input after input; an input that lacks none is only put together."""
        for turn, (source, output) in enumerate(zip(inputs, outputs, strict=True)):
            try:
                active = self._plan(turn, _absolute_input(source), output.absolute())
            except (CropstarError, OSError) as failure:
                self.batch.failed(failure, turn)
                continue
            if active is None:
                continue
            self._grow_bar(active)
            if not active.todo:
                yield Task("assemble", (active, ()), assemble, (active.job,))
            size = min(max(len(active.todo) // (self.cluster.threads * GROUPS), 1), LARGEST_GROUP)
            for start in range(0, len(active.todo), size):
                if active.failed:
                    break
                windows = active.todo[start : start + size]
                yield Task("predict", (active, windows), compute, (active.job, windows))

    def _plan(self, turn: int, source: MapInput, output: Path) -> _Active | None:
        """Lock and look at what is there; None of a map that is finished."""
        require_possible(source, output, self.request)
        with open_job(source, output, self.request, self.predictor) as job:
            if job.is_done():
                self.batch.done(job.result(None))
                return None
            windows = job.windows
            job.announce(len(windows), len(windows))
            sent = WorkerJob(source, output, self.request, job.key, job.plan, secrets.token_hex(8))
            with ExitStack() as stack:
                stack.enter_context(locked(job.folder.folder, "the prediction"))
                stack.callback(sent.token_file.unlink, missing_ok=True)
                sent.token_file.touch()
                return _Active(turn, sent, job.missing(windows), self.held.enter_context(stack.pop_all()))

    def _note(self, active: _Active, windows: Sequence[Window], answer: Any) -> None:
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
            self.cluster.submit("assemble", (active, ()), assemble, active.job)

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
        reading=reading,
    )


def _absolute_list(value: str) -> str:
    """Dates, or the file in which they stand."""
    name = value.removeprefix("@")
    return f"@{Path(name).absolute()}" if value.startswith("@") or Path(name).is_file() else value


def _absolute_input(source: MapInput) -> MapInput:
    return replace(source, path=source.path.absolute())


def _warn_of_memory(window: int, machines: Sequence[Machine]) -> None:
    """A nanny ends its worker without asking when that passes its limit."""
    shares = [machine.memory / machine.threads for machine in machines if machine.memory]
    if shares and min(shares) < window:
        logger.warning(
            "a worker has %.1f GB a thread, and windows may take %.1f GB; give --memory less, or workers more",
            min(shares) / 1e9,
            window / 1e9,
        )


# --- In a worker
#
# Blocks go into the job's folder, which all machines share, just as those of shards: what is finished survives worker,
# scheduler and client, and no pixel passes through the scheduler. The client keeps a token in the folder. A worker that
# does not see it looks at another file system, or its client is gone; either way it must not write. One model is loaded
# in a process; every thread of it has its own open series.

REMEDY = "give --memory less, or the worker more"


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
    def token_file(self) -> Path:
        return self.folder.folder / f"client-{self.token}"


@dataclass
class _Process:
    """What the worker's process holds."""

    guard: threading.Lock = field(default_factory=threading.Lock)
    predictors: dict[tuple[Any, ...], Predictor] = field(default_factory=dict)  # one of them
    jobs: Holder[MapJob] = field(default_factory=Holder)


_process = _Process()


def backend_of(request: MapRequest) -> str:
    """What computes the model on workers: a part of the key that the client cannot know."""
    with _reporting():
        return _predictor(request).backend


def compute(job: WorkerJob, windows: Sequence[Window]) -> None:
    """Blocks, as far as they are not there: another worker may have died over the same task."""
    with _reporting(), _open(job) as opened, closing(opened.make(opened.folder.missing(windows))) as made:
        for _ in made:
            _require_client(job)


def assemble(job: WorkerJob) -> MapResult:
    """The map of its blocks. Done twice, because a worker died with the answer, it only looks."""
    with _reporting():
        if not job.folder.folder.exists():
            with _open(job, seen=False) as opened:
                if opened.is_there():
                    return opened.result(None)
        # A client that gave up may have left another worker at it.
        with _open(job) as opened, locked(job.folder.folder / "assembly", "the map"):
            return opened.assemble()


def forget() -> None:
    """Close what no task uses."""
    _process.jobs.close_idle()


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
        _require_client(job)
    with _process.jobs.held(job.key, lambda stack: _newly_opened(job, stack)) as opened:
        files = replace(opened.files, map=job.output, options=job.request, state=job.request.state)
        yield replace(opened, request=job.request, files=files)


def _newly_opened(job: WorkerJob, stack: ExitStack) -> MapJob:
    request = job.request
    predictor = copy.copy(_predictor(request))  # whose weights are shared, and not how many series go at once
    found = stack.enter_context(open_job(job.source, job.output, request, predictor, job.plan))
    if found.key != job.key:
        why = "its model, its images or what computes there are others than for the client"
        remedy = "run workers with the same folders and the same cropstar as the client"
        raise MismatchError("the worker sees another job", path=job.source.path, why=why, remedy=remedy)
    return found


def _predictor(request: MapRequest) -> Predictor:
    """The process's model; another one takes its place."""
    status = request.model.stat()
    key = (request.model, status.st_size, status.st_mtime_ns, request.device, request.halo, request.backend)
    with _process.guard:
        if key not in _process.predictors:
            _process.predictors.clear()
            kind = torch.device(request.device)
            count = torch.cuda.device_count() if kind.type == "cuda" else 0
            if kind.type == "cuda" and not count:
                raise ResourceError("no cuda device on a worker", remedy="give --device cpu, or workers with GPUs only")
            _process.predictors[key] = load_predictor(request, device_of(kind, _own_name(), count))
        return _process.predictors[key]


def _own_name() -> object:
    from distributed import get_worker

    return get_worker().name


def _require_client(job: WorkerJob) -> None:
    require_seen(job.token_file, "the map", job.output.parent)


@contextmanager
def _reporting() -> Iterator[None]:
    """Failures as they can be sent and read in one line."""
    with one_line_failures(REMEDY):
        try:
            yield
        except torch.OutOfMemoryError as failure:
            why = str(failure).partition("\n")[0]
            raise ResourceError("a worker is out of memory", why=why, remedy=REMEDY) from None
