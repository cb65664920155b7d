"""The tf.train.Example in a record, read from the wire format of protocol buffers.

Example {1: Features}, Features {1: entry, repeated}, entry {1: name, 2: Feature}, Feature {1: bytes list or
3: int64 list}, each list {1: value, repeated}. Nothing is copied, and every length is compared with what is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
                    raise MalformedExample("the name of a feature is no text") from None
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
