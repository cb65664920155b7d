"""The process and its machine: logs, progress bars, signals, devices, memory, default folders.

Messages go to stderr; what another program may read (`--print-config`, `inspect --json`) goes to stdout.
Nothing heavy is imported before it is needed: every command line begins here.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import platform
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from cropstar.errors import ResourceError, harmless
from cropstar.signals import HANDLED, note_request

if TYPE_CHECKING:
    import torch

logger = logging.getLogger("cropstar")
Item = TypeVar("Item")
ALLOCATOR_SWITCH = "CROPSTAR_ALLOCATOR"  # "system" leaves glibc as it is
CONTAINER_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")  # of version 2 and 1
UNLIMITED = 2**60  # version 1 writes a number near 2**63
DATA = Path("data")  # of the current folder: everything goes there unless the user says otherwise
DEMO = DATA / "demo"
STORES = DATA / "stores"
RUNS = DATA / "runs"


# --- logs: plain lines for people, one JSON object a line for batch jobs


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        return json.dumps(line, ensure_ascii=False, default=str)


class PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        prefix = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        return prefix + harmless(record.getMessage())


class BarFriendlyHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes above a progress bar instead of through it."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        if bars is None:
            super().emit(record)
        else:
            bars.tqdm.write(f"{self.format(record)}\n", file=sys.stderr, end="")  # at once, or a signal could tear it


def set_up_logging(*, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
    """Set the level and the format of log messages."""
    handler = BarFriendlyHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else PlainFormatter())
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    logger.as_json = as_json  # type: ignore[attr-defined]
    warnings.showwarning = _note_warning


def _note_warning(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Libraries warn developers in several lines; users see it with --verbose, in one."""
    logger.debug("%s: %s", category.__name__, " ".join(str(message).split()))


def event(message: str, **fields: object) -> None:
    """Log an information line whose facts are also fields of the JSON log."""
    logger.info(message, extra={"fields": fields})


@contextmanager
def log_level(level: int) -> Iterator[None]:
    """Within, log only messages of this level and above; never more than before."""
    before = logger.level
    logger.setLevel(max(before, level))
    try:
        yield
    finally:
        logger.setLevel(before)


# --- progress: a bar with rate and time left on a terminal, nothing elsewhere


_progress_shown: ContextVar[bool | None] = ContextVar("progress", default=None)


@contextmanager
def showing_progress(shown: bool | None) -> Iterator[None]:
    """Draw progress bars, or not; None draws them on a terminal, as the command line does."""
    token = _progress_shown.set(shown)
    try:
        yield
    finally:
        _progress_shown.reset(token)


def progress_bar(total: int, label: str, unit: str, *, scale: bool = False) -> Any:
    """A tqdm bar; by default drawn only on a terminal and unless --quiet or --log-json were given."""
    from tqdm import tqdm

    if not hasattr(tqdm, "_lock"):  # tqdm's own is also one between processes, a semaphore that a signal would leave
        tqdm.set_lock(threading.RLock())
    shown = _progress_shown.get()
    if shown is None:
        shown = sys.stderr.isatty() and logger.isEnabledFor(logging.INFO) and not getattr(logger, "as_json", False)
    return tqdm(total=total, desc=label, unit=unit, unit_scale=scale, disable=not shown, leave=False, file=sys.stderr)


def track(items: Iterable[Item], total: int, label: str, unit: str) -> Iterator[Item]:
    with progress_bar(total, label, unit) as bar:
        for item in items:
            yield item
            bar.update()


# --- signals: SIGINT and SIGTERM ask, the work saves itself and ends


class StopRequest:
    """Set by the first signal; the loop looks at it between two steps."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_request(*, alone: bool = True) -> Iterator[StopRequest]:
    """Within this context, SIGINT and SIGTERM only set the request; further signals change nothing.

    Where a process is not `alone`, torchrun signals it when another one died: that failure is then reported as such.

    Only the main thread gets signals: in another one, such as a server's, nothing changes.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, _: FrameType | None) -> None:
        request.signal = request.signal or number
        if alone:
            note_request(number, before[number])

    before: dict[int, Any] = {number: signal.getsignal(number) for number in HANDLED}
    for each in HANDLED:
        if before[each] != signal.SIG_IGN:
            signal.signal(each, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- the machine: containers and batch systems give less than there is


def choose_device(name: str) -> torch.device:
    """`auto` takes a GPU where there is one."""
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    missing = (name == "cuda" and not torch.cuda.is_available()) or (
        name == "mps" and not torch.backends.mps.is_available()
    )
    if missing:
        raise ResourceError(f"no {name} device on this machine", remedy="use --device auto or --device cpu")
    return torch.device(name)


def keep_large_buffers() -> None:
    """Let glibc reuse the large buffers of each step instead of returning them to the system.

    Every step would otherwise fault the same pages in anew: large windows run up to 2.6 times slower.
    """
    if platform.libc_ver()[0] != "glibc" or os.environ.get(ALLOCATOR_SWITCH) == "system":
        return
    trim_threshold, top_pad, mmap_max = -1, -2, -4  # the M_* numbers of malloc.h
    library = ctypes.CDLL(None)
    library.mallopt(mmap_max, 0)
    library.mallopt(trim_threshold, 2**31 - 1)
    library.mallopt(top_pad, 64 * 2**20)


def peak_memory_megabytes() -> float:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak / 2**20 if sys.platform == "darwin" else peak / 2**10)


def processors() -> int:
    """The number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usual_threads() -> int:
    """The number of threads for work that has enough for all processors; OMP_NUM_THREADS may ask for fewer."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(asked), processors()) if asked.isdecimal() and int(asked) else processors()


def memory_limit() -> int | None:
    """Bytes: the machine's memory or, if that is less, the container's limit; None where the system does not say."""
    limits = [limit for limit in (_physical_memory(), *map(_container_limit, CONTAINER_LIMITS)) if limit is not None]
    return min(limits, default=None)


def _physical_memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _container_limit(path: str) -> int | None:
    try:
        limit = int(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):  # absent, or "max"
        return None
    return limit if limit < UNLIMITED else None
