"""What is read from where: one grid, one scale, and the files of each date."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.sensors import SCENE_CLASSIFICATION
from cropstar.sources.base import Bands
from cropstar.sources.stack.bands import Entry, Table, choose_bands, make_table
from cropstar.sources.stack.days import Day, Days, Layer, part
from cropstar.sources.stack.grids import align, require_same
from cropstar.sources.stack.handles import OpenRasters
from cropstar.sources.stack.headers import Header, read_header, require_radiometry
from cropstar.sources.stack.listing import TileFiles
from cropstar.sources.stack.options import StackOptions
from cropstar.sources.stack.renaming import rename


@dataclass(frozen=True)
class Plan:
    grid: Grid
    bands: Bands
    scale: float
    offset: float
    days: Days
    empty: Days  # without any data


def make_plan(folder: Path, tile: TileFiles, options: StackOptions, wanted: Bands | None, files: OpenRasters) -> Plan:
    """Look at every file's header, and at pixels until some have data; whatever does not fit is refused."""
    table, given = rename(make_table(tile, options.bands, files), options.bands, folder)
    bands, with_classes = choose_bands(table, given, wanted, folder)
    dates = sorted({day for day, _ in table})
    if options.masks and (missing := [str(day) for day in dates if day not in tile.masks]):
        why = f"{', '.join(missing)} without a file named as {options.masks}"
        raise InputError("a mask is missing", path=folder, why=why, remedy="add it, or take the date away")
    headers = _headers(table, bands, files)
    scale, offset = _radiometry(table, dates, bands, headers)
    like = min((table[dates[0], band] for band in bands), key=lambda entry: headers[entry.path].grid.resolution)
    grid = headers[like.path].grid
    days: Days = {}
    for day in dates:
        layers = []
        for band in bands:
            entry, first = table[day, band], table[dates[0], band]
            own = headers[entry.path].grid
            require_same(entry.path, own, headers[first.path].grid, first.path)  # dates never differ in resolution
            layers.append(Layer.of(entry, headers[entry.path], align(entry.path, own, grid, like.path)))
        classes = _beside(table[day, SCENE_CLASSIFICATION], grid, like.path, files) if with_classes else None
        mask = _beside(Entry(tile.masks[day], 1, True), grid, like.path, files, mask=True) if options.masks else None
        days[day] = Day(tuple(layers), classes, mask)
    kept, empty = part(days, files, folder)
    return Plan(grid, bands, scale, offset, kept, empty)


def _headers(table: Table, bands: Bands, files: OpenRasters) -> dict[Path, Header]:
    headers: dict[Path, Header] = {}
    for (_, band), entry in sorted(table.items()):
        if band in bands and entry.path not in headers:
            headers[entry.path] = _lone(entry, read_header(entry.path, files))
    return headers


def _lone(entry: Entry, header: Header) -> Header:
    if entry.lone and header.count != 1:
        why = f"its name says one band and {header.count} are in it"
        raise InputError("more bands than one", path=entry.path, why=why, remedy="name the files with --pattern")
    return header


def _beside(entry: Entry, grid: Grid, like: Path, files: OpenRasters, *, mask: bool = False) -> Layer:
    """A mask or scene classification on the grid."""
    header = _lone(entry, read_header(entry.path, files, mask=mask))
    return Layer.of(entry, header, align(entry.path, header.grid, grid, like))


def _radiometry(table: Table, dates: list[date], bands: Bands, headers: dict[Path, Header]) -> tuple[float, float]:
    """The one scale and offset of all reflectance bands; unset ones mean Sentinel-2's."""
    first = table[dates[0], bands[0]]
    expected = require_radiometry(headers[first.path], first.index)
    for day in dates:
        for band in bands:
            entry = table[day, band]
            found = require_radiometry(headers[entry.path], entry.index)
            if found != expected:
                why = f"{_words(found)} instead of {_words(expected)} as {first.path.name} has"
                remedy = "bring all files to one scale"
                raise InputError("files differ in scale or offset", path=entry.path, why=why, remedy=remedy)
    return expected


def _words(pair: tuple[float, float]) -> str:
    return f"scale {pair[0]:g} and offset {pair[1]:g}"
