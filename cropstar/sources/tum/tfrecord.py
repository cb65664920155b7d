"""TFRecord files of one tf.train.Example, with their checksums; no TensorFlow is needed.

The Example is read from the wire format of protocol buffers: Example {1: Features}, Features {1: entry, repeated},
entry {1: name, 2: Feature}, Feature {1: bytes list or 3: int64 list}, each list {1: value, repeated}.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c

from cropstar.inputs import reading

GZIP = b"\x1f\x8b"
HEADER, FOOTER = 12, 4  # the length and its checksum, and the checksum of the record
VARINT, DELIMITED = 0, 2

Features = dict[str, Any]  # by name: a bytes list of one value as a memoryview, an int64 list as a list


def read_example(path: Path, *, check: bool = True) -> Features:
    """The features of the one Example in a file. Without `check` the checksum of its content is not compared."""
    with reading("not a TFRecord, or a damaged one", path):
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
        length, checksum = struct.unpack_from("<QI", content)
        if masked(google_crc32c.value(content[:8])) != checksum:
            raise ValueError("the checksum of its length does not match")
        if len(content) != HEADER + length + FOOTER:
            raise ValueError(f"{len(content)} bytes, with one record of {length} it would have {length + 16}")
        record = content[HEADER:-FOOTER]
        if check and masked(google_crc32c.value(record)) != struct.unpack("<I", content[-FOOTER:])[0]:
            raise ValueError("the checksum of its record does not match")
        return _parse_example(memoryview(record))


def masked(checksum: int) -> int:
    """As TFRecords store it: turned and shifted, so that a checksum of data with checksums stays a good one."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _parse_example(record: memoryview) -> Features:
    entries = [entry for message in _messages(record, 1) for entry in _messages(message, 1)]
    return {bytes(_messages(entry, 1)[-1]).decode(): _values(_messages(entry, 2)[-1]) for entry in entries}


def _values(feature: memoryview) -> memoryview | list[int] | None:
    for values in _messages(feature, 1):
        return _messages(values, 1)[0]
    for values in _messages(feature, 3):  # packed, or value by value
        numbers: list[int] = []
        for _, value in _fields(values):
            numbers += [value] if isinstance(value, int) else _varints(value)
        return [number - 2**64 if number >= 2**63 else number for number in numbers]
    return None


def _messages(message: memoryview, wanted: int) -> list[memoryview]:
    """The fields of a number, which are bytes, texts or messages."""
    return [value for number, value in _fields(message) if number == wanted and isinstance(value, memoryview)]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind not in (VARINT, DELIMITED):
            raise ValueError(f"a field of the type {kind}")
        value, place = _varint(message, place)
        if kind == VARINT:
            yield number, value
            continue
        yield number, message[place : place + value]
        place += value


def _varints(message: memoryview) -> Iterator[int]:
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := message[place]) >= 0x80:
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | byte << shift, place + 1
