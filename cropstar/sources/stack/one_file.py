"""One GeoTIFF with dates x bands, each band saying its date and name.

A band tells what it is by its tags (`DATE`, `BAND`) or by its description, such as "2023-05-14 B08".
A band called SCL is Sentinel-2's scene classification and becomes the validity mask.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.radiometry import CLEAR_SCENE_CLASSES, SCENE_CLASSIFICATION, clear_sky, observed
from cropstar.geo.windows import Window
from cropstar.registry import did_you_mean
from cropstar.sources.series import Bands, Observations
from cropstar.sources.stack.handles import OpenRasters
from cropstar.sources.stack.headers import DEFAULT_SCALE, require_scaled_integers
from cropstar.sources.stack.values import to_values

DESCRIPTION = re.compile(r"(?P<year>\d{4})-?(?P<month>\d{2})-?(?P<day>\d{2})[\s_:]+(?P<band>[A-Za-z]\w*)$")
REMEDY = "describe each band as 'YYYY-MM-DD BAND', for example '2023-05-14 B08'"


@dataclass(frozen=True)
class BandKey:
    """What one band of the file is; `index` counts from 1, as GDAL does."""

    day: date
    band: str
    index: int


class StackSeries:
    """A T x C-band GeoTIFF as a Series. For one thread; a copy in another process opens the file anew."""

    def __init__(self, path: Path, *, bands: Bands | None = None, clear: Collection[int] = CLEAR_SCENE_CLASSES) -> None:
        self.name = path.stem
        self._path = path
        self._clear = tuple(clear)
        self._files = OpenRasters()
        try:
            dataset = self._files.dataset(path)
            keys = _band_keys(dataset, path)
            self.dates, self.bands, self._order, self._masks = _arrange(keys, path, bands)
            self.scale, self.offset = _radiometry(dataset, self._order, path)
            self.grid = Grid.of(dataset)
            self._nodata = dataset.nodata
        except BaseException:
            self.close()
            raise
        self.provenance: dict[str, Any] = {"source": "stack", "file": path.name}

    @property
    def files(self) -> list[Path]:
        """Every file on the disk that tells what the series is."""
        return [self._path]

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (len(self.dates), len(self.bands), window.height, window.width)
        values = self._files.read(self._path, self._order, window).reshape(shape)
        valid = observed(values, self._nodata)
        if self._masks:
            valid &= clear_sky(self._files.read(self._path, self._masks, window), self._clear)
        return Observations(to_values(np.where(valid[:, None], values, 0)), valid)

    def close(self) -> None:
        self._files.close()


def _band_keys(dataset: Any, path: Path) -> list[BandKey]:
    require_scaled_integers(dataset, path)
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


def _arrange(
    keys: list[BandKey], path: Path, wanted: Bands | None
) -> tuple[tuple[date, ...], Bands, list[int], list[int]]:
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
    bands = tuple(band for band in wanted or names if band != SCENE_CLASSIFICATION)
    if not bands:
        raise InputError("no reflectance bands", path=path, remedy=REMEDY)
    for band in bands:
        if band not in names:
            raise UsageError(f"no band '{band}'", path=path, remedy=did_you_mean(band, names))
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
