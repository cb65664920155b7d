"""Pickles of numbers, texts and arrays come back as Python reads them; of anything else nothing is run."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.errors import InputError
from cropstar.store.restricted_pickle import read_plain_pickle

Folder = pytest.TempPathFactory
PLAIN = st.recursive(
    st.integers(-(2**70), 2**70) | st.text(max_size=6) | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=5) | st.lists(inner, max_size=5).map(tuple)
    | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_come_back(value: Any, protocol: int, tmp_path_factory: Folder) -> None:
    path = tmp_path_factory.mktemp("pickle") / "a.pickle"
    path.write_bytes(pickle.dumps(value, protocol))
    assert read_plain_pickle(path) == value


def test_shared_parts_stay_shared(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    step = [60, 64]
    path.write_bytes(pickle.dumps([step, step]))
    first, second = read_plain_pickle(path)
    assert first is second


@settings(max_examples=15)
@given(
    values=st.lists(st.integers(0, 127), min_size=1, max_size=5),
    kind=st.sampled_from(["i1", "u1", "i2", ">i4", "i8", "u8", "f4"]),
    protocol=st.integers(0, 4),
)
def test_numbers_and_arrays_of_numpy(values: list[int], kind: str, protocol: int, tmp_path_factory: Folder) -> None:
    path = tmp_path_factory.mktemp("pickle") / "a.pickle"
    array = np.array([values, values], dtype=kind)
    path.write_bytes(pickle.dumps([list(array[0]), array, array.T], protocol))
    numbers, whole, turned = read_plain_pickle(path)
    assert numbers == values
    assert isinstance(numbers[0], int | float)
    assert whole.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(whole, array)
    np.testing.assert_array_equal(turned, array.T)


def test_numbers_as_python_2_wrote_them(tmp_path: Path) -> None:
    dtype = b"cnumpy\ndtype\n(U\x02i8K\x00K\x01tR(K\x03U\x01%sNNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    number = b"cnumpy.core.multiarray\nscalar\n(" + dtype + b"U\x08%stR"
    path = tmp_path / "a.pickle"
    little, big = number % (b"<", struct.pack("<q", 72)), number % (b">", struct.pack(">q", -72))
    path.write_bytes(b"\x80\x02](" + little + big + b"e.")
    assert read_plain_pickle(path) == [72, -72]


class Evil:
    """Makes a folder when it is unpickled as pickle would do it."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_run(protocol: int, tmp_path: Path) -> None:
    target = tmp_path / "made"
    content = pickle.dumps({"train": [Evil(target)]}, protocol)
    pickle.loads(content)
    target.rmdir()  # it would have worked
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"it names (posix|nt)\.mkdir"):
        read_plain_pickle(path)
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a pickle"),
        (b"MATLAB 5.0 MAT-file", "not a pickle"),
        (pickle.dumps([1, 2, [3]])[:-1], "not a pickle"),
        (b"a.", "not a pickle"),
        (b"h\x07.", "not a pickle"),
        (b"K\x01K\x02a.", "not a pickle"),
        (b"}(U\x01au.", "not a pickle"),
        (b"K\x01)R.", "not callable"),
        (b"cnumpy\nndarray\n(J\xff\xff\xff\x7ftR.", "not callable"),  # an array of two gigabytes
        (b"cnumpy\ndtype\n(U\x02O8K\x00K\x01tR.", "the type 'O8'"),
        (b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00utf-8tR.", "encoding 'utf-8'"),
        (b"cnumpy.core.multiarray\n_frombuffer\n.", "_frombuffer"),
        (b"c__builtin__\neval\n.", "eval"),
        (b"Pid\n.", "not a pickle"),
        (b"\x82\x01.", "not a pickle"),
        (b"I" + b"9" * 5000 + b"\n.", "not a pickle"),
        (b"\x8e" + struct.pack("<Q", 2**62) + b".", "not a pickle"),
    ],
)
def test_bad_files(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_plain_pickle(path)
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(
    content=st.binary(max_size=60)
    | st.lists(st.sampled_from(list(b"](}]lt)dasueRb\x85\x86K\x01q\x00h\x00.")), max_size=40).map(bytes)
)
def test_noise_ends_in_one_line(content: bytes, tmp_path_factory: Folder) -> None:
    path = tmp_path_factory.mktemp("pickle") / "a.pickle"
    path.write_bytes(content)
    try:
        read_plain_pickle(path)  # some noise is a pickle
    except InputError as refusal:
        said = str(refusal)
    else:
        return
    assert str(path) in said
    assert "\n" not in said


def test_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(list(range(2000))))
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        read_plain_pickle(path, maximum_bytes=1000)
    with pytest.raises(InputError, match="it is a folder"):
        read_plain_pickle(tmp_path)
