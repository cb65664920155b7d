"""Parcels by models that learnt parcels: each is one series, on every date the mean of its clear pixels.

Pooled as in training: a pixel belongs to the parcel at its centre, of parcels that overlap to the smaller one, and a
date counts where a quarter of the parcel is clear. What is written is that of `zones`; there is no agreement, for no
pixel was asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.samples import CLEAR_SHARE
from cropstar.errors import UsageError
from cropstar.geo.windows import Window, split
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.zones import Floats, ParcelClassifier, on_grid, write_classes
from cropstar.runtime import logger, track
from cropstar.sources.base import Observations, Series
from cropstar.sources.labels import Parcels, open_vector
from cropstar.store.classes import ClassTable
from cropstar.store.model_file import ModelCard
from cropstar.store.tile import ParcelTable

WINDOW_BYTES = 64 * 2**20  # of the values of one window
LARGEST, SMALLEST = 512, 64  # pixels a side
POOLED_BYTES = 128 * 2**20  # of the sums of parcels that are pooled in one pass over the images


def of_parcels(card: ModelCard) -> bool:
    """Whether a model learnt the series of whole parcels."""
    return card.provenance.get("target") == "parcel"


def announce_target(card: ModelCard, parcels: Path | None) -> None:
    """Say what the pixels of a map are worth that is made with a model of parcels."""
    if not of_parcels(card):
        return
    if parcels is None:
        logger.warning(
            "the model learnt the means of whole parcels and now maps single pixels, which vary more: "
            "give outlines with --parcels to have each classified as it was learnt"
        )
    else:
        logger.info("the model learnt whole parcels: each of %s is classified by its own mean series", parcels)


def require_map(card: ModelCard, parcels: Path | None) -> None:
    """Refuse parcels where only the state of pixels goes on: the series of a parcel is not in it."""
    if parcels is not None and of_parcels(card):
        why = "the model learnt whole parcels, and a state holds single pixels"
        remedy = "give all images to 'cropstar predict --parcels'"
        raise UsageError("no parcels from a state", path=parcels, why=why, remedy=remedy)


def parcels_of(series: Series, predictor: Predictor) -> ParcelClassifier | None:
    """How a model of parcels classifies them; None of other models, whose map is asked."""
    return partial(classify_parcel_series, series=series, predictor=predictor) if of_parcels(predictor.card) else None


def classify_parcel_series(parcels: Path, output: Path, series: Series, predictor: Predictor) -> int:
    """Write the parcels with their classes; returns how many have one."""
    classes = predictor.card.fingerprint.classes
    frame = open_vector(parcels)
    shapes, usable = on_grid(frame, series.grid, parcels)
    rows = np.flatnonzero(usable)
    probabilities = np.zeros((len(rows), len(classes)))
    pixels = np.zeros(len(rows))
    for pooled in pool(series, shapes[rows]):
        found, seen = _classified(series, pooled, predictor)
        probabilities[pooled.rows] = found
        pixels[pooled.rows] = np.where(seen, pooled.seen, 0)
    return write_classes(frame, usable, probabilities, pixels, None, classes, parcels, output)


@dataclass(frozen=True)
class Pooled:
    """Some of the parcels."""

    rows: NDArray[np.intp]  # (N,) which of the shapes
    sizes: NDArray[np.int64]  # (N,) pixels
    seen: NDArray[np.int64]  # (N,) pixels that were clear on any date
    counts: NDArray[np.int64]  # (N, T) clear pixels
    sums: NDArray[np.float64]  # (N, T, C) over the clear pixels

    @property
    def valid(self) -> NDArray[np.bool_]:
        enough: NDArray[np.bool_] = (self.counts > 0) & (self.counts >= CLEAR_SHARE * self.sizes[:, None])
        return enough

    @property
    def means(self) -> NDArray[np.float32]:
        """(N, T, C), zero where not valid."""
        means = self.sums / np.maximum(self.counts, 1)[:, :, None]
        return np.where(self.valid[:, :, None], means, 0).astype(np.float32)


def pool(series: Series, shapes: NDArray[np.object_], *, most: int = POOLED_BYTES) -> Iterator[Pooled]:
    """Shapes in the coordinates of the series, a group of neighbours after the other."""
    if not len(shapes):
        return
    import shapely

    numbers = np.arange(1, len(shapes) + 1, dtype=np.int32)
    table = ParcelTable(numbers, [str(number) for number in numbers], np.zeros(len(shapes), dtype=np.int16))
    order = np.argsort(-shapely.area(shapes), kind="stable")  # the smaller one is painted last
    painted = Parcels(ClassTable(), table, list(shapes[order]), numbers[order].tolist())
    tops = _rows_of(series, shapes)
    at_once = max(most // (8 * len(series.dates) * (len(series.bands) + 1)), 1)
    from_above = np.argsort(tops[:, 0], kind="stable")
    for start in range(0, len(shapes), at_once):
        rows = np.sort(from_above[start : start + at_once])
        yield _pool_some(series, painted, rows, (tops[rows, 0].min(), tops[rows, 1].max()))


def _pool_some(series: Series, painted: Parcels, rows: NDArray[np.intp], extent: tuple[float, float]) -> Pooled:
    dates, bands = len(series.dates), len(series.bands)
    places = np.full(len(painted.table.numbers) + 1, -1, dtype=np.intp)  # by a parcel's number, which counts from 1
    places[rows + 1] = np.arange(len(rows))
    pooled = Pooled(
        rows,
        np.zeros(len(rows), dtype=np.int64),
        np.zeros(len(rows), dtype=np.int64),
        np.zeros((len(rows), dates), dtype=np.int64),
        np.zeros((len(rows), dates, bands)),
    )
    first, end = extent
    windows = [each for each in split(series.grid.shape, _side(series)) if each.bottom > first and each.top < end]
    for window in track(windows, len(windows), "pool parcels", "window"):
        _, burnt = painted.burn(series.grid.crop(window))
        own = places[burnt.ravel()]
        chosen = np.flatnonzero(own >= 0)
        if len(chosen):
            _add(pooled, series.read(window), own, chosen)
    return pooled


def _add(pooled: Pooled, observations: Observations, own: NDArray[np.intp], chosen: NDArray[np.intp]) -> None:
    """The pixels of a window, `own` the place of each one's parcel. Sums of whole numbers are exact in any order."""
    order = chosen[np.argsort(own[chosen], kind="stable")]
    found, starts, sizes = np.unique(own[order], return_index=True, return_counts=True)
    valid = observations.valid.reshape(len(observations.valid), -1)[:, order]  # (T, P)
    pooled.sizes[found] += sizes
    pooled.seen[found] += np.add.reduceat(valid.any(axis=0), starts, dtype=np.int64)
    pooled.counts[found] += np.add.reduceat(valid, starts, axis=1, dtype=np.int64).T
    for date, values in enumerate(observations.values):
        clear = values.reshape(len(values), -1)[:, order] * valid[date]  # (C, P)
        pooled.sums[found, date] += np.add.reduceat(clear, starts, axis=1, dtype=np.float64).T


def _classified(series: Series, pooled: Pooled, predictor: Predictor) -> tuple[Floats, NDArray[np.bool_]]:
    """Probabilities (N, K), and whether any date was valid (N,). To a model of series a parcel is what a pixel is."""
    means = cast("Any", pooled.means.transpose(1, 2, 0)[:, :, None])  # (T, C, 1, N)
    row = Window(0, 0, 1, len(pooled.rows))
    probabilities, seen = predictor.classify(series, row, Observations(means, pooled.valid.T[:, None]))
    return probabilities[:, 0].T.astype(np.float64), seen[0]


def _side(series: Series) -> int:
    a_pixel = len(series.dates) * (2 * len(series.bands) + 1)
    return min(max(math.isqrt(WINDOW_BYTES // a_pixel) // SMALLEST * SMALLEST, SMALLEST), LARGEST)


def _rows_of(series: Series, shapes: NDArray[np.object_]) -> Floats:
    """The first row of each shape and the one after its last (N, 2), with fractions."""
    import shapely

    left, bottom, right, top = shapely.bounds(shapes).reshape(-1, 4).T
    _, _, _, d, e, f = tuple(~series.grid.affine)[:6]
    corners = np.stack([d * x + e * y + f for x in (left, right) for y in (bottom, top)])
    extent: Floats = np.stack([corners.min(axis=0), corners.max(axis=0)], axis=1)
    return extent
