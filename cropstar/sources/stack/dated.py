"""A folder of dated GeoTIFFs as a Series: one grid, one scale, clouds masked, read window by window.

The rules:

* A file holds one band of one date, or several bands of one date; dates, bands and tiles come from its name, the
  bands of a file of several from their descriptions.
* The grid is that of the finest band. Coarser bands come to it by georeference with the chosen resampling, the
  scene classification (SCL) and masks always by the containing pixel.
* A pixel is valid where every band has data, the scene class is a clear one and the mask is 0.
* A date without any data is dropped, and `notes` name it.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.geo.resampling import RasterPart, nearest
from cropstar.geo.sensors import clear_sky
from cropstar.geo.windows import Window
from cropstar.sources.base import Bands, Observations, name_with_years
from cropstar.sources.stack.days import Day, Layer, announce
from cropstar.sources.stack.handles import OpenRasters
from cropstar.sources.stack.listing import TileFiles
from cropstar.sources.stack.options import StackOptions
from cropstar.sources.stack.plan import Plan, make_plan
from cropstar.sources.stack.values import on_grid, to_values


class DatedSeries:
    """The dated files of one tile as a Series. For one thread; a copy in another process opens files of its own."""

    def __init__(
        self, folder: Path, tile: TileFiles, options: StackOptions | None = None, *, wanted: Bands | None = None
    ) -> None:
        self.options = options or StackOptions()
        self._files = OpenRasters()
        try:
            plan = make_plan(folder, tile, self.options, wanted, self._files)
        except BaseException:
            self.close()
            raise
        self.tile = tile.tile
        self.grid = plan.grid
        self.bands = plan.bands
        self.scale, self.offset = plan.scale, plan.offset
        self.dates: tuple[date, ...] = tuple(plan.days)
        self.name = _name(folder, self.tile, self.dates)
        self.provenance = _provenance(folder, self.tile, plan, self.options)
        self.notes = announce(self.name, plan.days, plan.empty)
        self._days = list(plan.days.values())
        self._unused = {path for day in plan.empty.values() for path in day.paths}

    @property
    def files(self) -> list[Path]:
        """Every file on the disk that tells what the series is."""
        return sorted(self._unused.union(*(day.paths for day in self._days)))

    def read(self, window: Window) -> Observations:
        """Values (T, C, h, w) and validity (T, h, w); invalid pixels hold zero."""
        shape = (window.height, window.width)
        values = np.zeros((len(self.dates), len(self.bands), *shape), dtype=np.uint16)
        valid = np.zeros((len(self.dates), *shape), dtype=bool)
        for number, day in enumerate(self._days):
            self._fill(day, window, values[number], valid[number])
        return Observations(values, valid)

    def close(self) -> None:
        self._files.close()

    def _fill(self, day: Day, window: Window, values: NDArray[np.uint16], valid: NDArray[np.bool_]) -> None:
        """One date; values (C, h, w), valid (h, w)."""
        fresh = self._clear(day, window)
        seen = np.full_like(fresh, all(layer.nodata is not None for layer in day.layers))
        pixels = np.empty_like(values)
        for band, layer in enumerate(day.layers):
            if not fresh.any():
                return  # all cloud: the other bands need not be decoded
            numbers, present = on_grid(self._piece(layer, window), window, layer.nodata, self.options.kernel)
            if layer.nodata is None:
                seen |= present  # zero is nodata where all such bands have it
            else:
                fresh &= present
            pixels[band] = to_values(numbers)
        fresh &= seen
        np.copyto(values, pixels, where=fresh)
        valid |= fresh

    def _clear(self, day: Day, window: Window) -> NDArray[np.bool_]:
        clear = np.ones((window.height, window.width), dtype=bool)
        if day.scene_classes:
            clear &= clear_sky(nearest(self._piece(day.scene_classes, window), window), self.options.clear)
        if day.mask:
            piece = self._piece(day.mask, window)
            # Turned over before it is brought to the grid: beyond the mask's edge nothing is clear.
            is_clear = RasterPart((piece.pixels == 0).astype(np.uint8), piece.place, piece.alignment)
            clear &= nearest(is_clear, window) != 0
        return clear

    def _piece(self, layer: Layer, window: Window) -> RasterPart:
        place = layer.alignment.source(window)
        return RasterPart(self._files.read(layer.path, [layer.index], place)[0], place, layer.alignment)


def _name(folder: Path, tile: str | None, dates: tuple[date, ...]) -> str:
    """Tile and years, so that another season of the tile is another scene of a store; else the folder's name."""
    return folder.resolve().name if tile is None else name_with_years(tile, dates=dates)


def _provenance(folder: Path, tile: str | None, plan: Plan, options: StackOptions) -> dict[str, Any]:
    """What the manifest and every tile say of where the values come from."""
    paths = set().union(*(day.paths for day in plan.days.values()))
    return {
        "source": "stack",
        "folder": folder.resolve().name,
        "tile": tile,
        "files": len(paths),
        "without_data": [day.isoformat() for day in plan.empty],
        "resampling": options.kernel,
        "scene_classes": list(options.clear),
        "masks": options.masks,
    }
