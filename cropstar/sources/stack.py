"""GeoTIFF stacks: one file with dates x bands, each band saying its date and name.

A band tells what it is by its tags (`DATE`, `BAND`) or by its description, such as "2023-05-14 B08".
A band called SCL is Sentinel-2's scene classification and becomes the validity mask.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.radiometry import SCENE_CLASSIFICATION, clear_sky, observed
from cropstar.geo.raster import open_raster, rasterio_window
from cropstar.geo.windows import Window
from cropstar.sources.series import Bands, Observations

DESCRIPTION = re.compile(r"(?P<year>\d{4})-?(?P<month>\d{2})-?(?P<day>\d{2})[\s_:]+(?P<band>[A-Za-z]\w*)$")
BRIGHTEST = np.iinfo(np.uint16).max
DEFAULT_SCALE = 1e-4  # Sentinel-2's quantification, where the file does not say
REMEDY = "describe each band as 'YYYY-MM-DD BAND', for example '2023-05-14 B08'"


@dataclass(frozen=True)
class BandKey:
    """What one band of the file is; `index` counts from 1, as GDAL does."""

    day: date
    band: str
    index: int


class StackSeries:
    """A T x C-band GeoTIFF as a Series."""

    def __init__(self, path: Path) -> None:
        self.name = path.stem
        self._path = path
        self._dataset = open_raster(path)
        try:
            keys = _band_keys(self._dataset, path)
            self.dates, self.bands, self._order, self._masks = _arrange(keys, path)
            self.scale, self.offset = _radiometry(self._dataset, self._order, path)
        except InputError:
            self._dataset.close()
            raise
        self.grid = Grid.of(self._dataset)
        self._nodata = self._dataset.nodata
        self.provenance: dict[str, Any] = {"source": "stack", "file": path.name}

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        values = self._read(self._order, window).reshape(len(self.dates), len(self.bands), *window_shape(window))
        valid = observed(values, self._nodata)
        if self._masks:
            valid &= clear_sky(self._read(self._masks, window))
        values = np.where(valid[:, None], values, 0)
        if values.dtype != np.uint16:
            # Dark pixels of a signed stack may be a little below zero: wrapped around they would be the brightest.
            values = np.clip(values, 0, BRIGHTEST).astype(np.uint16)
        return Observations(values, valid)

    def close(self) -> None:
        self._dataset.close()

    def _read(self, indexes: list[int], window: Window) -> NDArray[Any]:
        try:
            pixels: NDArray[Any] = self._dataset.read(indexes, window=rasterio_window(window))
        except RasterioError as failure:
            why = f"the pixels cannot be read ({failure})"
            raise InputError("damaged raster", path=self._path, why=why, remedy="get the file again") from None
        return pixels


def window_shape(window: Window) -> tuple[int, int]:
    return window.height, window.width


def _band_keys(dataset: Any, path: Path) -> list[BandKey]:
    if dataset.crs is None:
        raise InputError("no coordinate system", path=path, remedy="set one with gdal_edit -a_srs")
    if not np.issubdtype(np.dtype(dataset.dtypes[0]), np.integer):
        why = f"values are {dataset.dtypes[0]}"
        raise InputError("not a scaled integer stack", path=path, why=why, remedy="store reflectance x 10000 as uint16")
    keys = []
    for index in dataset.indexes:
        tags = dataset.tags(index)
        text = dataset.descriptions[index - 1] or ""
        if "DATE" in tags and "BAND" in tags:
            text = f"{tags['DATE']} {tags['BAND']}"
        match = DESCRIPTION.match(text.strip())
        try:
            if match is None:
                raise ValueError("no date and band name")
            day = date(int(match["year"]), int(match["month"]), int(match["day"]))
        except ValueError as failure:
            why = f"band {index} is described as '{text}' ({failure})"
            raise InputError("unknown bands", path=path, why=why, remedy=REMEDY) from None
        keys.append(BandKey(day, match["band"].upper(), index))
    return keys


def _arrange(keys: list[BandKey], path: Path) -> tuple[tuple[date, ...], Bands, list[int], list[int]]:
    """Order the file's bands as dates x bands, and the mask bands by date."""
    table: dict[tuple[date, str], int] = {}
    for key in keys:
        if (key.day, key.band) in table:
            raise InputError("a band stands twice", path=path, why=f"{key.day} {key.band}", remedy="keep one of them")
        table[key.day, key.band] = key.index
    dates = tuple(sorted({key.day for key in keys}))
    names = list(dict.fromkeys(key.band for key in keys))  # the file's own order
    for day in dates:
        missing = [band for band in names if (day, band) not in table]
        if missing:
            why = f"{day} has no {', '.join(missing)}"
            raise InputError("bands are missing", path=path, why=why, remedy="give every date the same bands")
    bands = tuple(band for band in names if band != SCENE_CLASSIFICATION)
    if not bands:
        raise InputError("no reflectance bands", path=path, remedy=REMEDY)
    order = [table[day, band] for day in dates for band in bands]
    masks = [table[day, SCENE_CLASSIFICATION] for day in dates] if SCENE_CLASSIFICATION in names else []
    return dates, bands, order, masks


def _radiometry(dataset: Any, order: list[int], path: Path) -> tuple[float, float]:
    """The one scale and offset of all reflectance bands; unset ones mean Sentinel-2's."""
    pairs = {(dataset.scales[index - 1], dataset.offsets[index - 1]) for index in order}
    if len(pairs) > 1:
        raise InputError(
            "bands differ in scale or offset", path=path, why=str(sorted(pairs)), remedy="bring them to one scale"
        )
    scale, offset = pairs.pop()
    return (DEFAULT_SCALE, 0.0) if (scale, offset) == (1.0, 0.0) else (float(scale), float(offset))
