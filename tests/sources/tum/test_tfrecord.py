"""Checksums and frames of TFRecords, against values and a definition from elsewhere."""

from __future__ import annotations

import gzip
import struct
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import InputError
from cropstar.sources.tum import tfrecord
from cropstar.sources.tum.tfrecord import MalformedExample, masked, parse_example, read_record
from tests.sources.examples.tum_tiles import an_example, field, framed, slow_crc32c, varint


def test_the_mask_can_be_taken_off() -> None:
    for checksum in (0, 1, 0xE3069283, 0xFFFFFFFF):
        turned = (masked(checksum) - 0xA282EAD8) & 0xFFFFFFFF
        assert (turned >> 17 | turned << 15) & 0xFFFFFFFF == checksum


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 511, 512, 513, 40_000])
def test_a_record_comes_back(tmp_path: Path, size: int, zipped: bool) -> None:
    data = np.random.default_rng(size).bytes(size)
    path = tmp_path / "1.tfrecord"
    path.write_bytes(gzip.compress(framed(data)) if zipped else framed(data))
    assert read_record(path) == data


def message(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_record(path)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


@given(st.integers(0, 8 * 116 - 1))
def test_every_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, bit: int) -> None:
    content = bytearray(framed(bytes(range(100))))
    content[bit // 8] ^= 1 << bit % 8
    text = message(tmp_path_factory.getbasetemp() / "flipped.tfrecord", bytes(content))
    assert "damaged" in text


@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_files(tmp_path: Path, zipped: bool) -> None:
    whole = framed(np.random.default_rng(1).bytes(500))
    content = gzip.compress(whole) if zipped else whole
    for end in (1, 5, 12, 20, 200, len(content) - 5, len(content) - 1):
        text = message(tmp_path / "cut.tfrecord", content[:end])
        assert "truncated record" in text or "damaged gzip" in text


def test_frames_that_lie(tmp_path: Path) -> None:
    data = framed(b"tile")
    assert "more than one record" in message(tmp_path / "two.tfrecord", data + data)
    length = struct.pack("<Q", 2**60)
    huge = length + struct.pack("<I", masked(slow_crc32c(length)))
    assert "a record that is too long" in message(tmp_path / "huge.tfrecord", huge)
    length = struct.pack("<Q", 2**25)
    absent = length + struct.pack("<I", masked(slow_crc32c(length)))
    assert "truncated record" in message(tmp_path / "absent.tfrecord.gz", gzip.compress(absent))
    bomb = gzip.compress(data + bytes(100_000_000), 1)
    started = time.perf_counter()
    assert "more than one record" in message(tmp_path / "bomb.tfrecord.gz", bomb)
    assert time.perf_counter() - started < 1
    assert "damaged gzip" in message(tmp_path / "no.tfrecord.gz", b"\x1f\x8bnothing of the kind")
    assert "truncated" in message(tmp_path / "empty.tfrecord", b"")


def test_a_record_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tfrecord, "MAXIMUM_RECORD_BYTES", 100)
    (tmp_path / "1.tfrecord").write_bytes(framed(bytes(100)))
    assert len(read_record(tmp_path / "1.tfrecord")) == 100
    assert "too long" in message(tmp_path / "2.tfrecord", framed(bytes(101)))


# --- examples


@pytest.mark.parametrize("packed", [False, True])
def test_examples_come_back(packed: bool) -> None:
    features = parse_example(memoryview(an_example({"a/data": b"xyz", "a/shape": (3, 2**40, -1), "": b""}, packed)))
    assert set(features) == {"a/data", "a/shape", ""}
    assert bytes(features["a/data"].data or b"") == b"xyz"
    assert features["a/shape"].numbers == (3, 2**40, -1)


def test_what_is_unknown_is_skipped_and_the_last_of_a_name_counts() -> None:
    floats = field(1, field(1, field(1, b"f") + field(2, field(2, field(1, bytes(8))))))
    fixed = b"\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x20\x05"
    record = an_example({"a": b"1"}) + fixed + floats + an_example({"a": b"2"})
    features = parse_example(memoryview(record))
    assert bytes(features["a"].data or b"") == b"2"
    assert features["f"].data is None


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"\x0a", "ends inside a number"),
        (b"\x0a\x05abc", "a field of 5 bytes, 3 are left"),
        (b"\x0a" + varint(2**62), "0 are left"),
        (b"\x0a" + b"\xff" * 10, "a number of more than 10 bytes"),
        (b"\x0b", "unknown type 3"),
        (field(1, field(1, field(1, b"\xff\xfe"))), "not text"),
        (field(1, field(1, field(1, b"a") + field(2, field(1, field(1, b"x") * 2)))), "2 values"),
    ],
)
def test_broken_examples(record: bytes, expected: str) -> None:
    with pytest.raises(MalformedExample, match=expected):
        parse_example(memoryview(record))


@given(st.binary(max_size=300))
def test_any_bytes_are_an_example_or_refused(record: bytes) -> None:
    with suppress(MalformedExample):
        features = parse_example(memoryview(record)).values()
        assert all(feature.data is None or len(feature.data) < 300 for feature in features)
