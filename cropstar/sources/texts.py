"""Reading text files, small tables, and natural sorting of names."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.inputs import MAXIMUM_CONFIG_BYTES, reading

if TYPE_CHECKING:
    import pandas as pd

GZIP = b"\x1f\x8b"
AGAIN = "get the file again"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text, perhaps gzipped, that are not blank, each with its number from 1."""
    with path.open("rb") as raw:
        opened = gzip.open if raw.read(2) == GZIP else open
    with (
        reading("not a text in UTF-8, or damaged", path),
        opened(path, "rt", encoding="utf-8-sig") as lines,
    ):
        for number, line in enumerate(lines, start=1):
            if text := line.strip("\r\n "):
                yield number, text


def read_small_text(path: Path, maximum_bytes: int = MAXIMUM_CONFIG_BYTES) -> str:
    """A text in UTF-8, with or without a byte order mark, that is small enough to be read whole."""
    size = path.stat().st_size
    if size > maximum_bytes:
        raise InputError("a text that is too large", path=path, why=f"{size} bytes", remedy="check the file")
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", path=path, remedy="save it as UTF-8") from None


def read_text_table(path: Path, separator: str = ",") -> pd.DataFrame:
    """A small csv with every field as text; CRLF and a byte order mark do no harm."""
    import pandas as pd  # here: other readers of text need no pandas

    try:
        frame: pd.DataFrame = pd.read_csv(
            path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig", compression=None
        )
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", path=path, remedy="save it as UTF-8") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as failure:
        raise InputError("not a table", path=path, why=str(failure), remedy="get the file again") from None
    return frame


def natural_ranks(texts: Sequence[str]) -> NDArray[np.int64]:
    """The place of each text when sorted as people do: field 2 before field 10."""
    ranks = np.zeros(len(texts), dtype=np.int64)
    ranks[sorted(range(len(texts)), key=lambda place: _natural(texts[place]))] = np.arange(len(texts))
    return ranks


def _natural(text: str) -> tuple[list[str | tuple[int, str]], str]:
    """Words and numbers in turn; a number by its length and digits, however long it is."""
    parts: list[str | tuple[int, str]] = []
    for place, part in enumerate(re.split(r"([0-9]+)", text)):
        digits = part.lstrip("0")
        parts.append((len(digits), digits) if place % 2 else part)
    return parts, text
