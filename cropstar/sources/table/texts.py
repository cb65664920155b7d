"""Columns of text as numbers: each different value once, each row the number of its value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.calendar import EPOCH

MISSING = -1
WHOLE_NUMBER = re.compile(r"-?\d+\.0")
DAY = re.compile(r"(\d{4})([-/]?)(\d{2})\2(\d{2})(?:[T ].*)?", re.ASCII)


@dataclass(frozen=True)
class Coded:
    """`texts[codes[row]]` is the value of a row; a code of MISSING means that it has none."""

    codes: NDArray[np.int64]
    texts: list[str]

    def row_of(self, code: int) -> int:
        """The first row with a value, counted from 1 as people do."""
        return int(np.argmax(self.codes == code)) + 1

    def require_complete(self, what: str, path: Path, remedy: str) -> None:
        if MISSING in self.codes:
            raise InputError(f"no {what}", path=path, why=f"row {self.row_of(MISSING)} has none", remedy=remedy)


def encode(column: pd.Series[Any], path: Path) -> Coded:
    """Any column as texts without blanks around them; whole numbers are written without a decimal point."""
    try:
        codes, values = pd.factorize(column)
    except TypeError:
        raise InputError(f"the column '{column.name}' holds neither text nor numbers", path=path) from None
    texts = [value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in values]
    texts = [text.strip() for text in texts]
    if all(WHOLE_NUMBER.fullmatch(text) for text in texts):
        texts = [text.removesuffix(".0") for text in texts]  # whole numbers became fractions beside a missing one
    numbers = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text))}
    lookup = np.array([*(numbers.get(text, MISSING) for text in texts), MISSING], dtype=np.int64)
    return Coded(lookup[codes], list(numbers))  # a missing value has the code -1: the last of the lookup


def one_for_all(rows: int) -> Coded:
    """A column that says the same everywhere."""
    return Coded(np.zeros(rows, dtype=np.int64), [""])


def encode_days(column: pd.Series[Any], path: Path) -> NDArray[np.int32]:
    """Days since 1970-01-01, as written: no time zone moves an image to another day."""
    remedy = "write dates as YYYY-MM-DD"
    dates = encode(column, path)
    dates.require_complete("date", path, remedy)
    days = np.zeros(len(dates.texts), dtype=np.int32)
    for code, text in enumerate(dates.texts):
        match = DAY.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            days[code] = (date(int(match[1]), int(match[3]), int(match[4])) - EPOCH).days
        except ValueError:
            why = f"'{text[:40]}' in row {dates.row_of(code)} of column '{column.name}'"
            raise InputError("not a date", path=path, why=why, remedy=remedy) from None
    return days[dates.codes]
