"""Sentinel-1 backscatter as dated GeoTIFFs: terrain-corrected images, in decibels or linear power, kept in decibels.

A path is a folder of dated files or one file; a file has one polarisation, told by its name (S1_20180701_VV.tif), or
several, told by the descriptions of its bands. Whether numbers are decibels or linear power is told by their range, and
said. The orbit, where a name has it, is part of the sensor's name: ascending and descending images differ.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.resampling import grid_difference
from cropstar.geo.sensors import (
    BACKSCATTER_KINDS,
    DECIBEL_OFFSET,
    DECIBEL_SCALE,
    RADAR_BANDS,
    backscatter_kind,
    decibel_counts,
    is_number,
    radar_band,
    radar_name,
    to_decibels,
)
from cropstar.geo.windows import Window
from cropstar.inputs import is_geotiff, require_file_or_folder
from cropstar.runtime import event, logger
from cropstar.sources.base import Observations, closed_on_failure, empty_dates_note
from cropstar.sources.stack.names import UnclearName, geotiffs, guess_name
from cropstar.sources.stack.rasters import OpenRasters

RAW = re.compile(r"S1[A-D]_(IW|EW|SM|WV)_(GRD|SLC|RAW)[^/]*\.(SAFE|zip)$", re.IGNORECASE)
WORDS = re.compile(r"[A-Za-z]+")
LOOKED_AT = 256  # pixels a side, in the middle of each file
DECIBELS = "give all of it in dB, or all of it in linear power"
ENOUGH = 200  # files to look at before deciding what a folder is


def refuse_raw_radar(path: Path) -> None:
    """Refuse Sentinel-1 products as ESA delivers them: they are not georeferenced to a map grid."""
    beside = path.iterdir() if path.is_dir() else ()
    raw = next((each for each in (path, *beside) if RAW.search(each.name)), None)
    if raw is not None:
        why = "it is not terrain-corrected, and has no pixels of a map"
        remedy = "orthorectify it first, with SNAP or pyroSAR, or take an analysis-ready collection (RTC)"
        raise InputError("raw Sentinel-1", path=raw, why=why, remedy=remedy)


def looks_like_radar(path: Path) -> bool:
    """Whether a path is radar by the names of its files: a polarisation in them, or S1; nothing is opened."""
    if path.is_file():
        return is_geotiff(path) and bool(_bands_in(path.name) or _is_sentinel1(path.name))
    if not path.is_dir():
        return False
    for number, relative in enumerate(geotiffs(path)):
        if _bands_in(str(relative)) or _is_sentinel1(str(relative)):
            return True
        if number >= ENOUGH:
            break
    return False


def _is_sentinel1(text: str) -> bool:
    return bool(re.search(r"(?<![A-Za-z0-9])S(entinel[-_]?)?1[A-D]?(?![0-9A-Za-z])", text, re.IGNORECASE))


def _bands_in(text: str) -> list[str]:
    """The polarisations that a name has as words of their own."""
    return [word.upper() for word in WORDS.findall(PurePosixPath(text).stem) if word.upper() in RADAR_BANDS]


def _polarisation(dataset: Any, index: int) -> str | None:
    """The polarisation in the tag or the last word of the description of a file's band."""
    text = dataset.tags(index).get("BAND") or dataset.descriptions[index - 1] or ""
    known = radar_band(text.split()[-1]) if text.split() else None
    return known[0] if known else None


class RadarSeries:
    """Dated GeoTIFFs of one radar sensor as a Series. For one thread; a copy elsewhere opens files of its own."""

    scale, offset = DECIBEL_SCALE, DECIBEL_OFFSET

    def __init__(self, path: Path) -> None:
        require_file_or_folder(path)
        self._files = OpenRasters()
        self.name = path.resolve().stem if path.is_file() else path.resolve().name
        relative = [PurePosixPath(path.name)] if path.is_file() else list(geotiffs(path))
        root = path.parent if path.is_file() else path
        with closed_on_failure([self]):
            table = self._table(root, relative)
            self.bands = tuple(band for band in RADAR_BANDS if any(band in own for own in table.values()))
            whole = {day: own for day, own in table.items() if all(band in own for band in self.bands)}
            if not whole:
                why = "no file has a date and a polarisation" if not table else f"no date has {', '.join(self.bands)}"
                remedy = "name them like S1_20180701_VV.tif, or describe their bands as VV and VH"
                raise InputError("no radar images", path=path, why=why, remedy=remedy)
            if len(whole) < len(table):
                logger.warning("%s: %d dates left out, without all bands", self.name, len(table) - len(whole))
            self.grid = self._one_grid(whole)
            self._kind = self._one_kind(whole)
            self._layers = self._with_data(whole, path)
        self.dates: tuple[date, ...] = tuple(self._layers)
        self.files = sorted({file for own in self._layers.values() for file, _ in own})
        self.sensor_name = radar_name(" ".join([self.name, *map(str, relative)]).replace("_", " "))
        self.provenance: dict[str, Any] = {
            "source": "radar",
            "folder": root.resolve().name,
            "files": len(self.files),
            "backscatter": self._kind,
        }
        description = BACKSCATTER_KINDS[self._kind]
        event(f"{self.name}: {self.sensor_name} {' '.join(self.bands)} taken for {description}, stored in dB")

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        values = np.zeros((len(self.dates), len(self.bands), window.height, window.width), dtype=np.uint16)
        for place, layers in enumerate(self._layers.values()):
            for band, (file, index) in enumerate(layers):
                values[place, band] = self._counts(file, index, window)
        valid = (values != 0).all(axis=1)
        values *= valid[:, None]
        return Observations(values, valid)

    def close(self) -> None:
        self._files.close()

    def _table(self, root: Path, relative: Sequence[PurePosixPath]) -> dict[date, dict[str, tuple[Path, int]]]:
        """The file and band of each date and polarisation."""
        table: dict[date, dict[str, tuple[Path, int]]] = {}
        for name in relative:
            try:
                day = guess_name(name).day
            except UnclearName as failure:
                raise InputError("unclear date", path=root / name, why=str(failure), remedy="rename it") from None
            if day is None:
                continue
            file = root / name
            dataset = self._files.dataset(file)
            own = [_polarisation(dataset, index) for index in dataset.indexes]
            named = _bands_in(str(name))
            if not any(own) and len(named) == dataset.count:
                own = list(named)
            for index, band in enumerate(own, 1):
                if band is None:
                    continue
                if band in table.setdefault(day, {}):
                    why = f"{day} has {band} twice"
                    raise InputError(
                        "a band appears twice", path=file, why=why, remedy="keep one orbit and image a day"
                    )
                table[day][band] = (file, index)
        return dict(sorted((day, own) for day, own in table.items() if own))

    def _one_grid(self, table: dict[date, dict[str, tuple[Path, int]]]) -> Grid:
        files = sorted({file for own in table.values() for file, _ in own.values()})
        first = Grid.of(self._files.dataset(files[0]))
        if not first.crs:
            raise InputError("no coordinate system", path=files[0], remedy="set one with gdal_edit -a_srs")
        for file in files[1:]:
            if difference := grid_difference(Grid.of(self._files.dataset(file)), first):
                remedy = "bring all images to one grid with gdalwarp"
                raise InputError("images on another grid", path=file, why=difference, remedy=remedy)
        return first

    def _one_kind(self, table: dict[date, dict[str, tuple[Path, int]]]) -> str:
        """Decibels or linear power: what every file is."""
        height, width = min(self.grid.height, LOOKED_AT), min(self.grid.width, LOOKED_AT)
        middle = Window((self.grid.height - height) // 2, (self.grid.width - width) // 2, height, width)
        kinds: dict[str, Path] = {}
        for own in table.values():
            for file, index in own.values():
                numbers, present = self._physical(file, index, middle)
                seen = numbers[present & (numbers != 0)]
                if not seen.size:
                    continue
                try:
                    kinds.setdefault(backscatter_kind(seen), file)
                except ValueError as failure:
                    raise InputError("unclear backscatter", path=file, why=str(failure), remedy=DECIBELS) from None
                if len(kinds) > 1:
                    why = ", ".join(f"{file.name} is {BACKSCATTER_KINDS[kind]}" for kind, file in kinds.items())
                    raise InputError("decibels and linear power are mixed", path=file, why=why, remedy=DECIBELS)
        return next(iter(kinds), "dB")

    def _with_data(
        self, table: dict[date, dict[str, tuple[Path, int]]], path: Path
    ) -> dict[date, tuple[tuple[Path, int], ...]]:
        whole = Window(0, 0, self.grid.height, self.grid.width)
        kept, empty = {}, []
        for day, own in table.items():
            file, index = own[self.bands[0]]
            step = Window(0, 0, min(self.grid.height, 1024), self.grid.width)
            seen = any(
                self._counts(file, index, Window(top, 0, min(step.height, whole.height - top), whole.width)).any()
                for top in range(0, whole.height, step.height)
            )
            if seen:
                kept[day] = tuple(own[band] for band in self.bands)
            else:
                empty.append(day)
        for note in empty_dates_note(empty, len(kept)):
            logger.warning("%s: %s", self.name, note)
        if not kept:
            why = f"none of {len(empty)} dates has any data"
            raise InputError("no usable date", path=path, why=why, remedy="get other images")
        return kept

    def _counts(self, file: Path, index: int, window: Window) -> NDArray[np.uint16]:
        numbers, present = self._physical(file, index, window)
        with np.errstate(invalid="ignore"):
            decibels = to_decibels(numbers, self._kind)
        counts = decibel_counts(decibels)
        counts[~present | ~np.isfinite(decibels)] = 0
        return counts

    def _physical(self, file: Path, index: int, window: Window) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Numbers as the file's scale has them, and where they are data: not nodata, not exactly zero."""
        dataset = self._files.dataset(file)
        stored = self._files.read(file, [index], window)[0]
        nodata = dataset.nodatavals[index - 1]
        present = is_number(stored) & (stored != 0) & (stored != -32768)
        if nodata is not None and not np.isnan(nodata):
            present &= stored != nodata
        scale, offset = dataset.scales[index - 1], dataset.offsets[index - 1]
        return (stored.astype(np.float64) * scale + offset).astype(np.float32), present
