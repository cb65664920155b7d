"""Workers of an ingest: processes of this machine, or those of a Dask cluster. Both make the same tiles.

Local workers are started afresh, never forked: GDAL and HDF5 do not survive a fork. Each is sent the scenes once and
then one job after the other. They do not listen to signals: the process that started them stops them, and they stop
by themselves as soon as it is gone. What they log comes out in its log, and what they raise is raised there.

On a cluster this process plans and counts, workers read and write. A store is the same to the byte whoever made its
tiles, and a run that was stopped can go on either way. Local workers share one large scratch file. Workers on other
machines get parts of a scene instead, each decoded into a file on the worker's own disk: nothing decoded crosses the
network, and when a worker dies another one continues its part from the tiles that are there.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import secrets
import signal
import threading
import traceback
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from cropstar.cluster import Cluster, Task, pack, require_seen, unpack
from cropstar.errors import CropstarError, ResourceError, UsageError, from_os_error
from cropstar.holding import Holder
from cropstar.runtime import logger, progress_bar, set_up_logging
from cropstar.sources.base import RasterScene, Scene, TileSpec
from cropstar.sources.decoding import Scratch, around, decoded_bytes, scratch_bytes, scratch_file
from cropstar.store.files import PARTIAL, sweep
from cropstar.store.store import TILES, tile_path
from cropstar.store.tile import flush_tiles, is_whole, write_tile

MOST_WORKERS = 8  # by default: more wait for one disk
FEWEST_JOBS = 4  # for which workers, who need a second or two to start, are worth it
SMALLEST_VOLUME = 64_000_000  # bytes of values, likewise
GDAL_CACHE_MEGABYTES = 256  # of one process; GDAL itself takes a twentieth of the computer's memory
REMEDY = "use --workers 1 or more memory"
SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


class WorkerPool:
    """Processes of this machine that do jobs on scenes, or this process alone when there is little to do.

    `with WorkerPool(...) as pool: for job, answer in pool.run(jobs): ...`; answers come in any order.
    """

    def __init__(self, scenes: Sequence[Scene], folder: Path, workers: int = 1) -> None:
        self._scenes = scenes
        self._folder = folder
        self._wanted = workers
        self._workers: dict[Connection, SpawnProcess] = {}

    def __enter__(self) -> WorkerPool:
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

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, bool]]:
        """All jobs with their answers."""
        if not jobs:
            return
        if self._worth_it(jobs) and self._start():
            yield from self._share(jobs)
        else:
            for job in jobs:
                yield job, job.do(self._scenes, self._folder)

    def make_tiles(self, number: int, specs: Sequence[TileSpec]) -> Iterator[int]:
        """Make tiles of the scene with that number; how many, whenever some are done."""
        scene = self._scenes[number]
        if not isinstance(scene, RasterScene) or scene.decoding is None:
            yield from (1 for _ in self.run([MakeTile(number, spec, None) for spec in specs]))
            return
        for cell in scene.cells(specs, scratch_bytes(self._folder)):
            window = around([spec.window for spec in cell])
            with scratch_file(self._folder / TILES, scene.decoding, window) as scratch:
                self._decode(number, scene, scratch)
                yield from (1 for _ in self.run([MakeTile(number, spec, scratch) for spec in cell]))

    def _decode(self, number: int, scene: RasterScene, scratch: Scratch) -> None:
        """All layers that are needed: of a chain only the first, where there is nothing to be seen in it."""
        assert scene.decoding is not None
        chains = scene.decoding.decoding_chains()
        with progress_bar(sum(map(len, chains)), f"decode {scene.name}", "file") as bar:
            seen = set()
            for job, found in self.run([DecodeLayer(number, chain[0], scratch) for chain in chains]):
                bar.update()
                if found and isinstance(job, DecodeLayer):
                    seen.add(job.layer)
            rest = [layer for chain in chains if chain[0] in seen for layer in chain[1:]]
            for _ in self.run([DecodeLayer(number, layer, scratch) for layer in rest]):
                bar.update()

    def _worth_it(self, jobs: Sequence[Job]) -> bool:
        volume = self._scenes[jobs[0].scene].volume
        if self._workers:
            return bool(volume)
        return self._wanted > 1 and len(jobs) >= FEWEST_JOBS and volume >= SMALLEST_VOLUME

    def _start(self) -> bool:
        """Start the workers, unless they are there."""
        scenes = [scene if scene.volume else None for scene in self._scenes]
        while len(self._workers) < self._wanted:
            here, there = multiprocessing.Pipe()
            process = multiprocessing.get_context("spawn").Process(
                target=_run_worker, args=(there, scenes, self._folder, logger.getEffectiveLevel()), daemon=True
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

    def _share(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, bool]]:
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


# In the worker


def _run_worker(connection: Connection, scenes: Sequence[Scene | None], folder: Path, level: int) -> None:
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
            answer = ("failed", _as_cropstar_error(failure))
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


def _as_cropstar_error(failure: Exception, *, remedy: str = REMEDY) -> CropstarError:
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
def one_line_failures(remedy: str) -> Iterator[None]:
    """Within a task of a cluster: failures as they can be sent and read in one line.

    Dask would send what a failure came of, too, and libraries have errors that cannot be: the note tells it.
    """
    error: CropstarError | None = None
    try:
        yield
    except Exception as failure:
        error = _as_cropstar_error(failure, remedy=remedy)
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
    set_up_logging()
    logger.handlers[:] = [_Sender(connection)]
    logger.setLevel(level)


# --- A Dask cluster: in this process

PART_BYTES = 2**30  # of a part's scratch file at most: every thread of a worker has one
PARTS_PER_THREAD = 3  # a thread, of a scene large enough: the last ones end at about the same time
NO_CLUSTER = "leave --scheduler out"


class ClusterPool:
    """Does jobs on scenes, as a `WorkerPool` does. The scenes were opened by paths that are right on every machine."""

    def __init__(self, cluster: Cluster, scenes: Sequence[Scene], folder: Path) -> None:
        self._cluster = cluster
        self._scenes = scenes
        self._ingest = RemoteIngest(folder.absolute(), secrets.token_hex(8))
        self._packed = _pack_scenes(scenes)
        self._shared: Any = None

    def __enter__(self) -> ClusterPool:
        self._shared = self._cluster.share("scenes", self._packed)
        self._ingest.token_file.touch()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._ingest.token_file.unlink(missing_ok=True)  # workers leave the rest alone
        if kind is None:
            self._cluster.on_all(_close_idle_scenes)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, bool]]:
        """All jobs with their answers."""
        return self._through(jobs)

    def make_tiles(self, number: int, specs: Sequence[TileSpec]) -> Iterator[int]:
        """Make tiles of the scene with that number; how many, whenever some are done."""
        scene = self._scenes[number]
        if not isinstance(scene, RasterScene) or scene.decoding is None:
            yield from (1 for _ in self.run([MakeTile(number, spec, None) for spec in specs]))
            return
        for part, _ in self._through([MakePart(number, tuple(cell)) for cell in self._cells(scene, specs)]):
            yield len(part.specs)

    def _cells(self, scene: RasterScene, specs: Sequence[TileSpec]) -> list[list[TileSpec]]:
        if scene.decoding is None or not specs:
            return []
        whole = decoded_bytes(scene.decoding.decoded_places(around([spec.window for spec in specs])))
        return scene.cells(specs, min(PART_BYTES, whole // (self._cluster.threads * PARTS_PER_THREAD)))

    def _through(self, jobs: Sequence[Any]) -> Iterator[tuple[Any, bool]]:
        tasks = (Task(type(job).__name__.lower(), job, do_job, (self._ingest, job), self._shared) for job in jobs)
        for job, answer in self._cluster.through(tasks):
            if isinstance(answer, CropstarError):
                raise answer
            yield job, answer


def _pack_scenes(scenes: Sequence[Scene]) -> bytes:
    """The scenes as they are sent; one that lies in the memory of this process is refused."""
    for scene in scenes:
        if not scene.volume:
            why = "it lies in the memory of this process, and its tiles are quickly made there"
            raise UsageError(f"the scene '{scene.name}' is not for a cluster", why=why, remedy=NO_CLUSTER)
    try:
        return pack(scenes)
    except Exception as failure:  # something in a scene, told in many ways
        why = f"it cannot be sent ({type(failure).__name__}: {failure})"
        raise UsageError(f"the scene '{scenes[0].name}' is not for a cluster", why=why, remedy=NO_CLUSTER) from None


# --- A Dask cluster: in its workers
#
# Tiles go into the store's folder, which all machines share: what is finished survives worker, scheduler and client,
# and no pixel passes through the scheduler. The client keeps a token in the folder. A worker that does not see it looks
# at another file system, or its client is gone; either way it must not write. Every thread has its own copy of the
# scenes.

WORKER_REMEDY = "give the worker more memory, or a smaller --tile-size"

_scenes_of_threads: Holder[Sequence[Scene]] = Holder()


@dataclass(frozen=True)
class RemoteIngest:
    """An ingest, as it is sent to workers."""

    folder: Path  # of the store, as it is called on every machine
    token: str  # of the client that wants it

    @property
    def token_file(self) -> Path:
        """Has the name of a partial file: whoever writes to the store next removes what a killed client left."""
        return self.folder / f".client-{self.token}{PARTIAL}"

    def require_wanted(self) -> None:
        require_seen(self.token_file, "the store", self.folder)


def do_job(ingest: RemoteIngest, job: Job | MakePart, packed: bytes) -> bool:
    """A job on the packed scenes. Done twice, because a worker died over it, it gives the same files."""
    with one_line_failures(WORKER_REMEDY):
        ingest.require_wanted()
        with _scenes_of_threads.held(ingest.token, lambda stack: _unpack_scenes(packed, stack)) as scenes:
            if isinstance(job, MakePart):
                with closing(job.steps(scenes, ingest.folder, _worker_folder())) as steps:
                    for _ in steps:
                        ingest.require_wanted()
                answer = True
            else:
                answer = job.do(scenes, ingest.folder)
        # Here, since on some file systems the client cannot: what another machine holds back is not its to flush.
        specs = job.specs if isinstance(job, MakePart) else (job.spec,) if isinstance(job, MakeTile) else ()
        flush_tiles(tile_path(ingest.folder, spec.name) for spec in specs)
        return answer


def _close_idle_scenes() -> None:
    """Close what no task uses."""
    _scenes_of_threads.close_idle()


def _unpack_scenes(packed: bytes, stack: ExitStack) -> Sequence[Scene]:
    bound_gdal(threads=1)
    scenes: Sequence[Scene] = unpack(packed)
    for scene in scenes:
        stack.callback(scene.close)
    return scenes


def _worker_folder() -> Path:
    """The folder that Dask gives a worker on its machine, and removes after it."""
    from distributed import get_worker

    return Path(get_worker().local_directory)


# --- Jobs


@dataclass(frozen=True)
class CheckTile:
    """Whether a tile is on the disk as it was written."""

    scene: int  # its place in the list that ingest was given
    spec: TileSpec

    def do(self, scenes: Sequence[Scene | None], folder: Path) -> bool:
        return is_whole(tile_path(folder, self.spec.name), _scene(scenes, self.scene).recipe)


@dataclass(frozen=True)
class DecodeLayer:
    """One layer of a raster scene into the scratch file; the answer says whether it holds anything."""

    scene: int
    layer: int
    scratch: Scratch

    def do(self, scenes: Sequence[Scene | None], _: Path) -> bool:
        scene = _scene(scenes, self.scene)
        assert isinstance(scene, RasterScene)
        assert scene.decoding is not None
        with _with_file_name(self.scratch.path):
            return scene.decoding.decode(self.layer, self.scratch)


@dataclass(frozen=True)
class MakeTile:
    """One tile, built and written."""

    scene: int
    spec: TileSpec
    scratch: Scratch | None

    def do(self, scenes: Sequence[Scene | None], folder: Path) -> bool:
        scene = _scene(scenes, self.scene)
        if isinstance(scene, RasterScene) and scene.decoding is not None:
            scene.decoding.read_from(self.scratch)
        path, tile = tile_path(folder, self.spec.name), scene.build(self.spec)
        with _with_file_name(path):
            write_tile(path, tile)
        return True


@dataclass(frozen=True)
class MakePart:
    """Neighbouring tiles with a scratch file of their own: for workers of other machines, which share no local disk."""

    scene: int
    specs: tuple[TileSpec, ...]

    def steps(self, scenes: Sequence[Scene | None], folder: Path, place: Path) -> Generator[None]:
        """What is missing of it, one step after each yield; the scratch file lies in `place` meanwhile."""
        scene = _scene(scenes, self.scene)
        assert isinstance(scene, RasterScene)
        assert scene.decoding is not None
        missing = [spec for spec in self.specs if not CheckTile(self.scene, spec).do(scenes, folder)]
        if not missing:
            return
        window = around([spec.window for spec in missing])
        with TemporaryDirectory(dir=place) as own, scratch_file(Path(own), scene.decoding, window) as scratch:
            for chain in scene.decoding.decoding_chains():
                for layer in chain:
                    yield
                    if not DecodeLayer(self.scene, layer, scratch).do(scenes, folder) and layer == chain[0]:
                        break
            for spec in missing:
                yield
                MakeTile(self.scene, spec, scratch).do(scenes, folder)


Job = CheckTile | DecodeLayer | MakeTile


@contextmanager
def _with_file_name(path: Path) -> Iterator[None]:
    """A write that finds no room does not say by itself where."""
    try:
        yield
    except OSError as failure:
        failure.filename = failure.filename or str(path)
        raise


def _scene(scenes: Sequence[Scene | None], number: int) -> Scene:
    scene = scenes[number]
    assert scene is not None, "a scene that lies in memory is not sent to workers"
    return scene
