"""Errors, each kind with its exit code and one readable line.

An error names what failed, where, why, and what the user can do about it:

    error: <what> in <path>: <why>; <what to do>

Every class is also the built-in it stands for, so library users may catch `ValueError` and the like.
"""

from __future__ import annotations

import errno
import os


def harmless(text: str) -> str:
    """Text from files and names as one line that a terminal only shows: control characters written out."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def one_line(failure: BaseException, most: int = 200) -> str:
    """The message of a library's error, shortened to one line."""
    text = f"{failure} is missing" if isinstance(failure, KeyError) else str(failure)
    return " ".join(text.split())[:most] or type(failure).__name__


class CropstarError(Exception):
    """The root of all expected failures; its message always fits on one line."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        path: str | os.PathLike[str] | None = None,
        why: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.what = what
        self.path = os.fspath(path) if path is not None else None
        self.why = why
        self.remedy = remedy
        super().__init__(what)

    def __str__(self) -> str:
        line = self.what
        if self.path is not None:
            line += f": {self.path}" if self.what.startswith("no such ") else f" in {self.path}"
        if self.why:
            line += f": {self.why}"
        if self.remedy:
            line += f"; {self.remedy}"
        return harmless(" ".join(line.split()))


class UsageError(CropstarError, ValueError):
    """A wrong option, configuration key or name."""

    exit_code = 2


class InputError(CropstarError, ValueError):
    """The user's data cannot be read or does not make sense."""

    exit_code = 3


class ArtifactError(CropstarError, RuntimeError):
    """A file that cropstar wrote is corrupt, incomplete or in use."""

    exit_code = 4


class MismatchError(CropstarError, ValueError):
    """Two things that must fit (bands, classes, dates, a resumed run) do not."""

    exit_code = 5


class ResourceError(CropstarError, RuntimeError):
    """The machine ran out of disk space or memory."""

    exit_code = 6


class PartialResult(CropstarError, RuntimeError):
    """Some outputs were made, others failed."""

    exit_code = 7


class Interrupted(CropstarError):
    """SIGINT or SIGTERM arrived and the work so far was saved. No built-in: nobody may catch it as a failure."""

    def __init__(self, signal_number: int, saved: str) -> None:
        super().__init__("stopped by a signal", why=saved, remedy="run the same command again to continue")
        self.exit_code = 128 + signal_number


# --- One mapping from what systems and libraries raise to our errors
#
# Where the machine fails (a full or broken disk, no more open files), the file that was being read or written is not to
# blame, whichever library says so: libraries hide the number of the error in their text, or in what they were handling.

# In the words of torch, and of the system that loads a library.
OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA out of memory",
    "MPS backend out of memory",
    "failed to map segment from shared object",
)
NO_ROOM = "free some disk space and run again"
FULL_BELOW = 2**20  # bytes: what is left when a library's buffer did not fit
EITHER = "free some disk space, or check the disk, and run again"
BROKEN_DISK = "check the disk, or use another one, and run again"
MACHINE_REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), NO_ROOM),
    **dict.fromkeys((errno.EIO, errno.ESTALE), BROKEN_DISK),
    errno.EROFS: "the disk can only be read: choose another place",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), "allow more open files with 'ulimit -n' and run again"),
    errno.ENOMEM: "use smaller windows or batches",
}
# What GDAL, HDF5, SQLite and others make of the numbers.
MACHINE_WORDS = {os.strerror(number).lower(): number for number in MACHINE_REMEDIES} | {
    "database or disk is full": errno.ENOSPC,
    "disk full": errno.ENOSPC,
    "disk i/o error": errno.EIO,
    "attempt to write a readonly database": errno.EROFS,
}


def expected_error(failure: BaseException) -> CropstarError | None:
    """An error of the system as a CropstarError; None for a bug."""
    if isinstance(failure, CropstarError):
        blamed = isinstance(failure, InputError | ArtifactError)
        return (machine_error(failure.__context__, failure.path) if blamed else None) or failure
    if isinstance(failure, MemoryError) or any(text in str(failure) for text in OUT_OF_MEMORY):
        why = str(failure).partition("\n")[0] or None
        return ResourceError("out of memory", why=why, remedy="use smaller windows or batches")
    return machine_error(failure) or (from_os_error(failure) if isinstance(failure, OSError) else None)


def machine_error(failure: BaseException | None, path: str | None = None) -> ResourceError | None:
    """The error for a failure that is the machine's own, or that was raised because of one; None for others."""
    for _ in range(5):  # a library's error, and what it was handling
        if failure is None or isinstance(failure, CropstarError):
            return None
        number = _machine_number(failure)
        if number is not None:
            path = path or getattr(failure, "filename", None)
            what = "cannot write" if MACHINE_REMEDIES[number] == NO_ROOM else "cannot read or write"
            why = getattr(failure, "strerror", None) or os.strerror(number)
            return ResourceError(what, path=path, why=why, remedy=MACHINE_REMEDIES[number])
        failure = failure.__context__
    return None


def _machine_number(failure: BaseException) -> int | None:
    if isinstance(failure, OSError) and failure.errno is not None:
        return failure.errno if failure.errno in MACHINE_REMEDIES else None
    if type(failure).__module__ == "builtins" and not isinstance(failure, OSError | RuntimeError | ValueError):
        return None
    text = str(failure)[:2000].lower()
    return next((number for words, number in MACHINE_WORDS.items() if words in text), None)


def from_os_error(failure: OSError) -> CropstarError:
    """An OSError as a CropstarError: a full disk is a ResourceError, the rest an InputError."""
    reason = failure.strerror or str(failure)
    path = failure.filename
    if (error := machine_error(failure)) is not None:
        return error
    if failure.errno in (errno.EACCES, errno.EPERM):
        return InputError("no access", path=path, why=reason, remedy="check the permissions or choose another place")
    return InputError("cannot read or write", path=path, why=reason, remedy="check the path")


def write_error(failure: Exception, path: str | os.PathLike[str]) -> ResourceError:
    """The ResourceError for a library's failure to write; few libraries say whether the disk is full."""
    error = machine_error(failure)
    if error is not None:
        return ResourceError("cannot write", path=path, why=error.why, remedy=error.remedy)
    return ResourceError(
        "cannot write", path=path, why=one_line(failure, 300), remedy=NO_ROOM if _is_full(path) else EITHER
    )


def _is_full(path: str | os.PathLike[str]) -> bool:
    try:
        room = os.statvfs(os.path.dirname(os.path.abspath(path)))
    except OSError:
        return True  # it is not known: the usual reason
    return room.f_bavail * room.f_frsize < FULL_BELOW or room.f_favail == 0
