"""Pickles that would run code or eat the memory: refused in one line, and nothing of them happens."""

from __future__ import annotations

import os
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.errors import InputError
from cropstar.sources.tum import arrays_of_pickle
from cropstar.sources.tum.arrays_of_pickle import read_arrays
from tests.sources.examples.tum_batches import Python2Pickler, a_batch


class Calls:
    def __init__(self, *what: Any) -> None:
        self._what = what

    def __reduce__(self) -> Any:
        return self._what


def shape_claim(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    """An array that says to be of a shape."""
    sides = b"(" + b"".join(b"\x8a\x08" + struct.pack("<q", side) for side in shape) + b"t"
    kind = b"cnumpy\ndtype\nU\x02f8K\x00K\x01\x87R"
    start = b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + sides + b"U\x01b\x87R"
    return start + b"(K\x01" + sides + kind + b"\x89U" + bytes([len(content)]) + content + b"tb\x85."


def mentioned_again() -> bytes:
    """A megabyte of text that makes a hundred arrays."""
    content = 2**20
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87Rq\x01"
    text = b"T" + struct.pack("<i", content) + bytes(content) + b"q\x02"
    state = b"(K\x01J" + struct.pack("<i", content) + b"\x85h\x01\x89h\x02t"
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R" + state + b"b"
    return b"\x80\x02" + kind + text + b"(" + array * 100 + b"t."


HOSTILE = {
    "mentioned again": (mentioned_again(), "more bytes than it has"),
    "system": (pickle.dumps(Calls(os.system, ("touch ran",)), 2), "posix.system"),
    "eval": (pickle.dumps(Calls(eval, ("open('ran', 'w')",)), 2), "__builtin__.eval"),
    "popen": (pickle.dumps((np.zeros(2), Calls(subprocess.Popen, (["touch", "ran"],))), 4), "subprocess.Popen"),
    "nested": (pickle.dumps([[np.zeros(2), [Calls(os.system, ("touch ran",))]]], 3), "posix.system"),
    "objects": (pickle.dumps((np.array([Calls(os.system, ("touch ran",))], dtype=object),), 2), "of the type 'O8'"),
    "text": (b"cos\nsystem\n(S'touch ran'\ntR.", "os.system"),
    "instance": (b"(S'touch ran'\nios\nsystem\n.", "'string' is no part of an array"),
    "new object": (b"\x80\x02cnumpy\nndarray\n)\x81.", "'newobj' is no part of an array"),
    "extension": (b"\x80\x02\x82\x01.", "'ext1' is no part of an array"),
    "persistent": (b"\x80\x02U\x01aQ.", "'binpersid' is no part of an array"),
    "other numpy": (b"\x80\x02cnumpy\nload\nU\x01a\x85R.", "numpy.load"),
    "dotted name": (b"\x80\x04\x8c\x05numpy\x8c\x0cndarray.dump\x93.", "numpy.ndarray.dump"),
    "no name": (b"\x80\x04" + b"N" + b"\x85" * 9000 + b"N\x93.", "something without a name"),
    "calls text": (b"\x80\x02U\x01aU\x01a\x85R.", "calls something that is no array"),
    "calls a type": (b"\x80\x02cnumpy\nndarray\nK\x01\x85R.", "calls something that is no array"),
    "fills a name": (b"\x80\x02cnumpy\nndarray\n}b.", "'empty_dict' is no part"),
    "fills a text": (b"\x80\x02U\x01aK\x01b.", "fills something that is no array"),
    "structured": (b"\x80\x02cnumpy\ndtype\nU\x03V16K\x00K\x01\x87R.", "of the type 'V16'"),
    "huge shape": (shape_claim((10**12,)), "an array of the shape (1000000000000,) with 0 bytes"),
    "huge product": (shape_claim((2**32, 2**32)), "with 0 bytes"),
    "negative side": (shape_claim((-1,), bytes(8)), "an array without shape or type"),
    "never filled": (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R\x85.", "an array has no content"),
    "no arrays": (pickle.dumps((1, 2, 3), 2), "not a tuple of arrays"),
    "long bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 2**60) + b"abc.", ""),
    "longer bytes": (b"\x80\x04\x8e" + struct.pack("<Q", 2**64 - 1) + b"abc.", ""),
    "long text": (b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"abc.", ""),
    "long frame": (b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"N.", "not a tuple of arrays"),
    "far memory": (b"\x80\x02Nr\xff\xff\xff\xff.", "not a tuple of arrays"),
    "from nowhere": (b"\x80\x02h\x07.", ""),
    "empty stack": (b"\x80\x02R.", ""),
    "no mark": (b"\x80\x02K\x01t.", ""),
    "many steps": (b"\x80\x02" + b"N" * 20_000 + b".", "more than 10000 steps"),
    "itself": (b"\x80\x02]q\x01h\x01a.", "not a tuple of arrays"),
    "nothing": (b"", ""),
    "not a pickle": (b"PK\x03\x04 something else", ""),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_pickles_never_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    content, expected = HOSTILE[name]
    path = tmp_path / "b0.pkl"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_arrays(path)
    assert "\n" not in str(caught.value)
    assert "b0.pkl" in str(caught.value)
    assert expected in str(caught.value)
    assert os.listdir(tmp_path) == ["b0.pkl"]


def test_the_first_of_these_would_have_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["system"][0])
    assert (tmp_path / "ran").exists()


def test_hostile_pickles_take_no_memory(tmp_path: Path) -> None:
    for name, (content, _) in HOSTILE.items():
        (tmp_path / f"{name}.pkl").write_bytes(content)
    script = (
        "import sys\nfrom pathlib import Path\nfrom cropstar.errors import InputError\n"
        "from cropstar.sources.tum.arrays_of_pickle import read_arrays\n"
        "for path in sorted(Path(sys.argv[1]).iterdir()):\n"
        "    try:\n        read_arrays(path)\n    except InputError:\n        continue\n    raise SystemExit(path)\n"
        # Not ru_maxrss: it begins with what the parent had when it started the child.
        "status = Path('/proc/self/status').read_text()\nprint(status.split('VmHWM:')[1].split()[0])"
    )
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=limit,
    )
    assert int(done.stdout) < 400_000  # kilobytes


def test_files_that_are_too_large(tmp_path: Path) -> None:
    path = tmp_path / "b0.pkl"
    with path.open("wb") as handle:
        handle.truncate(arrays_of_pickle.MAXIMUM_PICKLE_BYTES + 1)
    with pytest.raises(InputError, match="too large a batch"):
        read_arrays(path)


WHOLE = Python2Pickler().dump(a_batch(samples=2))


@given(st.integers(0, len(WHOLE) - 1))
def test_truncated_pickles(tmp_path_factory: pytest.TempPathFactory, end: int) -> None:
    path = tmp_path_factory.getbasetemp() / "cut.pkl"
    path.write_bytes(WHOLE[:end])
    with pytest.raises(InputError):
        read_arrays(path)


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_changed_bytes_are_arrays_or_refused(tmp_path_factory: pytest.TempPathFactory, place: int, byte: int) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.pkl"
    path.write_bytes(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])
    try:
        arrays = read_arrays(path)
    except InputError:
        return
    assert all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in arrays)
