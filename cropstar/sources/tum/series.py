"""The series of points of fieldRNN as one scene, every date with a class of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, from_days
from cropstar.geo.sensors import SCALE
from cropstar.geo.windows import Window
from cropstar.logs import event, logger
from cropstar.progress import track
from cropstar.sources.base import TileSpec, recipe_of, safe_name
from cropstar.sources.table.values import LARGEST
from cropstar.sources.tum.batches import Batch, Layout, read_batch
from cropstar.sources.tum.files import PARTS, list_batches
from cropstar.store.classes import UNLABELLED, ClassTable, CropClass, choose_colours
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SeriesTile

DEFAULT_YEAR = 2016
BATCHES_PER_TILE = 8  # of 500 samples each
CLASSES = "classes.txt"
MAXIMUM_CLASS_BYTES = 10**6
COVER = ("cloud", "water", "snow", "cloud_shadow", "other")  # what a date can show instead of a crop
KNOWN_CLASSES = (
    *COVER,
    *("corn", "meadow", "asparagus", "rape", "hop", "summer oats", "winter spelt", "fallow", "winter wheat"),
    *("winter barley", "winter rye", "beans", "winter triticale", "summer barley", "peas", "potatoes", "soybeans"),
    "sugar beets",
)
LARGEST_REFLECTANCE = 100  # above it, values are ten thousand times a reflectance


@dataclass(frozen=True)
class Part:
    """A batch and what it is a part of: train, test or eval, or the folder's own name."""

    path: Path
    group: str
    samples: int

    @property
    def prefix(self) -> str:
        return f"{self.group}/{self.path.stem}" if self.group in PARTS else self.path.stem


class SeriesScene:
    """The samples in the order of their batches, numbered from 1. Clouds are classes here: all dates are valid."""

    layout = "series"
    volume = 0  # batches are small: one process makes all tiles

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
        season = Season.of(self._dates)
        self.fingerprint = Fingerprint(self._shape.bands, self._scale, 0.0, 0.0, season, self._classes)

    def tile_specs(self) -> list[TileSpec]:
        """Each window counts samples downwards; it is one wide."""
        starts = np.cumsum([0, *(part.samples for part in self._parts)]).tolist()
        return [
            TileSpec(f"{self.name}-{self.recipe[:8]}-n{top:07d}", Window(top, 0, bottom - top, 1))
            for top, bottom in pairwise([*starts[:-1:BATCHES_PER_TILE], starts[-1]])
            if bottom > top
        ]

    def build(self, piece: TileSpec) -> SeriesTile:
        window, start = piece.window, 0
        chosen, keys, groups = [], [], []
        for part in self._parts:
            if window.top <= start < window.bottom and part.samples:
                batch = read_batch(part.path, self.year)
                if len(batch.samples) != part.samples:
                    why = "it is not as at the first look"
                    raise InputError("a batch has changed", path=part.path, why=why, remedy="run again")
                chosen.append(replace(batch, values=batch.values.astype(np.uint16 if self._whole else np.float32)))
                keys += [f"{part.prefix}-{place}" for place in batch.samples]
                groups += [part.group] * len(batch.samples)
            start += part.samples
        lengths = np.concatenate([batch.lengths for batch in chosen])
        starts = np.concatenate([[0], np.cumsum(lengths)])
        dated = np.concatenate([batch.labels for batch in chosen])
        numbers = np.arange(window.top + 1, window.bottom + 1, dtype=np.int32)
        values = np.concatenate([batch.values for batch in chosen])  # (rows, C)
        return SeriesTile(
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            starts=starts.astype(np.int64),
            days=np.concatenate([batch.days for batch in chosen]),
            values=values,
            valid=np.ones(len(values), dtype=bool),
            table=ParcelTable(numbers, keys, self._crops(dated, starts), groups),
            provenance=self.provenance,
            date_labels=dated,
        )

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the scene."""
        return {
            "recipe": self.recipe,
            "dates": [day.isoformat() for day in self._dates],
            "samples": sum(part.samples for part in self._parts),
            "observations": self._observations,
            "splits": self._splits,
            **self.provenance,
        }

    def say(self, *, chosen: bool) -> None:
        samples, dates = sum(part.samples for part in self._parts), len(self._dates)
        event(f"{self.name}: {samples} samples, {self._observations} observations of {dates} dates", samples=samples)
        if not chosen:
            logger.warning("batches do not tell their year: taking %d, --year says otherwise", self.year)
        if self._empty:
            logger.warning("%s: %d samples without an observation left out", self.name, self._empty)

    def close(self) -> None:
        """No file stays open between pieces."""

    def _look_through(self, folders: Sequence[Path]) -> None:
        """Read all batches once: how many samples, which dates, and whether the values are whole numbers."""
        listed = [(path, folder.name) for folder in folders for path in list_batches(folder)]
        self._parts: list[Part] = []
        self._shape, self._whole, self._empty, self._observations = Layout(0, 0), True, 0, 0
        days, largest = set[int](), 0.0
        for path, group in track(listed, len(listed), f"look through {self.name}", "batch"):
            batch = read_batch(path, self.year)
            if self._parts and batch.layout != self._shape:
                why = f"{batch.layout.features} features and {batch.layout.classes} classes, others have "
                why += f"{self._shape.features} and {self._shape.classes}"
                raise InputError("a batch that does not fit the others", path=path, why=why, remedy="part them")
            self._shape = batch.layout
            self._parts.append(Part(path, group, len(batch.samples)))
            self._whole &= _is_whole(batch)
            self._empty += batch.empty
            self._observations += len(batch.days)
            largest = max(largest, float(batch.values.max(initial=0.0)))
            days.update(np.unique(batch.days).tolist())
        if not days:
            raise InputError("no observation", path=folders[0], why=f"{len(listed)} batches without a sample")
        self._dates = from_days(sorted(days))
        self._scale = SCALE if largest > LARGEST_REFLECTANCE else 1.0

    def _crops(self, dated: NDArray[np.int16], starts: NDArray[Any]) -> NDArray[np.int16]:
        """Of each sample the most frequent class of its dates that is a crop."""
        count = len(starts) - 1
        votes = np.zeros((count, len(self._classes)), dtype=np.int64)
        labelled = dated != UNLABELLED
        np.add.at(votes, (np.repeat(np.arange(count), np.diff(starts))[labelled], dated[labelled]), 1)
        votes[:, self._cover] = 0
        return np.where(votes.any(axis=1), votes.argmax(axis=1), UNLABELLED).astype(np.int16)


def _is_whole(batch: Batch) -> bool:
    values = batch.values
    return bool((values == np.round(values)).all() and values.min(initial=0) >= 0 and values.max(initial=0) <= LARGEST)


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
            raise InputError("unusable classes", path=path, why=why, remedy="give one name a line, in their order")
    names += [f"class {number:02d}" for number in range(len(names) + 1, count + 1)]
    colours = choose_colours(names)
    return ClassTable(CropClass(place, name, colours[place]) for place, name in enumerate(names))


def _names_of(path: Path) -> list[str]:
    if path.stat().st_size > MAXIMUM_CLASS_BYTES:
        raise InputError("too large a text", path=path, why=f"{path.stat().st_size} bytes", remedy="check the file")
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", path=path, remedy="save it as UTF-8") from None
    return [line.rpartition("|")[2].strip() for line in lines if line.strip()]
