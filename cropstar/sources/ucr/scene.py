"""A data set of the archives as one scene: the published halves are its groups and its split."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, from_days
from cropstar.geo.windows import Window
from cropstar.limits import MAXIMUM_CLASSES
from cropstar.logs import event, logger
from cropstar.sources.naming import safe_name
from cropstar.sources.scene import Piece, recipe_of
from cropstar.sources.table.texts import natural_ranks
from cropstar.sources.ucr.files import Pair, find_pair
from cropstar.sources.ucr.texts import Sample, read_tabbed, read_ts
from cropstar.store.classes import ClassTable, CropClass, choose_colours
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SeriesTile

DAYS = 365
SAMPLES_PER_TILE = 4096
TILE_BYTES = 64 * 2**20  # fewer samples where series are long
MOST_BYTES = 2 * 2**30  # of all values: they are kept in memory
SPLITS = {"published": {"train": ["train"], "validation": [], "test": ["test"]}}  # validation: a share of training
WHOLE = re.compile(r"-?[0-9]+")
VERSION = 1  # of the rules below; in the recipe


class UcrScene:
    """All series, those of train first, in the order of the files; numbered from 1.

    Values are stored as they are, in single precision: whatever their range, they keep seven digits. A step counts
    as an observation when every dimension has a value.
    """

    layout = "series"

    def __init__(self, pair: Pair) -> None:
        self.name = safe_name(pair.name)
        keys, groups, labels, series, self._empty = _read(pair)
        lengths = [len(one) for one in series]
        values = np.concatenate(series)  # (rows, C)
        self._starts = np.cumsum([0, *lengths], dtype=np.int64)
        self._valid: NDArray[np.bool_] = np.logical_not(np.isnan(values).any(axis=1))  # (rows,)
        self._values = np.where(self._valid[:, None], values, np.float32(0))
        self._steps = step_days(max(lengths))
        classes = _class_table(labels, pair.train)
        number_of = {name: number for number, name in enumerate(classes.names)}
        self._table = ParcelTable(
            np.arange(1, len(keys) + 1, dtype=np.int32),
            keys,
            np.array([number_of[label] for label in labels], dtype=np.int16),
            groups,
        )
        count = values.shape[1]
        bands = ("value",) if count == 1 else tuple(f"value{place}" for place in range(1, count + 1))
        self._dates = from_days(self._steps)
        self.fingerprint = Fingerprint(bands, 1.0, 0.0, 0.0, Season.of(self._dates), classes)
        self.recipe = recipe_of([pair.train, pair.test], {"name": self.name, "version": VERSION})
        self.provenance: dict[str, Any] = {
            "source": "ucr",
            "files": [pair.train.name, pair.test.name],
            "dates_are": "made up: steps spread evenly over 1970"
            if len(self._steps) <= DAYS
            else "made up: a day a step",
            "left_out": {"empty": self._empty},
        }

    def pieces(self) -> list[Piece]:
        """Each window counts samples downwards; it is one wide."""
        return [
            Piece(f"{self.name}-{self.recipe[:8]}-n{top:07d}", Window(top, 0, bottom - top, 1))
            for top, bottom in self._cuts()
        ]

    def build(self, piece: Piece) -> SeriesTile:
        window = piece.window
        starts = self._starts[window.top : window.bottom + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        chosen = self._table.select(np.arange(window.top + 1, window.bottom + 1, dtype=np.int32))
        return SeriesTile(
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            starts=starts - starts[0],
            days=np.concatenate([self._steps[:length] for length in np.diff(starts)]),
            values=self._values[rows],
            valid=self._valid[rows],
            table=chosen,
            provenance=self.provenance,
        )

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the scene."""
        return {
            "recipe": self.recipe,
            "dates": [day.isoformat() for day in self._dates],
            "samples": len(self._table.keys),
            "observations": int(self._valid.sum()),
            "splits": SPLITS,
            **self.provenance,
        }

    def say(self) -> None:
        groups, classes = self._table.groups or [], len(self.fingerprint.classes)
        parts = " and ".join(f"{groups.count(part)} series to {part}" for part in ("train", "test"))
        counts = f"{parts}, {len(self._steps)} steps, {classes} classes"
        event(f"{self.name}: {counts}; to train on the published halves: --split published", samples=len(groups))
        how = "spread evenly over 1970" if len(self._steps) <= DAYS else "a day each from 1970-01-01 on"
        logger.warning("%s has no dates: its %d steps are taken as %s", self.name, len(self._steps), how)
        if self._empty:
            logger.warning("%s: %d series without a value left out", self.name, self._empty)

    def close(self) -> None:
        """The files were read whole and are closed already."""

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Where tiles begin and end: so many samples, fewer of long ones, at least one."""
        rows = max(TILE_BYTES // (4 * self._values.shape[1]), 1)
        top, total = 0, len(self._starts) - 1
        while top < total:
            fit = int(np.searchsorted(self._starts, self._starts[top] + rows, side="right")) - 1
            bottom = min(max(fit, top + 1), top + SAMPLES_PER_TILE, total)
            yield top, bottom
            top = bottom


def open_ucr(path: Path) -> list[UcrScene]:
    """The data set that a folder or one of its two files is."""
    scene = UcrScene(find_pair(path))
    scene.say()
    return [scene]


def step_days(longest: int) -> NDArray[np.int32]:
    """The day of every step, the same for all series: step i of n falls on day 364 i / (n - 1) of 1970.

    From 1 January to 31 December, so that the time of the year tells the place in the series. More steps than a year
    has days take a day each: no two observations share a date.
    """
    if longest == 1:
        return np.array([DAYS // 2], dtype=np.int32)
    if longest > DAYS:
        return np.arange(longest, dtype=np.int32)
    return (np.arange(longest) * (DAYS - 1) // (longest - 1)).astype(np.int32)


def _read(pair: Pair) -> tuple[list[str], list[str], list[str], list[NDArray[np.float32]], int]:
    """Keys, groups, labels and values (T, C) of the series that have a value, and how many have none."""
    keys: list[str] = []
    groups: list[str] = []
    labels: list[str] = []
    series: list[NDArray[np.float32]] = []
    empty = size = 0
    for group, path in pair.files.items():
        before = len(series)
        samples: Iterator[Sample] = read_tabbed(path) if pair.is_tabbed else read_ts(path)
        for place, sample in enumerate(samples, start=1):
            if series and sample.values.shape[1] != series[0].shape[1]:
                why = f"{sample.values.shape[1]} dimensions, the train part has {series[0].shape[1]}"
                raise InputError("the parts do not fit", path=path, why=why, remedy="get both files again")
            if np.isnan(sample.values).any(axis=1).all():
                empty += 1
                continue
            size += sample.values.nbytes
            if size > MOST_BYTES:
                why = f"more than {MOST_BYTES:,} bytes of values"
                raise InputError("too large a data set", path=path, why=why, remedy="take a part of it")
            keys.append(f"{group}-{place}")
            groups.append(group)
            labels.append(sample.label)
            series.append(sample.values)
        if len(series) == before:
            raise InputError("no series", path=path, why="not a single line of values", remedy="get the file again")
    return keys, groups, labels, series, empty


def _class_table(labels: Sequence[str], path: Path) -> ClassTable:
    """The labels as they are: numbers by their size, others in the natural order, 2 before 10."""
    found = sorted(set(labels))
    if len(found) > MAXIMUM_CLASSES:
        why = f"{len(found)} different labels, at most {MAXIMUM_CLASSES} can be told apart"
        raise InputError("too many classes", path=path, why=why, remedy="give a data set to be classified")
    if all(WHOLE.fullmatch(label) for label in found):
        names = sorted(found, key=int)
    else:
        names = [found[place] for place in np.argsort(natural_ranks(found))]
    colours = choose_colours(names)
    return ClassTable(CropClass(place, name, colours[place]) for place, name in enumerate(names))
