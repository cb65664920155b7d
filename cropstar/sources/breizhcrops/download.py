"""Regions that are asked for and not there: fetched, checked and put where the package would put them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from cropstar.errors import InputError, ResourceError, UsageError, from_os_error
from cropstar.logs import event
from cropstar.registry import did_you_mean
from cropstar.sources.base import short_list
from cropstar.sources.breizhcrops.archives import extract_csv, extract_h5
from cropstar.sources.breizhcrops.classes import CODES, MAPPING, read_mapping
from cropstar.sources.breizhcrops.fetch import fetch
from cropstar.sources.breizhcrops.files import RegionFiles, find_regions, read_index
from cropstar.sources.breizhcrops.options import BreizhCropsOptions
from cropstar.sources.breizhcrops.tables import Origin, UrlTables, read_tables
from cropstar.sources.texts import read_text_table
from cropstar.store.atomic import flush_to_disk, locked

YEAR, LEVEL = 2017, "L1C"  # where none is named, as in the package
MOST_SMALL, MOST_INDEX, MOST_CSV = 10**6, 10**9, 10**11  # bytes of the class tables, an index, an archive of csv files
ARCHIVE_SLACK = 2**20  # an archive is smaller than its file, or larger by headers


def download_missing(root: Path, options: BreizhCropsOptions) -> None:
    """Fetch what is missing of the regions that `options` name; what is there stays as it is."""
    wanted = [files for files in _wanted(root, options) if not _is_whole(files)]
    tables = [name for name in (MAPPING, CODES) if not (root / name).exists()]
    if not wanted and not tables:
        return
    urls = read_tables()
    origins = [(files, _origin(files, urls)) for files in wanted]
    try:
        with locked(root, "the BreizhCrops folder"):
            _require_room(root, [origin for _, origin in origins])
            for name in tables:
                address = urls.mapping if name == MAPPING else urls.codes
                _fetch_table(address, root / name, MOST_SMALL, read_mapping if name == MAPPING else _read_codes)
            for files, origin in origins:
                _fetch_region(files, origin)
    except OSError as failure:
        raise from_os_error(failure) from None


def _wanted(root: Path, options: BreizhCropsOptions) -> list[RegionFiles]:
    """The files of each region as they are or as they shall be."""
    present = find_regions(root) if root.is_dir() else []
    found = [files for files in present if options.year in (None, files.year) and options.level in (None, files.level)]
    levels = sorted({files.level for files in found})
    level = options.level or (levels[0] if len(levels) == 1 else LEVEL)
    if options.level is None and len(levels) > 1:
        raise UsageError("which level?", path=root, why=f"there are {' and '.join(levels)}", remedy="name it")
    wanted = []
    for region in dict.fromkeys(options.regions or ()):
        folder = root / str(options.year or YEAR) / level
        new = RegionFiles(region, options.year or YEAR, level, folder / f"{region}.csv", folder / f"{region}.h5")
        own = [files for files in found if files.region == region]
        wanted += [files for files in own if _is_whole(files)][:1] or own[:1] or [new]
    return wanted


def _is_whole(files: RegionFiles) -> bool:
    return files.is_raw or (files.index.is_file() and files.h5.is_file())


def _origin(files: RegionFiles, urls: UrlTables) -> Origin:
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


def _require_room(root: Path, origins: list[Origin]) -> None:
    """Better now than after an hour; the archive and its file lie side by side for a while."""
    needed = sum(origin.size or 0 for origin in origins) + max((origin.size or 0 for origin in origins), default=0)
    free = shutil.disk_usage(root).free
    if needed > free:
        why = f"{needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free"
        raise ResourceError("not enough room for the download", path=root, why=why, remedy="free some disk space")


def _fetch_region(files: RegionFiles, origin: Origin) -> None:
    if origin.h5 is None or origin.size is None or origin.index is None:
        assert origin.csv is not None  # an origin has one of both
        folder = files.h5.with_suffix("") / "csv"
        archive = fetch(origin.csv, files.h5.with_suffix(".zip"), MOST_CSV)
        _unpack(archive, origin.csv, lambda: extract_csv(archive, folder))
        event(f"downloaded {folder}", url=origin.csv)
        return
    if not files.index.exists():
        _fetch_table(origin.index, files.index, MOST_INDEX, read_index)
    if not files.h5.exists():
        archive = fetch(origin.h5, files.h5.with_name(f"{files.h5.name}.tar.gz"), origin.size + ARCHIVE_SLACK)
        size = origin.size
        _unpack(archive, origin.h5, lambda: extract_h5(archive, files.h5, size))
        event(f"downloaded {files.h5}", url=origin.h5, bytes=origin.size)


def _unpack(archive: Path, url: str, extract: Callable[[], None]) -> None:
    """An archive that cannot be right is not kept: the next attempt would go on from it."""
    try:
        extract()
    except InputError as failure:
        archive.unlink(missing_ok=True)
        raise InputError(failure.what, path=url, why=failure.why, remedy=failure.remedy) from None
    archive.unlink(missing_ok=True)


def _fetch_table(url: str, final: Path, most: int, read: Callable[[Path], object]) -> None:
    """A small csv, which has its name only after it could be read as what it should be."""
    unfinished = fetch(url, final, most, resume=False)  # it has no checksum that would tell two halves that differ
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
