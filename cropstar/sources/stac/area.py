"""Where parcels lie, as the box that a search asks for."""

from __future__ import annotations

import math
from pathlib import Path

from cropstar.errors import InputError
from cropstar.sources.labels import open_vector
from cropstar.sources.stac.options import Box


def lonlat_extent(parcels: Path) -> Box:
    """West, south, east and north of a vector file in degrees."""
    frame = open_vector(parcels)
    west, south, east, north = (float(number) for number in frame.geometry.to_crs("EPSG:4326").total_bounds)
    if not all(map(math.isfinite, (west, south, east, north))):
        raise InputError("no area", path=parcels, why="it has no geometries", remedy="give --bbox or other parcels")
    return west, south, east, north
