"""The sky of each date: when the satellite came, what it could not see, and what dimmed the rest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
from numpy.typing import NDArray

from cropstar.sources.synthetic.noise import Floats, smooth_field
from cropstar.sources.synthetic.options import SceneOptions

SEASON = 238  # days from the first of March to late October
CLOSEST = 3  # days between two dates
HAZIEST = 0.02
SUN_AZIMUTH = math.radians(152.0)  # half past ten in the morning
SWATH_TILT = math.tan(math.radians(13.0))  # the track of a sun-synchronous orbit against north
SHARE_WITH_EDGE = 0.22  # of the dates, seen from the neighbouring orbit


@dataclass(frozen=True)
class Sky:
    """One date's view from above; all arrays are (H, W)."""

    cloud: Floats  # opacity, 0 clear to 1 opaque
    shadow: Floats  # opacity of the cloud between this pixel and the sun
    offset: tuple[int, int]  # rows and columns from a cloud to its shadow
    haze: Floats  # path reflectance in the blue
    seen: NDArray[np.bool_]  # false beyond the edge of the swath
    wetness: float  # of the soil, 0 to 1: it has rained or not


def acquisition_dates(options: SceneOptions) -> tuple[date, ...]:
    """Irregular dates over the season, three days apart at least and seldom more than twice the average."""
    random = options.random(4)
    weights = random.uniform(0.15, 1.0, options.dates) ** 1.5
    spare = SEASON - CLOSEST * options.dates
    days = np.floor(np.cumsum(CLOSEST + spare * weights / weights.sum())).astype(int)
    return tuple(options.start + timedelta(days=int(day)) for day in days)


def cloud_shares(options: SceneOptions) -> Floats:
    """The share of clouded sky by date: some clear days, many half clouded, few overcast; 26 % on average.

    The shares are fixed and only their order is drawn, so that no seed makes a season without a clear view.
    """
    random = options.random(5)
    shares = 0.84 * ((np.arange(options.dates) + 0.5) / options.dates) ** 2.2
    return np.asarray(random.permutation(np.where(shares < 0.012, 0.0, shares)))


def dates_with_edge(options: SceneOptions) -> frozenset[int]:
    """Positions of the dates on which the edge of the swath crosses the scene."""
    count = max(1, round(SHARE_WITH_EDGE * options.dates))
    return frozenset(int(index) for index in options.random(6).choice(options.dates, count, replace=False))


def make_sky(options: SceneOptions, index: int, day: float) -> Sky:
    """The sky of the date at a position; each date has its own stream of chance, so clouds move between dates."""
    random = options.random(7, index)
    shape = (options.size, options.size)
    offset = _shadow_offset(random, options.size, day)
    cloud, shadow = _clouds(random, shape, float(cloud_shares(options)[index]), offset)
    haze = HAZIEST * random.beta(1.2, 3.0) * (1.0 + 0.25 * smooth_field(random, shape, 60.0, 4.0))
    seen = np.ones(shape, dtype=np.bool_)
    if index in dates_with_edge(options):
        seen = _swath(options, random)
    return Sky(cloud, shadow, offset, haze.clip(0.0), seen, float(random.beta(1.1, 1.6)))


def _clouds(
    random: np.random.Generator, shape: tuple[int, int], share: float, offset: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Cloud opacity and the shadow it throws; drawn with a margin, for clouds outside the scene shade it too."""
    margin = max(abs(step) for step in offset)
    height, width = shape
    scale = min(random.uniform(9.0, 60.0), max(shape) / 4.0)  # fair-weather puffs or whole banks
    field = smooth_field(random, (height + 2 * margin, width + 2 * margin), scale, 2.6)
    depth = random.choice([1.3, 3.5, 6.0], p=[0.15, 0.35, 0.5])  # veil, ordinary, towering
    if share <= 0.0:
        return np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    above = field - np.quantile(_cut(field, margin, shape), 1.0 - share)
    opacity = 1.0 - np.exp(-depth * np.maximum(above, 0.0))
    rows, columns = offset
    return _cut(opacity, margin, shape), _cut(opacity, margin, shape, rows, columns)


def _cut(field: Floats, margin: int, shape: tuple[int, int], rows: int = 0, columns: int = 0) -> Floats:
    """The scene's part of a field with a margin, moved so that what was at (0, 0) comes to (rows, columns)."""
    top, left = margin - rows, margin - columns
    return field[top : top + shape[0], left : left + shape[1]]


def _shadow_offset(random: np.random.Generator, size: int, day: float) -> tuple[int, int]:
    """Away from the sun, the farther the lower the sun stands and the higher the clouds float."""
    zenith = math.radians(42.0 - 17.0 * math.cos(2.0 * math.pi * (day - 172.0) / 365.0) + 3.0)
    length = random.uniform(45.0, 95.0) * math.tan(zenith)  # cloud base in pixels times slope of the ray
    length = max(3.0, min(length, size / 5.0))
    return round(math.cos(SUN_AZIMUTH) * length), round(-math.sin(SUN_AZIMUTH) * length)


def _swath(options: SceneOptions, random: np.random.Generator) -> NDArray[np.bool_]:
    """The neighbouring orbit sees one side only; its edge lies nearly at the same place each time."""
    orbit = options.random(8)
    place, east = orbit.uniform(0.30, 0.45), bool(orbit.integers(2))
    size = options.size
    rows, columns = np.mgrid[0:size, 0:size]
    edge = (place + random.normal(0.0, 0.01)) * size + SWATH_TILT * (size / 2 - rows)
    lost = columns < edge if not east else columns > size - 1 - edge[::-1]
    return np.asarray(~lost)
