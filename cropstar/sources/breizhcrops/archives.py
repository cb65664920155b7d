"""What the downloaded archives hold, taken out without trusting their names and sizes."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

from cropstar.errors import InputError
from cropstar.progress import progress_bar, track
from cropstar.store.atomic import PARTIAL, atomic_path, flush_to_disk

BLOCK = 2**16
HEADERS = 2**20  # bytes in an archive of one file that are not the file's
H5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
CSV_NAME = re.compile(r"[\w-][\w.-]*\.csv", re.ASCII)
MOST_FILES = 500_000  # Brittany has 610,000 parcels in four regions
MOST_BYTES_OF_CSV = 2**23  # a year of one parcel is some 50 KB
AGAIN = "run the same command again: it is downloaded anew"
DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, gzip.BadGzipFile)


def extract_h5(archive: Path, final: Path, size: int) -> None:
    """The file called like `final` of a .tar.gz, wherever in it; it must be `size` bytes long."""
    try:
        with gzip.open(archive) as plain, atomic_path(final) as partial:
            limited: Any = _Limited(plain)  # all that a stream of tarfile calls is read
            with tarfile.open(fileobj=limited, mode="r|", bufsize=BLOCK) as tar:
                _copy_member(tar, limited, partial, final.name, size)
    except DAMAGED as failure:
        raise InputError("a wrong or damaged archive", path=archive, why=str(failure), remedy=AGAIN) from None


def extract_csv(archive: Path, final: Path) -> None:
    """The csv files of a .zip into the folder `final`, which is there with all of them or not at all."""
    partial = final.with_name(f".{final.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        partial.mkdir(parents=True)
        with zipfile.ZipFile(archive) as container:
            members = _csv_members(container)
            for name, member in track(members.items(), len(members), f"unpack {archive.name}", "file"):
                with container.open(member) as source:
                    _copy(source, partial / name, member.file_size)
        flush_to_disk(partial)
        os.replace(partial, final)
    except (*DAMAGED, NotImplementedError) as failure:
        raise InputError("a wrong or damaged archive", path=archive, why=str(failure), remedy=AGAIN) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class _Limited:
    """Reads as much as is expected and no more: neither a header nor a bomb of zeros can ask for gigabytes."""

    def __init__(self, plain: gzip.GzipFile) -> None:
        self._plain = plain
        self.budget = HEADERS

    def read(self, size: int = BLOCK) -> bytes:
        block = self._plain.read(min(size, BLOCK))
        self.budget -= len(block)
        if self.budget < 0:
            raise tarfile.ReadError("it holds more than one file")
        return block


def _copy_member(tar: tarfile.TarFile, limited: _Limited, partial: Path, name: str, size: int) -> None:
    for member in tar:
        if not member.isreg() or PurePosixPath(member.name).name != name:
            continue
        if member.size != size:
            raise tarfile.ReadError(f"{name} has {member.size} bytes, not {size}")
        limited.budget += size
        with progress_bar(size, f"unpack {name}", "B", scale=True) as bar:
            _copy(tar.extractfile(member), partial, size, bar)
        with partial.open("rb") as handle:
            if handle.read(len(H5_SIGNATURE)) != H5_SIGNATURE:
                raise tarfile.ReadError(f"{name} is no HDF5 file")
        while limited.read():  # to the end, where the checksum stands
            pass
        return
    raise tarfile.ReadError(f"{name} is not in it")


def _csv_members(container: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """The csv files by their own names: the folders that an archive dreams up do not matter."""
    members: dict[str, zipfile.ZipInfo] = {}
    for member in container.infolist():
        name = PurePosixPath(member.filename.replace("\\", "/")).name
        if member.is_dir() or not CSV_NAME.fullmatch(name) or name in members:
            continue
        if member.file_size > MOST_BYTES_OF_CSV or len(members) == MOST_FILES:
            raise zipfile.BadZipFile(f"too large: '{name}' has {member.file_size} bytes and is file {len(members) + 1}")
        members[name] = member
    if not members:
        raise zipfile.BadZipFile("no csv file is in it")
    return members


def _copy(source: Any, path: Path, size: int, bar: Any = None) -> None:
    """Exactly `size` bytes; fewer are an error, and more are not read."""
    left = size
    with path.open("wb") as handle:
        while left:
            block = source.read(min(left, BLOCK))
            if not block:
                raise EOFError(f"it ends {left} bytes too early")
            handle.write(block)
            left -= len(block)
            if bar is not None:
                bar.update(len(block))
        source.read(1)  # a zip checks its sum at the end of a member
