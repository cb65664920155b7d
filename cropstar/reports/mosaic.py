"""Where the images of a scene lie beside each other: on the ground, or on a sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cropstar.geo.grid import Grid
from cropstar.store.images import Image
from cropstar.store.reader import TileReader


@dataclass(frozen=True)
class Mosaic:
    """Images on one grid, and the row and column in it where each begins."""

    grid: Grid
    images: list[Image]
    corners: list[tuple[int, int]]


def enclose(grids: Sequence[Grid]) -> tuple[Grid, list[tuple[int, int]]]:
    """The grid that holds all tiles of a scene, and where in it each tile begins (row, column)."""
    first = grids[0]
    back, corners = ~first.affine, []
    for grid in grids:
        x, y = grid.transform[2], grid.transform[5]
        corners.append((round(back.d * x + back.e * y + back.f), round(back.a * x + back.b * y + back.c)))
    top, left = min(row for row, _ in corners), min(column for _, column in corners)
    bottom = max(row + grid.height for (row, _), grid in zip(corners, grids, strict=True))
    right = max(column + grid.width for (_, column), grid in zip(corners, grids, strict=True))
    a, b, c, d, e, f = first.transform
    transform = (a, b, c + a * left + b * top, d, e, f + d * left + e * top)
    return Grid(first.crs, transform, bottom - top, right - left), [
        (row - top, column - left) for row, column in corners
    ]


def lay_on_ground(readers: Sequence[TileReader]) -> Mosaic:
    """The raster tiles of one scene where they were cut out."""
    grid, corners = enclose([reader.grid for reader in readers])
    return Mosaic(grid, list(readers), corners)
