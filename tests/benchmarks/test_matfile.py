"""MATLAB's files: what scipy writes comes back as scipy reads it, and what is damaged or hostile is refused."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io as oracle  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from cropstar.benchmarks.matfile import MAXIMUM_BYTES, read_cells
from cropstar.errors import InputError

Folder = pytest.TempPathFactory
KINDS = st.sampled_from(["u1", "i1", "i2", "u2", "i4", "u4", "f4", "f8", "i8", "u8"])
SHAPES = st.tuples(st.integers(0, 4), st.integers(0, 5))


def numbers(dtype: str) -> st.SearchStrategy[NDArray[Any]]:
    return arrays.arrays(dtype, SHAPES, elements=st.integers(0, 100))


def mat_bytes(compress: bool = False, **variables: list[NDArray[Any]]) -> bytes:
    cells = {}
    for name, pieces in variables.items():
        cells[name] = np.empty((1, len(pieces)), dtype=object)
        for index, piece in enumerate(pieces):
            cells[name][0, index] = piece
    stream = io.BytesIO()
    oracle.savemat(stream, cells, do_compression=compress)
    return stream.getvalue()


def element(kind: int, body: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}II", kind, len(body)) + body + bytes(-len(body) % 8)


def variable(name: bytes, shape: tuple[int, ...], content: bytes, flags: int = 1, order: str = "<") -> bytes:
    described = element(6, struct.pack(f"{order}II", flags, 0), order)
    described += element(5, struct.pack(f"{order}{len(shape)}i", *shape), order) + element(1, name, order)
    return element(14, described + content, order)


def packed(body: bytes) -> bytes:
    stream = zlib.compress(body)
    return struct.pack("<II", 15, len(stream)) + stream


HEADER = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
BYTES = variable(b"", (2, 3), element(2, bytes(range(6))), flags=9)


@settings(max_examples=25)
@given(pieces=st.lists(KINDS.flatmap(numbers), max_size=4), compress=st.booleans())
def test_round_trip(pieces: list[NDArray[Any]], compress: bool, tmp_path_factory: Folder) -> None:
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    path.write_bytes(mat_bytes(compress, tunes=pieces, other=[np.ones((2, 2))]))
    read = read_cells(path, ["tunes"])
    assert list(read) == ["tunes"]
    assert len(read["tunes"]) == len(pieces)
    for got, wanted in zip(read["tunes"], pieces, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("order", ["<", ">"])
def test_both_byte_orders(order: str, tmp_path: Path) -> None:
    inner = variable(b"", (2, 2), element(4, struct.pack(f"{order}4H", 1, 2, 3, 400), order), flags=11, order=order)
    mark = b"IM" if order == "<" else b"MI"
    path = tmp_path / "a.mat"
    path.write_bytes(HEADER[:126] + mark + variable(b"tunes", (1, 1), inner, order=order))
    np.testing.assert_array_equal(read_cells(path, ["tunes"])["tunes"][0], [[1, 3], [2, 400]])


@pytest.mark.parametrize("compress", [False, True])
def test_every_truncation_is_noticed(compress: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    # 8 x 2 bytes: no padding at the end that could be missed by nobody.
    content = mat_bytes(compress, tunes=[np.arange(16, dtype=np.uint8).reshape(8, 2)])
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(InputError):
            read_cells(path, ["tunes"])


@given(places=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6))
def test_changed_bytes_end_in_one_line(places: list[tuple[int, int]], tmp_path_factory: Folder) -> None:
    content = bytearray(mat_bytes(tunes=[np.ones((3, 4)), np.eye(5)]))
    for place, value in places:
        content[128 + place % (len(content) - 128)] = value
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    path.write_bytes(content)
    try:
        found = read_cells(path, ["tunes"])  # changed numbers may still be numbers
    except InputError as refusal:
        said = str(refusal)
    else:
        assert list(found) == ["tunes"]
        return
    assert str(path) in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a .mat file"),
        (b"PK\x03\x04" + bytes(200), "not a .mat file"),
        (b"MATLAB 7.3 MAT-file".ljust(126) + b"IM" + bytes(400), "-v7"),
        (HEADER, "has no tunes"),
        (HEADER + variable(b"tunes", (1, 1), BYTES, flags=9), "no cell array"),
        (HEADER + variable(b"tunes", (1, 2), BYTES), "1 of 2 cells"),
        (HEADER + variable(b"tunes", (1, -1), BYTES), "negative size"),
        (HEADER + variable(b"tunes", (2**31 - 1, 2**31 - 1), BYTES), "at most"),
        (HEADER + variable(b"tunes", (1, 1), variable(b"", (2**31 - 1,) * 2, element(2, b"1"), 9)), "1 bytes for"),
        (HEADER + variable(b"tunes", (1, 1), variable(b"", (0, *[2**31 - 1] * 3), element(2, b""), 9)), "too big"),
        (HEADER + variable(b"tunes", (1, 1), variable(b"", (1, 1), BYTES)), "no plain numbers"),
        (HEADER + variable(b"tunes", (1, 1), variable(b"", (1, 1), element(9, bytes(8)), 0x0806)), "no plain numbers"),
        (HEADER + variable(b"tunes", (1, 1), variable(b"", (1, 1), element(77, bytes(8)), 9)), "unknown kind 77"),
        (HEADER + variable(b"tunes", (1, 1), element(2, b"12345678")), "unknown kind 2"),
        (HEADER + struct.pack("<II", 14, 2**32 - 1), "4,294,967,295 bytes where 0 are left"),
        (HEADER + struct.pack("<II", 5 << 16 | 2, 0), "short element"),
        (HEADER + element(15, b"no stream of zlib's"), "damaged"),
    ],
)
def test_bad_files(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_cells(path, ["tunes"])
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "; " in str(caught.value)


def test_a_million_empty_cells_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    many = 2**20
    path.write_bytes(HEADER + packed(variable(b"tunes", (1, many), element(14, b"") * many)))
    assert path.stat().st_size < 2**16
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="1,048,576 cells"):
            read_cells(path, ["tunes"])
        assert tracemalloc.get_traced_memory()[1] < 2**25  # what was unpacked, 8 MB, and while it grew
    finally:
        tracemalloc.stop()


def test_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.benchmarks.matfile.MAXIMUM_BYTES", 2**20)
    assert MAXIMUM_BYTES > 2**20
    for content in (packed(bytes(2**24)), packed(element(2, bytes(2**18))) * 8):  # at once, and bit by bit
        path = tmp_path / "a.mat"
        path.write_bytes(HEADER + content)
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match="when unpacked"):
                read_cells(path, ["tunes"])
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()
    path.write_bytes(HEADER + bytes(2**20))
    with pytest.raises(InputError, match="too large"):
        read_cells(path, ["tunes"])


def test_real_files_as_scipy_reads_them(real_data: Path) -> None:
    for name in ("JSB_Chorales.mat", "Piano_midi.mat"):
        wanted = oracle.loadmat(real_data / "music" / name)
        read = read_cells(real_data / "music" / name, ["traindata", "validdata", "testdata"])
        for variable_name, cells in read.items():
            assert len(cells) == wanted[variable_name].size
            for got, cell in zip(cells, wanted[variable_name].ravel(), strict=True):
                np.testing.assert_array_equal(got, cell)
