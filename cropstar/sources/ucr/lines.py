"""The lines of a text, plain or gzip, one after the other and never more than is good for the machine."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from cropstar.errors import InputError

GZIP = b"\x1f\x8b"
# Unpacked. The largest data set of the archives has about a gigabyte; a packed file may claim any size.
MOST_BYTES = 2 * 2**30
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
        while line := _next(stream, path):
            number, total = number + 1, total + len(line)
            if len(line) > LONGEST_LINE or total > MOST_BYTES:
                why = f"more than {MOST_BYTES:,} bytes, or {LONGEST_LINE:,} in one line"
                raise InputError("too large a text", path=path, why=why, remedy="check the file")
            text = _decoded(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, path)
            if text:
                yield number, text


def _next(stream: IO[bytes], path: Path) -> bytes:
    try:
        return stream.readline(LONGEST_LINE + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
        raise InputError("damaged gzip file", path=path, why=str(failure), remedy=AGAIN) from None


def _decoded(line: bytes, path: Path) -> str:
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", path=path, remedy=AGAIN) from None
    if "\0" in text:
        raise InputError("not a text", path=path, why="there are zero bytes in it", remedy=AGAIN)
    return text.strip("\r\n ")
