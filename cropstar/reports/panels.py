"""The small pictures of a sheet, as pixels: a date in natural colours with its clouds hatched, and the labels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cropstar.reports.painting import NODATA_GROUND
from cropstar.reports.thinning import Thinned
from cropstar.store.classes import UNLABELLED, ClassTable

Pixels = NDArray[np.uint8]  # (h, w, 3)

UNLABELLED_PARCEL = "#d9dcd6"
MASKED_GROUND, MASKED_LINES = "#e2e4df", "#b3b8b0"  # greyer than a map's missing data: bare fields are bright
GAMMA = 0.85  # crops are dark: a little light makes fields tell apart
OUTLINE = 0.62  # how dark the border of a parcel is against its inside


def stretch(thinned: Thinned) -> list[tuple[float, float]]:
    """The 2nd and the 98th percentile of each colour over the valid pixels of all dates."""
    ends = []
    for band in range(3):
        seen = thinned.picture[:, band][thinned.valid]
        low, high = np.percentile(seen, (2, 98)) if seen.size else (0.0, 1.0)
        ends.append((float(low), float(max(high, low + 1e-6))))
    # Blue varies least: stretched as far as red it would tint soils violet, so it meets the widest half-way.
    widest = max(high - low for low, high in ends)
    return [(low, low + (high - low + widest) / 2) for low, high in ends]


def paint_date(thinned: Thinned, date: int, limits: list[tuple[float, float]], width: int, height: int) -> Pixels:
    """One date at the size of its panel; masked pixels carry the hatch of missing data."""
    places = _places(thinned.labels.shape, width, height)
    picture = np.empty((height, width, 3), dtype=np.uint8)
    for band, (low, high) in enumerate(limits):
        light = (thinned.picture[date, band][places].astype(np.float32) - low) / (high - low)
        picture[..., band] = np.round(255 * np.clip(light, 0, 1) ** GAMMA)
    masked = ~thinned.valid[date][places]
    lines = np.add.outer(np.arange(height), np.arange(width)) % 9 < 2
    picture[masked] = _rgb(MASKED_GROUND)
    picture[masked & lines] = _rgb(MASKED_LINES)
    return picture


def paint_labels(thinned: Thinned, classes: ClassTable, width: int, height: int) -> Pixels:
    """The classes in their colours, every parcel with a darker border."""
    places = _places(thinned.labels.shape, width, height)
    labels, parcels = thinned.labels[places], thinned.parcels[places]
    colours = np.array([_rgb(NODATA_GROUND), *(entry.rgb for entry in classes)], dtype=np.uint8)
    picture = colours[np.where(labels == UNLABELLED, 0, labels + 1)]  # (h, w, 3)
    picture[(labels == UNLABELLED) & (parcels != 0)] = _rgb(UNLABELLED_PARCEL)
    border = np.zeros(parcels.shape, dtype=bool)
    border[:, 1:] |= parcels[:, 1:] != parcels[:, :-1]
    border[1:] |= parcels[1:] != parcels[:-1]
    border[:, :-1] |= parcels[:, 1:] != parcels[:, :-1]
    border[:-1] |= parcels[1:] != parcels[:-1]
    border &= parcels != 0
    picture[border] = np.round(picture[border] * OUTLINE).astype(np.uint8)
    return picture


def _places(shape: tuple[int, ...], width: int, height: int) -> tuple[NDArray[np.intp], ...]:
    """The canvas pixel under the centre of each picture pixel."""
    rows = ((np.arange(height) + 0.5) * shape[0] / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * shape[1] / width).astype(np.intp)
    return np.ix_(rows, columns)


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)
