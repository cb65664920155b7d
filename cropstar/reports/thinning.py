"""A scene of any size on a canvas of a few hundred pixels a side, read in one pass, a block at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window, split
from cropstar.progress import track
from cropstar.reports.contents import Piece, whole_grid
from cropstar.reports.curves import Curves
from cropstar.store.classes import UNLABELLED

LONGEST = 480  # pixels of the canvas
BLOCK = 96  # pixels a side read at once: two chunks; 70 dates of 13 bands are 17 MB
RED_GREEN_BLUE = (("B04", "B03", "B02"), ("B08", "B04", "B03"), ("B11", "B08", "B04"), ("B12", "B11", "B8A"))


@dataclass(frozen=True)
class Thinned:
    """What a picture sheet needs of a scene; the canvas takes every so-manieth pixel, never a mixture."""

    grid: Grid
    bands: tuple[str, ...]  # shown as red, green and blue
    days: NDArray[np.int32]  # (T,)
    picture: NDArray[Any]  # (T, 3, h, w) stored integers
    valid: NDArray[np.bool_]  # (T, h, w)
    clear: NDArray[np.float64]  # (T,) share of all pixels
    labels: NDArray[np.int16]  # (h, w)
    parcels: NDArray[np.int32]  # (h, w)
    pixels: NDArray[np.int64]  # of each class, all of them
    curves: Curves


def choose_colours(bands: tuple[str, ...]) -> tuple[str, ...]:
    """True colour where its bands are there, else a usual false colour, else what there is."""
    for wanted in RED_GREEN_BLUE:
        if set(wanted) <= set(bands):
            return wanted
    return bands[:3] if len(bands) >= 3 else (bands[0],) * 3


def thin(pieces: list[Piece], longest: int = LONGEST) -> Thinned:
    """All tiles of one scene; the curves are of every labelled pixel, only the pictures are thinned."""
    grid, corners = whole_grid(pieces)
    fingerprint = pieces[0].reader.fingerprint
    step = math.ceil(max(grid.shape) / longest)
    steps = min(step, grid.height), min(step, grid.width)
    height, width = (len(range(one // 2, side, one)) for one, side in zip(steps, grid.shape, strict=True))
    days = np.unique(np.concatenate([piece.reader.days for piece in pieces]))
    colours = choose_colours(fingerprint.bands)
    thinned = Thinned(
        grid,
        colours,
        days,
        np.zeros((len(days), 3, height, width), dtype=pieces[0].reader.values(Window(0, 0, 1, 1)).dtype),
        np.zeros((len(days), height, width), dtype=bool),
        np.zeros(len(days)),
        np.full((height, width), UNLABELLED, dtype=np.int16),
        np.zeros((height, width), dtype=np.int32),
        np.zeros(len(fingerprint.classes), dtype=np.int64),
        Curves(fingerprint, days),
    )
    blocks = [
        (piece, corner, window)
        for piece, corner in zip(pieces, corners, strict=True)
        for window in split(piece.reader.grid.shape, BLOCK)
    ]
    for piece, corner, window in track(blocks, len(blocks), "draw", "block"):
        _read_block(thinned, piece, corner, window, steps)
    thinned.clear[:] /= sum(piece.reader.grid.height * piece.reader.grid.width for piece in pieces)
    return thinned


def _read_block(
    thinned: Thinned, piece: Piece, corner: tuple[int, int], window: Window, steps: tuple[int, int]
) -> None:
    reader = piece.reader
    dates = np.searchsorted(thinned.days, reader.days)
    valid, labels = reader.valid(window), reader.labels(window)
    thinned.clear[dates] += valid.sum(axis=(1, 2))
    inside_rows, rows = _taken(corner[0] + window.top, window.height, steps[0])
    inside_columns, columns = _taken(corner[1] + window.left, window.width, steps[1])
    inside = (inside_rows, inside_columns)
    thinned.labels[rows, columns] = labels[inside]
    thinned.parcels[rows, columns] = reader.parcels(window)[inside]
    labelled = labels != UNLABELLED
    thinned.pixels[:] += np.bincount(labels[labelled], minlength=len(thinned.pixels))
    on_canvas = valid[(slice(None), *inside)]
    if not on_canvas.any() and not (valid & labelled).any():
        return  # nothing to be seen here: the values stay unread
    values = reader.values(window)  # (T, C, h, w)
    places = [reader.fingerprint.bands.index(band) for band in thinned.bands]
    for date, position in enumerate(dates):
        thinned.valid[position, rows, columns] = on_canvas[date]
        thinned.picture[position, :, rows, columns] = values[date][(places, *inside)]
        thinned.curves.add(int(position), values[date], np.where(valid[date], labels, UNLABELLED))


def _taken(start: int, length: int, step: int) -> tuple[slice, slice]:
    """The lines of a block that fall on the canvas: where in the block, and where on the canvas."""
    first = -(-(start - step // 2) // step)  # the first canvas line whose source lies at or after the start
    source = first * step + step // 2 - start
    count = len(range(source, length, step))
    return slice(source, length, step), slice(first, first + count)
