"""Commands of cropstar in forked processes: imports are paid once, each command then takes the time of its work.

The server is a process of its own that has imported everything and does nothing else; each request is a fork of it
that runs `cropstar.cli.main`. It runs under the library of shim.c, so that calls to the disk can be made to fail,
logged and counted.
"""

from __future__ import annotations

import ctypes
import json
import os
import pkgutil
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

KINDS = {"open": 1, "write": 2, "sync": 4, "rename": 8, "truncate": 16, "mkdir": 32, "unlink": 64}
EVERYTHING = tuple(KINDS)
SHIM = Path(__file__).with_name("shim.c")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
NO_COMPILER = "no C compiler: calls to the disk cannot be made to fail"


@dataclass(frozen=True)
class Watch:
    """What the shim looks at: calls that change something below a folder. `fail` is the number of the one to fail."""

    folder: Path
    kinds: tuple[str, ...] = EVERYTHING
    fail: int = 0
    error: int = 0  # the errno
    from_then_on: bool = False  # a disk that is full stays full
    log: Path | None = None  # where calls are logged; outside of the folder


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int  # minus the signal's number where one ended it
    stdout: str
    stderr: str
    seconds: float
    peak: int  # bytes of memory
    seen: int  # calls that were watched
    failed: int
    sockets: int  # of the internet
    late: bool  # killed when its time was over

    @property
    def line(self) -> str:
        """The last line of stderr."""
        return (self.stderr.splitlines() or [""])[-1]

    def problem(self, codes: Sequence[int] = (0, 2, 3, 4, 5, 6, 7)) -> str | None:
        """What is wrong with the way it ended; None for a documented code with at most one line of error."""
        if self.late:
            return f"no end after {self.seconds:.0f} s"
        if self.code not in codes:
            return f"exit code {self.code}: {self.line}"
        if "Traceback" in self.stderr + self.stdout:
            return "a traceback"
        errors = [line for line in self.stderr.splitlines() if line.startswith("error: ")]
        if len(errors) != (self.code != 0) or (errors and errors[0] != self.line):
            return f"{len(errors)} lines of error with exit code {self.code}"
        return "a socket of the internet" if self.sockets else None


class ForkServer:
    """`with ForkServer() as server: server.run(["predict", ...], cwd=folder)`."""

    def __init__(self, *imports: str) -> None:
        """`imports` are modules beside the usual ones; `torch._dynamo` for trainings, which takes some seconds."""
        self._imports = imports
        self._own = tempfile.TemporaryDirectory()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ForkServer:
        library = compile_shim(Path(self._own.name))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "LD_PRELOAD": str(library)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.forkserver", *self._imports],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._own.cleanup()

    def run(
        self,
        arguments: Sequence[str | Path],
        cwd: Path,
        *,
        watch: Watch | None = None,
        limit: float = 120,
        signals: Sequence[tuple[float, int]] = (),
    ) -> Answer:
        """`signals` are sent one after the other, each so many seconds after the one before it."""
        request = _Request([str(each) for each in arguments], cwd, watch, limit, list(signals))
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(asdict(request), default=str), file=self._process.stdin, flush=True)
        return Answer(**json.loads(self._process.stdout.readline()))


_shared: list[ForkServer] = []


def shared_server() -> ForkServer:
    """The one that all tests of this process use, started when the first one asks for it."""
    if not _shared:
        _shared.append(ForkServer("torch._dynamo").__enter__())  # trainings need it
    return _shared[0]


def close_shared_server() -> None:
    while _shared:
        _shared.pop().__exit__(None, None, None)


def compile_shim(folder: Path) -> Path:
    library = folder / "shim.so"
    assert COMPILER is not None, NO_COMPILER
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", "-o", library, SHIM, "-ldl", "-lpthread"], check=True)
    return library


# --- the server


@dataclass(frozen=True)
class _Request:
    arguments: list[str]
    cwd: Path
    watch: Watch | None
    limit: float
    signals: list[tuple[float, int]]

    @classmethod
    def loads(cls, text: str) -> _Request:
        said = json.loads(text)
        watch = said["watch"] and Watch(**said["watch"])
        return cls(said["arguments"], Path(said["cwd"]), watch, said["limit"], said["signals"])


class _Counts(ctypes.Structure):
    _fields_ = (("seen", ctypes.c_long), ("failed", ctypes.c_long), ("sockets", ctypes.c_long))


@dataclass
class _Server:
    shim: ctypes.CDLL = field(default_factory=lambda: ctypes.CDLL(None))

    def serve(self) -> None:
        self.shim.shim_counts.restype = ctypes.POINTER(_Counts)
        for line in sys.stdin:
            print(json.dumps(asdict(self.answer(_Request.loads(line)))), flush=True)

    def answer(self, request: _Request) -> Answer:
        started = time.monotonic()
        with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
            child = os.fork()
            if child == 0:
                self._run(request, out.fileno(), err.fileno())
            late = False

            def kill(*_: Any) -> None:
                nonlocal late
                late = True
                for kill_one_or_all in (os.killpg, os.kill):  # the group may not be there yet, nor any more
                    with suppress(ProcessLookupError):
                        kill_one_or_all(child, signal.SIGKILL)

            signal.signal(signal.SIGALRM, kill)
            signal.setitimer(signal.ITIMER_REAL, request.limit)
            for delay, number in request.signals:
                _send(child, delay, number)
            _, status, used = os.wait4(child, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            said = []
            for handle in (out, err):
                handle.seek(0)
                said.append(handle.read().decode("utf-8", "replace"))
        counts: _Counts = self.shim.shim_counts().contents
        return Answer(
            os.waitstatus_to_exitcode(status),
            said[0],
            said[1],
            time.monotonic() - started,
            used.ru_maxrss * 1024,
            counts.seen,
            counts.failed,
            counts.sockets,
            late and os.waitstatus_to_exitcode(status) == -signal.SIGKILL,
        )

    def _run(self, request: _Request, out: int, err: int) -> NoReturn:
        """In the child: the command as a user's own process would run it."""
        os.setsid()
        os.chdir(request.cwd)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        sys.argv = ["cropstar", *request.arguments]
        watch = request.watch or Watch(Path("/nowhere"), ())
        log = -1 if watch.log is None else os.open(watch.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        kinds = sum(KINDS[kind] for kind in watch.kinds)
        folder = str(watch.folder).encode()
        self.shim.shim_watch(folder, kinds, ctypes.c_long(watch.fail), watch.error, watch.from_then_on, log)
        from cropstar.__main__ import main

        code: Any = 1
        try:
            main()
        except SystemExit as leaving:
            code = leaving.code or 0
        except BaseException:
            import traceback

            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _send(child: int, delay: float, number: int) -> None:
    """Send a signal to a child that handles it or is on its way out, unless it has ended before."""
    status, deadline = Path(f"/proc/{child}/status"), time.monotonic() + delay
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        masks = [line.split()[1] for line in status.read_text().splitlines() if line.startswith(("SigCgt", "SigIgn"))]
        if any(int(mask, 16) >> number - 1 & 1 for mask in masks) and time.monotonic() >= deadline:
            os.kill(child, number)
            return
        time.sleep(0.001)


# Whatever a command imports when it needs it; the server has it before it forks.
EARLY = (
    "exactextract geopandas jinja2 matplotlib.backends.backend_agg matplotlib.backends.backend_svg matplotlib.pyplot "
    "mpl_toolkits.mplot3d PIL.PngImagePlugin pyarrow.parquet pyogrio scipy.stats"
)
LATE = (
    "cropstar.benchmarks",
    "cropstar.execution.dask",
    "cropstar.native.kernels",
    "cropstar.prediction.cluster",
    "cropstar.store.remote",
)


def _import_everything() -> None:
    import cropstar

    for module in pkgutil.walk_packages(cropstar.__path__, "cropstar."):
        if not module.name.startswith(LATE) and not module.name.endswith("__main__"):
            import_module(module.name)
    for name in [*EARLY.split(), *sys.argv[1:]]:
        import_module(name)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _import_everything()
    _Server().serve()
