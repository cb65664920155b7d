"""The bytes of a map of errors: what each means, and how a canvas of them travels in result.json."""

from __future__ import annotations

import base64
import zlib

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError

LONGEST = 400  # pixels a side of a canvas
NOTHING, OTHER, UNSEEN, RIGHT, WRONG = range(5)  # no parcel; of another part; never seen clearly; judged


def pack(codes: NDArray[np.uint8]) -> str:
    return base64.b64encode(zlib.compress(codes.tobytes(), 9)).decode("ascii")


def unpack(text: str, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """The canvas again; never more bytes than its shape has, whatever the text claims."""
    height, width = shape
    size = height * width
    why = None
    if not (0 < height <= LONGEST and 0 < width <= LONGEST):
        why = f"a canvas of {height} x {width} pixels"
    else:
        try:
            data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
        except (ValueError, zlib.error) as failure:
            why = str(failure)
        else:
            if len(data) == size and (not data or max(data) <= WRONG):
                return np.frombuffer(data, dtype=np.uint8).reshape(height, width)
            why = "its bytes do not fill its canvas"
    raise InputError("a map of errors cannot be read", why=why, remedy="train again with this version")
