"""Stores of many small fields whose place, scene and group are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.grid import Grid
from cropstar.store.tile import RasterTile
from tests.examples import UTM, a_raster_tile, store_of

SIDE = 5  # pixels of a field, of 10 m


def field_tile(
    scene: str, first: int, rows: int, columns: int, corner: tuple[float, float], *, crs: str = UTM, group: str = ""
) -> RasterTile:
    """Square fields of 50 m, numbered from `first`, of two classes; the corner is the upper left one."""
    numbers = np.arange(first, first + rows * columns, dtype=np.int32).reshape(rows, columns)
    parcels: NDArray[np.int32] = np.kron(numbers, np.ones((SIDE, SIDE), dtype=np.int32)).astype(np.int32)
    tile = a_raster_tile((1, 1, *parcels.shape), parcels=parcels, scene=scene)
    grid = Grid(crs, (10.0, 0.0, corner[0], 0.0, -10.0, corner[1]), *parcels.shape)
    provenance = {"origin": "fields.gpkg", "group": group or scene}
    keys = [f"{scene} {number}" for number in tile.table.numbers]
    return replace(tile, grid=grid, provenance=provenance, table=replace(tile.table, keys=keys))


def renamed(tile: RasterTile, keys: dict[int, str]) -> RasterTile:
    """The tile with other names for some of its fields."""
    own = dict(zip(tile.table.numbers.tolist(), tile.table.keys, strict=True))
    return replace(tile, table=replace(tile.table, keys=list((own | keys).values())))


def a_landscape(folder: Path) -> Path:
    """Seven scenes of 8 x 8 fields, side by side from west to east.

    The two tiles of the first scene share eight fields, cut through the middle by the seam; the second scene has one
    field in two places, 350 m apart.
    """
    left = field_tile("scene 0", 1, 8, 5, (600_000.0, 5_400_000.0))
    right = field_tile("scene 0", 41, 8, 3, (600_250.0, 5_400_000.0))
    seam = range(41, 65, 3)  # the first column of the right tile goes on with the last one of the left
    parcels = np.array(right.parcels)
    for row, number in enumerate(seam):
        parcels[right.parcels == number] = 5 * row + 5
    table = right.table
    keep = ~np.isin(table.numbers, seam)
    shared = left.table.select(np.unique(parcels))
    numbers = np.concatenate([table.numbers[keep], shared.numbers])
    keys = [key for key, kept in zip(table.keys, keep, strict=True) if kept] + shared.keys
    labels = np.concatenate([table.labels[keep], shared.labels])
    right = replace(right, parcels=parcels, table=replace(table, numbers=numbers, keys=keys, labels=labels))
    others = {
        f"scene {place}": field_tile(
            f"scene {place}", 1, 8, 8, (600_000.0 + 400 * place, 5_400_000.0), group=f"{place % 5}"
        )
        for place in range(1, 7)
    }
    others["scene 1"] = renamed(others["scene 1"], {1: "far", 8: "far"})
    return store_of(folder, {"left": left, "right": right, **others})
