"""The curves of samples with dates of their own, which are brought onto one season."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.calendar import YEAR, from_days
from cropstar.reports.contents import Piece
from cropstar.reports.curves import Curves
from cropstar.store.fingerprint import Fingerprint

MOST_SAMPLES = 6000  # read one by one: enough for a mean that does not move
MOST_POSITIONS = 40
NEIGHBOURS = 4  # days that count as one where several years lie on each other


def read_curves(pieces: list[Piece], fingerprint: Fingerprint) -> tuple[Curves, int, int]:
    """Curves, and how many of how many samples they are made of; seasons of several years lie on each other."""
    total = sum(len(piece.reader.starts) - 1 for piece in pieces)
    step = max(1, math.ceil(total / MOST_SAMPLES))
    days = np.unique(np.concatenate([np.unique(piece.reader.days) for piece in pieces]))
    binned = bring_together(days, fingerprint)
    curves = Curves(fingerprint, np.unique(binned))
    places = np.searchsorted(curves.positions, binned)  # of each day of `days`
    used = 0
    for piece in pieces:
        labels = piece.reader.table.labels
        for index in range(0, len(labels), step):
            values, valid, sample_days = piece.reader.sample(index)
            used += 1
            position = places[np.searchsorted(days, sample_days)]
            for place in np.unique(position[valid]):
                rows = (position == place) & valid
                curves.add(int(place), values[rows].T, np.full(int(rows.sum()), labels[index]))
    return curves, used, total


def bring_together(days: NDArray[np.int32], fingerprint: Fingerprint) -> NDArray[np.int32]:
    """For each of the sorted days the day of one season that its observations are drawn at."""
    moved = _onto_one_season(days, fingerprint)
    # Leap years and orbits shift the dates of one year against another's by a few days.
    return _gather(moved, 0 if moved is days else NEIGHBOURS)


def _gather(days: NDArray[np.int32], reach: int) -> NDArray[np.int32]:
    """Each day as the first of its neighbours within reach, which grows until there are few enough."""
    while True:
        firsts: list[int] = []
        for day in np.unique(days):
            if not firsts or day - firsts[-1] > reach:
                firsts.append(int(day))
        if len(firsts) <= MOST_POSITIONS:
            break
        reach += 1
    starts = np.array(firsts, dtype=np.int32)
    gathered: NDArray[np.int32] = starts[np.searchsorted(starts, days, side="right") - 1]
    return gathered


def _onto_one_season(days: NDArray[np.int32], fingerprint: Fingerprint) -> NDArray[np.int32]:
    """Days of several years as days of the first; a season longer than a year stays as it is."""
    if fingerprint.season.length >= YEAR or int(days[-1]) - int(days[0]) < YEAR:
        return days
    dates = from_days(days)
    start = fingerprint.season.start
    since = [int((day.timetuple().tm_yday - start) % YEAR) for day in dates]
    return np.array([int(days[0]) - since[0] + one for one in since], dtype=np.int32)
