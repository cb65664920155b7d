"""Stores of small images with dates of their own, as ingest would write them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np

from cropstar.geo.calendar import Season
from cropstar.sources.base import PatchImage, SampleScene, pack_patches
from cropstar.store.classes import ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.store import Manifest, TileEntry, tile_path, write_manifest
from cropstar.store.tile import PatchTile, write_tile

LINEAGES = {
    "barley": ("field crops", "cereals"),
    "maize": ("field crops", "maize"),
    "meadow": ("grassland", "meadow"),
    "wheat": ("field crops", "cereals"),
}
CLASSES = ClassTable.from_names(LINEAGES).with_lineages(LINEAGES)
PLAIN = Fingerprint(("B02", "B03", "B04", "B08"), 1e-4, 0.0, 10.0, Season(1, 360), CLASSES)
START = 18_000


def an_image(index: int, side: int = 12, dates: int = 5, shift: int = 0) -> PatchImage:
    """Two fields side by side and a path; the right one goes on as the left one of the next image."""
    random = np.random.default_rng(index)
    columns = np.broadcast_to(np.arange(side), (side, side))
    fields = np.where(columns < side // 2, 1, 2).astype(np.int64)
    labels = np.where(columns < side // 2, index % 4, (index + 1) % 4).astype(np.int16)
    fields[-1], labels[-1] = 0, -1
    valid = random.random((dates, side, side)) < 0.7
    values = random.integers(100, 5000, (dates, 4, side, side)).astype(np.uint16)
    return PatchImage(
        name=f"{index:05d}",
        transform=(10.0, 0.0, 0.0, 0.0, -10.0, 0.0),
        days=(START + shift * index + 10 * np.arange(dates)).astype(np.int32),
        values=np.where(valid[:, None], values, 0).astype(np.uint16),
        valid=valid,
        labels=labels,
        fields=fields,
        keys={1: f"field {index}", 2: f"field {index + 1}"},
        group="all",
    )


def a_tile(images: list[PatchImage], first: int, fingerprint: Fingerprint = PLAIN, crs: str = "") -> PatchTile:
    scene = SimpleNamespace(name="villages", recipe="2" * 32, fingerprint=fingerprint, provenance={})
    return pack_patches(cast("SampleScene", scene), images, first, crs)


def a_store(folder: Path, images: list[PatchImage], size: int = 4, crs: str = "") -> Path:
    entries = []
    for first in range(0, len(images), size):
        path = tile_path(folder, f"villages-n{first:07d}")
        write_tile(path, a_tile(images[first : first + size], first, crs=crs))
        entries.append(TileEntry(path.stem, "villages", "patches", path.stat().st_size, "2" * 32))
    write_manifest(folder, Manifest(PLAIN, tuple(entries), {"villages": {"dates": []}}))
    return folder
