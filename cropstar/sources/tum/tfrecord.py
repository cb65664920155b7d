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
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError

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
                return _read_one(handle, path, check)
            with gzip.open(handle) as plain:
                return _read_one(plain, path, check)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
        raise InputError("a damaged gzip file", path=path, why=str(failure), remedy=REMEDY) from None


def _read_one(handle: IO[bytes], path: Path, check: bool) -> bytes:
    header = _read_exactly(handle, HEADER, path)
    length, checksum = struct.unpack("<QI", header)
    if masked(crc32c(header[:8])) != checksum:
        why = "the checksum of its length does not match"
        raise InputError("not a TFRecord, or a damaged one", path=path, why=why, remedy=REMEDY)
    if length > MAXIMUM_RECORD_BYTES:
        why = f"record 1 is {length} bytes long, at most {MAXIMUM_RECORD_BYTES} are read"
        raise InputError("a record that is too long", path=path, why=why, remedy="check the file")
    data = _read_exactly(handle, length, path)
    (checksum,) = struct.unpack("<I", _read_exactly(handle, 4, path))
    if handle.read(1):
        raise InputError("more than one record", path=path, why="a tile has one", remedy="check the file")
    if check and masked(crc32c(data)) != checksum:
        raise InputError("a damaged record", path=path, why="the checksum of record 1 does not match", remedy=REMEDY)
    return data


def _read_exactly(handle: IO[bytes], count: int, path: Path) -> bytes:
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


# --- The Example in a record

VARINT, FIXED64, DELIMITED, FIXED32 = 0, 1, 2, 5
MOST_FIELDS = 1000  # of one message; a tile has eleven features
MOST_NUMBERS = 16  # of an int64 list: shapes have at most four
LONGEST_VARINT = 10


class MalformedExample(ValueError):
    """What is wrong, in words for the user."""


@dataclass(frozen=True)
class Feature:
    data: memoryview | None = None  # the one value of a bytes list
    numbers: tuple[int, ...] | None = None  # an int64 list


def parse_example(record: bytes) -> dict[str, Feature]:
    """The features by name; of two with one name the last counts, as everywhere in protocol buffers."""
    features: dict[str, Feature] = {}
    for number, message in _messages(memoryview(record)):
        if number != 1:
            continue
        for entry_number, entry in _messages(message):
            if entry_number == 1:
                parts = dict(_messages(entry))
                try:
                    name = bytes(parts.get(1, b"")).decode("utf-8")
                except UnicodeDecodeError:
                    raise MalformedExample("the name of a feature is not text") from None
                features[name] = _feature(parts.get(2, memoryview(b"")))
    return features


def _feature(message: memoryview) -> Feature:
    feature = Feature()
    for number, values in _messages(message):
        if number == 1:
            found = [value for key, value in _messages(values) if key == 1]
            if len(found) != 1:
                raise MalformedExample(f"a feature has {len(found)} values, not one")
            feature = Feature(data=found[0])
        elif number == 3:
            feature = Feature(numbers=_numbers(values))
    return feature


def _numbers(message: memoryview) -> tuple[int, ...]:
    """An int64 list, packed or value by value."""
    numbers: list[int] = []
    for number, value in _fields(message):
        if number != 1:
            continue
        if isinstance(value, int):
            numbers.append(value)
        else:
            place = 0
            while place < len(value) and len(numbers) <= MOST_NUMBERS:
                one, place = _varint(value, place)
                numbers.append(one)
        if len(numbers) > MOST_NUMBERS:
            raise MalformedExample(f"a list has more than {MOST_NUMBERS} numbers")
    return tuple(number - 2**64 if number >= 2**63 else number for number in numbers)


def _messages(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The fields that are bytes, text or messages."""
    return ((number, value) for number, value in _fields(message) if not isinstance(value, int))


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    place, count = 0, 0
    while place < len(message):
        count += 1
        if count > MOST_FIELDS:
            raise MalformedExample(f"a message has more than {MOST_FIELDS} fields")
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


# --- CRC-32C, the checksum of TFRecords
#
# Own code, since a compiled library would be one more dependency for this one format. Many stretches of the data are
# worked off at once. The register is linear: stretches start from an empty register and are then joined in pairs, the
# left one moved on by as many zero bytes as the right one is long. Leading zeros do not touch an empty register, so
# the front is filled up to whole stretches; the usual start, all ones, is the same as inverting four bytes.

POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
STRETCH = 512  # bytes worked off one after the other; a power of two
SHORT = 64  # bytes that a plain loop has done sooner
ONES = 0xFFFFFFFF

Registers = NDArray[np.uint32]


def crc32c(data: bytes | memoryview) -> int:
    if len(data) <= SHORT:
        return _one_by_one(bytes(data))
    count = -(-len(data) // STRETCH)
    filled = np.zeros(count * STRETCH, dtype=np.uint8)
    filled[-len(data) :] = np.frombuffer(data, dtype=np.uint8)
    filled[len(filled) - len(data) :][:4] ^= 0xFF
    words = np.ascontiguousarray(filled.view("<u2").reshape(count, -1).T)  # (steps, stretches)
    table, registers = _word_table(), np.zeros(count, dtype=np.uint32)
    for row in words:
        registers = table[(registers ^ row) & 0xFFFF] ^ (registers >> 16)
    return _join(registers) ^ ONES


def masked(checksum: int) -> int:
    """As TFRecords store it: turned and shifted, so that a checksum of data with checksums stays a good one."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & ONES


def _one_by_one(data: bytes) -> int:
    table = _byte_table()
    register = ONES
    for byte in data:
        register = int(table[(register ^ byte) & 0xFF]) ^ (register >> 8)
    return register ^ ONES


def _join(registers: Registers) -> int:
    """The register after all stretches, of the registers of each."""
    length = STRETCH
    while len(registers) > 1:
        if len(registers) % 2:
            registers = np.concatenate([np.zeros(1, dtype=np.uint32), registers])
        registers = _advance(_zero_bytes(length), registers[::2]) ^ registers[1::2]
        length *= 2
    return int(registers[0])


@cache
def _byte_table() -> Registers:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(POLYNOMIAL), table >> 1)
    return table


@cache
def _word_table() -> Registers:
    table, words = _byte_table(), np.arange(2**16, dtype=np.uint32)
    once = table[words & 0xFF] ^ (words >> 8)
    twice: Registers = table[once & 0xFF] ^ (once >> 8)
    return twice


@cache
def _zero_bytes(length: int) -> Registers:
    """What `length` zero bytes, a power of two, do to each byte of a register: (4, 256)."""
    if length == 1:
        table = _byte_table()
        bytes_in_place = np.arange(256, dtype=np.uint32) << np.array([[0], [8], [16], [24]], dtype=np.uint32)
        moved: Registers = table[bytes_in_place & 0xFF] ^ (bytes_in_place >> 8)
        return moved
    half = _zero_bytes(length // 2)
    return _advance(half, half)


def _advance(operator: Registers, registers: Registers) -> Registers:
    moved: Registers = (
        operator[0][registers & 0xFF]
        ^ operator[1][(registers >> 8) & 0xFF]
        ^ operator[2][(registers >> 16) & 0xFF]
        ^ operator[3][registers >> 24]
    )
    return moved
