"""Bringing a coarser raster onto a finer grid whose pixels divide its own: by georeference, exactly, window by window.

Zero means nodata. Nothing here depends on the window that is asked for: weights are whole numbers taken from a
pixel's place on the grid, so a part of a raster is resampled to the very values that the whole would give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window

TOLERANCE = 1e-3  # of a pixel: rounding in a file's georeference, a centimetre at 10 m
MARGIN = 2  # pixels that the widest kernel looks at on either side


class NotAligned(ValueError):
    """A raster's pixels do not coincide with whole pixels of the grid; the message says how."""


@dataclass(frozen=True)
class Alignment:
    """How a raster lies on a grid: each of its pixels covers ratio x ratio pixels of the grid."""

    ratio: int
    top: int  # of the raster's upper left corner, in pixels of the grid; may be negative
    left: int
    height: int  # of the raster, in its own pixels
    width: int

    @classmethod
    def of(cls, raster: Grid, grid: Grid) -> Alignment:
        """The alignment of a raster with a grid of equal or finer pixels, which it must cover up to one pixel."""
        if difference := crs_difference(raster, grid):
            raise NotAligned(difference)
        if any((raster.transform[1], raster.transform[3], grid.transform[1], grid.transform[3])):
            raise NotAligned("it is rotated")
        across, down = raster.transform[0] / grid.transform[0], raster.transform[4] / grid.transform[4]
        ratio = round(across)
        if ratio < 1 or max(abs(across - ratio), abs(down - ratio)) * max(raster.height, raster.width) > TOLERANCE:
            raise NotAligned(f"its pixels are {across:g} x {down:g} of the grid's")
        left = (raster.transform[2] - grid.transform[2]) / grid.transform[0]
        top = (raster.transform[5] - grid.transform[5]) / grid.transform[4]
        if max(abs(left - round(left)), abs(top - round(top))) > TOLERANCE:
            raise NotAligned(f"it is shifted by {left + 0.0:g} x {top + 0.0:g} pixels of {grid.resolution:g} m")
        aligned = cls(ratio, round(top), round(left), raster.height, raster.width)
        beyond = (
            aligned.top,
            aligned.left,
            grid.height - aligned.top - ratio * raster.height,
            grid.width - aligned.left - ratio * raster.width,
        )
        if max(beyond) >= ratio:
            raise NotAligned("it does not cover the grid")
        return aligned

    def source(self, window: Window, margin: int = MARGIN) -> Window:
        """The raster's pixels under a window of the grid with a margin, cut off at the raster's edge."""
        top, bottom = _span(window.top - self.top, window.bottom - self.top, self.ratio, margin, self.height)
        left, right = _span(window.left - self.left, window.right - self.left, self.ratio, margin, self.width)
        return Window(top, left, bottom - top, right - left)


@dataclass(frozen=True)
class RasterPart:
    """Pixels (h, w) of a raster and where they lie in it."""

    pixels: NDArray[Any]
    place: Window
    alignment: Alignment


def crs_difference(first: Grid, second: Grid) -> str | None:
    """How two grids differ in their coordinate system, if they do."""
    if first.crs == second.crs or (first.crs and second.crs and first.rasterio_crs == second.rasterio_crs):
        return None
    return f"{_crs_name(first)} instead of {_crs_name(second)}"


def grid_difference(own: Grid, other: Grid) -> str | None:
    """How one grid differs from another in words, or nothing: no pixel may lie more than TOLERANCE away."""
    if difference := crs_difference(own, other):
        return difference
    if own.shape != other.shape:
        return f"{own.width} x {own.height} pixels instead of {other.width} x {other.height}"
    a, b, right, d, e, up = (mine - its for mine, its in zip(own.transform, other.transform, strict=True))
    pixel = other.resolution
    # An error in the size of pixels grows from the corner on: at the far end it is the sum over all of them.
    if max(map(abs, (a, b, d, e))) * max(own.shape) > TOLERANCE * pixel:
        mine, its = _pixel(own), _pixel(other)
        return f"pixels of {mine} {_unit(other)} instead of {its}" if mine != its else "another rotation or orientation"
    if max(abs(right), abs(up)) <= TOLERANCE * pixel:
        return None
    pixels = f"{right / pixel + 0.0:.4g} x {up / pixel + 0.0:.4g} pixels"
    return f"a shift of {right + 0.0:.6g} x {up + 0.0:.6g} {_unit(other)} ({pixels}) instead of the same corner"


def nearest(piece: RasterPart, window: Window) -> NDArray[Any]:
    """Each pixel of the window as the raster's pixel that contains it; zero beyond the raster."""
    alignment, place, pixels = piece.alignment, piece.place, piece.pixels
    if alignment.ratio == 1 and (place.height, place.width) == (window.height, window.width):
        return pixels
    if not pixels.size:
        return np.zeros((window.height, window.width), dtype=pixels.dtype)
    rows = (np.arange(window.top, window.bottom) - alignment.top) // alignment.ratio
    columns = (np.arange(window.left, window.right) - alignment.left) // alignment.ratio
    taken = pixels[_inside(rows - place.top, place.height)][:, _inside(columns - place.left, place.width)]
    outside_rows = (rows < 0) | (rows >= alignment.height)
    outside_columns = (columns < 0) | (columns >= alignment.width)
    if outside_rows.any() or outside_columns.any():
        taken[outside_rows] = 0
        taken[:, outside_columns] = 0
    return taken


def resample(piece: RasterPart, window: Window, method: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values (h, w) of the window by "nearest" or a kernel of KERNELS, and where there are any."""
    if piece.alignment.ratio == 1 or method == "nearest":
        values = nearest(piece, window)
        return values, values != 0
    return interpolate(piece, window, method)


def interpolate(piece: RasterPart, window: Window, method: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Values (h, w) by a kernel of KERNELS, and where there are any: where the containing pixel has data.

    Nodata carries no weight: the other pixels' weights are scaled up to one, as they are at the raster's edge.
    """
    present: NDArray[np.bool_] = nearest(piece, window) != 0
    if not piece.pixels.size:
        return np.zeros(present.shape, dtype=np.float32), present
    # Whole-number weights keep the bilinear sums exact in 24 bits; cubic ones need more.
    kind = np.float32 if method == "bilinear" else np.float64
    alignment, place = piece.alignment, piece.place
    rows = _taps(window.top - alignment.top, window.height, alignment.ratio, alignment.height, place.top, method)
    columns = _taps(window.left - alignment.left, window.width, alignment.ratio, alignment.width, place.left, method)
    total = _weighted(piece.pixels, rows, columns, kind)
    if piece.pixels.all():
        weight = np.multiply.outer(rows[1].sum(axis=0), columns[1].sum(axis=0)).astype(kind)
    else:
        weight = _weighted(piece.pixels != 0, rows, columns, kind)
    weight[~present] = 1
    return total / weight, present


Taps = tuple[NDArray[np.int64], NDArray[np.int64]]  # indexes and whole-number weights, each (taps, n)


def _bilinear(rest: NDArray[np.int64], unit: int) -> list[tuple[int, NDArray[np.int64]]]:
    return [(0, unit - rest), (1, rest)]


def _cubic(rest: NDArray[np.int64], unit: int) -> list[tuple[int, NDArray[np.int64]]]:
    """Keys' kernel with a = -1/2, the one that GDAL calls cubic, times 2 unit^3."""
    first, second, third = rest * unit**2, rest**2 * unit, rest**3
    return [
        (-1, -third + 2 * second - first),
        (0, 3 * third - 5 * second + 2 * unit**3),
        (1, -3 * third + 4 * second + first),
        (2, third - second),
    ]


KERNELS: dict[str, Callable[[NDArray[np.int64], int], list[tuple[int, NDArray[np.int64]]]]] = {
    "bilinear": _bilinear,
    "cubic": _cubic,
}


@lru_cache(maxsize=64)  # the same for every date and band of a window
def _taps(first: int, count: int, ratio: int, size: int, start: int, method: str) -> Taps:
    """The raster's pixels that make up `count` pixels of the grid; `first` counts from the raster's edge.

    The centre of grid pixel u lies (2u + 1 - ratio) / (2 ratio) pixels after the centre of the raster's first.
    """
    unit = 2 * ratio
    base, rest = np.divmod(2 * np.arange(first, first + count, dtype=np.int64) + 1 - ratio, unit)
    steps = KERNELS[method](rest, unit)
    indexes = np.stack([base + step for step, _ in steps])
    weights = np.stack([weight for _, weight in steps])
    weights[(indexes < 0) | (indexes >= size)] = 0
    return indexes - start, weights


def _weighted(pixels: NDArray[Any], rows: Taps, columns: Taps, kind: type[np.floating[Any]]) -> NDArray[Any]:
    """Element by element in one order: a product of matrices would round differently for other sizes."""
    height, width = pixels.shape
    source = pixels.astype(kind)
    down: NDArray[Any] = np.zeros((rows[0].shape[1], width), dtype=kind)
    for index, weight in zip(*rows, strict=True):
        down += source[_inside(index, height)] * weight[:, None].astype(kind)
    across: NDArray[Any] = np.zeros((down.shape[0], columns[0].shape[1]), dtype=kind)
    for index, weight in zip(*columns, strict=True):
        across += np.take(down, _inside(index, width), axis=1) * weight.astype(kind)
    return across


def _inside(indexes: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Indexes that may be looked up; those changed have no weight or are set to nodata."""
    return np.clip(indexes, 0, size - 1)


def _span(first: int, last: int, ratio: int, margin: int, size: int) -> tuple[int, int]:
    margin = margin if ratio > 1 else 0
    start = min(max(first // ratio - margin, 0), size)
    return start, max(min(-(-last // ratio) + margin, size), start)


def _crs_name(grid: Grid) -> str:
    return (grid.rasterio_crs.to_string() if grid.crs else "no coordinate system")[:60]


def _pixel(grid: Grid) -> str:
    return f"{abs(grid.transform[0]):.10g} x {abs(grid.transform[4]):.10g}"


def _unit(grid: Grid) -> str:
    if not grid.crs or not grid.rasterio_crs.is_projected:
        return "degrees" if grid.crs else "units"
    unit = str(grid.rasterio_crs.linear_units)
    return "m" if unit in ("metre", "meter") else unit
