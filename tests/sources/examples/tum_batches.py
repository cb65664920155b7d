"""Batches as Python 2 pickled them: protocol 2, arrays as text of one byte a character."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Python2Pickler:
    """Writes what cPickle of Python 2 with an older numpy wrote, memo entries included."""

    def __init__(self) -> None:
        self._memo: dict[Any, int] = {}

    def dump(self, arrays: tuple[NDArray[Any], ...]) -> bytes:
        body = b"".join(map(self._array, arrays))
        return b"\x80\x02" + body + b"\x87" + self._put(object()) + b"."

    def _array(self, array: NDArray[Any]) -> bytes:
        start = self._name("numpy.core.multiarray", "_reconstruct") + self._name("numpy", "ndarray")
        start += b"K\x00\x85" + self._put(object()) + self._text("b") + b"\x87" + self._put(object()) + b"R"
        start += self._put(object()) + b"(K\x01"
        shape = b"".join(b"\x8a\x02" + struct.pack("<h", side) for side in array.shape)  # longs
        shape += {1: b"\x85", 2: b"\x86", 3: b"\x87"}[array.ndim] + self._put(object())
        fortran = not array.flags.c_contiguous
        content = array.tobytes("F" if fortran else "C")
        data = b"T" + struct.pack("<i", len(content)) + content + self._put(object())
        return start + shape + self._dtype(array.dtype) + (b"\x88" if fortran else b"\x89") + data + b"tb"

    def _dtype(self, dtype: np.dtype[Any]) -> bytes:
        key = ("dtype", dtype.str)
        if key in self._memo:
            return b"h" + bytes([self._memo[key]])
        body = self._name("numpy", "dtype") + self._text(dtype.str[1:]) + b"K\x00K\x01\x87" + self._put(object()) + b"R"
        body += self._put(key)
        return body + b"(K\x03" + self._text(dtype.str[0]) + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"

    def _name(self, module: str, name: str) -> bytes:
        if (module, name) in self._memo:
            return b"h" + bytes([self._memo[module, name]])
        return f"c{module}\n{name}\n".encode() + self._put((module, name))

    def _text(self, text: str) -> bytes:
        if text in self._memo:
            return b"h" + bytes([self._memo[text]])
        return b"U" + bytes([len(text)]) + text.encode() + self._put(text)

    def _put(self, key: Any) -> bytes:
        self._memo[key] = len(self._memo) + 1
        return b"q" + bytes([self._memo[key]])


def a_batch(
    samples: int = 6, classes: int = 23, seed: int = 0, whole: bool = False, share: bool = True, last: bool = False
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Sample i has 3 + i % 3 of 8 dates; it grows class 5 + i, and its first date is cloud on 2015-12-31."""
    random = np.random.default_rng(seed)
    x, y = np.zeros((samples, 8, 55)), np.zeros((samples, 8, classes))
    counts = np.array([3 + sample % 3 for sample in range(samples)])
    for sample, count in enumerate(counts):
        days = np.array([365, *(20 + 30 * np.arange(count - 1))])
        values = random.uniform(0.01, 0.6, (count, 54))
        x[sample, :count, 1:] = np.round(values * 1e4) if whole else values
        x[sample, :count, 0] = days / 365 if share else days
        y[sample, 0, 0] = 1
        y[sample, np.arange(1, count), (5 + sample) % classes] = 1
    return (np.roll(x, -1, axis=2) if last else x), y, counts


def write_batch(path: Path, batch: tuple[NDArray[Any], ...]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(Python2Pickler().dump(batch))
