"""A scene of an ingested store as a Series: its tiles side by side on the scene's grid."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import ArtifactError, InputError
from cropstar.geo.grid import Grid
from cropstar.geo.windows import Window
from cropstar.sources.base import Bands, Observations
from cropstar.store.reader import TileReader
from cropstar.store.store import MANIFEST, Store, tile_path

EPOCH = date(1970, 1, 1)


def is_store(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def scenes_of(folder: Path) -> list[str]:
    """The scenes of a store that can be mapped: those of raster tiles."""
    store = Store.open(folder)
    try:
        scenes = sorted({entry.scene for entry in store.manifest.tiles if entry.layout == "raster"})
    finally:
        store.close()
    if not scenes:
        why = "it holds series or single patches"
        raise InputError("nothing to map in the store", path=folder, why=why, remedy="give a store of whole images")
    return scenes


class StoredSeries:
    """One scene of a store; for one thread. Where the store has no tile, nothing was seen."""

    def __init__(self, folder: Path, scene: str) -> None:
        self._store = Store.open(folder)
        try:
            said = self._store.manifest.scenes[scene]
            self.grid = Grid.from_json(said["grid"])
            entries = [entry for entry in self._store.manifest.tiles if entry.scene == scene]
            self.files: list[Path] = [tile_path(folder, entry.name) for entry in entries]
            readers = [self._store.reader(entry.name) for entry in entries]
            self._tiles = [(_place(reader.grid, self.grid), reader) for reader in readers]
            self._days = [int(day) for day in readers[0].days]
            self._require_one_season(readers, folder)
        except (KeyError, TypeError, ValueError) as failure:
            self.close()
            why = f"the manifest says nothing of the grid of {scene} ({failure})"
            raise ArtifactError("the scene cannot be mapped", path=folder, why=why, remedy="ingest it again") from None
        except BaseException:
            self.close()
            raise
        fingerprint = self._store.fingerprint
        self.name = scene
        self.dates: tuple[date, ...] = tuple(EPOCH + timedelta(days=day) for day in self._days)
        self.bands: Bands = fingerprint.bands
        self.scale, self.offset = fingerprint.scale, fingerprint.offset
        self.provenance: dict[str, Any] = {"source": "store", "scene": scene, "recipe": said.get("recipe")}

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (window.height, window.width)
        values = np.zeros((len(self.dates), len(self.bands), *shape), dtype=np.uint16)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        for place, reader in self._tiles:
            shared = _shared(place, window)
            if shared is None:
                continue
            rows, columns = shared.relative_to(window).slices
            valid[:, rows, columns] = reader.valid(shared.relative_to(place))
            values[:, :, rows, columns] = reader.values(shared.relative_to(place))
        values *= valid[:, None]
        return Observations(values, valid)

    def close(self) -> None:
        self._store.close()

    def _require_one_season(self, readers: list[TileReader], folder: Path) -> None:
        for reader in readers:
            if [int(day) for day in reader.days] != self._days:
                why = "its tiles have different dates"
                raise InputError("the scene cannot be mapped", path=folder, why=why, remedy="give its images instead")


def _place(tile: Grid, scene: Grid) -> Window:
    """Where a tile lies on the scene's grid."""
    left, top = ~scene.affine @ (tile.transform[2], tile.transform[5])
    return Window(round(top), round(left), tile.height, tile.width)


def _shared(one: Window, other: Window) -> Window | None:
    top, left = max(one.top, other.top), max(one.left, other.left)
    height, width = min(one.bottom, other.bottom) - top, min(one.right, other.right) - left
    return Window(top, left, height, width) if height > 0 and width > 0 else None
