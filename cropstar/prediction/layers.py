"""Layers of a map: classes, confidence, uncertainty, smoothing, and the day from which a class is settled.

Each layer is a raster of its own beside the map. Shares are stored as whole numbers, for these compress and every GIS
reads them: in percent (one byte) or, of probabilities, in steps of 1/10,000 with GDAL's scale, fine enough to be
smoothed and pooled afterwards. A new layer is one entry of `LAYERS` and one option of the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator

from cropstar.config import Options
from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.prediction.styles import CONFIDENCE_RAMP, COUNT_RAMP, DOUBT_RAMP, SHARE_RAMP, Ramp, ramp_style
from cropstar.store.classes import MASKED, NODATA, ClassTable

Floats = NDArray[np.floating[Any]]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]

CONFIDENCE, PROBABILITIES, ENTROPY, MARGIN, VALID_DATES = (
    "confidence",
    "probabilities",
    "entropy",
    "margin",
    "valid-dates",
)
EARLIEST = "earliest"  # since when the class is settled
BY_DATE = "dated"  # of blocks alone: the class after each date
STEPS = 10_000  # of a probability


@dataclass(frozen=True)
class PixelResults:
    """Classes, probabilities and valid dates of the pixels of a window."""

    probabilities: Floats  # (K, h, w), calibrated
    classes: NDArray[np.uint8]  # (h, w), what the map shows: the likeliest class, unless it was smoothed
    seen: Flags  # (h, w)
    valid_dates: NDArray[np.integer[Any]]  # (h, w)


@dataclass(frozen=True)
class Layer:
    """One kind of layer; true value = stored * scale."""

    name: str
    dtype: str
    nodata: int | None  # None where every pixel has a value
    scale: float
    unit: str
    meaning: str
    ramp: Ramp  # its colours in QGIS
    compute: Callable[[PixelResults], NDArray[Any]]  # to (bands, h, w), as stored
    of_classes: bool = False  # whether values are numbers of classes: never averaged, in the colours of the map

    def bands(self, classes: ClassTable) -> list[str]:
        """The names of its bands."""
        return classes.names if self.name == PROBABILITIES else [self.meaning]

    def style(self) -> str:
        """Its style for QGIS, which shows the first of several bands until another is chosen."""
        return ramp_style(self.ramp, f" {self.unit}" if self.unit else "")


LAYERS = {
    layer.name: layer
    for layer in (
        Layer(
            CONFIDENCE,
            "uint8",
            NODATA,
            1.0,
            "%",
            "calibrated probability of the class, in percent",
            CONFIDENCE_RAMP,
            lambda pixels: percent(_confidence(pixels), pixels.seen),
        ),
        Layer(
            PROBABILITIES,
            "uint16",
            65535,
            1 / STEPS,
            "",
            "calibrated probability of each class",
            SHARE_RAMP,
            lambda pixels: store_probabilities(pixels.probabilities, pixels.seen),
        ),
        Layer(
            ENTROPY,
            "uint8",
            NODATA,
            1.0,
            "%",
            "entropy, in percent of its maximum",
            DOUBT_RAMP,
            lambda pixels: percent(entropy(pixels.probabilities), pixels.seen),
        ),
        Layer(
            MARGIN,
            "uint8",
            NODATA,
            1.0,
            "%",
            "100 minus the margin between the best two classes, in percent",
            DOUBT_RAMP,
            lambda pixels: percent(1 - lead(pixels.probabilities), pixels.seen),
        ),
        Layer(
            VALID_DATES,
            "uint16",
            None,
            1.0,
            "",
            "number of valid dates",
            COUNT_RAMP,
            lambda pixels: pixels.valid_dates.astype(np.uint16)[None],
        ),
    )
}


def compute_layers(pixels: PixelResults, names: Collection[str]) -> dict[str, NDArray[Any]]:
    """Layers (bands, h, w) by name."""
    return {name: layer.compute(pixels) for name, layer in LAYERS.items() if name in names}


def likeliest(probabilities: Floats, seen: Flags) -> NDArray[np.uint8]:
    """The class of the highest probability (K, ...), nodata where nothing was seen."""
    return np.where(seen, probabilities.argmax(axis=0), NODATA).astype(np.uint8)


def percent(share: Floats, seen: Flags) -> NDArray[np.uint8]:
    """A share (h, w) as (1, h, w) bytes, 255 where nothing was seen."""
    known = np.where(seen, share, 0)
    stored: NDArray[np.uint8] = np.where(seen, np.rint(100 * np.clip(known, 0, 1)), NODATA).astype(np.uint8)[None]
    return stored


def store_probabilities(probabilities: Floats, seen: Flags) -> NDArray[np.uint16]:
    """Probabilities (K, h, w) as a file holds them."""
    stored = np.rint(np.clip(probabilities, 0, 1) * STEPS).astype(np.uint16)
    return np.where(seen, stored, np.uint16(65535))


def stored_probabilities(stored: NDArray[np.uint16]) -> NDArray[np.float32]:
    """From what a file holds back to probabilities; 0 where nothing was seen."""
    values: NDArray[np.float32] = np.where(stored == 65535, 0, stored).astype(np.float32) / np.float32(STEPS)
    return values


def entropy(probabilities: Floats) -> Floats:
    """Normalised entropy: 0 if one class is certain, 1 if all are equally likely."""
    classes = len(probabilities)
    if classes == 1:
        return np.zeros(probabilities.shape[1:], dtype=np.float32)
    safe = np.where(probabilities > 0, probabilities, 1)  # 0 log 0 = 0
    result: Floats = -(probabilities * np.log(safe)).sum(axis=0) / np.log(classes)
    return result


def lead(probabilities: Floats) -> Floats:
    """The margin between the probabilities of the best two classes; 1 if there is only one class."""
    if len(probabilities) == 1:
        return np.ones(probabilities.shape[1:], dtype=np.float32)
    next_best, best = np.partition(probabilities, len(probabilities) - 2, axis=0)[-2:]
    result: Floats = best - next_best
    return result


def _confidence(pixels: PixelResults) -> Floats:
    """The probability of the class that the map shows."""
    numbers = np.where(pixels.seen, pixels.classes, 0).astype(np.intp)
    # Of what is called unknown: of the class that it is least unlike.
    numbers = np.where(numbers < len(pixels.probabilities), numbers, pixels.probabilities.argmax(axis=0))
    own: Floats = np.take_along_axis(pixels.probabilities, numbers[None], axis=0)[0]
    return own


# --- Smoothing: each pixel listens to its neighbours. Nodata stays nodata and has no voice.
#
# `majority`   the class that most pixels of the window have; of equals the pixel's own, else the lowest number.
# `bayesian`   empirical Bayes on the log-odds x of each class: with the mean m and the variance v of x over the window,
#              x' = (v * x + s * m) / (v + s). Where neighbours differ much (v large) a pixel keeps to its own evidence,
#              where they agree it follows them; `smoothness` s is how much variance counts as noise.
#
# Sums over windows are added up shift by shift in one fixed order, so that a strip with a margin of half a window gives
# the very numbers of the whole raster.

WIDEST = 99  # pixels per side
LEAST = 0.5e-4  # half a step of a stored probability: log-odds stay finite


class Smoothing(Options):
    """A method of smoothing, with its settings."""

    method: Literal["majority", "bayesian"]
    window: int = 5  # pixels per side
    smoothness: float = 20.0

    @field_validator("window")
    @classmethod
    def _require_odd(cls, window: int) -> int:
        if not (1 <= window <= WIDEST and window % 2):
            remedy = f"give an odd number from 1 to {WIDEST}"
            raise UsageError("cannot smooth", why=f"a window of {window} pixels", remedy=remedy)
        return window

    @field_validator("smoothness", mode="before")
    @classmethod
    def _require_positive(cls, smoothness: float) -> float:
        if not 0 <= smoothness < float("inf"):
            raise UsageError("cannot smooth", why=f"a smoothness of {smoothness}", remedy="give 0 or more")
        return smoothness

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


# --- A map per date


class ClassHistory:
    """The classes of one window after every date.

    A class is settled from the first date after which it never changed again and never was less likely than asked for;
    0 where that is not even so after the last date.
    """

    def __init__(self, window: Window, dates: Sequence[date], confidence: float) -> None:
        self._shape = (window.height, window.width)
        size = window.height * window.width
        self._days = [day.timetuple().tm_yday for day in dates]
        self._confidence = confidence
        self._classes = np.full((len(dates), size), NODATA, dtype=np.uint8)
        self._settled = np.zeros(size, dtype=np.uint16)

    def add(self, date: int, pixels: slice, probabilities: NDArray[np.float32], seen: Flags) -> None:
        """Take the number of a date, which of the window's pixels (row by row), their probabilities (K, n) and which
        of them were seen by then (n,)."""
        chosen = likeliest(probabilities, seen)
        self._classes[date, pixels] = chosen
        sure = seen & (probabilities.max(axis=0) >= self._confidence)
        settled = self._settled[pixels]
        unchanged = settled > 0
        if date > 0:
            unchanged &= chosen == self._classes[date - 1, pixels]
        self._settled[pixels] = np.where(sure, np.where(unchanged, settled, self._days[date]), 0)

    def layers(self, inside: Flags | None = None) -> dict[str, NDArray[Any]]:
        """For a block: the class after each date (T, h, w), and the day since when it is settled (1, h, w)."""
        classes, settled = self._classes.reshape(-1, *self._shape), self._settled.reshape(1, *self._shape)
        if inside is not None:
            classes[:, ~inside] = MASKED
            settled[:, ~inside] = 0
        return {BY_DATE: classes, EARLIEST: settled}
