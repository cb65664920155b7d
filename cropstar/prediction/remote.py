"""What a worker of a cluster does: blocks of a map, and at last the map.

Blocks go into the job's folder, which all machines share, just as those of shards: what is finished survives worker,
scheduler and client, and no pixel passes through the scheduler. The client keeps a token in the folder. A worker that
does not see it looks at another file system, or its client is gone; either way it must not write. One model is loaded
in a process; every thread of it has its own open series.
"""

from __future__ import annotations

import copy
import re
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cropstar.cluster import require_seen
from cropstar.errors import MismatchError, ResourceError
from cropstar.geo.windows import Window
from cropstar.holding import Holder
from cropstar.prediction.blocks import BlockFolder
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.options import MapResult, PredictOptions
from cropstar.prediction.planning import WindowPlan
from cropstar.prediction.predict import Job, opened_job, predictor_of
from cropstar.prediction.predictor import Predictor
from cropstar.sources.workers import one_line_failures
from cropstar.store.files import locked

REMEDY = "give --memory less, or the worker more"


@dataclass(frozen=True)
class RemoteJob:
    """One map, as it is sent to workers."""

    source: MapInput
    output: Path
    options: PredictOptions
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
    jobs: Holder[Job] = field(default_factory=Holder)


_process = _Process()


def backend_of(options: PredictOptions) -> str:
    """What computes the model on workers: a part of the key that the client cannot know."""
    with _reporting():
        return _predictor(options).backend


def compute(job: RemoteJob, windows: Sequence[Window]) -> None:
    """Blocks, as far as they are not there: another worker may have died over the same task."""
    with _reporting(), _open(job) as opened, closing(opened.make(opened.folder.missing(windows))) as made:
        for _ in made:
            _require_wanted(job)


def assemble(job: RemoteJob) -> MapResult:
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
def _open(job: RemoteJob, *, seen: bool = True) -> Iterator[Job]:
    """The job with its series and model, opened by the thread's first task of it."""
    if seen:
        _require_wanted(job)
    with _process.jobs.held(job.key, lambda stack: _newly_opened(job, stack)) as opened:
        files = replace(opened.files, map=job.output, wanted=job.options.wanted, state=job.options.state)
        yield replace(opened, options=job.options, files=files)


def _newly_opened(job: RemoteJob, stack: ExitStack) -> Job:
    options = job.options
    predictor = copy.copy(_predictor(options))  # whose weights are shared, and not how many series go at once
    found = stack.enter_context(opened_job(job.source, job.output, options, predictor, job.plan))
    if found.key != job.key:
        why = "its model, its images or what computes there are others than for the client"
        remedy = "run workers with the same folders and the same cropstar as the client"
        raise MismatchError("the worker sees another job", path=job.source.path, why=why, remedy=remedy)
    return found


def _predictor(options: PredictOptions) -> Predictor:
    """The process's model; another one takes its place."""
    status = options.model.stat()
    key = (options.model, status.st_size, status.st_mtime_ns, options.device, options.halo, options.backend)
    with _process.guard:
        if key not in _process.predictors:
            _process.predictors.clear()
            count = torch.cuda.device_count() if options.device.type == "cuda" else 0
            if options.device.type == "cuda" and not count:
                raise ResourceError("no cuda device on a worker", remedy="give --device cpu, or workers with GPUs only")
            device = device_of(options.device, _own_name(), count)
            _process.predictors[key] = predictor_of(options, device)
        return _process.predictors[key]


def _own_name() -> object:
    from distributed import get_worker

    return get_worker().name


def _require_wanted(job: RemoteJob) -> None:
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
