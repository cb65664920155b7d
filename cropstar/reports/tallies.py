"""Counting what tiles hold, in bounded memory: clear observations by date; parcels, pixels and hectares by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.calendar import from_days
from cropstar.geo.ground import hectares_per_pixel
from cropstar.geo.windows import split
from cropstar.progress import track
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.reader import TileReader
from cropstar.store.tile import ParcelTable

BLOCK = 480  # pixels a side that are read at once: ten chunks, so that a tile of any size fits into memory

Counts = NDArray[np.int64]


def count_tiles(
    readers: Sequence[TileReader], fingerprint: Fingerprint
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The share of clear observations on each date, and the class table with the parcels, pixels and hectares of each
    class, or its samples where there are no images. Every tile is opened once: a store has thousands."""
    clear: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    pixels = np.zeros(len(fingerprint.classes), dtype=np.int64)
    hectares: NDArray[np.float64] = np.zeros(len(fingerprint.classes))
    tables = []
    for reader in track(readers, len(readers), "count", "tile"):
        days, good, everything = _observations(reader)
        clear.update(dict(zip(days.tolist(), good.tolist(), strict=True)))
        seen.update(dict(zip(days.tolist(), everything.tolist(), strict=True)))
        if reader.layout != "series" and len(reader.images):
            share = hectares_per_pixel(reader.images[0].grid, fingerprint.resolution)
            counts = _pixels(reader, len(fingerprint.classes))
            pixels += counts
            hectares += counts * (np.nan if share is None else share)
        tables.append(reader.table)
        reader.close()  # the more files are open, the longer HDF5 takes to close one
    known = sorted(seen)
    dates = [
        {"date": date.isoformat(), "clear": clear[day] / max(seen[day], 1), "observations": seen[day]}
        for day, date in zip(known, from_days(known), strict=True)
    ]
    parcels = _parcels(readers, tables, len(fingerprint.classes))
    if readers and all(reader.layout == "series" for reader in readers):
        return dates, _rows(fingerprint, samples=parcels)
    areas = [round(float(area), 4) if np.isfinite(area) else None for area in hectares]
    return dates, _rows(fingerprint, parcels=parcels, pixels=pixels, hectares=areas)


def _rows(fingerprint: Fingerprint, **columns: Counts | list[float | None]) -> list[dict[str, Any]]:
    """The class table with more columns."""
    plain = {name: column if isinstance(column, list) else column.tolist() for name, column in columns.items()}
    return [
        {**entry, **{name: column[place] for name, column in plain.items()}}
        for place, entry in enumerate(fingerprint.classes.to_json())
    ]


def _observations(reader: TileReader) -> tuple[NDArray[np.int32], Counts, Counts]:
    """The dates of a tile, and on each of them the valid observations and all."""
    days = reader.observed_days
    if reader.layout == "series":
        places = np.searchsorted(days, reader.days)
        good = np.bincount(places, weights=reader.whole_mask(), minlength=len(days)).astype(np.int64)
        return days, good, np.bincount(places, minlength=len(days))
    good, seen = np.zeros(len(days), dtype=np.int64), np.zeros(len(days), dtype=np.int64)
    height, width = reader.shape
    for image in reader.images:
        places = np.searchsorted(days, image.days)
        np.add.at(seen, places, height * width)
        for window in split((height, width), BLOCK):
            np.add.at(good, places, image.valid(window).sum(axis=(1, 2)))
    return days, good, seen


def _pixels(reader: TileReader, classes: int) -> Counts:
    # Small images are read all at once, large ones in windows.
    windows = [None] if reader.layout == "patches" else list(split(reader.shape, 4 * BLOCK))
    counts = np.zeros(classes, dtype=np.int64)
    for window in windows:
        labels = reader.labels(window)
        counts += np.bincount(labels[labels >= 0], minlength=classes)
    return counts


def _parcels(readers: Sequence[TileReader], tables: Sequence[ParcelTable], classes: int) -> Counts:
    """Parcels of each class, each once, also where it lies in several tiles or images."""
    parcels = np.zeros(classes, dtype=np.int64)
    for scene, layout in sorted({(reader.scene, reader.layout) for reader in readers}):
        own = [place for place, reader in enumerate(readers) if (reader.scene, reader.layout) == (scene, layout)]
        numbers = np.concatenate([tables[place].numbers for place in own])
        labels = np.concatenate([tables[place].labels for place in own])
        known = (numbers != 0) & (labels >= 0)
        names = _field_names([readers[place] for place in own]) if layout == "patches" else numbers
        _, first = np.unique(names[known], return_index=True)
        parcels += np.bincount(labels[known][first], minlength=classes)
    return parcels


def _field_names(readers: Sequence[TileReader]) -> NDArray[Any]:
    """What tells fields in a collection of images apart: pieces in several images under one key are one field,
    several under one key in one image are several."""
    names = []
    for reader in readers:
        pixels = reader.shape[0] * reader.shape[1]  # an image's numbers follow each other
        before: Counter[tuple[int, str]] = Counter()
        for number, key in zip(reader.table.numbers, reader.table.keys, strict=True):
            place = (int(number) - 1) // pixels, key
            names.append(f"{key} {before[place]}")
            before[place] += 1
    return np.array(names)
