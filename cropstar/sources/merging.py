"""What SAFE products and the items of a catalogue have in common, so that both give the same values.

Bands are chosen for all of them; of several of one day a pixel is taken from the first in which it is valid.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.sensors import SCALE, SCENE_CLASSIFICATION, clear_sky
from cropstar.geo.windows import Window
from cropstar.logs import logger
from cropstar.sources.series import Bands, Observations

DARKEST, BRIGHTEST = 1, np.iinfo(np.uint16).max
LayerT = TypeVar("LayerT")
LayerT_co = TypeVar("LayerT_co", covariant=True)


class Take(Protocol[LayerT_co]):
    """One product or item on the grid."""

    @property
    def layers(self) -> tuple[LayerT_co, ...]: ...  # in the order of the bands

    @property
    def scene_classes(self) -> LayerT_co | None: ...


class MergedSeries(ABC, Generic[LayerT]):
    """Takes of each date on one grid, all of one scale. Sources say how a layer is read."""

    scale = SCALE
    offset = 0.0
    dates: tuple[date, ...]
    bands: Bands
    clear: Collection[int]  # scene classes
    takes: Sequence[Sequence[Take[LayerT]]]  # of each date, in the order in which they are asked

    @abstractmethod
    def containing(self, layer: LayerT, window: Window) -> NDArray[Any]:
        """The layer's pixel that contains each pixel of the window, zero where there is none."""

    @abstractmethod
    def resampled(self, layer: LayerT, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values (h, w) of the series' scale, and where there are any."""

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (window.height, window.width)
        values = np.zeros((len(self.dates), len(self.bands), *shape), dtype=np.uint16)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        for day, takes in enumerate(self.takes):
            for take in takes:
                if not valid[day].all():
                    self._fill(take, window, values[day], valid[day])
        return Observations(values, valid)

    def _fill(self, take: Take[LayerT], window: Window, values: NDArray[np.uint16], valid: NDArray[np.bool_]) -> None:
        """Add what a take knows of the pixels that none before it knew; values (C, h, w), valid (h, w)."""
        fresh = ~valid
        if take.scene_classes is not None:
            fresh &= clear_sky(self.containing(take.scene_classes, window), self.clear)
        pixels = np.empty_like(values)
        for band, layer in enumerate(take.layers):
            if not fresh.any():
                return  # all cloud: the other bands need not be fetched or decoded
            pixels[band], present = self.resampled(layer, window)
            fresh &= present
        np.copyto(values, pixels, where=fresh)
        valid |= fresh


def to_values(numbers: NDArray[Any], offset: float, gain: float) -> NDArray[Any]:
    """A product's numbers as values of the series' scale; what they mean under nodata is left open.

    Halves are rounded up, so that an offset of whole numbers never changes the rounding.
    """
    if numbers.dtype.kind == "u" and (offset, gain) == (0.0, 1.0):
        return numbers
    values: NDArray[Any] = numbers.astype(np.float64 if numbers.dtype == np.float64 else np.float32)
    values += offset
    values *= gain
    values += 0.5
    return np.clip(np.floor(values, out=values), DARKEST, BRIGHTEST, out=values).astype(np.uint16)


def choose_bands(
    present: Iterable[Collection[str]], wanted: Bands | None, usual: Bands, each: str, warnings: list[str]
) -> tuple[Bands, bool]:
    """The bands wanted, else those of the usual ones that any has, perhaps none; and whether clouds can be masked.

    `each` is what has them: a date or an item.
    """
    there = {band for bands in present for band in bands}
    bands = wanted or tuple(band for band in usual if band in there)
    if bands and not wanted and bands != usual:
        missing = [band for band in usual if band not in bands]
        warnings.append(f"no {each} has {', '.join(missing)}: the bands are {', '.join(bands)}")
    with_mask = SCENE_CLASSIFICATION in there
    if bands and not with_mask:
        warnings.append(f"no {each} has a scene classification (SCL): clouds are not masked")
    return bands, with_mask


def missing_bands(bands: Bands, with_mask: bool, there: Collection[str]) -> str:
    """Which of the bands that each must have are not there, in words."""
    return ", ".join(band for band in (*bands, *([SCENE_CLASSIFICATION] * with_mask)) if band not in there)


def describe_merges(days: Mapping[date, Sequence[str]], many: str) -> list[str]:
    """Which products or items of one day were put together, by their names."""
    return [
        f"{day}: {len(names)} {many} merged, each pixel from the first in which it is valid: {', '.join(names)}"
        for day, names in days.items()
        if len(names) > 1
    ]


def announce(subject: str, warnings: Sequence[str], merges: Sequence[str]) -> list[str]:
    """Log what a user should know of a series; all of it are its notes."""
    notes = [f"{subject}: {note}" for note in (*warnings, *merges)]
    for number, note in enumerate(notes):
        logger.log(logging.WARNING if number < len(warnings) else logging.INFO, note)
    return notes
