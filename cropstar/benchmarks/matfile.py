"""MATLAB's files of version 5 to 7, as far as cells of plain numbers go, read within bounds.

A file is a header of 128 bytes and then elements: a kind, a size, the bytes. A variable is an element of elements: its
class, its shape, its name, its content; and a compressed element is another one within zlib's stream. Sizes are held
against the bytes that are there before anything is made of them.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.paths import require_file

MAXIMUM_BYTES = 2**28  # packed, and unpacked again; Piano-midi has 9 MB, eight times that as floats
HEADER = 128
MATRIX, COMPRESSED = 14, 15
CELL, NUMBERS = 1, range(6, 16)  # classes of variables; NUMBERS from double to unsigned integers of 64 bits
COMPLEX = 0x0800
MAXIMUM_CELLS = 2**16  # an empty cell is 8 bytes packed well, and many times that as an array
STORAGE = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
AGAIN = "get the file again"


class _Damaged(Exception):
    """What does not fit, in words."""


def read_cells(path: Path, wanted: Iterable[str]) -> dict[str, list[NDArray[Any]]]:
    """The arrays in each of the wanted cell variables, in column order; other variables are passed over."""
    require_file(path)
    if path.stat().st_size > MAXIMUM_BYTES:
        raise InputError("too large a .mat file", path=path, why=f"more than {MAXIMUM_BYTES:,} bytes", remedy=AGAIN)
    data = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(data[126:HEADER])
    if data.startswith(b"MATLAB 7.3"):
        why = "version 7.3 is HDF5 and another format"
        raise InputError("a .mat file that is not read", path=path, why=why, remedy="save it with MATLAB's option -v7")
    if not data.startswith(b"MATLAB 5.0") or order is None:
        raise InputError("not a .mat file of MATLAB 5 to 7", path=path, remedy=AGAIN)
    names = set(wanted)
    found: dict[str, list[NDArray[Any]]] = {}
    try:
        for body in _variables(memoryview(data)[HEADER:], order):
            name, cells = _variable(body, order, names)
            if cells is not None:
                found[name] = cells
    except (_Damaged, zlib.error) as failure:
        raise InputError("a damaged .mat file", path=path, why=str(failure), remedy=AGAIN) from None
    if missing := sorted(names - found.keys()):
        why = f"it has no {' and no '.join(missing)}"
        raise InputError("a .mat file of something else", path=path, why=why, remedy="check which file it is")
    return found


def _element(data: memoryview, position: int, order: str) -> tuple[int, memoryview, int]:
    """The kind and the bytes of the element at a position, and where the next one begins."""
    if len(data) < position + 8:
        raise _Damaged("it ends in the middle of an element")
    kind, size = struct.unpack_from(f"{order}II", data, position)
    if kind >> 16:  # up to four bytes stand where the size would
        kind, size = kind & 0xFFFF, kind >> 16
        if size > 4:
            raise _Damaged(f"a short element of {size} bytes")
        return kind, data[position + 4 : position + 4 + size], position + 8
    start = position + 8
    if size > len(data) - start:
        raise _Damaged(f"an element of {size:,} bytes where {len(data) - start:,} are left")
    padding = 0 if kind == COMPRESSED else -size % 8
    return kind, data[start : start + size], start + size + padding


def _variables(data: memoryview, order: str) -> Iterator[memoryview]:
    """The variables of a file, unpacked."""
    position, left = 0, MAXIMUM_BYTES
    while position < len(data):
        kind, body, position = _element(data, position, order)
        if kind == COMPRESSED:
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(body, left)
            left -= len(plain)
            # With nothing left the next call would have no bound at all.
            if left <= 0:
                raise _Damaged(f"more than {MAXIMUM_BYTES:,} bytes when unpacked")
            if not unpacker.eof:
                raise _Damaged("a compressed variable is cut short")
            kind, body, _ = _element(memoryview(plain), 0, order)
        if kind == MATRIX:
            yield body


def _variable(body: memoryview, order: str, wanted: set[str]) -> tuple[str, list[NDArray[Any]] | None]:
    """A variable's name, and its cells if it is a wanted one."""
    flags, shape, name, position = _description(body, order)
    if name not in wanted:
        return name, None
    if flags & 0xFF != CELL:
        raise _Damaged(f"{name} is no cell array")
    if math.prod(shape) > MAXIMUM_CELLS:
        raise _Damaged(f"{name} has {math.prod(shape):,} cells, at most {MAXIMUM_CELLS:,} are read")
    cells: list[NDArray[Any]] = []
    while position < len(body) and len(cells) < math.prod(shape):
        kind, content, position = _element(body, position, order)
        if kind != MATRIX:
            raise _Damaged(f"a cell of {name} is of the unknown kind {kind}")
        cells.append(_numbers(content, order))
    if len(cells) != math.prod(shape):
        raise _Damaged(f"{name} has {len(cells)} of {math.prod(shape)} cells")
    return name, cells


def _description(body: memoryview, order: str) -> tuple[int, tuple[int, ...], str, int]:
    """Flags, shape and name of a variable, and where its content begins."""
    _, flags, position = _element(body, 0, order)
    _, sizes, position = _element(body, position, order)
    _, name, position = _element(body, position, order)
    if len(flags) != 8 or len(sizes) % 4 or not 8 <= len(sizes) <= 128:
        raise _Damaged("a variable without class or shape")
    shape = struct.unpack(f"{order}{len(sizes) // 4}i", sizes)
    if min(shape) < 0:
        raise _Damaged(f"a negative size, {min(shape)}")
    return struct.unpack_from(f"{order}I", flags)[0], shape, bytes(name).decode("latin-1"), position


def _numbers(body: memoryview, order: str) -> NDArray[Any]:
    if not len(body):
        return np.zeros((0, 0))  # MATLAB's way to write an empty cell
    flags, shape, _, position = _description(body, order)
    if flags & 0xFF not in NUMBERS or flags & COMPLEX:
        raise _Damaged("a cell that holds no plain numbers")
    kind, content, _ = _element(body, position, order)
    if kind not in STORAGE:
        raise _Damaged(f"numbers of the unknown kind {kind}")
    stored = np.dtype(order + STORAGE[kind])
    if math.prod(shape) * stored.itemsize != len(content):
        raise _Damaged(f"{len(content):,} bytes for {' x '.join(map(str, shape))} numbers")
    try:
        return np.frombuffer(content, dtype=stored).reshape(shape, order="F")
    except ValueError as failure:  # no numbers, and sizes larger than any array's
        raise _Damaged(str(failure)) from None
