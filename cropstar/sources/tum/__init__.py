"""The data of TUM: Sentinel-2 image series of Bavaria (MTLCC, 2018) and series of points (fieldRNN, 2017)."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from cropstar.errors import InputError, UsageError
from cropstar.registry import short_list
from cropstar.sources.base import Scene
from cropstar.sources.tum.folders import BATCHES, PARTS, RECORDS, DataFolder, TumOptions, find_data, looks_like_tum
from cropstar.sources.tum.images import ImageScene, year_of
from cropstar.sources.tum.points import SeriesScene

__all__ = ["TumOptions", "looks_like_tum", "open_tum"]


def open_tum(path: Path, options: TumOptions | None = None) -> list[Scene]:
    """One scene for each folder of tiles, which is a year, or one of all batches."""
    options = options or TumOptions()
    if not path.is_dir():
        raise InputError("no such folder", path=path, remedy="give the folder of the data set")
    folders = find_data(path)
    if not folders:
        why = "there are no <tile>.tfrecord.gz, no folders of GeoTIFFs with y.tif or labels.tif and no b0.pkl"
        raise InputError("no TUM data", path=path, why=why, remedy="give the folder of the data set")
    chosen = _choose(folders, path, options)
    if chosen[0].kind == BATCHES:
        series = SeriesScene([folder.path for folder in _in_order(chosen)], options.year)
        series.log_summary(chosen=options.year is not None)
        return [series]
    scenes = [ImageScene(folder, _year(folder, options), options) for folder in chosen]
    for scene in scenes:
        scene.log_summary()
    return list(scenes)


def _choose(found: list[DataFolder], path: Path, options: TumOptions) -> list[DataFolder]:
    """The folders that are meant: years of one collection of tiles, or the parts of one collection of batches."""
    labels = sorted({folder.label for folder in found})
    if options.data is not None:
        found = [folder for folder in found if _matches(folder, options.data)]
        if not found:
            what = f"no data '{options.data}'"
            raise UsageError(what, path=path, why=f"there is {short_list(labels)}", remedy="choose one with --data")
    if options.year is not None:
        found = [folder for folder in found if _year(folder, options) == options.year]
        if not found:
            what = f"no data of {options.year}"
            raise UsageError(what, path=path, why=f"there is {short_list(labels)}", remedy="choose another --year")
    collections = {(folder.kind == BATCHES, _collection(folder)) for folder in found}
    years: dict[int | None, list[DataFolder]] = defaultdict(list)
    for folder in found:
        years[_year(folder, options)].append(folder)
    twice = any(len(folders) > 1 and folders[0].kind != BATCHES for folders in years.values())
    if len(collections) > 1 or twice:
        why = f"there is {short_list(sorted({folder.label for folder in found}))}"
        raise UsageError("several collections", path=path, why=why, remedy="choose with --data")
    return found


def _matches(folder: DataFolder, wanted: str) -> bool:
    wanted = wanted.strip("/")
    return wanted in (folder.label, *folder.label.split("/"), folder.path.name)


def _collection(folder: DataFolder) -> Path:
    if folder.kind != BATCHES:
        return folder.root
    return folder.path.parent if folder.path.name in PARTS else folder.path


def _in_order(folders: list[DataFolder]) -> list[DataFolder]:
    """Train, test, eval."""
    return sorted(folders, key=lambda folder: PARTS.index(folder.path.name) if folder.path.name in PARTS else -1)


def _year(folder: DataFolder, options: TumOptions) -> int | None:
    """Of tiles the year by their folder, else the user's; None where file names may tell."""
    if folder.kind == BATCHES:
        return options.year
    year = year_of(folder.path, folder.root) or options.year
    if year is None and folder.kind == RECORDS:
        why = "neither the records nor the folder's name have it"
        raise UsageError("the year is not known", path=folder.path, why=why, remedy="give it with --year")
    return year
