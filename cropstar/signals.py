"""SIGINT and SIGTERM: the work saves itself and the command ends with one line, from its first moment to its last.

While a command starts, nothing was begun: it ends at once. While it works, a signal is raised as an exception, so that
temporary files are removed on the way out; the training loop asks for it between two steps instead. A second signal
changes nothing: whoever is impatient would lose what is being saved. Nothing heavy is imported here, for this is the
first thing that runs.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as typing has it, whose import takes longer than all of this
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

HANDLED = (signal.SIGINT, signal.SIGTERM)
IMPORTING = "<frozen importlib._bootstrap>"
LOCKING = ("/queue.py", "/threading.py", "/logging/__init__.py")  # of Python
AGAIN = 0.02  # seconds after which a signal that could not be raised is raised again


class StopSignal(BaseException):
    """A signal in the middle of work. No Exception: libraries and readers of ours would take it for a failure."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


class _Command:
    """The state of the running command, and the signal that it received."""

    watched = False
    working = False
    signal: int | None = None
    place: tuple[int, int] | None = None  # the innermost frame and its instruction when the signal could not be raised
    held = 0  # how many blocks of `hold_signals` it is in


_command = _Command()


def watch_signals() -> None:
    """From now on a signal ends the process in one line; to be called before anything else is imported."""
    _command.watched = True
    for number in HANDLED:
        if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:  # as in a background job
            signal.signal(number, _handle)
    signal.signal(signal.SIGALRM, _handle_again)
    sys.unraisablehook = reraise_lost


class hold_signals:  # noqa: N801 - used as `with hold_signals():`
    """Signals are raised after this block: for some milliseconds in a library that cannot be left half way."""

    def __enter__(self) -> None:
        _command.held += 1

    def __exit__(self, *_: object) -> None:
        _command.held -= 1


def is_command() -> bool:
    """Whether this process is the command, rather than a program that imports cropstar."""
    return _command.watched


def begin_work() -> None:
    """From now on there may be something to save."""
    _command.working = True


def end_work() -> None:
    """What is left is to say how it ended, and to leave: nothing interrupts that."""
    if not _command.watched:
        return
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0)


def received() -> int | None:
    """The signal that the command got: whatever fails from then on fails because of it."""
    return _command.signal


def note_request(number: int, instead_of: object) -> None:
    """A loop got a signal in place of that handler and will end the command itself."""
    if instead_of == _handle:
        _command.signal = _command.signal or number


def reraise_lost(failure: Any) -> None:
    """Python's hook for what is raised where nothing can be, in a callback of C or a destructor.

    A signal is raised again. Of anything else there is no traceback: rasterio's log of a message that is not UTF-8.
    """
    if isinstance(failure.exc_value, StopSignal):
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        return
    import logging

    logging.getLogger("cropstar").debug("ignored: %s in %s", failure.exc_value, failure.object)


def _handle(number: int, frame: FrameType | None) -> None:
    if _command.signal is not None:
        return
    _command.signal = number
    if not _command.working:
        _leave(number)
    _raise(frame)


def _handle_again(_: int, frame: FrameType | None) -> None:
    if _command.signal is not None:
        _raise(frame)


def _raise(frame: FrameType | None) -> None:
    """Raise the signal, but not through an import: half of torch cannot be left.

    Nor out of Python's queues and locks, whose other thread would then wait for ever, nor out of half a log message.
    Unless they wait themselves: then they are in the same place a moment later.
    """
    assert _command.signal is not None
    if _command.held:
        signal.setitimer(signal.ITIMER_REAL, AGAIN)
        return
    place = None if frame is None else (id(frame), frame.f_lasti)
    waits, _command.place = place == _command.place, place
    while frame is not None:
        file = frame.f_code.co_filename
        if file == IMPORTING or (not waits and file.endswith(LOCKING)):
            signal.setitimer(signal.ITIMER_REAL, AGAIN)
            return
        frame = frame.f_back
    raise StopSignal(_command.signal)


def _leave(number: int) -> None:
    why = "stopped by a signal: nothing was begun; run the same command again"
    line = f"error: {why}\n"
    if "--log-json" in sys.argv:
        line = f'{{"level": "error", "message": "{why}", "exit_code": {128 + number}}}\n'
    try:
        os.write(2, line.encode())
    finally:
        os._exit(128 + number)
