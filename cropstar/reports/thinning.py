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
from cropstar.reports.contact import Contact, choose_days, choose_images
from cropstar.reports.contents import Piece
from cropstar.reports.curves import Curves
from cropstar.reports.mosaic import lay_on_ground
from cropstar.reports.samples import bring_together
from cropstar.store.classes import UNLABELLED
from cropstar.store.images import Image

LONGEST = 480  # pixels of the canvas
BLOCK = 96  # pixels a side read at once: two chunks; 70 dates of 13 bands are 17 MB
RED_GREEN_BLUE = (("B04", "B03", "B02"), ("B08", "B04", "B03"), ("B11", "B08", "B04"), ("B12", "B11", "B8A"))


@dataclass(frozen=True)
class Thinned:
    """What a picture sheet needs of a scene; the canvas takes every so-manieth pixel, never a mixture."""

    grid: Grid
    bands: tuple[str, ...]  # shown as red, green and blue
    days: NDArray[np.int32]  # (T,) that have a picture
    picture: NDArray[Any]  # (T, 3, h, w) stored integers
    valid: NDArray[np.bool_]  # (T, h, w)
    clear: NDArray[np.float64]  # (T,) share of all pixels
    labels: NDArray[np.int16]  # (h, w)
    parcels: NDArray[np.int32]  # (h, w)
    pixels: NDArray[np.int64]  # of each class, all of them
    curves: Curves
    contact: Contact | None = None  # of images side by side; None where the canvas is one piece of ground

    @property
    def area(self) -> int:
        """Pixels that the canvas stands for, thinned or not."""
        if self.contact:
            return self.contact.images * self.contact.image.height * self.contact.image.width
        return self.grid.height * self.grid.width


def choose_colours(bands: tuple[str, ...]) -> tuple[str, ...]:
    """True colour where its bands are there, else a usual false colour, else what there is."""
    for wanted in RED_GREEN_BLUE:
        if set(wanted) <= set(bands):
            return wanted
    return bands[:3] if len(bands) >= 3 else (bands[0],) * 3


def thin(pieces: list[Piece], longest: int = LONGEST) -> Thinned:
    """All tiles of one scene, or some images of a collection on a contact sheet.

    The curves are of every labelled pixel of these, only the pictures are thinned.
    """
    readers = [piece.reader for piece in pieces]
    fingerprint = readers[0].fingerprint
    collection = readers[0].layout == "patches"
    mosaic = choose_images(readers) if collection else lay_on_ground(readers)
    grid = mosaic.grid
    step = math.ceil(max(grid.shape) / longest)
    steps = min(step, grid.height), min(step, grid.width)
    height, width = (len(range(one // 2, side, one)) for one, side in zip(steps, grid.shape, strict=True))
    every_day = np.unique(np.concatenate([image.days for image in mosaic.images]))
    days = choose_days(mosaic, every_day) if collection else every_day
    binned = bring_together(every_day, fingerprint) if collection else every_day
    positions = np.unique(binned)
    contact = None
    if collection:
        shown = np.zeros((1 + len(days), height, width), dtype=bool)
        total = sum(len(reader.images) for reader in readers)
        contact = Contact(total, len(mosaic.images), mosaic.images[0].grid, every_day, shown[0], shown[1:])
    thinned = Thinned(
        grid,
        choose_colours(fingerprint.bands),
        days,
        np.zeros((len(days), 3, height, width), dtype=mosaic.images[0].values(Window(0, 0, 1, 1)).dtype),
        np.zeros((len(days), height, width), dtype=bool),
        np.zeros(len(days)),
        np.full((height, width), UNLABELLED, dtype=np.int16),
        np.zeros((height, width), dtype=np.int32),
        np.zeros(len(fingerprint.classes), dtype=np.int64),
        Curves(fingerprint, positions),
        contact,
    )
    blocks = [
        (image, corner, window)
        for image, corner in zip(mosaic.images, mosaic.corners, strict=True)
        for window in split(image.grid.shape, BLOCK)
    ]
    seen = np.zeros(len(days))
    places = np.searchsorted(positions, binned)  # on the curves, of each day of `every_day`
    for image, corner, window in track(blocks, len(blocks), "draw", "block"):
        on_curves = places[np.searchsorted(every_day, image.days)]
        shown_dates = np.flatnonzero(np.isin(image.days, days))
        np.add.at(seen, np.searchsorted(days, image.days[shown_dates]), window.height * window.width)
        _read_block(thinned, image, corner, window, steps, on_curves, shown_dates)
    thinned.clear[:] /= np.maximum(seen, 1)
    return thinned


def _read_block(
    thinned: Thinned,
    image: Image,
    corner: tuple[int, int],
    window: Window,
    steps: tuple[int, int],
    on_curves: NDArray[np.intp],
    shown_dates: NDArray[np.intp],
) -> None:
    targets = np.searchsorted(thinned.days, image.days[shown_dates])
    valid, labels = image.valid(window), image.labels(window)
    np.add.at(thinned.clear, targets, valid[shown_dates].sum(axis=(1, 2)))
    inside_rows, rows = _taken(corner[0] + window.top, window.height, steps[0])
    inside_columns, columns = _taken(corner[1] + window.left, window.width, steps[1])
    inside = (inside_rows, inside_columns)
    thinned.labels[rows, columns] = labels[inside]
    thinned.parcels[rows, columns] = image.parcels(window)[inside]
    if thinned.contact:
        thinned.contact.covered[rows, columns] = True
        thinned.contact.dated[targets, rows, columns] = True
    labelled = labels != UNLABELLED
    thinned.pixels[:] += np.bincount(labels[labelled], minlength=len(thinned.pixels))
    on_canvas = valid[(slice(None), *inside)]
    if not on_canvas.any() and not (valid & labelled).any():
        return  # nothing to be seen here: the values stay unread
    values = image.values(window)  # (T, C, h, w)
    bands = [image.fingerprint.bands.index(band) for band in thinned.bands]
    for date, target in zip(shown_dates, targets, strict=True):
        thinned.valid[target, rows, columns] = on_canvas[date]
        thinned.picture[target, :, rows, columns] = values[date][(bands, *inside)]
    for date, position in enumerate(on_curves):
        thinned.curves.add(int(position), values[date], np.where(valid[date], labels, UNLABELLED))


def _taken(start: int, length: int, step: int) -> tuple[slice, slice]:
    """The lines of a block that fall on the canvas: where in the block, and where on the canvas."""
    first = -(-(start - step // 2) // step)  # the first canvas line whose source lies at or after the start
    source = first * step + step // 2 - start
    count = len(range(source, length, step))
    return slice(source, length, step), slice(first, first + count)
