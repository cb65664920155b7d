"""TFRecord files: one record, gzipped or not, with its checksums; no TensorFlow is needed."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import IO

from cropstar.errors import InputError
from cropstar.sources.tum.crc32c import crc32c, masked

# 100 dates of 128 x 128 pixels are half of this; the usual record is one megabyte.
MAXIMUM_RECORD_BYTES = 2**26
BLOCK = 2**20
GZIP = b"\x1f\x8b"
HEADER = 12  # the length and its checksum
REMEDY = "get the file again"


def read_record(path: Path, *, check: bool = True) -> bytes:
    """The one record of a file. Without `check` the checksum of its content is not compared."""
    try:
        with path.open("rb") as handle:
            zipped = handle.read(2) == GZIP
            handle.seek(0)
            if not zipped:
                return _read(handle, path, check)
            with gzip.open(handle) as plain:
                return _read(plain, path, check)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
        raise InputError("a damaged gzip file", path=path, why=str(failure), remedy=REMEDY) from None


def _read(handle: IO[bytes], path: Path, check: bool) -> bytes:
    header = _exactly(handle, HEADER, path)
    length, checksum = struct.unpack("<QI", header)
    if masked(crc32c(header[:8])) != checksum:
        why = "the checksum of its length does not match"
        raise InputError("not a TFRecord, or a damaged one", path=path, why=why, remedy=REMEDY)
    if length > MAXIMUM_RECORD_BYTES:
        why = f"record 1 is {length} bytes long, at most {MAXIMUM_RECORD_BYTES} are read"
        raise InputError("too long a record", path=path, why=why, remedy="check the file")
    data = _exactly(handle, length, path)
    (checksum,) = struct.unpack("<I", _exactly(handle, 4, path))
    if handle.read(1):
        raise InputError("more than one record", path=path, why="a tile has one", remedy="check the file")
    if check and masked(crc32c(data)) != checksum:
        raise InputError("a damaged record", path=path, why="the checksum of record 1 does not match", remedy=REMEDY)
    return data


def _exactly(handle: IO[bytes], count: int, path: Path) -> bytes:
    """So many bytes, fetched block by block: what a header claims takes no memory before it has come."""
    blocks, missing = [], count
    while missing:
        block = handle.read(min(missing, BLOCK))
        if not block:
            why = f"record 1 ends {missing} bytes too early"
            raise InputError("a truncated record", path=path, why=why, remedy=REMEDY)
        blocks.append(block)
        missing -= len(block)
    return b"".join(blocks)
