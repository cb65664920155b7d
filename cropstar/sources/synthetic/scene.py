"""The embedded scene as a whole: ground, seasons and skies put together, date by date."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date

import geopandas as gpd
import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.sources.synthetic.crops import BANDS, CROPS
from cropstar.sources.synthetic.landscape import make_landscape
from cropstar.sources.synthetic.options import SceneOptions
from cropstar.sources.synthetic.sensor import observe
from cropstar.sources.synthetic.surface import Surface, make_surface, reflectance_on
from cropstar.sources.synthetic.weather import Sky, acquisition_dates, make_sky


@dataclass(frozen=True)
class Acquisition:
    """One date as it is delivered, and the sky that nobody is told of."""

    date: date
    counts: NDArray[np.uint16]  # (C, H, W)
    classification: NDArray[np.uint8]  # (H, W)
    sky: Sky


@dataclass(frozen=True)
class Scene:
    """The whole season in memory, with the truth beside it."""

    options: SceneOptions
    grid: Grid
    dates: tuple[date, ...]
    bands: tuple[str, ...]
    values: NDArray[np.uint16]  # (T, C, H, W) reflectance * 10000, 0 where nothing was seen
    classification: NDArray[np.uint8]  # (T, H, W) Sentinel-2 scene classification
    parcels: gpd.GeoDataFrame  # parcel_id, crop, geometry
    parcel_ids: NDArray[np.int32]  # (H, W) 0 outside parcels
    classes: NDArray[np.uint8]  # (H, W) 0 without label, else 1 + position in `class_names`
    class_names: tuple[str, ...]


def make_scene(options: SceneOptions) -> Scene:
    landscape = make_landscape(options)
    surface = make_surface(options, landscape)
    acquired = list(acquisitions(options, surface))
    return Scene(
        options=options,
        grid=landscape.grid,
        dates=tuple(one.date for one in acquired),
        bands=BANDS,
        values=np.stack([one.counts for one in acquired]),
        classification=np.stack([one.classification for one in acquired]),
        parcels=landscape.parcels,
        parcel_ids=surface.parcel_ids,
        classes=surface.classes,
        class_names=tuple(crop.name for crop in CROPS),
    )


def acquisitions(options: SceneOptions, surface: Surface) -> Iterator[Acquisition]:
    """One date at a time: a whole season of a large scene need not be in memory to be written."""
    first = date(options.start.year, 1, 1)
    for index, moment in enumerate(acquisition_dates(options)):
        day = float((moment - first).days + 1)
        sky = make_sky(options, index, day)
        ground = reflectance_on(surface, day, sky.wetness)
        counts, classification = observe(options.random(9, index), ground, sky, surface.water)
        yield Acquisition(moment, counts, classification, sky)
