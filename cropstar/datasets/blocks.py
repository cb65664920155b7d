"""Squares of ground: fields that lie near each other go into one part of a split."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from cropstar.datasets.fields import FieldName, Fields, ParcelId
from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid, metres_per_unit
from cropstar.store.reader import TileReader
from cropstar.store.store import Store

METRES_PER_DEGREE = 111_320.0  # of latitude
REMEDY = "take split.by=parcel, or split.by=group where the data have groups"


def blocks_of(store: Store, fields: Fields, size: float) -> dict[FieldName, str]:
    """The block in which each field's centre lies, the mean of its pixels over all tiles and images.

    In one projected coordinate system blocks are squares of it; across several, or in degrees, they are
    cells of about the same size between parallels, so that no two blocks overlap on the ground.
    """
    centres = _centres(store, fields)
    systems = {system for system, _, _ in centres.values()}
    unit = metres_per_unit(_grid_in(systems.copy().pop())) if len(systems) == 1 else None
    if unit is not None:
        return {
            field: f"{math.floor(x * unit / size)} {math.floor(y * unit / size)}"
            for field, (_, x, y) in centres.items()
        }
    blocks = {}
    for system in sorted(systems):
        members = [field for field, centre in centres.items() if centre[0] == system]
        places = _degrees(system, [centres[field][1:] for field in members], store)
        blocks.update({field: _cell(*place, size) for field, place in zip(members, places, strict=True)})
    return blocks


def _centres(store: Store, fields: Fields) -> dict[FieldName, tuple[str, float, float]]:
    """The coordinate system and the mean of each field's pixels; of a field in several, where most of it lies."""
    sums: dict[tuple[ParcelId, str], NDArray[np.float64]] = defaultdict(lambda: np.zeros(3))  # pixels, x, y
    for _, reader in sorted(store.readers(), key=lambda pair: pair[0].name):  # sums of floats depend on the order
        system, numbers, found = _positions(reader, store)
        for number, row in zip(numbers.tolist(), found, strict=True):
            sums[(reader.scene, number), system] += row
    systems = sorted({system for _, system in sums})
    centres = {}
    for field, pieces in fields.pieces.items():
        totals = {
            system: sum((sums[piece, system] for piece in pieces if (piece, system) in sums), np.zeros(3))
            for system in systems
        }
        system, (pixels, x, y) = max(totals.items(), key=lambda item: float(item[1][0]))
        if pixels:
            centres[field] = (system, float(x / pixels), float(y / pixels))
    return centres


def _positions(reader: TileReader, store: Store) -> tuple[str, NDArray[np.int32], NDArray[np.float64]]:
    """Of each parcel of a tile: the number of its pixels, and the sums of their x and y."""
    if reader.layout == "series":
        why = "the store holds series that do not say where they lie"
        raise UsageError("no split by block", path=store.folder, why=why, remedy=REMEDY)
    raster = reader.layout == "raster"
    system = reader.grid.crs if raster else reader.crs
    if not system:
        why = f"the images of '{reader.scene}' do not say where they lie"
        raise UsageError("no split by block", path=store.folder, why=why, remedy=REMEDY)
    transforms = np.array([reader.grid.transform]) if raster else reader.transforms
    parcels = reader.parcels().reshape(len(transforms), *reader.shape)  # (N, H, W)
    a, b, c, d, e, f = (column[:, None, None] for column in transforms.T)
    rows, columns = np.arange(reader.shape[0])[:, None] + 0.5, np.arange(reader.shape[1]) + 0.5
    inside = parcels > 0
    numbers, inverse = np.unique(parcels[inside], return_inverse=True)
    x, y = (a * columns + b * rows + c)[inside], (d * columns + e * rows + f)[inside]
    sums = [np.bincount(inverse, weights, len(numbers)) for weights in (None, x, y)]
    return system, numbers, np.stack(sums, axis=1).astype(np.float64)


def _grid_in(system: str) -> Grid:
    return Grid(system, (1.0, 0.0, 0.0, 0.0, -1.0, 0.0), 1, 1)


def _degrees(system: str, places: list[tuple[float, float]], store: Store) -> list[tuple[float, float]]:
    from rasterio.errors import CRSError
    from rasterio.warp import transform

    try:
        x, y = zip(*places, strict=True)
        longitudes, latitudes = transform(_grid_in(system).rasterio_crs, "EPSG:4326", x, y)
    except CRSError as failure:
        raise InputError("no split by block", path=store.folder, why=str(failure), remedy=REMEDY) from None
    if not np.isfinite([longitudes, latitudes]).all():
        why = "the images lie outside of their coordinate system"
        raise InputError("no split by block", path=store.folder, why=why, remedy=REMEDY)
    return list(zip(longitudes, latitudes, strict=True))


def _cell(longitude: float, latitude: float, size: float) -> str:
    row = math.floor(latitude * METRES_PER_DEGREE / size)
    middle = math.radians((row + 0.5) * size / METRES_PER_DEGREE)
    return f"{math.floor(longitude * METRES_PER_DEGREE * math.cos(middle) / size)} {row}"
