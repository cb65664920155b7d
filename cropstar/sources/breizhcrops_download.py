"""Downloading BreizhCrops: regions that are asked for and not there, put where the package would put them.

Own code, since a download of gigabytes continues where it broke off.
"""

from __future__ import annotations

import ast
import gzip
import http.client
import importlib.util
import os
import re
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from cropstar.errors import InputError, ResourceError, UsageError, from_os_error
from cropstar.inputs import reading
from cropstar.registry import did_you_mean, short_list
from cropstar.runtime import event, progress_bar, track
from cropstar.sources.breizhcrops import (
    CODES_FILE,
    MAPPING_FILE,
    BreizhCropsOptions,
    RegionFiles,
    find_regions,
    read_index,
    read_mapping,
)
from cropstar.sources.texts import read_text_table
from cropstar.store.files import PARTIAL, atomic_path, flush_to_disk, locked

YEAR, LEVEL = 2017, "L1C"  # where none is named, as in the package


def download_missing(root: Path, options: BreizhCropsOptions) -> None:
    """Fetch the missing files of the regions in `options`; existing files are kept."""
    wanted = [files for files in _region_files(root, options) if not _is_complete(files)]
    tables = [name for name in (MAPPING_FILE, CODES_FILE) if not (root / name).exists()]
    if not wanted and not tables:
        return
    urls = read_tables()
    origins = [(files, _origin(files, urls)) for files in wanted]
    try:
        with locked(root, "the BreizhCrops folder"):
            _require_room(root, [origin for _, origin in origins])
            for name in tables:
                address = urls.mapping if name == MAPPING_FILE else urls.codes
                _fetch_table(address, root / name, read_mapping if name == MAPPING_FILE else _read_codes)
            for files, origin in origins:
                _fetch_region(files, origin)
    except OSError as failure:
        raise from_os_error(failure) from None


def _region_files(root: Path, options: BreizhCropsOptions) -> list[RegionFiles]:
    """The files of each region as they are or as they shall be."""
    present = find_regions(root) if root.is_dir() else []
    chosen = [files for files in present if options.year in (None, files.year) and options.level in (None, files.level)]
    levels = sorted({files.level for files in chosen})
    level = options.level or (levels[0] if len(levels) == 1 else LEVEL)
    if options.level is None and len(levels) > 1:
        raise UsageError("several levels", path=root, why=f"there are {' and '.join(levels)}", remedy="name it")
    wanted = []
    for region in dict.fromkeys(options.regions or ()):
        folder = root / str(options.year or YEAR) / level
        new = RegionFiles(region, options.year or YEAR, level, folder / f"{region}.csv", folder / f"{region}.h5")
        own = [files for files in chosen if files.region == region]
        wanted += [files for files in own if _is_complete(files)][:1] or own[:1] or [new]
    return wanted


def _is_complete(files: RegionFiles) -> bool:
    return files.is_raw or (files.index.is_file() and files.h5.is_file())


def _origin(files: RegionFiles, urls: _UrlTables) -> _Origin:
    origin = urls.origin(files.region, files.year, files.level)
    if origin is None:
        what = f"there is no {files.region} {files.year} {files.level} to download"
        known = urls.known()
        named = {place.split()[0] for place in known}
        if files.region not in named:
            raise UsageError(f"unknown region '{files.region}'", remedy=did_you_mean(files.region, named))
        own = [place for place in known if place.split()[0] == files.region]
        raise UsageError(what, remedy=f"choose one of: {', '.join(own)}")
    return origin


def _require_room(root: Path, origins: list[_Origin]) -> None:
    """Check the disk space before the download; an archive and its file exist side by side for a while."""
    needed = sum(origin.size or 0 for origin in origins) + max((origin.size or 0 for origin in origins), default=0)
    free = shutil.disk_usage(root).free
    if needed > free:
        why = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        raise ResourceError("not enough disk space for the download", path=root, why=why, remedy="free some disk space")


def _fetch_region(files: RegionFiles, origin: _Origin) -> None:
    if origin.h5 is None or origin.size is None or origin.index is None:
        assert origin.csv is not None  # an origin has one of both
        folder = files.h5.with_suffix("") / "csv"
        archive = fetch(origin.csv, files.h5.with_suffix(".zip"))
        _unpack(archive, origin.csv, lambda: _extract_csv(archive, folder))
        event(f"downloaded {folder}", url=origin.csv)
        return
    if not files.index.exists():
        _fetch_table(origin.index, files.index, read_index)
    if not files.h5.exists():
        archive = fetch(origin.h5, files.h5.with_name(f"{files.h5.name}.tar.gz"))
        size = origin.size
        _unpack(archive, origin.h5, lambda: _extract_h5(archive, files.h5, size))
        event(f"downloaded {files.h5}", url=origin.h5, bytes=origin.size)


def _unpack(archive: Path, url: str, extract: Callable[[], None]) -> None:
    """An archive that cannot be right is not kept: the next attempt would go on from it."""
    try:
        extract()
    except InputError as failure:
        archive.unlink(missing_ok=True)
        raise InputError(failure.what, path=url, why=failure.why, remedy=failure.remedy) from None
    archive.unlink(missing_ok=True)


def _fetch_table(url: str, final: Path, read: Callable[[Path], object]) -> None:
    """A small csv, which has its name only after it could be read as what it should be."""
    unfinished = fetch(url, final, resume=False)  # it has no checksum that would tell two halves that differ
    try:
        read(unfinished)
    except InputError as failure:
        unfinished.unlink(missing_ok=True)
        why = f"{failure.what}: {failure.why}" if failure.why else failure.what
        raise InputError("not the file", path=url, why=why, remedy="try again later") from None
    flush_to_disk(unfinished)
    unfinished.replace(final)
    event(f"downloaded {final}", url=url)


def _read_codes(path: Path) -> None:
    columns = [str(name) for name in read_text_table(path, separator=";")]
    if len(columns) < 2:
        raise InputError("not a table of codes", path=path, why=f"the columns are {short_list(columns)}")


# --- Addresses: the package's own tables, read as data

INSTALL = "pip install 'cropstar[breizhcrops]'"
TABLES = ("INDEX_FILE_URLs", "H5_URLs", "RAW_CSV_URL", "FILESIZES", "CLASSMAPPINGURL", "CODESURL")


@dataclass(frozen=True)
class _Origin:
    """The addresses of one region of a year and level: an h5 file and its index, or an archive of csv files."""

    index: str | None
    h5: str | None
    size: int | None  # of the h5 file, to the byte
    csv: str | None


@dataclass(frozen=True)
class _UrlTables:
    mapping: str
    codes: str
    tables: Mapping[str, Mapping[int, Mapping[str, Mapping[str, Any]]]]

    def origin(self, region: str, year: int, level: str) -> _Origin | None:
        """None where there is nothing to download."""
        index, h5, csv, size = (self.tables[name].get(year, {}).get(level, {}).get(region) for name in _ORIGINS)
        whole = None not in (index, h5, size)
        return _Origin(index, h5, size, csv) if whole or csv else None

    def known(self) -> list[str]:
        """All regions that can be downloaded, as 'frh01 2017 L1C'."""
        places = {
            (year, level, region)
            for table in self.tables.values()
            for year, levels in table.items()
            for level, regions in levels.items()
            for region in regions
        }
        return [
            f"{region} {year} {level}" for year, level, region in sorted(places) if self.origin(region, year, level)
        ]


_ORIGINS = ("INDEX_FILE_URLs", "H5_URLs", "RAW_CSV_URL", "FILESIZES")


def read_tables() -> _UrlTables:
    """The tables of the installed package.

    Importing the package would import torch, and none of its code is wanted: its file of tables is found without
    being run and read as the literals that it consists of.
    """
    package = importlib.util.find_spec("breizhcrops")
    if package is None or not package.submodule_search_locations:
        raise UsageError("cannot download", why="the package breizhcrops knows the addresses", remedy=INSTALL)
    path = Path(next(iter(package.submodule_search_locations))) / "datasets" / "urls.py"
    try:
        values = _literals(path.read_text(encoding="utf-8"))
        tables = {name: values[name] for name in _ORIGINS}
        if not all(isinstance(table, dict) for table in tables.values()):
            raise ValueError("its tables have another format")
        return _UrlTables(str(values["CLASSMAPPINGURL"]), str(values["CODESURL"]), tables)
    except (OSError, SyntaxError, ValueError, KeyError) as failure:
        why = f"another version of the package breizhcrops: {failure}"
        raise InputError("no table of addresses", path=path, why=why, remedy=f"{INSTALL} --upgrade") from None


def _literals(source: str) -> dict[str, Any]:
    return {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in TABLES
    }


# --- One file from the network

TIMEOUT = 30.0  # seconds without a single byte
BLOCK = 2**18
UNFINISHED = ".download"
CONTINUE = "run the same command again to continue"
RETRY = "check the connection and run the same command again"
RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", re.ASCII)


def fetch(url: str, place: Path, *, resume: bool = True) -> Path:
    """Download to a hidden file beside `place` and return its path; the caller checks it and moves it there.

    It is kept when the connection breaks, so that the next call continues.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    unfinished = place.with_name(f".{place.name}{UNFINISHED}")
    have = unfinished.stat().st_size if resume and unfinished.exists() else 0
    with _open_url(url, have) as reply:
        start, total = _extent(reply, have)
        if start is None:  # what is here is not a beginning of what is there
            if not have:
                raise InputError("cannot download", path=url, why=f"an unexpected reply: {reply.status}", remedy=RETRY)
            return fetch(url, place, resume=False)
        if start == total:
            return unfinished
        got = _receive(reply, unfinished, url, start, total)
    if total is not None and got < total:
        why = f"the connection broke after {got} of {total} bytes"
        raise InputError("an incomplete download", path=url, why=why, remedy=CONTINUE)
    return unfinished


def _open_url(url: str, start: int) -> Any:
    if not url.startswith(("https://", "http://")):  # urllib would open files and ftp as well
        raise InputError("not a web address", path=url, remedy="check the package breizhcrops")
    headers = {"User-Agent": "cropstar", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)  # noqa: S310
    except urllib.error.HTTPError as failure:
        if failure.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and start:
            return failure  # a reply like any other: it says how long the file is
        why = f"{failure.code} {failure.reason}"
        failure.close()
        raise InputError("cannot download", path=url, why=why, remedy="try again later") from None
    except (OSError, http.client.HTTPException, ValueError) as failure:
        why = str(getattr(failure, "reason", None) or failure)
        raise InputError("cannot download", path=url, why=why, remedy=RETRY) from None


def _extent(reply: Any, have: int) -> tuple[int | None, int | None]:
    """The offset of the reply in the file, and the size of the file; None if unknown."""
    span = RANGE.fullmatch(reply.headers.get("Content-Range", ""))
    if reply.status == http.HTTPStatus.OK:
        length = reply.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    if span is None:
        return None, None
    total = int(span[2]) if span[2].isdecimal() else None
    if span[1] is None:  # nothing follows: all of it is here already, or more than that
        return (have, have) if total == have else (None, None)
    return (have, total) if int(span[1]) == have else (None, None)


def _receive(reply: Any, path: Path, url: str, start: int, total: int | None) -> int:
    """Append what comes, and return the size of the file."""
    got = start
    with (
        path.open("ab" if start else "wb") as handle,
        progress_bar(total or 0, url.rpartition("/")[2], "B", scale=True) as bar,
    ):
        bar.update(start)
        while total is None or got < total:
            try:
                block = reply.read1(BLOCK)
            except (OSError, http.client.HTTPException) as failure:
                handle.flush()
                why = f"the connection broke after {got} bytes: {failure}"
                raise InputError("an incomplete download", path=url, why=why, remedy=CONTINUE) from None
            if not block:
                break
            handle.write(block)
            got += len(block)
            bar.update(len(block))
    return got


# --- Archives: names and folders in them do not matter

H5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
CSV_NAME = re.compile(r"[\w-][\w.-]*\.csv", re.ASCII)
WRONG, FETCH_ANEW = "a wrong or damaged archive", "run the same command again: it is downloaded anew"


def _extract_h5(archive: Path, final: Path, size: int) -> None:
    """The file called like `final` of a .tar.gz, wherever in it; it must be `size` bytes long."""
    with (
        atomic_path(final) as partial,
        reading(WRONG, archive, FETCH_ANEW),
        gzip.open(archive) as plain,
        tarfile.open(fileobj=plain) as tar,
    ):
        members = {PurePosixPath(member.name).name: member for member in tar if member.isreg()}
        member = members.get(final.name)
        if member is None or member.size != size:
            problem = "is not in it" if member is None else f"has {member.size} bytes, not {size}"
            raise ValueError(f"{final.name} {problem}")
        source = tar.extractfile(member)
        assert source is not None
        with partial.open("wb") as handle, progress_bar(size, f"unpack {final.name}", "B", scale=True) as bar:
            while block := source.read(BLOCK):
                handle.write(block)
                bar.update(len(block))
        while plain.read(BLOCK):  # to the end, where the checksum stands
            pass
        with partial.open("rb") as handle:
            if handle.read(len(H5_SIGNATURE)) != H5_SIGNATURE:
                raise ValueError(f"{final.name} is not an HDF5 file")


def _extract_csv(archive: Path, final: Path) -> None:
    """The csv files of a .zip into the folder `final`, which is there with all of them or not at all."""
    partial = final.with_name(f".{final.name}{PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        with reading(WRONG, archive, FETCH_ANEW), zipfile.ZipFile(archive) as container:
            members = {PurePosixPath(name.replace("\\", "/")).name: name for name in container.namelist()}
            members = {name: member for name, member in members.items() if CSV_NAME.fullmatch(name)}
            if not members:
                raise ValueError("no csv file is in it")
            for name, member in track(members.items(), len(members), f"unpack {archive.name}", "file"):
                (partial / name).write_bytes(container.read(member))
        flush_to_disk(partial)
        os.replace(partial, final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
