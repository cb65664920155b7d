"""Remote inputs brought to a scratch folder, each file once: a restarted job finds what it has fetched before.

<scratch>/objects/<digest>             a file by its address and version, whole or not there
<scratch>/views/<digest>/<name>/...    the files of one input under their own names, as links

A version is the ETag, the generation, the time of change and the size, as far as the server tells them. A file that has
changed is another object, and its input another view; a server that tells no version is asked for the file every time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path, PurePosixPath
from typing import Any

from cropstar.errors import InputError, ResourceError
from cropstar.logs import event
from cropstar.progress import progress_bar
from cropstar.store.atomic import atomic_path
from cropstar.store.remote.addresses import Remote, digest
from cropstar.store.remote.connection import connect, one_line_errors

MOST_FILES = 1_000_000  # of one input
VERSION = ("ETag", "etag", "generation", "VersionId", "md5Hash", "LastModified", "Last-Modified", "mtime", "updated")
CHANGED = ("LastModified", "mtime", "Last-Modified")
LONG_AGO = 946_684_800.0  # where no time is told; the same on every machine, as blocks are found again by it
SLOW_SECONDS, SLOW_BYTES = 120.0, 1000.0  # after so long, fewer bytes a second are no answer
ROOM = 2**26  # bytes that stay free
AGAIN = "run the same command again"


@dataclass(frozen=True)
class RemoteFile:
    """One file of an input."""

    source: str  # as the file system calls it
    place: PurePosixPath  # in the view
    key: str
    version: str  # empty where the server tells none
    size: int | None
    changed: float

    @property
    def object_name(self) -> str:
        return digest(self.key, self.version)


def fetch(remote: Remote, scratch: Path) -> list[Path]:
    """The local copies of a file or folder, or of all that fit a pattern."""
    system = connect(remote)
    with one_line_errors(remote):
        inputs = list(_find(system, remote))
    if not inputs:
        raise InputError("no such file or folder", path=str(remote), why="nothing fits", remedy="check the name")
    _fetch_missing(system, remote, [file for files in inputs for file in files], scratch)
    return [_view(files, scratch) for files in inputs]


def _find(system: Any, remote: Remote) -> Iterator[list[RemoteFile]]:
    """The files of each input that is meant."""
    if remote.scheme == "https":
        info = system.info(remote.url)
        if not str(info.get("url", remote.url)).startswith("https://"):
            raise InputError("refused address", path=str(remote), why="it leads away from https", remedy="check it")
        yield [_remote_file(info, remote.url, PurePosixPath(remote.name), remote.key)]
        return
    if remote.is_pattern:
        found = system.glob(remote.url, detail=True)
        roots = [found[name] for name in sorted(found)]
    else:
        roots = [system.info(remote.url.rstrip("/"))]
    for root in roots:
        name = str(root["name"]).rstrip("/")
        if root["type"] != "directory":
            yield [_file_of(remote, info, name.rpartition("/")[0]) for info in _with_companions(system, root)]
            continue
        infos = system.find(name, detail=True)
        if len(infos) > MOST_FILES:
            raise InputError("too large a folder", path=str(remote), why=f"{len(infos):,} files", remedy="give a part")
        files = [info for key, info in sorted(infos.items()) if not key.endswith("/")]
        if not files:
            raise InputError("no such file or folder", path=str(remote), why="it is empty", remedy="check the name")
        yield [_file_of(remote, info, name.rpartition("/")[0]) for info in files]


def _with_companions(system: Any, info: dict[str, Any]) -> list[dict[str, Any]]:
    """A file, and of a shapefile the others that it is made of."""
    name = str(info["name"])
    if not name.lower().endswith(".shp"):
        return [info]
    folder, _, own = name.rpartition("/")
    beside = [other for other in system.ls(folder, detail=True) if other["type"] == "file"]
    stem = own[: -len("shp")]
    others = [other for other in beside if str(other["name"]).rpartition("/")[2].startswith(stem)]
    return [info, *(other for other in others if other["name"] != name)]


def _file_of(remote: Remote, info: dict[str, Any], folder: str) -> RemoteFile:
    name = str(info["name"])
    place = PurePosixPath(name.removeprefix(f"{folder}/") if folder else name)
    if place.is_absolute() or ".." in place.parts or not place.parts or "\0" in name:
        raise InputError("a name that leads elsewhere", path=str(remote), why=f"'{place}'", remedy="rename the object")
    return _remote_file(info, name, place, f"{remote.scheme}://{name}")


def _remote_file(info: dict[str, Any], source: str, place: PurePosixPath, key: str) -> RemoteFile:
    told = [f"{name}={info[name]}" for name in VERSION if info.get(name)]
    size = info.get("size")
    version = " ".join([*told, f"size={size}"]) if told else ""
    return RemoteFile(source, place, key, version, None if size is None else int(size), _changed(info))


def _changed(info: dict[str, Any]) -> float:
    for name in CHANGED:
        value = info.get(name)
        try:
            if isinstance(value, str):
                value = parsedate_to_datetime(value)
            if isinstance(value, datetime):
                return value.timestamp()
        except (ValueError, OverflowError):
            continue
    return LONG_AGO


def _fetch_missing(system: Any, remote: Remote, files: Sequence[RemoteFile], scratch: Path) -> None:
    objects = scratch / "objects"
    missing = [file for file in files if not file.version or not _is_whole(objects / file.object_name, file)]
    if not missing:
        event(f"{remote}: in {scratch} already", remote=str(remote), files=len(files), fetched=0)
        return
    total = sum(file.size or 0 for file in missing)
    objects.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(objects).free
    if total + ROOM > free:
        why = f"{total / 1e9:,.2f} GB are to come and {free / 1e9:,.2f} GB are free"
        raise ResourceError("the disk is too small for the input", path=scratch, why=why, remedy="choose --scratch")
    started = time.monotonic()
    with progress_bar(total, remote.name, "B", scale=True) as bar:
        for file in missing:
            _fetch(system, remote, file, objects / file.object_name, bar, free - ROOM)
    seconds = time.monotonic() - started
    event(
        f"{remote}: {len(missing)} of {len(files)} files fetched in {seconds:.1f} s",
        remote=str(remote),
        files=len(files),
        fetched=len(missing),
        bytes=total,
    )


def _fetch(system: Any, remote: Remote, file: RemoteFile, final: Path, bar: Any, most: int) -> None:
    meter = _meter(remote, bar, most if file.size is None else min(most, 4 * file.size + ROOM))
    with atomic_path(final) as partial:
        with one_line_errors(remote):
            system.get_file(file.source, str(partial), callback=meter)
        got = partial.stat().st_size
        if file.size is not None and got != file.size:
            why = f"{got} of {file.size} bytes came"
            raise InputError("an incomplete download", path=str(remote), why=why, remedy=AGAIN)
        os.utime(partial, (file.changed, file.changed))


def _meter(remote: Remote, bar: Any, most: int) -> Any:
    """Moves the bar, and ends what never ends: a stream of any length, a byte now and then."""
    from fsspec.callbacks import Callback

    class Meter(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.began, self.got = time.monotonic(), 0

        def relative_update(self, inc: int = 1) -> None:
            self._take(inc)

        def absolute_update(self, value: int) -> None:
            self._take(value - self.got)

        def _take(self, count: int) -> None:
            self.got += count
            bar.update(count)
            seconds = time.monotonic() - self.began
            if self.got > most:
                raise InputError("too large a file", path=str(remote), why=f"more than {most:,} bytes", remedy=AGAIN)
            if seconds > SLOW_SECONDS and self.got < SLOW_BYTES * seconds:
                raise InputError("no answer in time", path=str(remote), why="hardly a byte comes", remedy=AGAIN)

    return Meter()


def _is_whole(path: Path, file: RemoteFile) -> bool:
    return path.is_file() and (file.size is None or path.stat().st_size == file.size)


def _view(files: Sequence[RemoteFile], scratch: Path) -> Path:
    """The files of one input under their names; links cost nothing and keep the time of change."""
    view = scratch / "views" / digest(*(part for file in files for part in (file.key, file.version, str(file.place))))
    for file in files:
        place, found = view / file.place, scratch / "objects" / file.object_name
        if place.exists() and place.samefile(found):
            continue
        with atomic_path(place, flush=False) as partial:
            try:
                os.link(found, partial)
            except OSError:  # a file system without links
                shutil.copy2(found, partial)
    return view / files[0].place.parts[0]
