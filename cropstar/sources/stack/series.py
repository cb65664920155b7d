"""GeoTIFF stacks as Series: one file with dates x bands, or a folder of dated files.

One file: a band tells what it is by its tags (`DATE`, `BAND`) or by its description, such as "2023-05-14 B08"; else the
user tells the dates, and the names of the bands where these have none. A band called SCL is Sentinel-2's scene
classification and becomes the validity mask.

A folder:

* A file holds one band of one date, or several bands of one date; dates, bands and tiles come from its name, the
  bands of a file of several from their descriptions.
* The grid is that of the finest band. Coarser bands come to it by georeference with the chosen resampling, the
  scene classification (SCL) and masks always by the containing pixel.
* A pixel is valid where every band has data, the scene class is a clear one and the mask is 0.

A date without any data is dropped, and `notes` name it.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.resampling import Alignment, RasterPart, nearest
from cropstar.geo.sensors import SCENE_CLASSIFICATION, band_name, clear_bits, clear_sky, in_order, observed
from cropstar.geo.windows import Window
from cropstar.inputs import require_file_or_folder
from cropstar.registry import did_you_mean
from cropstar.runtime import logger
from cropstar.sources.base import (
    Bands,
    MergedSeries,
    Observations,
    SceneOnGrid,
    closed_on_failure,
    name_with_years,
    to_values,
)
from cropstar.sources.sentinel2.products import looks_like_sentinel2
from cropstar.sources.stack.names import (
    DatedFile,
    Dates,
    StackOptions,
    TileFiles,
    UnclearName,
    bands_in,
    days_in,
    find_tiles,
    geotiffs,
    guess_name,
    has_renaming,
    rename,
)
from cropstar.sources.stack.rasters import (
    NO_COUNT,
    BandEntry,
    BandLayer,
    Day,
    Days,
    Header,
    OpenRasters,
    align_to_grid,
    log_fractions,
    log_stack_notes,
    read_header,
    require_radiometry,
    require_same_grid,
    resample_numbers,
    split_empty_days,
)

# The TUM image series as GeoTIFFs: each tile's folder has its labels beside the images.
TUM_LABELS = {"y.tif", "labels.tif"}
TUM_IMAGE = re.compile(r"/\d{8}_(?:10|20|60)m\.tif$|^(?:10|20|60)m/\d{8}\.tif$", re.ASCII)
ENOUGH = 1000  # files to look at before deciding what a folder is


def open_stack(
    path: Path, options: StackOptions | None = None, *, wanted: Bands | None = None
) -> list[StackSeries | DatedSeries]:
    """The series at a path, one per tile. Of a folder `wanted` bands are picked if all are there."""
    options = options or StackOptions()
    if not path.exists():
        raise InputError("no such file", path=path, remedy="check the path")
    require_file_or_folder(path)
    if path.is_file():
        # A model remembers the resampling of the images it learnt from: that is not an order for this file.
        chosen = options.resampling if wanted is None else None
        for option, value in (("--pattern", options.pattern), ("--masks", options.masks), ("--resampling", chosen)):
            if value is not None:
                raise UsageError(f"{option} is for a folder of dated files", path=path, remedy="give the folder")
        return _warned([StackSeries(path, options)])
    if options.days is not None:
        why = "the names of a folder's files tell their dates"
        raise UsageError("--dates is for one file", path=path, why=why, remedy="leave it out, or use --pattern")
    opened: list[StackSeries | DatedSeries] = []
    with closed_on_failure(opened):
        for tile in find_tiles(path, options):
            opened.append(DatedSeries(path, tile, options, wanted=wanted))
    return _warned(opened)


def _warned(opened: list[StackSeries | DatedSeries]) -> list[StackSeries | DatedSeries]:
    for series in opened:
        if series.grid.rasterio_crs.is_geographic:
            logger.warning(
                "%s: pixels are degrees: --erode, blocks in metres and hectares need a projected grid; gdalwarp -t_srs "
                "brings the images to one",
                series.name,
            )
    return opened


def looks_like_stack(path: Path) -> bool:
    """Whether a folder holds dated GeoTIFFs; by names alone, nothing is opened."""
    if not path.is_dir() or looks_like_sentinel2(path):
        return False
    for number, relative in enumerate(geotiffs(path)):
        if number >= ENOUGH:
            break
        try:
            if guess_name(relative).day:
                return not _is_of_tum(path, relative)
        except UnclearName:
            return True  # dated, if unclearly: the message helps more than a shrug
    return False


def _is_of_tum(folder: Path, relative: PurePosixPath) -> bool:
    place = folder / relative
    beside = {name for directory in (place.parent, place.parent.parent) for name in os.listdir(directory)}
    return bool(TUM_IMAGE.search(f"{place.parent.name}/{place.name}")) and bool(TUM_LABELS & beside)


# --- One file with dates x bands

DESCRIPTION = re.compile(r"(?P<year>\d{4})-?(?P<month>\d{2})-?(?P<day>\d{2})[\s_:]+(?P<band>[A-Za-z]\w*)$")
DESCRIBE_BANDS = "describe each band as 'YYYY-MM-DD BAND', for example '2023-05-14 B08', or give --dates and --bands"


class StackSeries:
    """A T x C-band GeoTIFF as a Series. For one thread; a copy in another process opens the file anew."""

    def __init__(self, path: Path, options: StackOptions | None = None) -> None:
        options = options or StackOptions()
        dates, by_band = options.days, options.by_band
        self.name = path.stem
        self._path = path
        self._clear = tuple(options.clear)
        self._files = OpenRasters(given=(options.scale, options.offset))
        with closed_on_failure([self]):
            header = read_header(path, self._files)
            texts = _band_texts(self._files.dataset(path))
            given = options.bands
            table = (
                _described_table(texts, path)
                if dates is None
                else _table_by_hand(texts, path, dates, given, by_band=by_band)
            )
            table, given = rename(table, given, path)
            self.bands, with_classes = _choose_bands(table, given, None, path)
            self.scale, self.offset = _one_radiometry(header, table, self.bands)
            if header.gain is None:
                self.scale, self.offset = options.radiometry((self.scale, self.offset))
            else:
                log_fractions(path.name, header.gain)
            days, empty = split_empty_days(_days_of_file(header, table, self.bands, with_classes), self._files, path)
        self.grid = header.grid
        self.dates: tuple[date, ...] = tuple(days)
        self._nodata = header.nodata[0] if header.gain is None else NO_COUNT
        self._order = [layer.index for day in days.values() for layer in day.layers]
        self._masks = [day.scene_classes.index for day in days.values() if day.scene_classes]
        self.provenance: dict[str, Any] = {"source": "stack", "file": path.name}
        if dates is not None:
            self.provenance["by_hand"] = {"dates": len(dates), "order": "band" if by_band else "date"}
        if empty:
            self.provenance["without_data"] = [day.isoformat() for day in empty]
        self.notes = log_stack_notes(self.name, days, empty)

    @property
    def files(self) -> list[Path]:
        """All files on disk that the series is read from."""
        return [self._path]

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (len(self.dates), len(self.bands), window.height, window.width)
        values = self._files.read(self._path, self._order, window).reshape(shape)
        valid = observed(values, self._nodata)
        if self._masks:
            valid &= clear_sky(self._files.read(self._path, self._masks, window, raw=True), self._clear)
        return Observations(to_values(np.where(valid[:, None], values, 0), darkest=0), valid)

    def close(self) -> None:
        self._files.close()


def _band_texts(dataset: Any) -> list[str]:
    """The description or tag of each band."""
    texts = []
    for index in dataset.indexes:
        tags = dataset.tags(index)
        known = "DATE" in tags and "BAND" in tags
        texts.append(f"{tags['DATE']} {tags['BAND']}" if known else dataset.descriptions[index - 1] or "")
    return texts


def _described_table(texts: Sequence[str], path: Path) -> BandTable:
    """Every band of every date."""
    table: BandTable = {}
    for index, text in enumerate(texts, start=1):
        match = DESCRIPTION.match(text.strip())
        try:
            if match is None:
                raise ValueError("no date and band name")
            day = date(int(match["year"]), int(match["month"]), int(match["day"]))
        except ValueError as failure:
            why = f"band {index} is described as '{text}' ({failure})"
            raise InputError("unknown bands", path=path, why=why, remedy=DESCRIBE_BANDS) from None
        band = band_name(match["band"])
        if (day, band) in table:
            raise InputError("a band appears twice", path=path, why=f"{day} {band}", remedy="keep one of them")
        table[day, band] = BandEntry(path, index, False)
    return table


def _days_of_file(header: Header, table: BandTable, bands: Bands, with_classes: bool) -> Days:
    whole = Alignment(1, 0, 0, *header.grid.shape)
    layers = {
        (day, band): BandLayer.of(entry, header, whole, raw=band == SCENE_CLASSIFICATION)
        for (day, band), entry in table.items()
    }
    return {
        day: Day(
            tuple(layers[day, band] for band in bands), layers[day, SCENE_CLASSIFICATION] if with_classes else None
        )
        for day in sorted({day for day, _ in table})
    }


def _one_radiometry(header: Header, table: BandTable, bands: Bands) -> tuple[float, float]:
    """The one scale and offset of all reflectance bands; unset ones mean Sentinel-2's."""
    pairs = {require_radiometry(header, entry.index) for (_, band), entry in table.items() if band in bands}
    if len(pairs) > 1:
        remedy = "bring them to one scale"
        raise InputError("bands differ in scale or offset", path=header.path, why=str(sorted(pairs)), remedy=remedy)
    return pairs.pop()


# --- A folder of dated files


class DatedSeries(MergedSeries[BandLayer]):
    """The dated files of one tile as a Series. For one thread; a copy in another process opens files of its own."""

    scenes: list[list[Day]]  # one per date

    def __init__(
        self, folder: Path, tile: TileFiles, options: StackOptions | None = None, *, wanted: Bands | None = None
    ) -> None:
        self.options = options or StackOptions()
        self._files = OpenRasters(given=(self.options.scale, self.options.offset))
        with closed_on_failure([self]):
            layout = _make_layout(folder, tile, self.options, wanted, self._files)
        self.tile = tile.tile
        self.grid = layout.grid
        self.bands = layout.bands
        self.scale, self.offset = layout.scale, layout.offset
        self.dates: tuple[date, ...] = tuple(layout.days)
        self.name = _series_name(folder, self.tile, self.dates)
        self.provenance = _provenance(folder, self.tile, layout, self.options)
        self.notes = log_stack_notes(self.name, layout.days, layout.empty)
        self.clear = self.options.clear
        self.scenes = [[day] for day in layout.days.values()]
        self._unused = {path for day in layout.empty.values() for path in day.paths}

    @property
    def files(self) -> list[Path]:
        """All files on disk that the series is read from."""
        return sorted(self._unused.union(*(day.paths for (day,) in self.scenes)))

    def close(self) -> None:
        self._files.close()

    def read_nearest(self, layer: BandLayer, window: Window) -> NDArray[Any]:
        return nearest(self._read_part(layer, window), window)

    def read_resampled(self, layer: BandLayer, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        numbers, present = resample_numbers(self._read_part(layer, window), window, layer.nodata, self.options.kernel)
        return to_values(numbers, darkest=0), present

    def knows_nodata(self, layer: BandLayer) -> bool:
        """Where the file does not say, zero is nodata where all such bands have it."""
        return layer.nodata is not None

    def _seen_clearly(self, scene: SceneOnGrid[BandLayer], window: Window) -> NDArray[np.bool_]:
        """By the scene classes, or the bits of a quality band."""
        layer = scene.scene_classes
        if layer is None or layer.quality is None:
            return super().clear_pixels(scene, window)
        return clear_bits(self.read_nearest(layer, window), layer.quality)

    def clear_pixels(self, scene: SceneOnGrid[BandLayer], window: Window) -> NDArray[np.bool_]:
        clear = self._seen_clearly(scene, window)
        if isinstance(scene, Day) and scene.mask:
            part = self._read_part(scene.mask, window)
            # Turned over before it is brought to the grid: beyond the mask's edge nothing is clear.
            is_clear = RasterPart((part.pixels == 0).astype(np.uint8), part.place, part.alignment)
            clear &= nearest(is_clear, window) != 0
        return clear

    def _read_part(self, layer: BandLayer, window: Window) -> RasterPart:
        place = layer.alignment.source(window)
        return RasterPart(self._files.read(layer.path, [layer.index], place, raw=layer.raw)[0], place, layer.alignment)


def _series_name(folder: Path, tile: str | None, dates: tuple[date, ...]) -> str:
    """Tile and years, so that another season of the tile is another scene of a store; else the folder's name."""
    return folder.resolve().name if tile is None else name_with_years(tile, dates=dates)


def _provenance(folder: Path, tile: str | None, layout: _StackLayout, options: StackOptions) -> dict[str, Any]:
    """The provenance in the manifest and every tile."""
    paths = set().union(*(day.paths for day in layout.days.values()))
    return {
        "source": "stack",
        "folder": folder.resolve().name,
        "tile": tile,
        "files": len(paths),
        "without_data": [day.isoformat() for day in layout.empty],
        "resampling": options.kernel,
        "scene_classes": list(options.clear),
        "masks": options.masks,
    }


# --- Which file is read for which date


@dataclass(frozen=True)
class _StackLayout:
    grid: Grid
    bands: Bands
    scale: float
    offset: float
    days: Days
    empty: Days  # without any data


def _make_layout(
    folder: Path, tile: TileFiles, options: StackOptions, wanted: Bands | None, files: OpenRasters
) -> _StackLayout:
    """Check the headers of all files, and read pixels until some have data. Files that do not fit are refused."""
    table, given = rename(_make_table(tile, options.bands, files), options.bands, folder)
    bands, with_classes = _choose_bands(table, given, wanted, folder)
    dates = sorted({day for day, _ in table})
    if options.masks and (missing := [str(day) for day in dates if day not in tile.masks]):
        why = f"{', '.join(missing)} without a file named as {options.masks}"
        raise InputError("a mask is missing", path=folder, why=why, remedy="add it, or remove the date")
    headers = _headers(table, bands, files)
    scale, offset = _radiometry(table, dates, bands, headers)
    gains = [header.gain for header in headers.values() if header.gain is not None]
    if gains:
        log_fractions(folder.name, gains[0])
    else:
        scale, offset = options.radiometry((scale, offset))
    like = min((table[dates[0], band] for band in bands), key=lambda entry: headers[entry.path].grid.resolution)
    grid = headers[like.path].grid
    days: Days = {}
    for day in dates:
        layers = []
        for band in bands:
            entry, first = table[day, band], table[dates[0], band]
            own = headers[entry.path].grid
            require_same_grid(entry.path, own, headers[first.path].grid, first.path)  # dates never differ in resolution
            layers.append(BandLayer.of(entry, headers[entry.path], align_to_grid(entry.path, own, grid, like.path)))
        classes = _mask_layer(table[day, SCENE_CLASSIFICATION], grid, like.path, files) if with_classes else None
        mask = (
            _mask_layer(BandEntry(tile.masks[day], 1, True), grid, like.path, files, mask=True)
            if options.masks
            else None
        )
        days[day] = Day(tuple(layers), classes, mask)
    kept, empty = split_empty_days(days, files, folder)
    return _StackLayout(grid, bands, scale, offset, kept, empty)


def _headers(table: BandTable, bands: Bands, files: OpenRasters) -> dict[Path, Header]:
    headers: dict[Path, Header] = {}
    for (_, band), entry in sorted(table.items()):
        if band in bands and entry.path not in headers:
            headers[entry.path] = _require_one_band(entry, read_header(entry.path, files))
    return headers


def _require_one_band(entry: BandEntry, header: Header) -> Header:
    if entry.lone and header.count != 1:
        why = f"its name gives one band, but it has {header.count}"
        raise InputError("more than one band", path=entry.path, why=why, remedy="name the files with --pattern")
    return header


def _mask_layer(entry: BandEntry, grid: Grid, like: Path, files: OpenRasters, *, mask: bool = False) -> BandLayer:
    """A mask or scene classification on the grid."""
    header = _require_one_band(entry, read_header(entry.path, files, mask=mask))
    return BandLayer.of(entry, header, align_to_grid(entry.path, header.grid, grid, like), raw=True)


def _radiometry(table: BandTable, dates: list[date], bands: Bands, headers: dict[Path, Header]) -> tuple[float, float]:
    """The one scale and offset of all reflectance bands; unset ones mean Sentinel-2's."""
    first = table[dates[0], bands[0]]
    expected = require_radiometry(headers[first.path], first.index)
    for day in dates:
        for band in bands:
            entry = table[day, band]
            found = require_radiometry(headers[entry.path], entry.index)
            gains = headers[entry.path].gain, headers[first.path].gain
            if None not in gains and gains[0] != gains[1]:
                why = f"values of another size than in {first.path.name}"
                remedy = "bring all files to one scale, or give it with --scale"
                raise InputError("files differ in scale", path=entry.path, why=why, remedy=remedy)
            if found != expected:
                why = f"{_radiometry_words(found)} instead of {_radiometry_words(expected)} as {first.path.name} has"
                remedy = "bring all files to one scale"
                raise InputError("files differ in scale or offset", path=entry.path, why=why, remedy=remedy)
    return expected


def _radiometry_words(pair: tuple[float, float]) -> str:
    return f"scale {pair[0]:g} and offset {pair[1]:g}"


# --- Which band of which file is which

NAME_BANDS = "describe its bands, name them in order with --bands B02,B03,B04,B08, or leave it out with --pattern"


BandTable = dict[tuple[date, str], BandEntry]


def _make_table(tile: TileFiles, given: Bands | None, files: OpenRasters) -> BandTable:
    """Every band of every date; files of one band are not opened yet."""
    table: BandTable = {}
    for dated in sorted(tile.files, key=lambda each: (each.day, each.path)):
        if dated.band:
            entries = [(dated.band, BandEntry(dated.path, 1, True))]
        else:
            names = _names_of(read_header(dated.path, files), dated, given)
            entries = [(name, BandEntry(dated.path, index, False)) for index, name in enumerate(names, start=1)]
        for band, entry in entries:
            if (dated.day, band) in table:
                raise _duplicate_band(dated.day, band, table[dated.day, band], entry)
            table[dated.day, band] = entry
    return table


def _names_of(header: Header, dated: DatedFile, given: Bands | None) -> list[str]:
    """The bands of a file in its order. --bands gives the names where the file has none of its own."""
    own = [_band_in(text, dated) for text in header.names]
    if given and not has_renaming(given) and not set(given) & set(own):
        if len(given) != header.count:
            why = f"{header.count} bands are there and {len(given)} are named: {', '.join(given)}"
            raise InputError(
                "the number of bands does not match", path=header.path, why=why, remedy="name all of them in order"
            )
        return list(given)
    for index, (name, text) in enumerate(zip(own, header.names, strict=True), start=1):
        if not name:
            description = f"is described as '{text}'" if text else "has no description"
            why = f"band {index} of {header.count} {description}"
            raise InputError("unknown bands", path=header.path, why=why, remedy=NAME_BANDS)
    return [name for name in own if name]


def _choose_bands(table: BandTable, given: Bands | None, wanted: Bands | None, where: Path) -> tuple[Bands, bool]:
    """The reflectance bands to read, and whether there is a scene classification. Every date must have them all."""
    days = sorted({day for day, _ in table})
    available = in_order(band for _, band in table)
    reflectance = tuple(band for band in available if band != SCENE_CLASSIFICATION)
    bands = tuple(band for band in given if band != SCENE_CLASSIFICATION) if given else reflectance
    if not given and wanted and set(wanted) <= set(reflectance):
        bands = wanted
    if not bands:
        raise InputError("no reflectance bands", path=where, why="there are only masks", remedy="add the bands")
    for band in bands:
        if band not in reflectance:
            raise UsageError(f"no band '{band}'", path=where, remedy=did_you_mean(band, available))
    with_classes = SCENE_CLASSIFICATION in available
    for day in days:
        missing = [band for band in (*bands, *([SCENE_CLASSIFICATION] * with_classes)) if (day, band) not in table]
        if missing:
            why = f"{day} has no {', '.join(missing)}"
            remedy = "add it, remove the date, or choose among the bands with --bands"
            raise InputError("a band is missing", path=where, why=why, remedy=remedy)
    return bands, with_classes


def _band_in(text: str, dated: DatedFile) -> str | None:
    """The band that a description names, as 'B8A', 'B4, central wavelength 665 nm' or '2023-05-14 B08'."""
    days, bands = days_in(text), bands_in(text)
    if days and days != [dated.day]:
        why = f"a band is described as '{text}' and the file's name says {dated.day}"
        raise InputError("several dates in one file", path=dated.path, why=why, remedy="give such a file by itself")
    if len(bands) == 1:
        return bands[0]
    return band_name(text) if text.isidentifier() else None


def _duplicate_band(day: date, band: str, first: BandEntry, second: BandEntry) -> InputError:
    if first.path == second.path:
        return InputError("a band appears twice", path=first.path, why=band, remedy="keep one of them")
    why = f"{first.path.name} and {second.path.name}"
    if first.path.name == second.path.name:
        why = f"{first.path} and {second.path}"
    remedy = "keep one of them, or tell them apart with --pattern, which may name the {tile}"
    return InputError(f"two files for {band} of {day}", path=first.path.parent, why=why, remedy=remedy)


# --- What the user says of one file by hand: --dates and --bands


def _table_by_hand(texts: Sequence[str], path: Path, dates: Dates, given: Bands | None, *, by_band: bool) -> BandTable:
    """Every band of every date of a file whose bands are described by `texts`.

    Where the bands have names, the first of a name is of the first date, the second of the second; where they have
    none, `given` are the names of the bands of a date, and the file has one date after the other, or one band after
    the other.
    """
    own = [_band_of_description(text) for text in texts]
    if given is None or has_renaming(given) or (all(own) and set(given) & set(own)):
        places = _places_by_names(texts, own, path, dates)
    else:
        _require_count(len(texts), dates, given, path)
        if by_band:
            places = [(day, band) for band in given for day in dates]
        else:
            places = [(day, band) for day in dates for band in given]
    table: BandTable = {}
    for index, ((day, band), text) in enumerate(zip(places, texts, strict=True), start=1):
        if (named := days_in(text)) and named != [day]:
            why = f"band {index} is described as '{text}', and --dates makes it one of {day}"
            remedy = "leave out --dates, or correct them"
            raise InputError("the file has other dates", path=path, why=why, remedy=remedy)
        table[day, band] = BandEntry(path, index, False)
    return table


def _places_by_names(
    texts: Sequence[str], own: Sequence[str | None], path: Path, dates: Dates
) -> list[tuple[date, str]]:
    counts: Counter[str] = Counter()
    places = []
    for index, (band, text) in enumerate(zip(own, texts, strict=True), start=1):
        if not band:
            description = f"is described as '{text}'" if text else "has no description"
            why, remedy = f"band {index} of {len(own)} {description}", "name them in order with --bands B02,B03,B04,B08"
            raise InputError("unknown bands", path=path, why=why, remedy=remedy)
        places.append((dates[min(counts[band], len(dates) - 1)], band))
        counts[band] += 1
    for band, count in counts.items():
        if count != len(dates):
            why = f"{count} bands are called {band} and {len(dates)} dates are given"
            raise InputError(
                "the number of dates does not match", path=path, why=why, remedy="give each date of the file once"
            )
    return places


def _require_count(there: int, dates: Dates, given: Bands, path: Path) -> None:
    if there == len(dates) * len(given):
        return
    why = (
        f"{there} bands are in the file, and {len(dates)} dates of {len(given)} bands "
        f"({', '.join(given)}) are {len(dates) * len(given)}"
    )
    remedy = "name all bands of a date with --bands, and all dates with --dates"
    if there % len(given) == 0:
        remedy = f"give {there // len(given)} dates with --dates, or name other bands with --bands"
    raise InputError("the number of bands does not match", path=path, why=why, remedy=remedy)


def _band_of_description(text: str) -> str | None:
    """The band that a description names, with or without a date before it."""
    if len(bands := bands_in(text)) == 1:
        return bands[0]
    word = text.replace(":", " ").split()[-1:] if days_in(text) else [text.strip()]
    return band_name(word[0]) if word and word[0].isidentifier() else None
