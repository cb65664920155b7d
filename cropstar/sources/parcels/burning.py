"""Parcels on the grid of a scene."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.tile import ParcelTable


@dataclass(frozen=True)
class Parcels:
    """Parcels on one grid. Smaller parcels come last, so that they win where parcels overlap.

    An eroded parcel is two shapes: its outline, painted with 0, and then what is left of it with its number. So the
    margin of a small parcel is unlabelled even within a larger one.
    """

    classes: ClassTable
    table: ParcelTable
    shapes: list[Any]  # shapely geometries in the grid's coordinates, in the order in which they are painted
    paints: list[int]  # what each is painted with: a number of the table, or 0

    def relabelled(self, classes: ClassTable) -> Parcels:
        """The same parcels with the numbers of a table that has all of their classes."""
        numbers = np.array([classes.number_of(name) for name in self.classes.names], dtype=np.int16)
        return replace(self, classes=classes, table=replace(self.table, labels=numbers[self.table.labels]))

    def burn(self, grid: Grid) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        """Label and parcel rasters (H, W) of a piece of the grid; a pixel belongs to the parcel at its centre."""
        from rasterio.features import rasterize

        numbers = np.zeros(grid.shape, dtype=np.int32)
        left, bottom, right, top = grid.bounds
        boxes = self._boxes
        near = (boxes[:, 0] <= right) & (boxes[:, 2] >= left) & (boxes[:, 1] <= top) & (boxes[:, 3] >= bottom)
        if pairs := [(self.shapes[row], self.paints[row]) for row in np.flatnonzero(near)]:
            rasterize(pairs, out=numbers, transform=grid.affine)
        lookup = np.full(int(self.table.numbers.max(initial=0)) + 1, UNLABELLED, dtype=np.int16)
        lookup[self.table.numbers] = self.table.labels
        return lookup[numbers], numbers

    @cached_property
    def _boxes(self) -> NDArray[np.float64]:
        return np.array([shape.bounds for shape in self.shapes], dtype=np.float64).reshape(-1, 4)
