"""What a map can say beside the class: confidence, probabilities, uncertainty, valid dates.

Each is a raster of its own beside the map. Shares are stored as whole numbers, for these compress and every GIS reads
them: in percent (one byte) or, of probabilities, in steps of 1/10,000 with GDAL's scale, fine enough to be smoothed
and pooled afterwards.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.store.classes import ClassTable

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]

CONFIDENCE, PROBABILITIES, ENTROPY, MARGIN, VALID_DATES = (
    "confidence",
    "probabilities",
    "entropy",
    "margin",
    "valid-dates",
)
STEPS = 10_000  # of a probability


@dataclass(frozen=True)
class Layer:
    """How one kind of layer is stored; true value = stored * scale."""

    name: str
    dtype: str
    nodata: int | None  # None where every pixel has a value
    scale: float
    unit: str
    meaning: str

    def bands(self, classes: ClassTable) -> list[str]:
        """What the bands are called."""
        return classes.names if self.name == PROBABILITIES else [self.meaning]


LAYERS = {
    layer.name: layer
    for layer in (
        Layer(CONFIDENCE, "uint8", 255, 1.0, "%", "calibrated probability of the class, in percent"),
        Layer(PROBABILITIES, "uint16", 65535, 1 / STEPS, "", "calibrated probability of each class"),
        Layer(ENTROPY, "uint8", 255, 1.0, "%", "entropy, in percent of that of knowing nothing"),
        Layer(MARGIN, "uint8", 255, 1.0, "%", "100 less the lead of the class over the next, in percent"),
        Layer(VALID_DATES, "uint16", None, 1.0, "", "number of valid dates"),
    )
}


def layers_of(
    probabilities: Floats,
    seen: Flags,
    counts: NDArray[np.integer[Any]],
    wanted: Collection[str],
    chosen: NDArray[np.uint8] | None = None,
) -> dict[str, NDArray[Any]]:
    """The wanted layers (bands, h, w), from calibrated probabilities (K, h, w), seen (h, w) and valid dates (h, w).

    `chosen` is the map where it is not the likeliest class: confidence is that of the class that the map shows.
    """
    made: dict[str, NDArray[Any]] = {}
    if CONFIDENCE in wanted:
        made[CONFIDENCE] = percent(_confidence(probabilities, seen, chosen), seen)
    if PROBABILITIES in wanted:
        stored = np.rint(np.clip(probabilities, 0, 1) * STEPS).astype(np.uint16)
        made[PROBABILITIES] = np.where(seen, stored, np.uint16(65535))
    if ENTROPY in wanted:
        made[ENTROPY] = percent(entropy(probabilities), seen)
    if MARGIN in wanted:
        made[MARGIN] = percent(1 - lead(probabilities), seen)
    if VALID_DATES in wanted:
        made[VALID_DATES] = counts.astype(np.uint16)[None]
    return made


def percent(share: Floats, seen: Flags) -> NDArray[np.uint8]:
    """A share (h, w) as (1, h, w) bytes, 255 where nothing was seen."""
    known = np.where(seen, share, 0)
    stored: NDArray[np.uint8] = np.where(seen, np.rint(100 * np.clip(known, 0, 1)), 255).astype(np.uint8)[None]
    return stored


def stored_probabilities(stored: NDArray[np.uint16]) -> NDArray[np.float32]:
    """From what a file holds back to probabilities; 0 where nothing was seen."""
    values: NDArray[np.float32] = np.where(stored == 65535, 0, stored).astype(np.float32) / np.float32(STEPS)
    return values


def entropy(probabilities: Floats) -> Floats:
    """0 where one class is sure, 1 where all are alike."""
    classes = len(probabilities)
    if classes == 1:
        return np.zeros(probabilities.shape[1:], dtype=np.float32)
    safe = np.where(probabilities > 0, probabilities, 1)  # 0 log 0 = 0
    result: Floats = -(probabilities * np.log(safe)).sum(axis=0) / np.log(classes)
    return result


def lead(probabilities: Floats) -> Floats:
    """The likeliest class's probability less that of the next; one class has no rival."""
    if len(probabilities) == 1:
        return np.ones(probabilities.shape[1:], dtype=np.float32)
    next_best, best = np.partition(probabilities, len(probabilities) - 2, axis=0)[-2:]
    result: Floats = best - next_best
    return result


def _confidence(probabilities: Floats, seen: Flags, chosen: NDArray[np.uint8] | None) -> Floats:
    if chosen is None:
        likeliest: Floats = probabilities.max(axis=0)
        return likeliest
    numbers = np.where(seen, chosen, 0).astype(np.intp)
    own: Floats = np.take_along_axis(probabilities, numbers[None], axis=0)[0]
    return own
