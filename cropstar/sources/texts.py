"""Reading text files, small tables, and natural sorting of names."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.inputs import MAXIMUM_CONFIG_BYTES

if TYPE_CHECKING:
    import pandas as pd

GZIP = b"\x1f\x8b"
# Unpacked. The largest data set of the archives has about a gigabyte; a packed file may claim any size.
MAXIMUM_BYTES = 2 * 2**30
LONGEST_LINE = 64 * 2**20
AGAIN = "get the file again"


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, each with its number from 1."""
    total = 0
    with path.open("rb") as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        # Buffered by hand: GzipFile itself unpacks little at a time.
        stream: IO[bytes] = io.BufferedReader(gzip.GzipFile(fileobj=raw), 2**20) if packed else raw
        number = 0
        while line := _next_line(stream, path):
            number, total = number + 1, total + len(line)
            if len(line) > LONGEST_LINE or total > MAXIMUM_BYTES:
                why = f"more than {MAXIMUM_BYTES:,} bytes, or {LONGEST_LINE:,} in one line"
                raise InputError("a text that is too large", path=path, why=why, remedy="check the file")
            text = _decode(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, path)
            if text:
                yield number, text


def _next_line(stream: IO[bytes], path: Path) -> bytes:
    try:
        return stream.readline(LONGEST_LINE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
        raise InputError("damaged gzip file", path=path, why=str(failure), remedy=AGAIN) from None


def _decode(line: bytes, path: Path) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", path=path, remedy=AGAIN) from None
    if "\0" in text:
        raise InputError("not a text", path=path, why="it contains zero bytes", remedy=AGAIN)
    return text.strip("\r\n ")


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
