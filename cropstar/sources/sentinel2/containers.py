"""The files of a product, in a folder or inside a .zip archive that is read in place and never unpacked."""

from __future__ import annotations

import os
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from cropstar.errors import InputError

# A product has about a hundred files and, unpacked, 1.2 GB; an archive may hold several products.
MAXIMUM_MEMBERS = 10_000
MAXIMUM_UNPACKED_BYTES = 64 * 2**30
# JPEG 2000 hardly shrinks and XML shrinks by twenty; small members may be anything.
MAXIMUM_RATIO = 200
SMALL_MEMBER = 2**20
MAXIMUM_DIRECTORY_BYTES = 8 * 2**20  # an archive's own list of its members
REMEDY = "get the product again from where it was downloaded"


@dataclass(frozen=True, order=True)
class Place:
    """A file of a product: below a folder, or a member of an archive."""

    container: Path
    member: str  # with forward slashes
    size: int
    zipped: bool

    @property
    def label(self) -> str:
        """How messages name the file."""
        return f"{self.container}/{self.member}"

    @property
    def file(self) -> Path:
        """The file on the disk that holds it."""
        return self.container if self.zipped else self.container / self.member

    @property
    def gdal_name(self) -> str:
        absolute = self.container.absolute()
        return f"/vsizip/{{{absolute}}}/{self.member}" if self.zipped else str(absolute / self.member)

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        if not self.zipped:
            with self.file.open("rb") as handle:
                yield handle
            return
        try:
            with zipfile.ZipFile(self.container) as archive, archive.open(self.member) as member:
                yield member
        except (zipfile.BadZipFile, RuntimeError, NotImplementedError, EOFError) as failure:
            raise InputError("damaged archive", path=self.label, why=str(failure), remedy=REMEDY) from None


def folder_places(folder: Path) -> list[Place]:
    """The files below a folder, hidden ones left out, in one order on every machine."""
    places = []
    for directory, below, names in os.walk(folder):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            path = Path(directory, name)
            if not name.startswith(".") and path.is_file():
                places.append(Place(folder, path.relative_to(folder).as_posix(), path.stat().st_size, False))
        if len(places) > MAXIMUM_MEMBERS:
            raise InputError("too many files for a product", path=folder, remedy="give the .SAFE folder itself")
    return places


def zip_names(path: Path) -> list[str]:
    """The names in an archive, unchecked: to see whether it is a product at all."""
    return [info.filename for info in _infolist(path)]


def zip_places(path: Path) -> list[Place]:
    """The files of an archive, once every name and size in it is known to be harmless."""
    infos = _infolist(path)
    seen: set[str] = set()
    for info in infos:
        if why := _unsafe(info, seen):
            raise InputError("unsafe archive", path=path, why=why, remedy=REMEDY)
        seen.add(info.filename)
    total = sum(info.file_size for info in infos)
    if total > MAXIMUM_UNPACKED_BYTES:
        why = f"it would unpack to {total / 2**30:,.0f} GB"
        raise InputError("unsafe archive", path=path, why=why, remedy=REMEDY)
    files = [info for info in infos if not info.is_dir() and not _hidden(info.filename)]
    return sorted(Place(path, info.filename, info.file_size, True) for info in files)


def _infolist(path: Path) -> list[zipfile.ZipInfo]:
    try:
        if _directory_size(path) > MAXIMUM_DIRECTORY_BYTES:
            raise InputError("unsafe archive", path=path, why="its list of members is too long", remedy=REMEDY)
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
    except (zipfile.BadZipFile, NotImplementedError, struct.error) as failure:
        raise InputError("damaged archive", path=path, why=str(failure), remedy=REMEDY) from None
    if len(infos) > MAXIMUM_MEMBERS:
        raise InputError("unsafe archive", path=path, why=f"{len(infos)} members", remedy=REMEDY)
    return infos


def _directory_size(path: Path) -> int:
    """Bytes of the list of members, from the record at the archive's end, before zipfile loads it all."""
    with path.open("rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        start = max(size - 22 - 2**16, 0)
        handle.seek(start)
        tail = handle.read()
        end = tail.rfind(b"PK\x05\x06")
        if end < 0 or len(tail) < end + 22:
            raise zipfile.BadZipFile("not a zip file, or not a whole one" if size else "the file is empty (zero bytes)")
        (length,) = struct.unpack_from("<I", tail, end + 12)
        if tail[max(end - 20, 0) : end][:4] == b"PK\x06\x07":  # a zip64 archive keeps the true size elsewhere
            (record,) = struct.unpack_from("<Q", tail, end - 12)
            handle.seek(min(record, size))
            (length,) = struct.unpack_from("<Q", handle.read(56), 40)
    return int(length)


def _unsafe(info: zipfile.ZipInfo, seen: set[str]) -> str | None:
    name = info.orig_filename
    parts = PurePosixPath(name).parts
    if name.startswith(("/", "\\")) or ".." in parts or "..\\" in name:
        return f"the member {name!r} points out of it"
    if not name or any(sign in name for sign in "\\:{}\0"):
        return f"the member {name!r} has a name that is no plain path"
    if info.filename in seen:
        return f"the member {name!r} stands twice"
    if info.flag_bits & 1:
        return f"the member {name!r} is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"the member {name!r} is compressed in an unknown way"
    if info.file_size > SMALL_MEMBER and info.file_size > MAXIMUM_RATIO * max(info.compress_size, 1):
        return f"the member {name!r} unpacks to {info.file_size / max(info.compress_size, 1):,.0f} times its size"
    return None


def _hidden(name: str) -> bool:
    """Side files that some systems add to archives."""
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name).parts)
