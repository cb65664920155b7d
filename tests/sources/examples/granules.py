"""Sentinel-2 products large enough to be worth workers, quickly written: plain GeoTIFF bands."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.sources.examples.safe import CORNER, write_product
from tests.sources.examples.stacks import write_parcels

SIDE = 240  # of the 10 m bands


def write_granule(folder: Path, side: int = SIDE, dates: int = 3, bands: tuple[str, ...] = ("B02", "B05")) -> Path:
    """A folder of products with parcels.gpkg in it: clouds, holes, a day of two products, a day all cloud."""
    random = np.random.default_rng(side)
    for number in range(dates):
        day = f"2023-{4 + number // 28:02d}-{1 + number % 28:02d}"
        pixels = {}
        for band in bands:
            size = side if band in ("B02", "B03", "B04", "B08") else side // 2
            pixels[band] = random.integers(0, 6000, (size, size)).astype(np.uint16)
        pixels["SCL"] = random.choice([4, 5, 9], (side // 2, side // 2)).astype(np.uint8)
        if number == 1:
            pixels["SCL"][:] = 9
        write_product(folder, day=day, bands=(*bands, "SCL"), pixels=pixels, ending="tif", baseline="05.09", offset=0)
        if number == 0:
            other = {band: np.where(array == 0, 77, array) for band, array in pixels.items()}
            write_product(
                folder, day=day, bands=(*bands, "SCL"), pixels=other, ending="tif", baseline="05.09", made="150000"
            )
    write_fields(folder / "parcels.gpkg", side)
    return folder


def write_fields(path: Path, side: int) -> Path:
    """Square fields of ten pixels, wheat and maize, all over the granule."""
    from shapely.geometry import box

    left, top = CORNER
    corners = [(left + 10 * column, top - 10 * row) for row in range(0, side, 15) for column in range(0, side, 15)]
    shapes = [box(x, y - 100, x + 100, y) for x, y in corners]
    return write_parcels(path, shapes, [("wheat", "maize")[number % 2] for number in range(len(shapes))])
