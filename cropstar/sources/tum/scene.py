"""The image series of one folder: a year of tiles of one size."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import Season
from cropstar.geo.sensors import SCALE
from cropstar.geo.windows import Window
from cropstar.logs import event, logger
from cropstar.progress import track
from cropstar.sources.base import PatchImage, TileSpec, Transform, pack_patches, recipe_of, safe_name
from cropstar.sources.tum import geotiff, mtlcc
from cropstar.sources.tum.companions import (
    CLASSES,
    PLACES,
    RESOLUTION,
    coordinate_system,
    read_classes,
    read_places,
    read_splits,
)
from cropstar.sources.tum.files import RASTERS, DataFolder, list_tiles
from cropstar.sources.tum.options import TumOptions
from cropstar.sources.tum.rawtile import ALL_BANDS, RawTile, to_image
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import PatchTile

TILE_BYTES = 2**26  # of the values of a tile: it is built in memory
NOWHERE: Transform = (RESOLUTION, 0.0, 0.0, 0.0, -RESOLUTION, 0.0)


@dataclass(frozen=True)
class Look:
    """What one look through all tiles found."""

    tiles: dict[int, Path]  # those with a date
    dates: tuple[date, ...]
    longest: int
    shape: tuple[int, int]
    empty: int


class ImageScene:
    """The tiles in the order of their ids, each an image; they are opened as they are wanted."""

    layout = "patches"

    def __init__(self, folder: DataFolder, year: int | None, options: TumOptions) -> None:
        root = folder.root
        self._folder, self._year = folder, year
        classes, self._numbers = read_classes(root)
        found = list_tiles(folder)
        self._look = self._look_through(found)
        tiles = self._look.tiles
        self.year = year or self._look.dates[-1].year
        parts = (*((root.name,) if root != folder.path else ()), folder.path.name, str(self.year))
        self.name = safe_name("-".join(parts))
        self._crs, self._transforms = self._places(root)
        self._splits = read_splits(root, set(tiles))
        self._images_per_tile = self._affordable(options.images_per_tile)
        beside = [path for path in (root / CLASSES, root / PLACES) if path.is_file()]
        settings = {"name": self.name, "year": self.year, "images_per_tile": self._images_per_tile}
        self.recipe = recipe_of([*beside, *(path for tile in tiles.values() for path in self._files(tile))], settings)
        self.provenance: dict[str, Any] = {
            "source": "tum",
            "collection": root.name,
            "origin": f"tum {root.name}",  # a tile of two years is one piece of ground
            "year": self.year,
            "files": folder.kind,
            "resampling": "nearest",
            "left_out": {"without dates": self._look.empty},
        }
        self.fingerprint = Fingerprint(ALL_BANDS, SCALE, 0.0, RESOLUTION, Season.of(self._look.dates), classes)

    @property
    def volume(self) -> int:
        """Bytes of all values."""
        height, width = self._look.shape
        return 2 * len(self._look.tiles) * len(self._look.dates) * height * width * len(self.fingerprint.bands)

    def tile_specs(self) -> list[TileSpec]:
        """Each window counts images downwards; it is one wide."""
        size, total = self._images_per_tile, len(self._look.tiles)
        return [
            TileSpec(f"{self.name}-{self.recipe[:8]}-n{start:07d}", Window(start, 0, min(size, total - start), 1))
            for start in range(0, total, size)
        ]

    def build(self, piece: TileSpec) -> PatchTile:
        chosen = list(self._look.tiles)[piece.window.top : piece.window.bottom]
        return pack_patches(
            [self._image(tile) for tile in chosen],
            piece.window.top,
            scene=self.name,
            recipe=self.recipe,
            fingerprint=self.fingerprint,
            crs=self._crs,
            provenance=self.provenance,
        )

    def describe(self) -> dict[str, Any]:
        """What the manifest says of the scene."""
        return {
            "recipe": self.recipe,
            "dates": [day.isoformat() for day in self._look.dates],
            "images": len(self._look.tiles),
            "splits": self._splits,
            **self.provenance,
        }

    def say(self) -> None:
        images, dates = len(self._look.tiles), len(self._look.dates)
        size = " x ".join(map(str, self._look.shape))
        event(f"{self.name}: {images} images of {size} pixels, {dates} dates", images=images, dates=dates)
        if self._look.empty:
            logger.warning("%s: %d tiles without a date left out", self.name, self._look.empty)

    def close(self) -> None:
        """No file stays open between pieces."""

    def _look_through(self, tiles: dict[int, Path]) -> Look:
        """Read the dates of all tiles: of records this means to unpack them once."""
        kept: dict[int, Path] = {}
        dates, longest, shape = set[date](), 0, (0, 0)
        for tile, path in track(tiles.items(), len(tiles), f"look through {self._folder.label}", "tile"):
            own, size = self._look_at(path)
            if not own:
                continue
            if kept and size != shape:
                why = f"it has {size[0]} x {size[1]} pixels, others have {shape[0]} x {shape[1]}"
                raise InputError("a tile of another size", path=path, why=why, remedy="keep sizes in folders apart")
            kept[tile], shape = path, size
            dates.update(own)
            longest = max(longest, len(own))
        if not kept:
            why = f"{len(tiles)} tiles, none of them with a date"
            raise InputError("no image", path=self._folder.path, why=why, remedy="give the folder of the image series")
        return Look(kept, tuple(sorted(dates)), longest, shape, len(tiles) - len(kept))

    def _look_at(self, path: Path) -> tuple[tuple[date, ...], tuple[int, int]]:
        if self._folder.kind != RASTERS:
            if self._year is None:
                raise UsageError("which year?", path=self._folder.path, why="records do not tell", remedy="give --year")
            return mtlcc.look_at_record(path, self._year)
        return tuple(geotiff.shifted(geotiff.list_dates(path), self._year).values()), geotiff.grid_of(path).shape

    def _places(self, root: Path) -> tuple[str, dict[int, Transform]]:
        """The coordinate system of all tiles and the place of each: from the list, else from the rasters."""
        tiles, listed = self._look.tiles, read_places(root)
        if listed is not None:
            missing = next((tile for tile in tiles if tile not in listed.transforms), None)
            if missing is not None:
                raise InputError(
                    f"no geotransform of the tile {missing}", path=listed.path, remedy="add it to the list"
                )
            codes = {listed.codes[tile] for tile in tiles}
            if len(codes) > 1:
                why = f"EPSG {' and '.join(map(str, sorted(codes)))}"
                raise InputError("tiles in several coordinate systems", path=listed.path, why=why, remedy="part them")
            return coordinate_system(codes.pop(), listed.path), {tile: listed.transforms[tile] for tile in tiles}
        if self._folder.kind != RASTERS:
            logger.warning("no %s in %s: nobody knows where the tiles lie", PLACES, root)
            return "", dict.fromkeys(tiles, NOWHERE)
        grids = {tile: geotiff.grid_of(path) for tile, path in tiles.items()}
        systems = {grid.crs for grid in grids.values()}
        if len(systems) > 1:
            raise InputError("tiles in several coordinate systems", path=self._folder.path, remedy="part them")
        crs = systems.pop()
        coarse = next((tile for tile, grid in grids.items() if crs and abs(grid.resolution - RESOLUTION) > 1e-6), None)
        if coarse is not None:
            why = f"they have {grids[coarse].resolution:g} m"
            raise InputError("not pixels of 10 m", path=tiles[coarse], why=why, remedy="check the conversion")
        return crs, {tile: grid.transform if crs else NOWHERE for tile, grid in grids.items()}

    def _affordable(self, wanted: int) -> int:
        height, width = self._look.shape
        return max(min(wanted, TILE_BYTES // (2 * self._look.longest * len(ALL_BANDS) * height * width)), 1)

    def _files(self, tile: Path) -> list[Path]:
        return sorted(geotiff.all_files(tile)) if self._folder.kind == RASTERS else [tile]

    def _image(self, tile: int) -> PatchImage:
        path = self._look.tiles[tile]
        raw = self._read(path)
        if raw.bands[10].shape[1:3] != self._look.shape or not raw.dates:
            raise InputError("a tile has changed", path=path, why="it is not as at the first look", remedy="run again")
        return to_image(raw, str(tile), self._transforms[tile], self._numbers)

    def _read(self, path: Path) -> RawTile:
        if self._folder.kind == RASTERS:
            return geotiff.read_tile(path, self._year)
        assert self._year is not None
        return mtlcc.read_tile(path, self._year)
