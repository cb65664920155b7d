"""TFRecord files of one tf.train.Example, with their checksums; no TensorFlow is needed.

The Example is read from the wire format of protocol buffers: Example {1: Features}, Features {1: entry, repeated},
entry {1: name, 2: Feature}, Feature {1: bytes list or 3: int64 list}, each list {1: value, repeated}. Nothing is
copied, and every length is compared with what is there.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from cropstar.errors import InputError

# 100 dates of 128 x 128 pixels are half of this; the usual record is one megabyte.
MAXIMUM_RECORD_BYTES = 2**26
GZIP = b"\x1f\x8b"
HEADER, FOOTER = 12, 4  # the length and its checksum, and the checksum of the record
REMEDY = "get the file again"


def read_record(path: Path, *, check: bool = True) -> memoryview:
    """The one record of a file. Without `check` the checksum of its content is not compared."""
    try:
        with path.open("rb") as handle:
            zipped = handle.read(2) == GZIP
            handle.seek(0)
            stream = gzip.GzipFile(fileobj=handle) if zipped else handle
            content = stream.read(HEADER + MAXIMUM_RECORD_BYTES + FOOTER + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
        raise InputError("a damaged gzip file", path=path, why=str(failure), remedy=REMEDY) from None
    if len(content) < HEADER:
        raise InputError("a truncated record", path=path, why=f"it has {len(content)} bytes", remedy=REMEDY)
    length, checksum = struct.unpack_from("<QI", content)
    if masked(google_crc32c.value(content[:8])) != checksum:
        why = "the checksum of its length does not match"
        raise InputError("not a TFRecord, or a damaged one", path=path, why=why, remedy=REMEDY)
    if length > MAXIMUM_RECORD_BYTES:
        why = f"record 1 is {length} bytes long, at most {MAXIMUM_RECORD_BYTES} are read"
        raise InputError("a record that is too long", path=path, why=why, remedy="check the file")
    missing = HEADER + length + FOOTER - len(content)
    if missing > 0:
        raise InputError("a truncated record", path=path, why=f"it ends {missing} bytes too early", remedy=REMEDY)
    if missing < 0:
        raise InputError("more than one record", path=path, why="a tile has one", remedy="check the file")
    data = content[HEADER:-FOOTER]
    if check and masked(google_crc32c.value(data)) != struct.unpack("<I", content[-FOOTER:])[0]:
        raise InputError("a damaged record", path=path, why="the checksum of record 1 does not match", remedy=REMEDY)
    return memoryview(data)


def masked(checksum: int) -> int:
    """As TFRecords store it: turned and shifted, so that a checksum of data with checksums stays a good one."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- The Example in a record

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
LONGEST_VARINT = 10


class MalformedExample(ValueError):
    """What is wrong, in words for the user."""


@dataclass(frozen=True)
class Feature:
    data: memoryview | None = None  # the one value of a bytes list
    numbers: tuple[int, ...] | None = None  # an int64 list


def parse_example(record: memoryview) -> dict[str, Feature]:
    """The features by name; of two with one name the last counts, as everywhere in protocol buffers."""
    features: dict[str, Feature] = {}
    for message in _messages(record, 1):
        for entry in _messages(message, 1):
            try:
                name = b"".join(_messages(entry, 1)).decode("utf-8")
            except UnicodeDecodeError:
                raise MalformedExample("the name of a feature is not text") from None
            features[name] = _feature([memoryview(b""), *_messages(entry, 2)][-1])
    return features


def _feature(message: memoryview) -> Feature:
    for values in _messages(message, 1):
        found = _messages(values, 1)
        if len(found) != 1:
            raise MalformedExample(f"a feature has {len(found)} values, not one")
        return Feature(data=found[0])
    for values in _messages(message, 3):  # packed, or value by value
        numbers: list[int] = []
        for number, value in _fields(values):
            if number == 1:
                numbers += [value] if isinstance(value, int) else _varints(value)
        return Feature(numbers=tuple(number - 2**64 if number >= 2**63 else number for number in numbers))
    return Feature()


def _messages(message: memoryview, wanted: int) -> list[memoryview]:
    """The fields of a number that are bytes, text or messages."""
    return [value for number, value in _fields(message) if number == wanted and not isinstance(value, int)]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == VARINT:
            value, place = _varint(message, place)
            yield number, value
            continue
        if kind == DELIMITED:
            length, place = _varint(message, place)
        elif kind in (FIXED64, FIXED32):
            length = 8 if kind == FIXED64 else 4
        else:
            raise MalformedExample(f"a field has the unknown type {kind}")
        if length > len(message) - place:
            raise MalformedExample(f"a field of {length} bytes, {len(message) - place} are left")
        if kind == DELIMITED:
            yield number, message[place : place + length]
        place += length


def _varints(message: memoryview) -> Iterator[int]:
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = 0
    for step in range(LONGEST_VARINT):
        if place + step >= len(message):
            raise MalformedExample("it ends inside a number")
        byte = message[place + step]
        value |= (byte & 0x7F) << (7 * step)
        if byte < 0x80:
            return value & (2**64 - 1), place + step + 1
    raise MalformedExample(f"a number of more than {LONGEST_VARINT} bytes")
