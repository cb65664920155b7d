"""The course of a vegetation index through the season, class by class: means and percentiles in bounded memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Fingerprint

Floats = NDArray[np.float64]

BINS = 200  # of the histograms that percentiles are read from: a hundredth of the index
RANGES = {"NDVI": (-1.0, 1.0)}  # of anything else: reflectance from 0 to 1
NEAR_INFRARED = ("B08", "B8A", "B07")


@dataclass(frozen=True)
class Quantity:
    """What a curve shows: the NDVI, or plain reflectance where a band for it is missing."""

    name: str
    bands: tuple[int, ...]

    @property
    def range(self) -> tuple[float, float]:
        return RANGES.get(self.name, (0.0, 1.0))

    def of(self, reflectance: list[Floats]) -> Floats:
        """From the reflectance of its bands, each (N,); not a number where it is not defined."""
        if len(reflectance) == 1:
            return reflectance[0]
        infrared, red = (np.maximum(band, 0.0) for band in reflectance)
        return _divide(infrared - red, infrared + red)


def choose_quantities(bands: Sequence[str]) -> list[Quantity]:
    infrared = next((band for band in NEAR_INFRARED if band in bands), None)
    if infrared and "B04" in bands:
        return [Quantity("NDVI", (bands.index(infrared), bands.index("B04")))]
    return [Quantity(band, (place,)) for place, band in enumerate(bands[:2])]


@dataclass
class Curves:
    """Sums and histograms of every quantity, date and class, filled piece by piece."""

    fingerprint: Fingerprint
    positions: NDArray[np.int32]  # (P,) sorted days
    quantities: list[Quantity] = field(init=False)
    _counts: NDArray[np.int64] = field(init=False)
    _sums: Floats = field(init=False)
    _histograms: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.quantities = choose_quantities(self.fingerprint.bands)
        shape = (len(self.quantities), len(self.positions), len(self.fingerprint.classes))
        self._counts, self._sums = np.zeros(shape, dtype=np.int64), np.zeros(shape)
        self._histograms = np.zeros((*shape, BINS), dtype=np.int32)

    def add(self, position: int, values: NDArray[Any], labels: NDArray[Any]) -> None:
        """Valid observations of one date: stored values (C, ...) and their classes (...)."""
        known = labels != UNLABELLED
        scale, offset = self.fingerprint.scale, self.fingerprint.offset
        for number, quantity in enumerate(self.quantities):
            result = quantity.of([values[band, known] * scale + offset for band in quantity.bands])
            finite = np.isfinite(result)
            result, classes = result[finite], labels[known][finite].astype(np.intp)
            size = len(self.fingerprint.classes)
            self._counts[number, position] += np.bincount(classes, minlength=size)
            self._sums[number, position] += np.bincount(classes, weights=result, minlength=size)
            low, high = quantity.range
            bins = np.clip((result - low) / (high - low) * BINS, 0, BINS - 1).astype(np.intp)
            flat = np.bincount(classes * BINS + bins, minlength=size * BINS)
            self._histograms[number, position] += flat.reshape(size, BINS).astype(np.int32)

    def mean(self, quantity: int, number: int) -> Floats:
        """(P,) of one class; not a number on dates without an observation."""
        return _divide(self._sums[quantity, :, number], self._counts[quantity, :, number])

    def percentile(self, quantity: int, number: int, share: float) -> Floats:
        histogram = self._histograms[quantity, :, number].cumsum(axis=1)  # (P, BINS)
        total = histogram[:, -1:]
        low, high = self.quantities[quantity].range
        place = (histogram < share * total).sum(axis=1) + 0.5
        return np.where(total[:, 0] > 0, low + place / BINS * (high - low), np.nan)

    def present(self) -> list[int]:
        """The classes that have a curve, the most observed first."""
        totals = self._counts[0].sum(axis=0)
        return [int(number) for number in np.argsort(-totals, kind="stable") if totals[number]]


def _divide(above: NDArray[Any], below: NDArray[Any]) -> Floats:
    """Not a number where the divisor is nothing."""
    result: Floats = np.divide(above, below, out=np.full(above.shape, np.nan), where=below > 0)
    return result
