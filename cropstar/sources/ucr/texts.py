"""The two formats: tab separated values with the label first, and .ts with a header and the label last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_RASTER_BANDS
from cropstar.sources.ucr.lines import AGAIN, read_lines

MISSING = ("?", "")
LONGEST_LABEL = 200
CORRECT = "correct it or get the file again"


@dataclass(frozen=True)
class Sample:
    label: str
    values: NDArray[np.float32]  # (T, C), NaN where nothing was measured


def read_tabbed(path: Path) -> Iterator[Sample]:
    """One series a line. The archive fills shorter series up with NaN at the end: that is no part of them."""
    first = 0
    for number, line in read_lines(path):
        label, *texts = line.split("\t")
        first = first or len(texts)
        if len(texts) != first:
            why = f"line {number} has {len(texts)} values, the first has {first}"
            raise InputError("lines of different length", path=path, why=why, remedy=AGAIN)
        if not texts:
            why = f"no tab in line {number}"
            raise InputError("not a label and its values", path=path, why=why, remedy=AGAIN)
        values = _numbers(texts, number, path)
        seen = np.flatnonzero(~np.isnan(values))
        yield Sample(_label(label, number, path), values[: seen[-1] + 1 if seen.size else 0, None])


def read_ts(path: Path) -> Iterator[Sample]:
    """Dimensions separated by colons, values by commas, after a header of lines that begin with @."""
    header: dict[str, list[str]] = {}
    named: set[str] = set()
    in_data, dimensions = False, 0
    for number, line in read_lines(path):
        if line.startswith("#"):
            continue
        if not in_data:
            if not line.startswith("@"):
                raise InputError("not a .ts file", path=path, why=f"line {number} comes before @data", remedy=AGAIN)
            key, *words = line[1:].split()
            header[key.lower()] = words
            in_data = key.lower() == "data"
            if in_data:
                named = _named_classes(header, path)
            continue
        *parts, label = line.split(":")
        dimensions = dimensions or len(parts)
        if len(parts) != dimensions or not parts or dimensions > MAXIMUM_RASTER_BANDS:
            why = f"line {number} has {len(parts)}, the first has {dimensions}"
            raise InputError("dimensions that do not fit", path=path, why=why, remedy=AGAIN)
        columns = [_numbers(part.split(","), number, path) for part in parts]
        if len({len(column) for column in columns}) > 1:
            why = f"line {number} has {min(map(len, columns))} to {max(map(len, columns))} steps"
            raise InputError("dimensions of different length", path=path, why=why, remedy=CORRECT)
        label = _label(label, number, path)
        if label not in named:
            why = f"'{label[:40]}' in line {number}"
            raise InputError("a label that the header does not name", path=path, why=why, remedy=CORRECT)
        values = np.stack(columns, axis=1)  # (T, C)
        seen = np.flatnonzero(~np.isnan(values).all(axis=1))
        yield Sample(label, values[: seen[-1] + 1 if seen.size else 0])
    if not in_data:
        raise InputError("not a .ts file", path=path, why="there is no @data", remedy=AGAIN)


def _named_classes(header: dict[str, list[str]], path: Path) -> set[str]:
    if [word.lower() for word in header.get("timestamps", [])[:1]] == ["true"]:
        raise InputError("series with time stamps", path=path, why="they are not read", remedy="give one without")
    if [word.lower() for word in header.get("classlabel", [])[:1]] != ["true"]:
        why = "the header has no '@classLabel true ...'"
        raise InputError("series without classes", path=path, why=why, remedy="give a data set to be classified")
    return {_plain(word) for word in header["classlabel"][1:]}


def _numbers(texts: Sequence[str], number: int, path: Path) -> NDArray[np.float32]:
    """NaN where a value is missing. What is no number is said with its place."""
    try:
        values = np.array([_number(text) for text in texts])
    except ValueError:
        text = next(text for text in texts if not _is_number(text))
        why = f"'{text.strip()[:40]}' in line {number}"
        raise InputError("text among the numbers", path=path, why=why, remedy=CORRECT) from None
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if np.isinf(narrow).any():
        raise InputError("an infinite value", path=path, why=f"in line {number}", remedy=CORRECT)
    return narrow


def _number(text: str) -> float:
    if "_" in text:  # 1_000 is a number of Python's alone
        raise ValueError
    return float("nan") if text.strip() in MISSING else float(text)


def _is_number(text: str) -> bool:
    try:
        _number(text)
    except ValueError:
        return False
    return True


def _label(text: str, number: int, path: Path) -> str:
    label = _plain(text)
    if not label or label in MISSING or len(label) > LONGEST_LABEL:
        why = f"line {number} has none, or one of more than {LONGEST_LABEL} letters"
        raise InputError("no label", path=path, why=why, remedy=CORRECT)
    return label


def _plain(text: str) -> str:
    """Whole numbers as such, however they are written: 1.0000000e+00 is class 1."""
    text = text.strip()
    try:
        value = float(text)
    except ValueError:
        return text
    return str(int(value)) if value.is_integer() and abs(value) < 1e9 and "_" not in text else text
