"""Checksums and frames of TFRecords, against values and a definition from elsewhere."""

from __future__ import annotations

import gzip
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import InputError
from cropstar.sources.tum.images import masked, read_example
from tests.sources.examples.tum_tiles import an_example, field, framed


def test_the_mask_can_be_taken_off() -> None:
    for checksum in (0, 1, 0xE3069283, 0xFFFFFFFF):
        turned = (masked(checksum) - 0xA282EAD8) & 0xFFFFFFFF
        assert (turned >> 17 | turned << 15) & 0xFFFFFFFF == checksum


def read(path: Path, content: bytes) -> dict[str, Any]:
    path.write_bytes(content)
    return read_example(path)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 511, 512, 513, 40_000])
def test_an_example_comes_back(tmp_path: Path, size: int, packed: bool, zipped: bool) -> None:
    data = np.random.default_rng(size).bytes(size)
    whole = framed(an_example({"a/data": data, "a/shape": (3, 2**40, -1), "": b""}, packed))
    features = read(tmp_path / "1.tfrecord", gzip.compress(whole) if zipped else whole)
    assert set(features) == {"a/data", "a/shape", ""}
    assert features["a/data"] == data
    assert features["a/shape"] == [3, 2**40, -1]


def test_the_last_of_a_name_counts_and_floats_are_skipped(tmp_path: Path) -> None:
    floats = field(1, field(1, field(1, b"f") + field(2, field(2, field(1, bytes(8))))))
    record = an_example({"a": b"1"}) + floats + an_example({"a": b"2"})
    assert read(tmp_path / "1.tfrecord", framed(record)) == {"a": b"2", "f": None}


def refusal(path: Path, content: bytes) -> str:
    with pytest.raises(InputError) as caught:
        read(path, content)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)
    return str(caught.value)


@given(st.integers(0, 8 * 116 - 1))
def test_every_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, bit: int) -> None:
    content = bytearray(framed(bytes(range(100))))
    content[bit // 8] ^= 1 << bit % 8
    assert "damaged" in refusal(tmp_path_factory.getbasetemp() / "flipped.tfrecord", bytes(content))


@pytest.mark.parametrize("zipped", [False, True])
def test_truncated_files(tmp_path: Path, zipped: bool) -> None:
    whole = framed(np.random.default_rng(1).bytes(500))
    content = gzip.compress(whole) if zipped else whole
    for end in (0, 1, 5, 12, 20, 200, len(content) - 5, len(content) - 1):
        assert "damaged" in refusal(tmp_path / "cut.tfrecord", content[:end])


def test_two_records_and_something_else(tmp_path: Path) -> None:
    assert "with one record of 4 it would have 20" in refusal(tmp_path / "two.tfrecord", 2 * framed(b"tile"))
    assert "damaged" in refusal(tmp_path / "no.tfrecord.gz", b"\x1f\x8bnothing of the kind")


@given(st.binary(max_size=300))
def test_any_bytes_are_an_example_or_refused(tmp_path_factory: pytest.TempPathFactory, record: bytes) -> None:
    with suppress(InputError):
        read(tmp_path_factory.getbasetemp() / "any.tfrecord", framed(record))
