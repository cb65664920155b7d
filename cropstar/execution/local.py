"""Processes of this machine.

They are started afresh, never forked: GDAL and HDF5 do not survive a fork. Each is sent what is shared once and then
one task after the other. They do not listen to signals: the process that started them stops them, and they stop by
themselves as soon as it is gone. What they log comes out in its log, and what they raise is raised there.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType, TracebackType
from typing import Any

from cropstar.errors import CropstarError, ResourceError
from cropstar.execution.pool import Answer, PoolTask, WorkerPool, as_cropstar_error
from cropstar.geo.raster import bound_gdal
from cropstar.runtime import logger, processors, set_up_logging, showing_progress
from cropstar.signals import is_command

MOST_WORKERS = 8  # by default: more wait for one disk
FEWEST_TASKS = 4  # for which workers, who need a second or two to start, are worth it
SMALLEST_VOLUME = 64_000_000  # bytes, likewise
REMEDY = "use --workers 1 or more memory"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def default_workers() -> int:
    """The processors that this process may use, up to eight."""
    return max(min(processors(), MOST_WORKERS), 1)


class LocalPool(WorkerPool):
    """Processes of this machine, or this process alone when there is little to do."""

    one_disk = True

    def __init__(self, workers: int = 1) -> None:
        self._wanted = workers
        self._shared: Any = None
        self._queue: deque[PoolTask] = deque()
        self._workers: dict[Connection, SpawnProcess] = {}

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.killed = bool(self._workers) and kind is not None
        for connection, process in self._workers.items():
            if kind is not None:
                process.kill()
            connection.close()  # a worker that waits for a task ends
        for process in self._workers.values():
            process.join(timeout=10)
            process.kill()
            process.join()
        self._workers.clear()

    @property
    def threads(self) -> int:
        return self._wanted

    def share(self, content: Any) -> None:
        self._shared = content

    def submit(self, task: PoolTask) -> None:
        self._queue.append(task)

    def answers(self, tasks: Iterable[PoolTask], *, volume: int | None = None) -> Iterator[tuple[PoolTask, Answer]]:
        self._queue.extend(tasks)
        if self._queue and self._worth_it(volume) and self._start():
            yield from self._share_out()
        while self._queue:
            task = self._queue.popleft()
            try:
                answer = task.run(self._shared)
            except CropstarError as failure:
                answer = failure
            yield task, answer

    def _worth_it(self, volume: int | None) -> bool:
        if self._workers:
            return volume != 0
        enough = volume is None or volume >= SMALLEST_VOLUME
        return self._wanted > 1 and len(self._queue) >= FEWEST_TASKS and enough

    def _start(self) -> bool:
        """Start the workers, unless they are there."""
        while len(self._workers) < self._wanted:
            own_end, worker_end = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_run_worker, args=(worker_end, self._shared, logger.getEffectiveLevel()), daemon=True
            )
            try:
                with _signals_held_back(), _main_module_left_out():
                    process.start()
            except OSError:
                raise
            except Exception as failure:  # something in it cannot be pickled, which raises many kinds of errors
                logger.debug("the work cannot be sent to workers, using one process: %s", failure)
                self._wanted = 1
                return False
            worker_end.close()  # so that the end of the worker is the end of the connection
            self._workers[own_end] = process
        return True

    def _share_out(self) -> Iterator[tuple[PoolTask, Answer]]:
        """One task for each worker, then the next one for the first worker that is done."""
        busy: dict[Connection, PoolTask] = {}
        free = deque(self._workers)
        while self._queue or busy:
            while self._queue and free:
                connection = free.popleft()
                busy[connection] = self._queue.popleft()
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
            return CropstarError("a worker stopped unexpectedly", why=why, remedy=remedy)
        why = f"signal {-(code or 0)}; the system kills processes when memory runs out"
        return ResourceError("a worker was killed", why=why, remedy=REMEDY)


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Signals wait while a process starts, which inherits that: Ctrl-C in a terminal reaches all of them.

    The mask is the thread's own. A signal may still reach the process through another thread, and Python would then
    interrupt this one in the middle of telling the new process what to do: so the handlers wait as well.
    """
    resource_tracker.ensure_running()  # Python's own helper, whose start would let the signals through again
    waiting: list[int] = []
    handlers: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.signal(number, lambda each, _: waiting.append(each)) for number in SIGNALS}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(waiting):
            signal.raise_signal(number)


@contextmanager
def _main_module_left_out() -> Iterator[None]:
    """A new process would import the script of the user, who calls us from its top level, and run it once more.

    The command's own module is safe to import, and sets workers up.
    """
    if is_command():
        yield
        return
    script = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script


# --- In a worker


def _run_worker(connection: Connection, shared: Any, level: int) -> None:
    """Do tasks until there are no more."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    bound_gdal(threads=1)
    os.environ["OMP_NUM_THREADS"] = "1"  # the other processors have workers of their own
    _log_to(connection, level)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with showing_progress(False):  # by the process that started this one
        _work(connection, shared)


def _work(connection: Connection, shared: Any) -> None:
    while True:
        try:
            task: PoolTask = connection.recv()
        except (EOFError, ConnectionError):
            return
        answer: Answer
        try:
            answer = task.run(shared)
        except Exception as failure:
            answer = as_cropstar_error(failure, REMEDY)
        try:
            connection.send(("done", answer))
        except ConnectionError:
            return


def _end_with_parent() -> None:
    """Also in the middle of a job: nobody waits for it any more, and another ingest may begin."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class _Sender(logging.Handler):
    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = getattr(record, "fields", {})
        self._connection.send(("log", (record.levelno, record.getMessage(), fields)))


def _log_to(connection: Connection, level: int) -> None:
    set_up_logging()
    logger.handlers[:] = [_Sender(connection)]
    logger.setLevel(level)
