"""One GeoTIFF with dates x bands, each band saying its date and name.

A band tells what it is by its tags (`DATE`, `BAND`) or by its description, such as "2023-05-14 B08"; else the user
tells the dates, and the names of the bands where these have none (see `by_hand`).
A band called SCL is Sentinel-2's scene classification and becomes the validity mask.
Names, order and dates without any data are treated as in a folder of dated files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import InputError
from cropstar.geo.resampling import Alignment
from cropstar.geo.sensors import CLEAR_SCENE_CLASSES, SCENE_CLASSIFICATION, band_name, clear_sky, observed
from cropstar.geo.windows import Window
from cropstar.sources.base import Bands, Observations
from cropstar.sources.stack.bands import Entry, Table, choose_bands
from cropstar.sources.stack.by_hand import table_by_hand
from cropstar.sources.stack.days import Day, Days, Layer, announce, part
from cropstar.sources.stack.hand_dates import Dates
from cropstar.sources.stack.handles import OpenRasters
from cropstar.sources.stack.headers import Header, read_header, require_radiometry
from cropstar.sources.stack.renaming import rename, spelt
from cropstar.sources.stack.values import to_values

DESCRIPTION = re.compile(r"(?P<year>\d{4})-?(?P<month>\d{2})-?(?P<day>\d{2})[\s_:]+(?P<band>[A-Za-z]\w*)$")
REMEDY = "describe each band as 'YYYY-MM-DD BAND', for example '2023-05-14 B08', or give --dates and --bands"


class StackSeries:
    """A T x C-band GeoTIFF as a Series. For one thread; a copy in another process opens the file anew."""

    def __init__(
        self,
        path: Path,
        *,
        bands: Bands | None = None,
        clear: Collection[int] = CLEAR_SCENE_CLASSES,
        dates: Dates | None = None,
        by_band: bool = False,
    ) -> None:
        self.name = path.stem
        self._path = path
        self._clear = tuple(clear)
        self._files = OpenRasters()
        try:
            header = read_header(path, self._files)
            texts = _texts(self._files.dataset(path))
            given = None if bands is None else spelt(bands)
            table = _table(texts, path) if dates is None else table_by_hand(texts, path, dates, given, by_band=by_band)
            table, given = rename(table, given, path)
            self.bands, with_classes = choose_bands(table, given, None, path)
            self.scale, self.offset = _radiometry(header, table, self.bands)
            days, empty = part(_days(header, table, self.bands, with_classes), self._files, path)
        except BaseException:
            self.close()
            raise
        self.grid = header.grid
        self.dates: tuple[date, ...] = tuple(days)
        self._nodata = header.nodata[0]
        self._order = [layer.index for day in days.values() for layer in day.layers]
        self._masks = [day.scene_classes.index for day in days.values() if day.scene_classes]
        self.provenance: dict[str, Any] = {"source": "stack", "file": path.name}
        if dates is not None:
            self.provenance["by_hand"] = {"dates": len(dates), "order": "band" if by_band else "date"}
        if empty:
            self.provenance["without_data"] = [day.isoformat() for day in empty]
        self.notes = announce(self.name, days, empty)

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


def _texts(dataset: Any) -> list[str]:
    """What each band says of itself."""
    texts = []
    for index in dataset.indexes:
        tags = dataset.tags(index)
        known = "DATE" in tags and "BAND" in tags
        texts.append(f"{tags['DATE']} {tags['BAND']}" if known else dataset.descriptions[index - 1] or "")
    return texts


def _table(texts: Sequence[str], path: Path) -> Table:
    """Every band of every date."""
    table: Table = {}
    for index, text in enumerate(texts, start=1):
        match = DESCRIPTION.match(text.strip())
        try:
            if match is None:
                raise ValueError("no date and band name")
            day = date(int(match["year"]), int(match["month"]), int(match["day"]))
        except ValueError as failure:
            why = f"band {index} is described as '{text}' ({failure})"
            raise InputError("unknown bands", path=path, why=why, remedy=REMEDY) from None
        band = band_name(match["band"])
        if (day, band) in table:
            raise InputError("a band stands twice", path=path, why=f"{day} {band}", remedy="keep one of them")
        table[day, band] = Entry(path, index, False)
    return table


def _days(header: Header, table: Table, bands: Bands, with_classes: bool) -> Days:
    whole = Alignment(1, 0, 0, *header.grid.shape)
    layers = {key: Layer.of(entry, header, whole) for key, entry in table.items()}
    return {
        day: Day(
            tuple(layers[day, band] for band in bands), layers[day, SCENE_CLASSIFICATION] if with_classes else None
        )
        for day in sorted({day for day, _ in table})
    }


def _radiometry(header: Header, table: Table, bands: Bands) -> tuple[float, float]:
    """The one scale and offset of all reflectance bands; unset ones mean Sentinel-2's."""
    pairs = {require_radiometry(header, entry.index) for (_, band), entry in table.items() if band in bands}
    if len(pairs) > 1:
        remedy = "bring them to one scale"
        raise InputError("bands differ in scale or offset", path=header.path, why=str(sorted(pairs)), remedy=remedy)
    return pairs.pop()
