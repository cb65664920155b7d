"""Opening GeoTIFF stacks: a file with dates x bands, or a folder of dated files."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from cropstar.errors import InputError, UsageError
from cropstar.geo.paths import require_file_or_folder
from cropstar.sources.base import Bands
from cropstar.sources.sentinel2.products import looks_like_sentinel2
from cropstar.sources.stack.dated import DatedSeries
from cropstar.sources.stack.listing import find_tiles, geotiffs
from cropstar.sources.stack.names import Unclear, guess
from cropstar.sources.stack.one_file import StackSeries
from cropstar.sources.stack.options import StackOptions

# The TUM image series as GeoTIFFs: each tile's folder has its labels beside the images.
TUM_LABELS = {"y.tif", "labels.tif"}
TUM_IMAGE = re.compile(r"/\d{8}_(?:10|20|60)m\.tif$|^(?:10|20|60)m/\d{8}\.tif$", re.ASCII)
ENOUGH = 1000  # files to look at before deciding what a folder is


def open_stack(
    path: Path, options: StackOptions | None = None, *, wanted: Bands | None = None
) -> list[StackSeries | DatedSeries]:
    """The series at a path, one a tile. Of a folder `wanted` bands are picked if all are there."""
    options = options or StackOptions()
    if not path.exists():
        raise InputError("no such file", path=path, remedy="check the path")
    require_file_or_folder(path)
    if path.is_file():
        # A model remembers the resampling of the images it learnt from: that is no order for this file.
        chosen = options.resampling if wanted is None else None
        for option, value in (("--pattern", options.pattern), ("--masks", options.masks), ("--resampling", chosen)):
            if value is not None:
                raise UsageError(f"{option} is for a folder of dated files", path=path, remedy="give the folder")
        return [
            StackSeries(path, bands=options.bands, clear=options.clear, dates=options.days, by_band=options.by_band)
        ]
    if options.days is not None:
        why = "the names of a folder's files tell their dates"
        raise UsageError("--dates is for one file", path=path, why=why, remedy="leave it out, or use --pattern")
    opened: list[StackSeries | DatedSeries] = []
    try:
        for tile in find_tiles(path, options):
            opened.append(DatedSeries(path, tile, options, wanted=wanted))
    except BaseException:
        for series in opened:
            series.close()
        raise
    return opened


def looks_like_stack(path: Path) -> bool:
    """Whether a folder holds dated GeoTIFFs; by names alone, nothing is opened."""
    if not path.is_dir() or looks_like_sentinel2(path):
        return False
    for number, relative in enumerate(geotiffs(path)):
        if number >= ENOUGH:
            break
        try:
            if guess(relative).day:
                return not _is_of_tum(path, relative)
        except Unclear:
            return True  # dated, if unclearly: the message helps more than a shrug
    return False


def _is_of_tum(folder: Path, relative: PurePosixPath) -> bool:
    place = folder / relative
    beside = {name for directory in (place.parent, place.parent.parent) for name in os.listdir(directory)}
    return bool(TUM_IMAGE.search(f"{place.parent.name}/{place.name}")) and bool(TUM_LABELS & beside)
