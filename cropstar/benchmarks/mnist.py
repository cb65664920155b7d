"""MNIST's idx files, gzipped or not: a magic number, the sizes, the bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError

MAXIMUM_BYTES = 2**28  # MNIST's training images are 47 MB
BLOCK = 2**20
GZIP = b"\x1f\x8b"
UNSIGNED_BYTES = 0x08
NAMES = ("train-images-idx3-ubyte", "train-images.idx3-ubyte", "t10k-images-idx3-ubyte", "t10k-images.idx3-ubyte")
REMEDY = "give MNIST's folder or one of its image files, such as train-images-idx3-ubyte.gz"


def read_images(path: Path) -> NDArray[np.uint8]:
    """(N, rows, columns) of a file, or of the first image file in a folder, training images before test images."""
    if path.is_dir():
        candidates = [path / f"{name}{ending}" for name in NAMES for ending in ("", ".gz")]
        file = next((candidate for candidate in candidates if candidate.is_file()), None)
        if file is None:
            raise InputError("no images of MNIST", path=path, remedy=REMEDY)
        path = file
    return read_idx(path, dimensions=3)


def read_idx(path: Path, *, dimensions: int) -> NDArray[np.uint8]:
    """The array of unsigned bytes in an idx file."""
    if not path.is_file():
        raise InputError("no such file", path=path, remedy=REMEDY)
    try:
        with path.open("rb") as handle:
            zipped = handle.read(2) == GZIP
            handle.seek(0)
            if not zipped:
                return _read(handle, path, dimensions)
            with gzip.open(handle) as plain:
                return _read(plain, path, dimensions)  # type: ignore[arg-type]
    except (EOFError, zlib.error, gzip.BadGzipFile) as failure:
        raise InputError("a damaged gzip file", path=path, why=str(failure), remedy="get the file again") from None


def _read(handle: IO[bytes], path: Path, dimensions: int) -> NDArray[np.uint8]:
    header = handle.read(4 + 4 * dimensions)
    if header[:4] != bytes((0, 0, UNSIGNED_BYTES, dimensions)) or len(header) != 4 + 4 * dimensions:
        why = f"it does not begin as an idx file of unsigned bytes in {dimensions} dimensions does"
        raise InputError("not an idx file", path=path, why=why, remedy=REMEDY)
    shape = struct.unpack(f">{dimensions}I", header[4:])
    size = math.prod(shape)
    if not 0 < size <= MAXIMUM_BYTES:
        sizes = " x ".join(map(str, shape))
        why = f"{sizes} bytes; between 1 and {MAXIMUM_BYTES:,} are read"
        raise InputError("an idx file of a wrong size", path=path, why=why, remedy="check the file's header")
    data = bytearray()
    # Block by block: what a header claims takes no memory before it has come.
    while len(data) < size and (block := handle.read(min(BLOCK, size - len(data)))):
        data += block
    if len(data) < size or handle.read(1):
        why = f"{len(data):,} of {size:,} bytes" if len(data) < size else "more bytes than its header says"
        raise InputError("a truncated or overlong idx file", path=path, why=why, remedy="get the file again")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)
