"""Maps without specks: each pixel listens to its neighbours. Nodata stays nodata and has no voice.

`majority`   the class that most pixels of the window have; of equals the pixel's own, else the lowest number.
`bayesian`   empirical Bayes on the log-odds x of each class: with the mean m and the variance v of x over the window,
             x' = (v * x + s * m) / (v + s). Where neighbours differ much (v large) a pixel keeps to its own evidence,
             where they agree it follows them; `smoothness` s is how much variance counts as noise.

Sums over windows are added up shift by shift in one fixed order, so that a strip with a margin of half a window gives
the very numbers of the whole raster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import UsageError

Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]

NODATA = 255
WIDEST = 99  # pixels a side
LEAST = 0.5e-4  # half a step of a stored probability: log-odds stay finite


@dataclass(frozen=True)
class Smoothing:
    method: Literal["majority", "bayesian"]
    window: int = 5  # pixels a side
    smoothness: float = 20.0

    def __post_init__(self) -> None:
        if not (1 <= self.window <= WIDEST and self.window % 2):
            why = f"a window of {self.window} pixels"
            raise UsageError("cannot smooth", why=why, remedy=f"give an odd number from 1 to {WIDEST}")
        if not 0 <= self.smoothness < float("inf"):
            raise UsageError("cannot smooth", why=f"a smoothness of {self.smoothness}", remedy="give 0 or more")

    def __str__(self) -> str:
        size = f"{self.method} {self.window} x {self.window}"
        return f"{size}, smoothness {self.smoothness:g}" if self.method == "bayesian" else size

    @property
    def margin(self) -> int:
        return self.window // 2


def majority(classes: NDArray[np.uint8], window: int) -> NDArray[np.uint8]:
    """The most frequent class around each pixel of a map (h, w)."""
    best = np.zeros(classes.shape, dtype=np.int32)
    chosen = classes.copy()
    for number in np.unique(classes[classes != NODATA]):
        mine = classes == number
        # Doubled, and one more for the pixel's own class: it wins among equals.
        votes = 2 * sum_around(mine.astype(np.int32), window) + mine
        better = votes > best
        chosen[better] = number
        best[better] = votes[better]
    chosen[classes == NODATA] = NODATA
    return chosen


def bayesian(probabilities: NDArray[Any], seen: Flags, window: int, smoothness: float) -> Numbers:
    """Smoothed probabilities (K, h, w); what was not seen has none."""
    count = sum_around(seen.astype(np.float64), window)
    count[~seen] = 1
    smoothed = np.empty(probabilities.shape)
    for number, share in enumerate(probabilities):
        safe = np.clip(share.astype(np.float64), LEAST, 1 - LEAST)
        evidence = np.where(seen, np.log(safe / (1 - safe)), 0.0)
        mean = sum_around(evidence, window) / count
        variance = np.maximum(sum_around(np.square(evidence), window) / count - np.square(mean), 0.0)
        weight = np.divide(variance, variance + smoothness, out=np.zeros_like(mean), where=variance > 0)
        smoothed[number] = 1 / (1 + np.exp(-(weight * evidence + (1 - weight) * mean)))
    smoothed /= smoothed.sum(axis=0)
    smoothed[:, ~seen] = 0
    return smoothed


def sum_around(values: NDArray[Any], window: int) -> NDArray[Any]:
    """The sum over the square window around each pixel (h, w); beyond the edge there is nothing."""
    return _sum_along(_sum_along(values, window, 0), window, 1)


def _sum_along(values: NDArray[Any], window: int, axis: int) -> NDArray[Any]:
    half = window // 2
    edges = [(half, half) if each == axis else (0, 0) for each in range(values.ndim)]
    padded = np.pad(values, edges)
    total = np.zeros_like(values)
    for shift in range(window):
        part = [slice(None)] * values.ndim
        part[axis] = slice(shift, shift + values.shape[axis])
        total += padded[tuple(part)]
    return total
