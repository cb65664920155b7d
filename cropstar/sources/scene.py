"""Scenes ready to be stored: what ingest asks of any source, and the raster scene that cuts a series into tiles."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cropstar.geo.calendar import Season, to_days
from cropstar.geo.windows import Window, split
from cropstar.sources.parcels import Parcels
from cropstar.sources.series import Series
from cropstar.store import layout
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import RasterTile, Tile

SAMPLES, SAMPLE_BYTES = 64, 2**20


@dataclass(frozen=True)
class Piece:
    """One tile to be made; of a table of series the window counts samples instead of rows of pixels."""

    name: str
    window: Window


class Scene(Protocol):
    """What ingest stores: named pieces that can be built one by one, in any order."""

    name: str
    recipe: str
    layout: str  # of its tiles: "raster" or "series"
    fingerprint: Fingerprint

    def pieces(self) -> list[Piece]: ...

    def build(self, piece: Piece) -> Tile: ...

    def describe(self) -> dict[str, Any]: ...

    def close(self) -> None: ...


class RasterScene:
    """Cuts a series and its parcels into raster tiles."""

    layout = "raster"

    def __init__(
        self, series: Series, parcels: Parcels, tile_size: int, recipe: str, origin: str | None = None
    ) -> None:
        self.name = re.sub(r"[^A-Za-z0-9_.-]+", "_", series.name)
        self.recipe = recipe
        self.provenance = {**series.provenance, "origin": origin or self.name}  # scenes of one origin share fields
        self.parcels = parcels
        self._series = series
        self._tile_size = tile_size
        self.fingerprint = Fingerprint(
            series.bands, series.scale, series.offset, series.grid.resolution, Season.of(series.dates), parcels.classes
        )

    def pieces(self) -> list[Piece]:
        # The recipe is in the name: a tile is never replaced by another one of the same name.
        return [
            Piece(f"{self.name}-{self.recipe[:8]}-y{window.top:05d}-x{window.left:05d}", window)
            for window in split(self._series.grid.shape, self._tile_size)
        ]

    def build(self, piece: Piece) -> RasterTile:
        observations = self._series.read(piece.window)
        grid = self._series.grid.crop(piece.window)
        labels, numbers = self.parcels.burn(grid)
        return RasterTile(
            scene=self.name,
            recipe=self.recipe,
            grid=grid,
            fingerprint=self.fingerprint,
            days=to_days(self._series.dates),
            values=observations.values,
            valid=observations.valid,
            labels=labels,
            parcels=numbers,
            table=self.parcels.table.select(np.unique(numbers)),
            provenance=self.provenance,
        )

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the scene."""
        return {
            "recipe": self.recipe,
            "grid": self._series.grid.to_json(),
            "dates": [day.isoformat() for day in self._series.dates],
            "parcels": len(self.parcels.table.keys),
            **self.provenance,
        }

    def close(self) -> None:
        self._series.close()


def recipe_of(files: list[Path], options: dict[str, Any]) -> str:
    """A digest of what a scene is made from: equal recipes give equal tiles."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([layout.FORMAT, options], sort_keys=True).encode())
    for path in files:
        for block in _sampled(path):
            digest.update(block)
    return digest.hexdigest()


def _sampled(path: Path) -> Iterator[bytes]:
    """A file's name, size and content, of a large one evenly spread samples: nobody waits for gigabytes."""
    size = path.stat().st_size
    yield f"{path.name}:{size}".encode()
    step = max(math.ceil((size - SAMPLE_BYTES) / (SAMPLES - 1)), SAMPLE_BYTES)
    with path.open("rb") as handle:
        for start in range(0, size, step):
            handle.seek(start)
            yield handle.read(SAMPLE_BYTES)
