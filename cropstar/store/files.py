"""Atomic files, which are complete under their final name or absent, and locks of folders.

A file is written beside its place under a `.partial` name, flushed to the disk and renamed. A killed
process leaves at most a `.partial` file, which the next run sweeps.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError, CropstarError, write_error

PARTIAL = ".partial"
WRITING_LIBRARIES = ("rasterio", "pyogrio", "pyarrow", "h5py", "exactextract", "onnx", "PIL", "safetensors", "sqlite3")


def flush_to_disk(path: Path) -> None:
    """fsync a file or a folder: the rename must not reach the disk before the bytes do."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, and see that their names reach the disk: without them all in it is lost."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in missing:
        flush_to_disk(place.parent)


@contextmanager
def atomic_path(final: Path, *, flush: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `final`; on success it becomes `final`, on failure it vanishes.

    Without `flush` the caller brings the file to the disk before anything relies on it, many of them in one go.
    """
    make_folder(final.parent)
    _remove_orphans(final)
    partial = final.with_name(f".{final.name}.{platform.node()}.{os.getpid()}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        yield partial
        if flush:
            flush_to_disk(partial)
        os.replace(partial, final)
        if flush:
            flush_to_disk(final.parent)
    except OSError as failure:
        if failure.errno is not None:  # a full disk does not say of which file; a damaged archive has its own words
            failure.filename = failure.filename or str(final)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def library_writes(path: Path) -> Iterator[None]:
    """Within, a library writes a file of ours: whatever it complains of, the data are good and the disk is not."""
    try:
        yield
    except CropstarError:
        raise
    except Exception as failure:
        told = isinstance(failure, OSError) and failure.errno is not None  # rasterio's has no number
        if not told and type(failure).__module__.partition(".")[0] in WRITING_LIBRARIES:
            raise write_error(failure, path) from failure
        raise


def _remove_orphans(final: Path) -> None:
    """Remove partial files of killed processes of this computer; other computers may still be writing."""
    start = f".{final.name}.{platform.node()}."
    for path in final.parent.glob(f".*{PARTIAL}"):
        process = path.name.removeprefix(start).partition(".")[0]
        if path.name.startswith(start) and process.isdecimal() and not _is_alive(int(process)):
            path.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def write_text(final: Path, text: str) -> None:
    with atomic_path(final) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(final: Path, data: Any) -> None:
    """Stable JSON: sorted keys, so that equal content is equal bytes."""
    write_text(final, json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n")


def write_json_lines(final: Path, rows: Iterable[dict[str, Any]]) -> None:
    write_text(final, "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))


def sweep(folder: Path) -> int:
    """Remove what killed writers left in a folder; the caller holds the folder's lock."""
    leftovers = list(folder.glob(f".*{PARTIAL}")) if folder.is_dir() else []
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


@contextmanager
def target_lock(final: Path, what: str, *, shared: bool = False) -> Iterator[bool]:
    """Hold the place of a file for one writer, or for several that share the work; the lock is gone afterwards.

    Yields whether its file was there before: then an earlier writer was killed, or others share the work.
    Only the holder removes the lock file. One that was opened before and is locked after that is not the file of this
    name any more: then it is tried again.
    """
    make_folder(final.parent)
    path = final.with_name(f".{final.name}.lock")
    while True:
        was_there = path.exists()
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        except OSError as failure:
            if not path.is_symlink():
                raise
            raise planted(path) from failure
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ArtifactError(
                f"{what} is locked", path=final, why="another cropstar is writing it", remedy="wait for it to end"
            ) from None
        try:
            same = os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
        except FileNotFoundError:
            same = False
        if same:
            break
        os.close(handle)
    try:
        yield was_there
    finally:
        with suppress(BlockingIOError):  # the others of the same work are still at it
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        os.close(handle)


def require_own_folder(folder: Path) -> None:
    """Refuse a work folder that leads elsewhere: what is written to it, and removed with it, is ours alone."""
    try:
        status = folder.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(status.st_mode):
        raise planted(folder)


def planted(path: Path) -> ArtifactError:
    why = "it is a link or a file, which cropstar does not make there"
    return ArtifactError("a place that leads elsewhere", path=path, why=why, remedy="look at it and remove it")


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder for one writer. The lock belongs to the process, so a killed one frees it."""
    make_folder(folder)
    try:
        handle = open(folder / ".lock", "a", opener=_not_through_links)  # noqa: SIM115
    except OSError as failure:
        if not (folder / ".lock").is_symlink():
            raise
        raise planted(folder / ".lock") from failure
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(
                f"{what} is locked", path=folder, why="another cropstar is writing to it", remedy="wait for it to end"
            ) from None
        yield


def _not_through_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
