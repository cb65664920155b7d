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
            line += f" in {self.path}"
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
    """The machine ran out of something: disk, memory."""

    exit_code = 6


class PartialResult(CropstarError, RuntimeError):
    """Some of several outputs were made, others were not."""

    exit_code = 7


class Interrupted(CropstarError):
    """SIGINT or SIGTERM arrived and the work so far was saved. No built-in: nobody may catch it as a failure."""

    def __init__(self, signal_number: int, saved: str) -> None:
        super().__init__("stopped by a signal", why=saved, remedy="run the same command again to continue")
        self.exit_code = 128 + signal_number


OUT_OF_MEMORY = ("can't allocate memory", "CUDA out of memory", "MPS backend out of memory")  # torch's words


def expected_error(failure: BaseException) -> CropstarError | None:
    """A failure of the system as one of ours; None for what is a bug."""
    if isinstance(failure, CropstarError):
        return failure
    if isinstance(failure, MemoryError) or any(text in str(failure) for text in OUT_OF_MEMORY):
        why = str(failure).partition("\n")[0] or None
        return ResourceError("out of memory", why=why, remedy="use smaller windows or batches")
    return from_os_error(failure) if isinstance(failure, OSError) else None


def from_os_error(failure: OSError) -> CropstarError:
    """The operating system's word turned into ours; a full disk is a resource, the rest is input."""
    reason = failure.strerror or str(failure)
    path = failure.filename
    if failure.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return ResourceError("cannot write", path=path, why=reason, remedy="free some disk space and run again")
    if failure.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError("no access", path=path, why=reason, remedy="check the permissions or choose another place")
    return InputError("cannot read or write", path=path, why=reason, remedy="check the path")
