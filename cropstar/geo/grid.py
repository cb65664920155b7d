"""The grid of a raster: coordinate system, affine transform and shape as one frozen value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from rasterio.crs import CRS
from rasterio.errors import CRSError
from rasterio.transform import Affine

from cropstar.geo.windows import Window


@dataclass(frozen=True)
class Grid:
    """The pixels of a scene. Two dates of one scene share one Grid, or ingest says so."""

    crs: str  # WKT: survives coordinate systems without an EPSG code
    transform: tuple[float, float, float, float, float, float]
    height: int
    width: int

    @classmethod
    def of(cls, dataset: Any) -> Grid:
        """The grid of an open rasterio dataset."""
        crs = dataset.crs.to_wkt() if dataset.crs else ""
        return cls(crs, tuple(dataset.transform)[:6], dataset.height, dataset.width)

    @property
    def affine(self) -> Affine:
        return Affine(*self.transform)

    @property
    def rasterio_crs(self) -> CRS:
        return CRS.from_wkt(self.crs)

    @property
    def shape(self) -> tuple[int, int]:
        return self.height, self.width

    @property
    def resolution(self) -> float:
        """The pixel's width in the units of the coordinate system."""
        return float(abs(self.transform[0]))

    @property
    def pixel_area(self) -> float:
        """One pixel in square units of the coordinate system (square metres on a projected grid)."""
        a, b, _, d, e, _ = self.transform
        return float(abs(a * e - b * d))

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """(left, bottom, right, top), whichever way rows and columns run."""
        corners = [self.affine @ (column, row) for column in (0, self.width) for row in (0, self.height)]
        eastings, northings = zip(*corners, strict=True)
        return min(eastings), min(northings), max(eastings), max(northings)

    def crop(self, window: Window) -> Grid:
        """The grid of a window of this grid."""
        a, b, c, d, e, f = self.transform
        corner = (c + a * window.left + b * window.top, f + d * window.left + e * window.top)
        return Grid(self.crs, (a, b, corner[0], d, e, corner[1]), window.height, window.width)

    def to_json(self) -> dict[str, Any]:
        return {"crs": self.crs, "transform": list(self.transform), "shape": [self.height, self.width]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Grid:
        height, width = data["shape"]
        a, b, c, d, e, f = data["transform"]
        return cls(data["crs"], (a, b, c, d, e, f), height, width)


CODE = re.compile(r"(?:\+init=)?(?:epsg:)?(\d{4,6})", re.IGNORECASE)
NAMED = re.compile(r"(?:urn:ogc:def:crs:)?[A-Z]{2,10}:[\w:.,-]+", re.IGNORECASE)


def parse_crs(text: str) -> CRS:
    """A coordinate system by its code, WKT or PROJ text. GDAL itself would also fetch an address and read a file."""
    text = text.strip()
    if code := CODE.fullmatch(text):
        return CRS.from_epsg(int(code[1]))
    if "[" in text:
        return CRS.from_wkt(text)
    if text.startswith("+proj="):
        return CRS.from_proj4(text)
    if NAMED.fullmatch(text):
        return CRS.from_user_input(text)
    raise CRSError(f"'{text[:50]}' is not a coordinate system")


@lru_cache(maxsize=64)
def is_coordinate_system(wkt: str) -> bool:
    """Whether PROJ understands a text; none at all is that of a raster without a place."""
    try:
        CRS.from_wkt(wkt) if wkt else None
    except CRSError:
        return False
    return True


def enclosing_grid(grids: Sequence[Grid]) -> tuple[Grid, list[tuple[int, int]]]:
    """The grid that holds all tiles of a scene, and where in it each tile begins (row, column)."""
    first = grids[0]
    back, corners = ~first.affine, []
    for grid in grids:
        column, row = back @ (grid.transform[2], grid.transform[5])
        corners.append((round(row), round(column)))
    top, left = min(row for row, _ in corners), min(column for _, column in corners)
    bottom = max(row + grid.height for (row, _), grid in zip(corners, grids, strict=True))
    right = max(column + grid.width for (_, column), grid in zip(corners, grids, strict=True))
    a, b, c, d, e, f = first.transform
    transform = (a, b, c + a * left + b * top, d, e, f + d * left + e * top)
    return Grid(first.crs, transform, bottom - top, right - left), [
        (row - top, column - left) for row, column in corners
    ]


SQUARE_METRES_PER_HECTARE = 10_000.0


def metres_per_unit(grid: Grid) -> float | None:
    """Metres in one unit of a projected coordinate system; None where units are degrees or not known."""
    try:
        crs = grid.rasterio_crs
        return float(crs.linear_units_factor[1]) if crs.is_projected else None
    except CRSError:
        return None


def hectares_per_pixel(grid: Grid, resolution: float = 0.0) -> float | None:
    """None where it is not known; without a coordinate system a pixel is `resolution` metres wide, if that is given."""
    if not grid.crs and resolution > 0:
        return resolution**2 / SQUARE_METRES_PER_HECTARE
    unit = metres_per_unit(grid)
    return None if unit is None else grid.pixel_area * unit**2 / SQUARE_METRES_PER_HECTARE


def degrees_of(grid: Grid) -> tuple[float, float, float, float] | None:
    """The bounds of a grid in degrees; None where its coordinates cannot be transformed."""
    from pyproj import Transformer
    from pyproj.exceptions import ProjError

    try:
        transformer = Transformer.from_crs(grid.rasterio_crs.to_wkt(), "EPSG:4326", always_xy=True)
        west, south, east, north = transformer.transform_bounds(*grid.bounds)
    except (ProjError, ValueError):
        return None
    box = (float(west), float(south), float(east), float(north))
    return box if np.isfinite(box).all() else None
