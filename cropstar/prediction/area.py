"""The part of a scene that is mapped: within a mask, within parcels, or all of it.

A mask is a raster of land cover (`geo/landcover.py`) or a file of outlines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.landcover import LandCover, mapped_values, open_land_cover
from cropstar.geo.windows import Window
from cropstar.inputs import is_geotiff
from cropstar.prediction.request import MapOptions
from cropstar.runtime import event
from cropstar.sources.labels import repair_shapes
from cropstar.sources.vectors import open_vector

Flags = NDArray[np.bool_]


class MapArea:
    """Which pixels of a grid are mapped."""

    def __init__(self, grid: Grid, parts: list[Mask | Outlines]) -> None:
        self._grid, self._parts = grid, parts

    def inside(self, window: Window) -> Flags | None:
        """(h, w), True where pixels are mapped; None where all are."""
        if not self._parts:
            return None
        mapped = np.ones((window.height, window.width), dtype=np.bool_)
        for part in self._parts:
            mapped &= part.inside(window)
        return mapped


@contextmanager
def open_area(options: MapOptions, grid: Grid, *, quiet: bool = False) -> Iterator[MapArea]:
    """The requested area on the grid of the map; logs how a mask is interpreted, unless `quiet`."""
    with ExitStack() as hold:
        parts: list[Mask | Outlines] = []
        if options.mask is not None and is_geotiff(options.mask):
            cover = hold.enter_context(open_land_cover(options.mask, grid))
            values, meaning = mapped_values(cover.values, options.mask_classes, options.mask)
            parts.append(Mask(cover, values))
            if not quiet:
                event(f"mask    {options.mask}: {meaning}{cover.remarks}", mask=str(options.mask))
        elif options.mask is not None:
            if options.mask_classes is not None:
                why = "it is a file of outlines"
                raise UsageError("--mask-classes for outlines", path=options.mask, why=why, remedy="leave it out")
            parts.append(Outlines.open(options.mask, grid))
            if not quiet:
                event(f"mask    {options.mask}: pixels whose centre lies in an outline are mapped")
        if options.only_parcels and options.parcels is not None:
            parts.append(Outlines.open(options.parcels, grid))
        yield MapArea(grid, parts)


@dataclass(frozen=True)
class Mask:
    """A raster whose values say what is mapped."""

    cover: LandCover
    mapped: tuple[int, ...]

    def inside(self, window: Window) -> Flags:
        values, present = self.cover.read(window)
        mapped: Flags = present & np.isin(values, self.mapped)
        return mapped


@dataclass(frozen=True)
class Outlines:
    """Areas on the grid of the map."""

    grid: Grid
    shapes: NDArray[np.object_]
    tree: Any  # shapely's STRtree

    @classmethod
    def open(cls, path: Path, grid: Grid) -> Outlines:
        import shapely
        from pyproj.exceptions import ProjError

        frame = open_vector(path)
        try:
            places = frame.geometry.to_crs(grid.rasterio_crs).to_numpy()
        except ProjError as failure:
            why = f"its coordinate system cannot be transformed to the map's ({failure})"
            raise InputError("a mask of another place", path=path, why=why, remedy="reproject it first") from None
        places = places[~(shapely.is_missing(places) | shapely.is_empty(places))]
        shapes, _ = repair_shapes(places[shapely.get_dimensions(places) == 2], path)
        tree = shapely.STRtree(shapes)
        if not len(tree.query(shapely.box(*grid.bounds))):
            why = "no outline meets the map"
            raise InputError("the mask lies elsewhere", path=path, why=why, remedy="give one that covers the map")
        return cls(grid, shapes, tree)

    def inside(self, window: Window) -> Flags:
        import shapely
        from rasterio.features import rasterize

        part = self.grid.crop(window)
        near = self.shapes[self.tree.query(shapely.box(*part.bounds))]
        if not len(near):
            return np.zeros(part.shape, dtype=np.bool_)
        burnt = rasterize(near.tolist(), part.shape, transform=part.affine, dtype="uint8")
        mapped: Flags = burnt > 0
        return mapped
