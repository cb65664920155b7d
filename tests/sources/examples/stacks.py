"""Small GeoTIFF stacks as users have them, and parcels that lie on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import rasterio
from numpy.typing import NDArray
from shapely.geometry import Polygon, box
from shapely.geometry.base import BaseGeometry

from tests.examples import a_grid

BANDS = ["2023-05-01 B04", "2023-05-01 B08", "2023-06-10 B04", "2023-06-10 B08"]


def write_stack(
    path: Path,
    bands: Sequence[str] = tuple(BANDS),
    pixels: NDArray[Any] | None = None,
    *,
    shape: tuple[int, int] = (20, 30),
    scales: Sequence[float] | None = None,
    offsets: Sequence[float] | None = None,
    tags: Sequence[dict[str, str]] = (),
    seed: int = 0,
    **profile: Any,
) -> Path:
    """A stack on the grid of the examples; each band's description says what it is."""
    if pixels is None:
        pixels = np.random.default_rng(seed).integers(1, 10_000, (len(bands), *shape)).astype(np.uint16)
    height, width = pixels.shape[1:]
    grid = a_grid(height, width)
    usual = {"driver": "GTiff", "height": height, "width": width, "count": len(pixels), "dtype": pixels.dtype}
    place = {"crs": grid.rasterio_crs, "transform": grid.affine}
    with rasterio.open(path, "w", **{**usual, **place, **profile}) as dataset:
        dataset.write(pixels)
        for index, description in enumerate(bands, start=1):
            dataset.set_band_description(index, description)
        for index, tag in enumerate(tags, start=1):
            dataset.update_tags(index, **tag)
        if scales is not None:
            dataset.scales = scales
        if offsets is not None:
            dataset.offsets = offsets
    return path


def square(row: int, column: int, size: int) -> Polygon:
    """A square of whole pixels on the grid of the examples."""
    left, _, _, top = a_grid().bounds
    return box(left + column * 10, top - (row + size) * 10, left + (column + size) * 10, top - row * 10)


def write_parcels(
    path: Path, shapes: Sequence[BaseGeometry | None], crops: Sequence[Any], crs: str = "EPSG:32632", **columns: Any
) -> Path:
    frame = geopandas.GeoDataFrame({**columns, "crop": list(crops)}, geometry=list(shapes), crs="EPSG:32632")
    frame.to_crs(crs).to_file(path)
    return path


def write_four_fields(path: Path, crops: Sequence[str] = ("wheat", "maize", "wheat", "maize")) -> Path:
    """Four squares of 25 pixels that do not touch."""
    return write_parcels(path, [square(1, column, 5) for column in (1, 8, 15, 22)], crops)
