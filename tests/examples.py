"""Small things that tests of several folders are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS

from cropstar.geo.calendar import Season
from cropstar.geo.grid import Grid
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.store import Manifest, TileEntry, tile_path, write_manifest
from cropstar.store.tile import ParcelTable, PatchTile, RasterTile, SeriesTile, Tile, write_tile

UTM = CRS.from_epsg(32632).to_wkt()
RECIPE = "0123456789abcdef"


def a_grid(height: int = 20, width: int = 30) -> Grid:
    return Grid(UTM, (10.0, 0.0, 612_000.0, 0.0, -10.0, 5_412_000.0), height, width)


def a_fingerprint(bands: tuple[str, ...] = ("B04", "B08"), **changes: Any) -> Fingerprint:
    plain = Fingerprint(bands, 1e-4, 0.0, 10.0, Season(80, 120), ClassTable.from_names(["maize", "wheat"]))
    return replace(plain, **changes)


def a_raster_tile(
    shape: tuple[int, int, int, int] = (3, 2, 20, 30),
    *,
    parcels: NDArray[np.int32] | None = None,
    scene: str = "scene",
    first_day: int = 19_000,
    seed: int = 0,
) -> RasterTile:
    """A tile (T, C, H, W) of noise; odd parcels grow class 1, even ones class 0. Parcel n is called `field n`."""
    random = np.random.default_rng(seed)
    dates, bands, height, width = shape
    if parcels is None:
        parcels = random.integers(0, 5, (height, width)).astype(np.int32)
    numbers = np.unique(parcels[parcels > 0]).astype(np.int32)
    return RasterTile(
        scene=scene,
        recipe=RECIPE,
        grid=a_grid(height, width),
        fingerprint=a_fingerprint(tuple(f"B{band:02d}" for band in range(1, bands + 1))),
        days=np.arange(first_day, first_day + 10 * dates, 10, dtype=np.int32),
        values=random.integers(0, 10_000, shape).astype(np.uint16),
        valid=random.random((dates, height, width)) < 0.8,
        labels=np.where(parcels > 0, parcels % 2, UNLABELLED).astype(np.int16),
        parcels=parcels,
        table=ParcelTable(numbers, [f"field {number}" for number in numbers], (numbers % 2).astype(np.int16)),
        provenance={"source": "test"},
    )


def a_series_tile(lengths: list[int], bands: int = 2) -> SeriesTile:
    """A tile of one sample for each length."""
    random = np.random.default_rng(0)
    rows, numbers = sum(lengths), np.arange(1, len(lengths) + 1, dtype=np.int32)
    return SeriesTile(
        scene="table",
        recipe=RECIPE,
        fingerprint=a_fingerprint(tuple(f"B{band:02d}" for band in range(1, bands + 1))),
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        days=random.integers(0, 20_000, rows).astype(np.int32),
        values=random.integers(0, 10_000, (rows, bands)).astype(np.uint16),
        valid=random.random(rows) < 0.8,
        table=ParcelTable(numbers, [f"Schlag {number} ä" for number in numbers], (numbers % 2).astype(np.int16)),
    )


def a_patch_tile(lengths: list[int], size: int = 6, *, scene: str = "patches", first: int = 0) -> PatchTile:
    """A tile of one image for each length; each has four fields, whose names and groups are the image's number."""
    random = np.random.default_rng(first)
    count, dates = len(lengths), max(lengths)
    days = 19_000 + 7 * np.arange(dates, dtype=np.int32) + np.arange(count, dtype=np.int32)[:, None]
    quarter = np.kron(np.array([[1, 2], [3, 4]]), np.ones((size // 2, size // 2), dtype=np.int32)).astype(np.int32)
    parcels = quarter + 4 * (first + np.arange(count, dtype=np.int32))[:, None, None]
    numbers = np.unique(parcels).astype(np.int32)
    images = [str((number - 1) // 4) for number in numbers]
    shape = (count, dates, 2, size, size)
    beyond = np.arange(dates) >= np.array(lengths)[:, None]
    return PatchTile(
        scene=scene,
        recipe=RECIPE,
        fingerprint=a_fingerprint(),
        crs="",
        transforms=np.tile([10.0, 0.0, 0.0, 0.0, -10.0, 0.0], (count, 1)),
        names=[f"image {first + place}" for place in range(count)],
        lengths=np.array(lengths, dtype=np.int32),
        days=days,
        values=random.integers(0, 10_000, shape).astype(np.uint16),
        valid=(random.random((count, dates, size, size)) < 0.8) & ~beyond[:, :, None, None],
        labels=(parcels % 2).astype(np.int16),
        parcels=parcels,
        table=ParcelTable(numbers, images, (numbers % 2).astype(np.int16), images),
    )


def store_of(folder: Path, tiles: Mapping[str, Tile], splits: dict[str, dict[str, list[str]]] | None = None) -> Path:
    """Write tiles and their manifest as ingest would."""
    entries = []
    for name, tile in tiles.items():
        path = tile_path(folder, name)
        write_tile(path, tile)
        entries.append(TileEntry(name, tile.scene, tile.layout, path.stat().st_size, tile.recipe))
    fingerprint = next(iter(tiles.values())).fingerprint
    own: dict[str, Any] = {"splits": splits} if splits else {}
    scenes = {tile.scene: {"recipe": tile.recipe, "dates": [], **own} for tile in tiles.values()}
    write_manifest(folder, Manifest(fingerprint, tuple(entries), scenes))
    return folder
