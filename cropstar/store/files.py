"""Files that are either whole under their final name or not there at all, and locks of folders.

A file is written beside its place under a `.partial` name, flushed to the disk and renamed. A killed
process leaves at most a `.partial` file, which the next run sweeps.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cropstar.errors import ArtifactError

PARTIAL = ".partial"


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


def _remove_orphans(final: Path) -> None:
    """What killed processes of this computer left of the same file; others may still be writing."""
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


def sweep(folder: Path) -> int:
    """Remove what killed writers left in a folder; the caller holds the folder's lock."""
    leftovers = list(folder.glob(f".*{PARTIAL}")) if folder.is_dir() else []
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder for one writer. The lock belongs to the process, so a killed one frees it."""
    make_folder(folder)
    with open(folder / ".lock", "a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ArtifactError(
                f"{what} is locked", path=folder, why="another cropstar writes to it", remedy="wait for it to end"
            ) from None
        yield
