"""Processes that share the work of an ingest, and the one that stays in this process when there is little to do.

Workers are started afresh, never forked: GDAL and HDF5 do not survive a fork. Each is sent the scenes once and then
one job after the other. They do not listen to signals: the process that started them stops them, and they stop by
themselves as soon as it is gone. What they log comes out in its log, and what they raise is raised there.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import TracebackType
from typing import Any

from cropstar import logs
from cropstar.errors import CropstarError, ResourceError, from_os_error
from cropstar.logs import logger
from cropstar.sources.jobs import Job
from cropstar.sources.scene import Scene
from cropstar.store.atomic import sweep
from cropstar.store.store import TILES

MOST_WORKERS = 8  # by default: more wait for one disk
FEWEST_JOBS = 4  # for which workers, who need a second or two to start, are worth it
SMALLEST_VOLUME = 64_000_000  # bytes of values, likewise
GDAL_CACHE_MEGABYTES = 256  # of one process; GDAL itself takes a twentieth of the computer's memory
REMEDY = "use --workers 1 or more memory"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
Outcome = tuple[Job, bool]


def default_workers() -> int:
    """The processors that this process may use, up to eight."""
    try:
        available = len(os.sched_getaffinity(0))
    except AttributeError:  # no affinity on macOS
        available = os.cpu_count() or 1
    return max(min(available, MOST_WORKERS), 1)


def bound_gdal(*, threads: int | None = None) -> None:
    """Bound GDAL's memory, and its threads, unless the user did. Only works before GDAL has read its first pixel."""
    os.environ.setdefault("GDAL_CACHEMAX", str(GDAL_CACHE_MEGABYTES))
    if threads is not None:
        os.environ.setdefault("GDAL_NUM_THREADS", str(threads))


class Crew:
    """Does jobs on scenes. `with Crew(...) as crew: for job, answer in crew.run(jobs): ...`, in any order."""

    def __init__(self, scenes: Sequence[Scene], folder: Path, workers: int = 1) -> None:
        self._scenes = scenes
        self._folder = folder
        self._wanted = workers
        self._workers: dict[Connection, SpawnProcess] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for connection, process in self._workers.items():
            if kind is not None:
                process.kill()
            connection.close()  # a worker that waits for a job ends
        for process in self._workers.values():
            process.join(timeout=10)
            process.kill()
            process.join()
        if self._workers and kind is not None:
            sweep(self._folder / TILES)  # what the killed ones were writing
        self._workers.clear()

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """All jobs with their answers."""
        if not jobs:
            return
        if self._worth_it(jobs) and self._start():
            yield from self._share(jobs)
        else:
            for job in jobs:
                yield job, job.do(self._scenes, self._folder)

    def _worth_it(self, jobs: Sequence[Job]) -> bool:
        volume = getattr(self._scenes[jobs[0].scene], "volume", 0)
        if self._workers:
            return bool(volume)
        return self._wanted > 1 and len(jobs) >= FEWEST_JOBS and volume >= SMALLEST_VOLUME

    def _start(self) -> bool:
        """Start the workers, unless they are there."""
        scenes = [scene if getattr(scene, "volume", 0) else None for scene in self._scenes]
        while len(self._workers) < self._wanted:
            here, there = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=work, args=(there, scenes, self._folder, logger.getEffectiveLevel()), daemon=True
            )
            try:
                with _signals_held_back():
                    process.start()
            except OSError:
                raise
            except Exception as failure:  # something in a scene cannot be pickled, which is told in many ways
                logger.debug("the scenes cannot be sent to workers and are built by one process: %s", failure)
                self._wanted = 1
                return False
            there.close()  # so that the end of the worker is the end of the connection
            self._workers[here] = process
        return True

    def _share(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """One job for each worker, the next one for whoever is done."""
        waiting = deque(jobs)
        busy: dict[Connection, Job] = {}
        free = deque(self._workers)
        while waiting or busy:
            while waiting and free:
                connection = free.popleft()
                busy[connection] = waiting.popleft()
                try:
                    connection.send(busy[connection])
                except ConnectionError:
                    raise self._lost(connection) from None
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                try:
                    kind, content = ready.recv()
                except (EOFError, ConnectionError):
                    raise self._lost(ready) from None
                if kind == "failed":
                    raise content
                if kind == "log":
                    level, message, fields = content
                    logger.log(level, "%s", message, extra={"fields": fields})
                else:
                    free.append(ready)
                    yield busy.pop(ready), content

    def _lost(self, connection: Connection) -> CropstarError:
        """A worker is gone without a word: most often the system took its memory."""
        process = self._workers[connection]
        process.join(timeout=10)
        code = process.exitcode
        if code is not None and code > 0:
            why, remedy = f"it ended with code {code}", "run again with --workers 1 to see why"
            return CropstarError("a worker could not go on", why=why, remedy=remedy)
        why = f"signal {-(code or 0)}; the system kills processes when memory runs out"
        return ResourceError("a worker was killed", why=why, remedy=REMEDY)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Signals wait while a process starts, which inherits that: Ctrl-C in a terminal reaches all of them."""
    resource_tracker.ensure_running()  # Python's own helper, whose start would let the signals through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# In the worker


def work(connection: Connection, scenes: Sequence[Scene | None], folder: Path, level: int) -> None:
    """Do jobs until there are no more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    bound_gdal(threads=1)
    _log_to(connection, level)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            job: Job = connection.recv()
        except (EOFError, ConnectionError):
            return
        answer: tuple[str, object]
        try:
            answer = ("done", job.do(scenes, folder))
        except Exception as failure:
            answer = ("failed", portable(failure))
        try:
            connection.send(answer)
        except ConnectionError:
            return


def _end_with_parent() -> None:
    """Also in the middle of a job: nobody waits for it any more, and another ingest may begin."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def portable(failure: Exception, *, remedy: str = REMEDY) -> CropstarError:
    """A failure as one of ours, with the traceback that --debug shows."""
    if isinstance(failure, CropstarError):
        error = failure
    elif isinstance(failure, OSError):
        error = from_os_error(failure)
    elif isinstance(failure, MemoryError):
        error = ResourceError("out of memory", why=str(failure) or None, remedy=remedy)
    else:
        why = f"{type(failure).__name__}: {failure}"
        error = CropstarError("internal error", why=why, remedy="run again with --debug and report the traceback")
    error.add_note(f"In a worker:\n{''.join(traceback.format_exception(failure))}")
    return error


@contextmanager
def reporting(remedy: str) -> Iterator[None]:
    """Within a task of a cluster: failures as they can be sent and read in one line.

    Dask would send what a failure came of, too, and libraries have errors that cannot be: the note tells it.
    """
    error: CropstarError | None = None
    try:
        yield
    except Exception as failure:
        error = portable(failure, remedy=remedy)
    if error is not None:
        error.__cause__ = error.__context__ = None
        raise error


class _Sender(logging.Handler):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        self._connection.send(("log", (record.levelno, record.getMessage(), fields)))


def _log_to(connection: Connection, level: int) -> None:
    logs.set_up()
    logger.handlers[:] = [_Sender(connection)]
    logger.setLevel(level)
