"""The UCR and UEA archives of time series to be classified: NAME_TRAIN and NAME_TEST, as .tsv or .ts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import Season, from_days
from cropstar.inputs import MAXIMUM_CLASSES, reading, require_file
from cropstar.registry import short_list
from cropstar.runtime import event, logger
from cropstar.sources.base import SampleScene, TileSpec, recipe_of, safe_name
from cropstar.sources.texts import AGAIN, natural_ranks, read_lines
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import ParcelTable, SeriesTile

__all__ = ["UcrScene", "looks_like_ucr", "open_ucr", "step_days"]

DAYS = 365
SAMPLES_PER_TILE = 4096
TILE_BYTES = 64 * 2**20  # fewer samples where series are long
SPLITS = {"published": {"train": ["train"], "validation": [], "test": ["test"]}}  # validation: a share of training
WHOLE = re.compile(r"-?[0-9]+")
VERSION = 1  # of the rules below; in the recipe


class UcrScene(SampleScene):
    """All series, those of train first, in the order of the files; numbered from 1.

    Values are stored as they are, in single precision: whatever their range, they keep seven digits. A step counts
    as an observation when every dimension has a value.
    """

    layout = "series"

    def __init__(self, path: Path) -> None:
        """The data set in a folder, or the one that one of its two files belongs to."""
        files = _find_files(path)
        self.name = safe_name(files.name)
        keys, groups, labels, series, self._empty = _read(files)
        lengths = [len(one) for one in series]
        values = np.concatenate(series)  # (rows, C)
        self._starts = np.cumsum([0, *lengths], dtype=np.int64)
        self._valid: NDArray[np.bool_] = np.logical_not(np.isnan(values).any(axis=1))  # (rows,)
        self._values = np.where(self._valid[:, None], values, np.float32(0))
        self._steps = step_days(max(lengths))
        classes = _class_table(labels, files.train)
        number_of = {name: number for number, name in enumerate(classes.names)}
        self._table = ParcelTable(
            np.arange(1, len(keys) + 1, dtype=np.int32),
            keys,
            np.array([number_of[label] for label in labels], dtype=np.int16),
            groups,
        )
        count = values.shape[1]
        bands = ("value",) if count == 1 else tuple(f"value{place}" for place in range(1, count + 1))
        self.dates = from_days(self._steps)
        self.fingerprint = Fingerprint(bands, 1.0, 0.0, 0.0, Season.of(self.dates), classes)
        self.recipe = recipe_of([files.train, files.test], {"name": self.name, "version": VERSION})
        self.provenance: dict[str, Any] = {
            "source": "ucr",
            "files": [files.train.name, files.test.name],
            "dates_are": "made up: steps spread evenly over 1970"
            if len(self._steps) <= DAYS
            else "made up: a day a step",
            "left_out": {"empty": self._empty},
        }

    def cuts(self) -> Iterator[tuple[int, int]]:
        """The bounds of tiles: a fixed number of samples, fewer of long series, at least one."""
        rows = max(TILE_BYTES // (4 * self._values.shape[1]), 1)
        top, total = 0, len(self._starts) - 1
        while top < total:
            fit = int(np.searchsorted(self._starts, self._starts[top] + rows, side="right")) - 1
            bottom = min(max(fit, top + 1), top + SAMPLES_PER_TILE, total)
            yield top, bottom
            top = bottom

    def build(self, spec: TileSpec) -> SeriesTile:
        window = spec.window
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

    def counts(self) -> dict[str, Any]:
        return {
            "samples": len(self._table.keys),
            "observations": int(self._valid.sum()),
            "splits": SPLITS,
        }

    def log_summary(self) -> None:
        groups, classes = self._table.groups or [], len(self.fingerprint.classes)
        parts = " and ".join(f"{groups.count(part)} series to {part}" for part in ("train", "test"))
        counts = f"{parts}, {len(self._steps)} steps, {classes} classes"
        event(f"{self.name}: {counts}; to train on the published halves: --split published", samples=len(groups))
        how = "spread evenly over 1970" if len(self._steps) <= DAYS else "a day each from 1970-01-01 on"
        logger.warning("%s has no dates: its %d steps are taken as %s", self.name, len(self._steps), how)
        if self._empty:
            logger.warning("%s: %d series without a value left out", self.name, self._empty)


def open_ucr(path: Path) -> list[UcrScene]:
    """The data set that a folder or one of its two files is."""
    scene = UcrScene(path)
    scene.log_summary()
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


def _read(files: _Files) -> tuple[list[str], list[str], list[str], list[NDArray[np.float32]], int]:
    """Keys, groups, labels and values (T, C) of the series that have a value, and how many have none."""
    keys: list[str] = []
    groups: list[str] = []
    labels: list[str] = []
    series: list[NDArray[np.float32]] = []
    empty = 0
    for group, path in files.parts.items():
        before = len(series)
        samples: Iterator[_Sample] = _read_tsv(path) if files.is_tsv else _read_ts(path)
        for place, sample in enumerate(samples, start=1):
            if series and sample.values.shape[1] != series[0].shape[1]:
                why = f"{sample.values.shape[1]} dimensions in one series, {series[0].shape[1]} in others"
                raise InputError("dimensions that do not fit", path=path, why=why, remedy=AGAIN)
            if np.isnan(sample.values).any(axis=1).all():
                empty += 1
                continue
            keys.append(f"{group}-{place}")
            groups.append(group)
            labels.append(sample.label)
            series.append(sample.values)
        if len(series) == before:
            raise InputError("no series", path=path, why="not a single line of values", remedy="get the file again")
    return keys, groups, labels, series, empty


def _class_table(labels: Sequence[str], path: Path) -> ClassTable:
    """The labels as they are: numbers by their size, others in the natural order, 2 before 10."""
    distinct = sorted(set(labels))
    if len(distinct) > MAXIMUM_CLASSES:
        why = f"{len(distinct)} different labels, at most {MAXIMUM_CLASSES} can be told apart"
        raise InputError("too many classes", path=path, why=why, remedy="give a data set with classes")
    if all(WHOLE.fullmatch(label) for label in distinct):
        names = sorted(distinct, key=int)
    else:
        names = [distinct[place] for place in np.argsort(natural_ranks(distinct))]
    return ClassTable.in_order(names)


# --- Finding the two files

GROUPS = ("train", "test")
FILE = re.compile(r"(?P<name>.+)_(?P<group>train|test)(?P<ending>\.(?:tsv|ts)(?:\.gz)?)", re.IGNORECASE)
NUMBER = re.compile(rb"[-+]?[0-9.]+([eE][-+]?[0-9]+)?(\t|$)")
REMEDY = "give NAME_TRAIN.tsv or NAME_TRAIN.ts, or the folder that holds it and NAME_TEST"


@dataclass(frozen=True)
class _Files:
    """A data set: what it is called and its two files."""

    name: str
    train: Path
    test: Path

    @property
    def parts(self) -> dict[str, Path]:
        return {"train": self.train, "test": self.test}

    @property
    def is_tsv(self) -> bool:
        return ".tsv" in [suffix.lower() for suffix in self.train.suffixes[-2:]]


def looks_like_ucr(path: Path) -> bool:
    """By the names of files; a table of the user's own may be called fields_train.tsv, but begins with a header."""
    if path.is_dir():
        return any(_is_ucr_file(file) for file in _listed(path))
    return _is_ucr_file(path)


def _find_files(path: Path) -> _Files:
    """The data set that a folder holds, or that one of its files belongs to."""
    if path.is_dir():
        listed = _listed(path)
        kinds = sorted({_kind(file) for file in listed})
        if not kinds:
            raise InputError("no data set of the UCR archive", path=path, why="there is no NAME_TRAIN", remedy=REMEDY)
        if len(kinds) > 1:
            why = f"there is {short_list(f'{name}{ending}' for name, ending in kinds)}"
            raise UsageError("several data sets", path=path, why=why, remedy="give its NAME_TRAIN file")
        chosen, folder = kinds[0], path
    else:
        require_file(path)
        if FILE.fullmatch(path.name) is None:
            why = "its name does not say train or test"
            raise InputError("not a file of the UCR archive", path=path, why=why, remedy=REMEDY)
        chosen, folder = _kind(path), path.parent
    members = {_group(file): file for file in _listed(folder) if _kind(file) == chosen}
    missing = [group for group in GROUPS if group not in members]
    if missing:
        present = next(iter(members.values()))
        why = f"there is no {chosen[0]}_{missing[0].upper()}{chosen[1]} beside it"
        raise InputError(f"the {missing[0]} part is missing", path=present, why=why, remedy="put both into one folder")
    return _Files(chosen[0], members["train"], members["test"])


def _listed(folder: Path) -> Sequence[Path]:
    return sorted(file for file in folder.iterdir() if FILE.fullmatch(file.name) and file.is_file())


def _kind(file: Path) -> tuple[str, str]:
    """The name and the suffix of a data set, which its two files share."""
    match = FILE.fullmatch(file.name)
    assert match is not None
    return match["name"], match["ending"].lower()


def _group(file: Path) -> str:
    match = FILE.fullmatch(file.name)
    assert match is not None
    return match["group"].lower()


def _is_ucr_file(file: Path) -> bool:
    if FILE.fullmatch(file.name) is None or not file.is_file():
        return False
    if file.suffix.lower() != ".tsv":
        return True
    with file.open("rb") as handle:
        start = handle.read(64)
    return not start or NUMBER.match(start.removeprefix(b"\xef\xbb\xbf").lstrip()) is not None


# --- Reading the two formats: the label comes first in .tsv, last in .ts

MISSING_VALUES = ("?", "")
CORRECT = "correct it or get the file again"


@dataclass(frozen=True)
class _Sample:
    label: str
    values: NDArray[np.float32]  # (T, C), NaN where nothing was measured


def _read_tsv(path: Path) -> Iterator[_Sample]:
    """One series per line. The archive fills shorter series up with NaN at the end: that is not part of them."""
    first = 0
    for number, line in read_lines(path):
        label, *texts = line.split("\t")
        first = first or len(texts)
        if not texts or len(texts) != first:
            why = f"line {number} has {len(texts)} values, the first has {first}"
            raise InputError("lines of different length, or not tab-separated", path=path, why=why, remedy=AGAIN)
        values = _numbers(texts, number, path)
        seen = np.flatnonzero(~np.isnan(values))
        yield _Sample(_label(label, number, path), values[: seen[-1] + 1 if seen.size else 0, None])


def _read_ts(path: Path) -> Iterator[_Sample]:
    """Dimensions separated by colons, values by commas, after a header of lines that begin with @."""
    header: dict[str, list[str]] = {}
    named: set[str] = set()
    in_data = False
    for number, line in read_lines(path):
        if line.startswith("#"):
            continue
        if not in_data:
            if not line.startswith("@"):
                raise InputError("not a .ts file", path=path, why=f"line {number} comes before @data", remedy=AGAIN)
            key, *words = line[1:].split() or [""]
            header[key.lower()] = words
            in_data = key.lower() == "data"
            if in_data:
                named = _named_classes(header, path)
            continue
        *parts, label = line.split(":")
        label = _label(label, number, path)
        if label not in named:
            why = f"'{label[:40]}' in line {number}"
            raise InputError("a label that the header does not name", path=path, why=why, remedy=CORRECT)
        with reading(f"dimensions of different length in line {number}", path, CORRECT):
            values = np.stack([_numbers(part.split(","), number, path) for part in parts], axis=1)  # (T, C)
        seen = np.flatnonzero(~np.isnan(values).all(axis=1))
        yield _Sample(label, values[: seen[-1] + 1 if seen.size else 0])
    if not in_data:
        raise InputError("not a .ts file", path=path, why="there is no @data", remedy=AGAIN)


def _named_classes(header: dict[str, list[str]], path: Path) -> set[str]:
    if [word.lower() for word in header.get("timestamps", [])[:1]] == ["true"]:
        raise InputError("series with time stamps", path=path, why="they are not read", remedy="give one without")
    if [word.lower() for word in header.get("classlabel", [])[:1]] != ["true"]:
        why = "the header has no '@classLabel true ...'"
        raise InputError("series without classes", path=path, why=why, remedy="give a data set with classes")
    return {_plain(word) for word in header["classlabel"][1:]}


def _numbers(texts: Sequence[str], number: int, path: Path) -> NDArray[np.float32]:
    """NaN where a value is missing."""
    with reading(f"not numbers in line {number}", path, CORRECT), np.errstate(over="ignore"):
        values = np.array(["nan" if text.strip() in MISSING_VALUES else text for text in texts], dtype=np.float64)
        narrow: NDArray[np.float32] = values.astype(np.float32)
        if np.isinf(narrow).any():
            raise ValueError("a value is infinite")
        return narrow


def _label(text: str, number: int, path: Path) -> str:
    label = _plain(text)
    if label in MISSING_VALUES:
        raise InputError(f"no label in line {number}", path=path, remedy=CORRECT)
    return label


def _plain(text: str) -> str:
    """Whole numbers as such, however they are written: 1.0000000e+00 is class 1."""
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        return text
    return str(int(value)) if value.is_integer() and abs(value) < 1e9 else text
