"""From the numbers of a file to the unsigned values of a series, and which of them are data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.resampling import RasterPart, interpolate, nearest
from cropstar.geo.windows import Window

DARKEST, BRIGHTEST = np.iinfo(np.int16).min, np.iinfo(np.uint16).max


def to_values(numbers: NDArray[Any]) -> NDArray[np.uint16]:
    """Numbers cut to 0 ... 65535: dark pixels of signed files may be a little below zero, and wrapped around they
    would be the brightest. Fractions are rounded, halves up."""
    if numbers.dtype == np.uint16:
        return numbers.view(np.uint16)
    if numbers.dtype.kind == "f":
        numbers = np.floor(numbers + 0.5)
    elif numbers.dtype.itemsize < 4:
        numbers = numbers.astype(np.int32)  # the bounds do not fit into less
    values: NDArray[np.uint16] = np.clip(numbers, 0, BRIGHTEST).astype(np.uint16, copy=False)
    return values


def is_data(pixels: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """Where a band has data; where the file does not say what nodata is, zero may be."""
    present: NDArray[np.bool_] = pixels != (0 if nodata is None else nodata)
    return present


def on_grid(
    piece: RasterPart, window: Window, nodata: float | None, resampling: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """A window (h, w) of a file on the grid: its numbers, and where they are data."""
    pixels = piece.pixels
    if piece.alignment.ratio == 1:
        return pixels, is_data(pixels, nodata)
    # The resampling of geo.resampling takes zero for nodata: all numbers that are data move away from it. One shift for
    # all windows of a file; the sums stay exact, for 98,304 x 144 (60 m to 10 m) is below 2^24.
    shift = 0 if not nodata else 1 - DARKEST
    moved = np.clip(pixels.astype(np.int64), DARKEST, BRIGHTEST) + shift
    shifted = RasterPart(np.where(is_data(pixels, nodata), moved, 0), piece.place, piece.alignment)
    if resampling == "nearest":
        numbers: NDArray[Any] = nearest(shifted, window)
        present: NDArray[np.bool_] = numbers != 0
    else:
        numbers, present = interpolate(shifted, window, resampling)
    return numbers - shift, present
