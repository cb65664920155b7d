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
from cropstar.sources.tum.tfrecord import MalformedExample, crc32c, masked, parse_example, read_record
from tests.sources.examples.tum_tiles import an_example, field, framed, slow_crc32c, varint


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720, appendix B.4, and the check value of the catalogue of CRCs
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"", 0),
    ],
)
def test_known_checksums(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected == slow_crc32c(data)


@given(st.binary(max_size=64), st.integers(0, 3000), st.integers(0, 2**32 - 1))
def test_checksums_of_any_length(start: bytes, more: int, seed: int) -> None:
    data = start + np.random.default_rng(seed).bytes(more)
    assert crc32c(data) == slow_crc32c(data)
    assert crc32c(memoryview(data)[:more]) == slow_crc32c(data[:more])


def test_checksums_are_fast() -> None:
    data = np.random.default_rng(0).bytes(2_000_000)
    crc32c(data)
    took = []
    for _ in range(5):
        start = time.perf_counter()
        crc32c(data)
        took.append(time.perf_counter() - start)
    assert min(took) < 0.1  # 20 MB/s


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
    features = parse_example(an_example({"a/data": b"xyz", "a/shape": (3, 2**40, -1), "": b""}, packed))
    assert set(features) == {"a/data", "a/shape", ""}
    assert bytes(features["a/data"].data or b"") == b"xyz"
    assert features["a/shape"].numbers == (3, 2**40, -1)


def test_what_is_unknown_is_skipped_and_the_last_of_a_name_counts() -> None:
    floats = field(1, field(1, field(1, b"f") + field(2, field(2, field(1, bytes(8))))))
    fixed = b"\x11" + bytes(8) + b"\x1d" + bytes(4) + b"\x20\x05"
    record = an_example({"a": b"1"}) + fixed + floats + an_example({"a": b"2"})
    features = parse_example(record)
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
        (b"\x08\x01" * 2000, "more than 1000 fields"),
        (an_example({"a": tuple(range(100))}), "more than 16 numbers"),
        (an_example({"a": tuple(range(100))}, packed=False), "more than 16 numbers"),
        (field(1, field(1, field(1, b"\xff\xfe"))), "not text"),
        (field(1, field(1, field(1, b"a") + field(2, field(1, field(1, b"x") * 2)))), "2 values"),
    ],
)
def test_broken_examples(record: bytes, expected: str) -> None:
    with pytest.raises(MalformedExample, match=expected):
        parse_example(record)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_example_or_refused(record: bytes) -> None:
    with suppress(MalformedExample):
        assert all(feature.data is None or len(feature.data) < 300 for feature in parse_example(record).values())
