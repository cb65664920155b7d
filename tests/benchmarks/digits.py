"""idx files as MNIST's are."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray


def idx_bytes(values: NDArray[Any]) -> bytes:
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    return bytes((0, 0, 8, values.ndim)) + sizes + values.astype(np.uint8).tobytes()
