"""Reading pickles of plain data and NumPy arrays without running code.

A pickle may name any function and have it called. Here only the names that numbers and arrays of NumPy are written with
are known, and they stand for functions of this module; every other name is refused before anything is called. The size
of the file is capped.
"""

from __future__ import annotations

import io
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, one_line
from cropstar.inputs import require_file

MAXIMUM_BYTES = 2**26
PLAIN_TYPE = re.compile(r"[fiu][1248]|b1", re.ASCII)


def read_plain_pickle(path: Path, *, maximum_bytes: int = MAXIMUM_BYTES, remedy: str = "get the file again") -> Any:
    """The lists, tuples, dictionaries, numbers, texts and arrays in a pickle of Python 2 or 3.

    Parts of it may be one and the same object, named many times: who walks through it counts the steps.
    """
    require_file(path)
    if path.stat().st_size > maximum_bytes:
        raise InputError(
            "a pickle that is too large", path=path, why=f"more than {maximum_bytes:,} bytes", remedy=remedy
        )
    try:
        # latin1: what Python 2 wrote as text may be bytes, and comes back byte for byte.
        return _Unpickler(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    except _Refused as failure:
        what = "a pickle of more than numbers, texts and arrays"
        raise InputError(what, path=path, why=str(failure), remedy=f"it was not run; {remedy}") from None
    except Exception as failure:  # the unpickler raises whatever it stumbles over
        raise InputError("not a pickle, or a damaged one", path=path, why=one_line(failure), remedy=remedy) from None


class _Refused(Exception):
    """A name that plain data have no need of."""


class _Unpickler(pickle._Unpickler):  # the one in C asks for 64 GB if a number in the pickle says so
    def find_class(self, module: str, name: str) -> Any:
        allowed = ALLOWED.get((module.replace("numpy.core.", "numpy._core."), name))
        if allowed is None:
            raise _Refused(f"it names {module[:80]}.{name[:80]}")
        return allowed


def _new_array(*_: Any) -> NDArray[Any]:
    """An empty array, which its state fills; NumPy compares the state's shape with its bytes."""
    return np.empty(0, dtype=np.uint8)


def _dtype(code: str | bytes, *_: Any) -> np.dtype[Any]:
    text = code.decode("latin1") if isinstance(code, bytes) else str(code)
    if not PLAIN_TYPE.fullmatch(text):
        raise _Refused(f"an array of the type '{text[:20]}'")
    return np.dtype(text, False, True)  # a copy, since its state will be set


def _scalar(dtype: np.dtype[Any], raw: str | bytes) -> Any:
    data = raw.encode("latin1") if isinstance(raw, str) else raw
    (value,) = np.frombuffer(data, dtype).tolist()
    return value


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """Bytes, as Python 3 writes them for Python 2."""
    if encoding != "latin1":
        raise _Refused(f"a text in the encoding '{encoding[:20]}'")
    return text.encode("latin1")


def _no_bytes() -> bytes:
    return b""


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _dtype,
    ("numpy", "ndarray"): "ndarray",  # only named, never called
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _no_bytes,
}
