"""A contact sheet: images of a collection side by side, with a thin gap between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window
from cropstar.reports.mosaic import Mosaic
from cropstar.store.reader import TileReader

MOST_IMAGES = 64
MOST_DATES = 12
GAP = 0.08  # of an image's side
PAPER = 255  # white, between the images


@dataclass(frozen=True)
class Contact:
    """What the canvas of a contact sheet knows beyond that of a scene."""

    total: int  # images of the scene, of which some are shown
    images: int
    image: Grid  # of the first of them
    days: NDArray[np.int32]  # all dates, of which some are shown
    covered: NDArray[np.bool_]  # (h, w) of the canvas: an image lies here
    dated: NDArray[np.bool_]  # (D, h, w): and it has this date


def choose_images(readers: Sequence[TileReader], most: int = MOST_IMAGES) -> Mosaic:
    """Evenly spread images of one scene, row by row on a grid as square as they allow."""
    every = [image for reader in readers for image in reader.images]
    chosen = [every[place] for place in np.linspace(0, len(every) - 1, min(most, len(every))).round().astype(int)]
    grids = [image.grid for image in chosen]
    height, width = max(grid.height for grid in grids), max(grid.width for grid in grids)
    gap = max(1, round(GAP * max(height, width)))
    columns = math.ceil(math.sqrt(len(chosen) * height / width))
    columns = min(columns, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    corners = [(place // columns * (height + gap), place % columns * (width + gap)) for place in range(len(chosen))]
    a, b, _, d, e, _ = grids[0].transform
    whole = Grid(grids[0].crs, (a, b, 0.0, d, e, 0.0), rows * (height + gap) - gap, columns * (width + gap) - gap)
    return Mosaic(whole, chosen, corners)


def choose_days(mosaic: Mosaic, days: NDArray[np.int32], most: int = MOST_DATES) -> NDArray[np.int32]:
    """All dates if they are few, else of each stretch of them the one with the most clear pixels of these images:
    one that many images have and that few clouds hide."""
    if len(days) <= most:
        return days
    clear = np.zeros(len(days), dtype=np.int64)
    for image in mosaic.images:
        whole = Window(0, 0, image.grid.height, image.grid.width)
        np.add.at(clear, np.searchsorted(days, image.days), image.valid(whole).sum(axis=(1, 2)))
    stretches = np.array_split(np.arange(len(days)), most)
    return days[[int(stretch[clear[stretch].argmax()]) for stretch in stretches]]


def leave_blank(picture: NDArray[np.uint8], shown: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """The picture (h, w, 3) with bare paper wherever the canvas under it shows nothing."""
    height, width = picture.shape[:2]
    rows = ((np.arange(height) + 0.5) * shown.shape[0] / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * shown.shape[1] / width).astype(np.intp)
    return np.where(shown[np.ix_(rows, columns)][..., None], picture, np.uint8(PAPER))
