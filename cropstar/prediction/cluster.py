"""Maps on a Dask cluster: this process plans, hands groups of blocks out and counts; workers compute and assemble.

Inputs are planned one after the other, as room for their blocks appears, so that many small tiles keep a large cluster
as busy as one large tile. Workers put maps together, too: one process could not keep up with hundreds. The folder of
blocks is that of a call without a cluster, and so is the map, to the byte; either goes on where the other was stopped.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from cropstar.cluster import Cluster, ClusterChoice, Machine, Task
from cropstar.connecting import connected
from cropstar.errors import CropstarError, ResourceError
from cropstar.geo.windows import Window
from cropstar.prediction.batch import Batch
from cropstar.prediction.inputs import MapInput
from cropstar.prediction.options import PredictOptions, require_place
from cropstar.prediction.predict import opened_job, predictor_of
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.remote import RemoteJob, assemble, backend_of, compute, forget
from cropstar.runtime import event, logger, progress_bar
from cropstar.store.files import locked

LARGEST_GROUP = 4  # blocks a task: one is read while another is computed
GROUPS = 3  # a thread, at least, of an input large enough: the last ones end at about the same time


@dataclass
class _Active:
    """A map in the making."""

    turn: int
    remote: RemoteJob
    todo: list[Window]
    held: ExitStack  # its lock and token
    left: int = field(init=False)  # blocks that no worker has answered for
    failed: bool = False

    def __post_init__(self) -> None:
        self.left = len(self.todo)


def predict_on_cluster(
    inputs: Sequence[MapInput],
    outputs: Sequence[Path],
    options: PredictOptions,
    choice: ClusterChoice,
    batch: Batch,
) -> None:
    """Maps of all inputs; what became of each goes into the batch."""
    with connected(choice.address) as cluster:
        device = choose_remote_device(choice.device, cluster.machines)
        _warn_of_memory(options.memory, cluster.machines)
        options = replace(_absolute(options), device=device)
        predictor = predictor_of(options, torch.device("cpu"))
        predictor.backend = cluster.ask("model", backend_of, options)
        predictor.device = device  # it only plans here, for machines that need not be like this one
        with ExitStack() as held:
            _Feed(cluster, batch, options, predictor, held).run(inputs, outputs)
        cluster.on_all(forget)


def choose_remote_device(name: str, machines: Sequence[Machine]) -> torch.device:
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
    options: PredictOptions
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
                yield Task("assemble", (active, ()), assemble, (active.remote,))
            size = min(max(len(active.todo) // (self.cluster.threads * GROUPS), 1), LARGEST_GROUP)
            for start in range(0, len(active.todo), size):
                if active.failed:
                    break
                windows = active.todo[start : start + size]
                yield Task("predict", (active, windows), compute, (active.remote, windows))

    def _plan(self, turn: int, source: MapInput, output: Path) -> _Active | None:
        """Lock and look at what is there; None of a map that is finished."""
        require_place(source, output, self.options)
        with opened_job(source, output, self.options, self.predictor) as job:
            if job.is_done():
                self.batch.done(job.result(None))
                return None
            windows = job.windows
            job.announce(len(windows), len(windows))
            remote = RemoteJob(source, output, self.options, job.key, job.plan, secrets.token_hex(8))
            with ExitStack() as stack:
                stack.enter_context(locked(job.folder.folder, "the prediction"))
                stack.callback(remote.token_file.unlink, missing_ok=True)
                remote.token_file.touch()
                return _Active(turn, remote, job.missing(windows), self.held.enter_context(stack.pop_all()))

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
            active.remote.folder.remove()  # which a worker could not while the lock was open, on some file systems
            self.batch.done(answer)
            return
        active.left -= len(windows)
        done = sum(window.height * window.width for window in windows)
        self.pixels += done
        self.bar.update(done)
        if active.left == 0:
            self.cluster.submit("assemble", (active, ()), assemble, active.remote)

    def _grow_bar(self, active: _Active) -> None:
        self.bar.total += sum(window.height * window.width for window in active.todo)
        self.bar.refresh()


def _absolute(options: PredictOptions) -> PredictOptions:
    """Paths as they are called on every machine, whatever folder a worker was started in."""
    wanted = options.wanted
    if wanted.parcels is not None:
        wanted = replace(wanted, parcels=wanted.parcels.absolute())
    state = None if options.state is None else options.state.absolute()
    given = dict(options.given)
    if isinstance(given.get("dates"), str):
        given["dates"] = _absolute_list(given["dates"])
    return replace(options, model=options.model.absolute(), state=state, wanted=wanted, given=given)


def _absolute_list(value: str) -> str:
    """Dates, or the file in which they stand."""
    name = value.removeprefix("@")
    return f"@{Path(name).absolute()}" if value.startswith("@") or Path(name).is_file() else value


def _absolute_input(source: MapInput) -> MapInput:
    return replace(source, path=source.path.absolute())


def _warn_of_memory(wanted: int, machines: Sequence[Machine]) -> None:
    """A nanny ends its worker without asking when that passes its limit."""
    shares = [machine.memory / machine.threads for machine in machines if machine.memory]
    if shares and min(shares) < wanted:
        logger.warning(
            "a worker has %.1f GB a thread, and windows may take %.1f GB; give --memory less, or workers more",
            min(shares) / 1e9,
            wanted / 1e9,
        )
