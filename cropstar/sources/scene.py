"""Scenes ready to be stored: what ingest asks of any source, and the raster scene that cuts a series into tiles."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cropstar.geo.calendar import Season, to_days
from cropstar.geo.windows import Window, split
from cropstar.progress import progress_bar
from cropstar.sources.decoding import DecodedSeries, cell_size
from cropstar.sources.naming import safe_name
from cropstar.sources.parcels import Parcels
from cropstar.sources.series import Series
from cropstar.store import layout
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import RasterTile, Tile

LARGE = 64 * 2**20  # bytes of a file; larger ones are digested side by side
BLOCK = 2**20


@dataclass(frozen=True)
class Piece:
    """One tile to be made; of a table of series the window counts samples instead of rows of pixels."""

    name: str
    window: Window


class Scene(Protocol):
    """What ingest stores: named pieces that can be built one by one, in any order.

    A scene that is read from files while it is built may say how many bytes that is in an attribute `volume`. It is
    then built by several processes: each is sent a pickled copy, which holds no open file and opens its own when they
    are needed. Whatever a piece is built from, the tile depends on the piece alone. A scene that lies in memory has
    no `volume` and stays in the process that opened it.
    """

    name: str
    recipe: str
    layout: str  # of its tiles: "raster", "patches" or "series"
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
        self.name = safe_name(series.name)
        self.recipe = recipe
        self.provenance = {**series.provenance, "origin": origin or self.name}  # scenes of one origin share fields
        self.parcels = parcels
        self._series = series
        self._tile_size = tile_size
        self.fingerprint = Fingerprint(
            series.bands, series.scale, series.offset, series.grid.resolution, Season.of(series.dates), parcels.classes
        )

    @property
    def volume(self) -> int:
        """Bytes of all values; see `Scene`."""
        series = self._series
        return 2 * len(series.dates) * len(series.bands) * series.grid.height * series.grid.width

    @property
    def decoding(self) -> DecodedSeries | None:
        """The series, if it is worth decoding in large parts."""
        return self._series if isinstance(self._series, DecodedSeries) else None

    def cells(self, pieces: Sequence[Piece], scratch_bytes: int) -> list[list[Piece]]:
        """The pieces in groups that are decoded together, in the order of the scene."""
        if self.decoding is None:
            return [list(pieces)]
        size = cell_size(self.decoding, self._series.grid.shape, self._tile_size, scratch_bytes)
        groups: dict[tuple[int, int], list[Piece]] = {}
        for piece in pieces:
            groups.setdefault((piece.window.top // size, piece.window.left // size), []).append(piece)
        return list(groups.values())

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


def recipe_of(files: Sequence[Path], options: dict[str, Any]) -> str:
    """A digest of what a scene is made from, every byte of it: equal recipes give equal tiles."""
    digest = hashlib.blake2b(digest_size=16)
    digest.update(json.dumps([layout.FORMAT, options], sort_keys=True).encode())
    sizes = [path.stat().st_size for path in files]
    large = _digests([path for path, size in zip(files, sizes, strict=True) if size > LARGE])
    for path, size in zip(files, sizes, strict=True):
        digest.update(f"{path.name}:{size}".encode())
        if size > LARGE:
            digest.update(large[path])
        else:
            _feed(digest, path)
    return digest.hexdigest()


def _digests(files: Sequence[Path]) -> dict[Path, bytes]:
    """Large files by several threads: hashing and reading wait for nobody. A file of several names is read once."""
    inodes = {path: (status.st_dev, status.st_ino) for path in files for status in [path.stat()]}
    chosen = {inode: path for path, inode in inodes.items()}
    with (
        ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads,
        progress_bar(sum(path.stat().st_size for path in chosen.values()), "check files", "B", scale=True) as bar,
    ):

        def digested(path: Path) -> bytes:
            own = hashlib.blake2b(digest_size=16)
            _feed(own, path, bar)
            return own.digest()

        found = dict(zip(chosen, threads.map(digested, chosen.values()), strict=True))
    return {path: found[inode] for path, inode in inodes.items()}


def _feed(digest: Any, path: Path, bar: Any = None) -> None:
    with path.open("rb") as handle:
        while block := handle.read(BLOCK):
            digest.update(block)
            if bar is not None:
                bar.update(len(block))
