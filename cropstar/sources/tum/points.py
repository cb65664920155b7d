"""The series of points of fieldRNN as one scene, every date with a class of its own.

They come in batches (x, y, number of observations). x (N, T, 1 + bands x 9) has the time in its first column (in the
last where that is how it looks), then for each band the nine pixels of a 3 x 3 neighbourhood; y (N, T, classes) how
much of each class was seen. Both are filled up with zeros after a sample's observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, from_days
from cropstar.geo.sensors import SCALE
from cropstar.inputs import MAXIMUM_CLASSES, reading
from cropstar.runtime import event, logger, track
from cropstar.sources.base import SampleScene, TileSpec, fits_uint16, recipe_of, safe_name
from cropstar.sources.texts import read_small_text
from cropstar.sources.tum.folders import CLASSES, PARTS, list_batches
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.restricted_pickle import read_plain_pickle
from cropstar.store.tile import ParcelTable, SeriesTile

DEFAULT_YEAR = 2016
BATCHES_PER_TILE = 8  # of 500 samples each
COVER = ("cloud", "water", "snow", "cloud_shadow", "other")  # what a date can show instead of a crop
KNOWN_CLASSES = (
    *COVER,
    *("corn", "meadow", "asparagus", "rape", "hop", "summer oats", "winter spelt", "fallow", "winter wheat"),
    *("winter barley", "winter rye", "beans", "winter triticale", "summer barley", "peas", "potatoes", "soybeans"),
    "sugar beets",
)
LARGEST_REFLECTANCE = 100  # above it, values are ten thousand times a reflectance


@dataclass(frozen=True)
class _BatchFile:
    """A batch and what it is a part of: train, test or eval, or the folder's own name."""

    path: Path
    group: str
    samples: int

    @property
    def prefix(self) -> str:
        return f"{self.group}/{self.path.stem}" if self.group in PARTS else self.path.stem


class SeriesScene(SampleScene):
    """The samples in the order of their batches, numbered from 1. Clouds are classes here: all dates are valid."""

    layout = "series"

    def __init__(self, folders: Sequence[Path], year: int | None) -> None:
        self.year = year or DEFAULT_YEAR
        home = folders[0]
        home = home.parent if home.name in PARTS else home
        self.name = safe_name(f"{home.name}-fieldrnn-{self.year}")
        self._look_through(folders)
        files = [part.path for part in self._parts]
        classes_file = next((place / CLASSES for place in (home, *folders) if (place / CLASSES).is_file()), None)
        self._classes = _class_table(classes_file, self._shape.classes)
        self._cover = [crop.number for crop in self._classes if crop.name.replace(" ", "_") in COVER]
        groups = {part.group for part in self._parts}
        self._splits = _splits(groups)
        settings = {"name": self.name, "year": self.year, "groups": [part.group for part in self._parts]}
        self.recipe = recipe_of([*files, *([classes_file] if classes_file else [])], settings)
        self.provenance: dict[str, Any] = {
            "source": "tum",
            "year": self.year,
            "group": home.name,
            "features": "the pixels of a 3 x 3 neighbourhood, band by band",
            "left_out": {"empty": self._empty},
        }
        season = Season.of(self.dates)
        self.fingerprint = Fingerprint(self._shape.bands, self._scale, 0.0, 0.0, season, self._classes)

    def cuts(self) -> list[tuple[int, int]]:
        starts = np.cumsum([0, *(part.samples for part in self._parts)]).tolist()
        bounds = pairwise([*starts[:-1:BATCHES_PER_TILE], starts[-1]])
        return [(top, bottom) for top, bottom in bounds if bottom > top]

    def build(self, spec: TileSpec) -> SeriesTile:
        window, start = spec.window, 0
        chosen, keys, groups = [], [], []
        for part in self._parts:
            if window.top <= start < window.bottom and part.samples:
                batch = read_batch(part.path, self.year)
                if len(batch.samples) != part.samples:
                    why = "it changed since it was first read"
                    raise InputError("a batch has changed", path=part.path, why=why, remedy="run again")
                chosen.append(replace(batch, values=batch.values.astype(np.uint16 if self._whole else np.float32)))
                keys += [f"{part.prefix}-{place}" for place in batch.samples]
                groups += [part.group] * len(batch.samples)
            start += part.samples
        starts = np.cumsum([0, *(length for batch in chosen for length in batch.lengths)], dtype=np.int64)
        dated = np.concatenate([batch.labels for batch in chosen])
        numbers = np.arange(window.top + 1, window.bottom + 1, dtype=np.int32)
        values = np.concatenate([batch.values for batch in chosen])  # (rows, C)
        return SeriesTile(
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            starts=starts,
            days=np.concatenate([batch.days for batch in chosen]),
            values=values,
            valid=np.ones(len(values), dtype=bool),
            table=ParcelTable(numbers, keys, self._crops(dated, starts), groups),
            provenance=self.provenance,
            date_labels=dated,
        )

    def counts(self) -> dict[str, Any]:
        return {
            "samples": sum(part.samples for part in self._parts),
            "observations": self._observations,
            "splits": self._splits,
        }

    def log_summary(self, *, chosen: bool) -> None:
        samples, dates = sum(part.samples for part in self._parts), len(self.dates)
        event(f"{self.name}: {samples} samples, {self._observations} observations of {dates} dates", samples=samples)
        if not chosen:
            logger.warning("the batches have no year: using %d; --year sets another", self.year)
        if self._empty:
            logger.warning("%s: %d samples without an observation left out", self.name, self._empty)

    def _look_through(self, folders: Sequence[Path]) -> None:
        """Read all batches once: how many samples, which dates, and whether the values are whole numbers."""
        listed = [(path, folder.name) for folder in folders for path in list_batches(folder)]
        self._parts: list[_BatchFile] = []
        self._shape, self._whole, self._empty, self._observations = _Layout(0, 0), True, 0, 0
        days, largest = set[int](), 0.0
        for path, group in track(listed, len(listed), f"look through {self.name}", "batch"):
            batch = read_batch(path, self.year)
            if self._parts and batch.layout != self._shape:
                why = f"{batch.layout.features} features and {batch.layout.classes} classes, others have "
                why += f"{self._shape.features} and {self._shape.classes}"
                raise InputError(
                    "a batch that does not fit the others", path=path, why=why, remedy="ingest them separately"
                )
            self._shape = batch.layout
            self._parts.append(_BatchFile(path, group, len(batch.samples)))
            self._whole &= fits_uint16(batch.values)
            self._empty += batch.empty
            self._observations += len(batch.days)
            largest = max(largest, float(batch.values.max(initial=0.0)))
            days.update(np.unique(batch.days).tolist())
        if not days:
            raise InputError("no observation", path=folders[0], why=f"{len(listed)} batches without a sample")
        self.dates = from_days(sorted(days))
        self._scale = SCALE if largest > LARGEST_REFLECTANCE else 1.0

    def _crops(self, dated: NDArray[np.int16], starts: NDArray[Any]) -> NDArray[np.int16]:
        """The most frequent crop among the classes of each sample's dates."""
        count = len(starts) - 1
        votes = np.zeros((count, len(self._classes)), dtype=np.int64)
        labelled = dated != UNLABELLED
        np.add.at(votes, (np.repeat(np.arange(count), np.diff(starts))[labelled], dated[labelled]), 1)
        votes[:, self._cover] = 0
        return np.where(votes.any(axis=1), votes.argmax(axis=1), UNLABELLED).astype(np.int16)


def _splits(groups: set[str]) -> dict[str, dict[str, list[str]]]:
    """Trained on `train`, looked at `test` while training, reported on `eval`: train, validation and test."""
    if groups == set(PARTS):
        return {"published": {"train": ["train"], "validation": ["test"], "test": ["eval"]}}
    if "train" in groups and len(groups) == 2:
        return {"published": {"train": ["train"], "validation": [], "test": sorted(groups - {"train"})}}
    return {}


def _class_table(path: Path | None, count: int) -> ClassTable:
    """The classes in the order of y's last axis: of a file, the published ones, or numbered ones."""
    names = list(KNOWN_CLASSES) if count == len(KNOWN_CLASSES) else list(COVER[:count])
    if path is not None:
        names = _names_of(path)
        if len(names) != count or len(set(names)) != count:
            why = f"{len(set(names))} different names, the batches have {count} classes"
            raise InputError("unusable classes", path=path, why=why, remedy="give one name per line, in their order")
    names += [f"class {number:02d}" for number in range(len(names) + 1, count + 1)]
    return ClassTable.in_order(names)


def _names_of(path: Path) -> list[str]:
    lines = read_small_text(path).splitlines()
    return [line.rpartition("|")[2].strip() for line in lines if line.strip()]


# --- Batches

PIXELS = 9
REMEDY = "give the batches as they were published"
NO_BATCH = "not a batch (x, y, number of observations)"
YEAR_LENGTHS = (365, 366)
NEAR = 0.02  # of a day


@dataclass(frozen=True)
class _Layout:
    """The numbers of features and classes, which all batches of a collection share."""

    features: int
    classes: int

    @property
    def bands(self) -> tuple[str, ...]:
        """Which bands of Sentinel-2 these are was not published."""
        count = (self.features - 1) // PIXELS
        return tuple(f"band{band}_{pixel}" for band in range(1, count + 1) for pixel in range(1, PIXELS + 1))


@dataclass(frozen=True)
class _Batch:
    """The observations of all samples end to end, in the order of their dates; samples without one are gone."""

    samples: NDArray[np.int64]  # (N,) places in the file
    lengths: NDArray[np.int64]  # (N,)
    days: NDArray[np.int32]  # (rows,) since 1970
    values: NDArray[Any]  # (rows, C), float64 as read
    labels: NDArray[np.int16]  # (rows,), UNLABELLED where y is zero throughout
    layout: _Layout
    empty: int


def read_batch(path: Path, year: int) -> _Batch:
    arrays = read_plain_pickle(path, remedy=REMEDY)
    with reading(NO_BATCH, path, REMEDY):
        x, y, counts = arrays
        if (x.shape[2] - 1) % PIXELS or not 1 <= y.shape[2] <= MAXIMUM_CLASSES:
            raise ValueError(f"arrays of the shapes {x.shape} and {y.shape}")
        kept = np.flatnonzero(counts > 0)
        lengths = counts[kept].astype(np.int64)
        observed = np.arange(x.shape[1]) < counts[:, None]  # (N, T)
        rows, seen = x[observed].astype(np.float64), y[observed]  # (rows, features), (rows, classes)
        if not np.isfinite(rows).all() or not np.isfinite(seen).all():
            raise ValueError("a value is not a finite number")
        days, column = _days(rows, year)
        order = np.lexsort((days, np.repeat(kept, lengths)))
        labels = np.where(seen.any(axis=1), seen.argmax(axis=1), UNLABELLED).astype(np.int16)
        values = np.delete(rows, column, axis=1)
        layout = _Layout(x.shape[2], y.shape[2])
        return _Batch(kept, lengths, days[order], values[order], labels[order], layout, len(counts) - len(kept))


def _days(rows: NDArray[np.float64], year: int) -> tuple[NDArray[np.int32], int]:
    """The dates, and the column that they are in.

    The authors' series begin on the last day of the year before and write it as a whole year: 365 or 366 is that day.
    """
    last = rows.shape[1] - 1
    for column, exact in ((0, True), (last, True), (0, False)):
        numbers = _days_of_year(rows[:, column], exact)
        if numbers is not None:
            break
    else:
        raise ValueError("neither the first nor the last column is a day or share of the year")
    numbers = np.where(numbers >= min(YEAR_LENGTHS), 0, numbers)
    first = (date(year, 1, 1) - timedelta(days=1) - date(1970, 1, 1)).days
    return (first + numbers).astype(np.int32), column


def _days_of_year(column: NDArray[np.float64], exact: bool) -> NDArray[np.int64] | None:
    """Days of the year, from such or from shares of a year; exactly these, or any share."""
    if len(column) and column.min() <= 0:
        return None
    if len(column) == 0 or column.max() <= 1 + 1e-4:
        for length in YEAR_LENGTHS:
            days = column * length
            if not exact or (np.abs(days - np.round(days)) <= NEAR).all():
                return np.round(days).astype(np.int64)
    elif exact and column.max() <= max(YEAR_LENGTHS) and (column == np.round(column)).all():
        return column.astype(np.int64)
    return None
