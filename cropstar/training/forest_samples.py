"""The training part as one table of features, for a model that wants all samples at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.prepared import Prepared
from cropstar.errors import InputError
from cropstar.logs import event
from cropstar.models.networks.forest_features import DayGrid, features_of
from cropstar.progress import track

MOST_PIXELS = 200_000  # of images: neighbouring pixels tell little that is new, and all must be in memory


@dataclass(frozen=True)
class Samples:
    features: NDArray[np.float32]  # (N, F)
    labels: NDArray[np.int64]  # (N,)


def gather(training: Prepared, classes: int, grid: DayGrid, seed: int, most: int = MOST_PIXELS) -> Samples:
    """Every series, or the labelled pixels of images, at most so many, drawn by the seed; none without a clear date."""
    total = int(training.class_counts(classes).sum())
    wanted = np.ones(total, dtype=bool)
    if total > most and training.batch([0]).is_image:
        wanted[:] = False
        wanted[np.random.default_rng([seed, total]).choice(total, most, replace=False)] = True
        event(f"of {total:,} labelled training pixels, {most:,} are drawn for the forest", pixels=total, drawn=most)
    features, labels, before = [], [], 0
    starts = range(0, len(training), training.batch_size)
    for start in track(starts, len(starts), "gather", "batch"):
        series = training.batch(list(range(start, min(start + training.batch_size, len(training))))).as_series()
        count = len(series.labels)
        kept = wanted[before : before + count] & series.valid.any(dim=1).numpy()
        before += count
        x, valid, days = (part.numpy()[kept] for part in (series.x, series.valid, series.days))
        if len(x):
            features.append(features_of(x, valid, days.astype(np.int64), grid))
            labels.append(series.labels.numpy()[kept].astype(np.int64))
    if not features:
        raise InputError("no clear observation of a training parcel", remedy="check the masks and the dates")
    return Samples(np.concatenate(features), np.concatenate(labels))
