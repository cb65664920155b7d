"""Items of a STAC API as a Series: one grid over the area, one scale, clouds masked, read window by window.

The rules are those of SAFE products (`cropstar.sources.sentinel2`), so that both give the same values:

* The grid is the area of the search on the pixels of the finest band, in the CRS of most items. Files whose pixels
  fit are brought to it exactly, by georeference; others (another zone or resolution) by GDAL's warper. The scene
  classification is always that of the containing pixel. Nodata (0) never mixes with data.
* reflectance = value * 1e-4 in every series; see `reflectance` for where an item's scale and offset come from.
  A reflectance at or below zero becomes 1, for 0 is nodata.
* A pixel is valid where no band's number is 0 and the scene class is one of the clear ones.
* Of several items of one day (granules, neighbouring tiles, reprocessed copies) a pixel is taken from the first in
  which it is valid; items in the grid's CRS come first, then higher processing baselines, then later generation.
* A date without any data is dropped, and `notes` name it.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS

from cropstar.errors import InputError
from cropstar.geo.windows import Window
from cropstar.sources.base import MergedSeries, log_notes, name_with_years, to_values
from cropstar.sources.sentinel2.options import DEFAULT_BANDS
from cropstar.sources.stac.connection import public_address
from cropstar.sources.stac.files import AssetFiles
from cropstar.sources.stac.items import Item, read_item
from cropstar.sources.stac.layers import Layer, containing, resampled
from cropstar.sources.stac.options import StacOptions
from cropstar.sources.stac.plan import Plan, Take, make_plan
from cropstar.sources.stac.search import find_items


def open_stac(url: str, options: StacOptions) -> list[StacSeries]:
    """What a search at a STAC API finds, as one mosaic over its area."""
    wanted = options.bands or DEFAULT_BANDS
    items = [read_item(feature, url, wanted) for feature in find_items(url, options)]
    inside = [item for item in items if options.start <= item.day <= options.end]
    if not inside:
        why = f"all {len(items)} items found are of other dates than asked for"
        raise InputError("no items", path=public_address(url), why=why, remedy="ask another API")
    return [StacSeries(url, inside, options)]


class StacSeries(MergedSeries[Layer]):
    """Items on one grid as a Series. For one thread; a copy in another process opens files of its own."""

    scenes: list[list[Take]]

    def __init__(self, url: str, items: Sequence[Item], options: StacOptions) -> None:
        self.options = options
        self.address = public_address(url)
        self._files = AssetFiles()
        self.files: list[Path] = []  # all of it is elsewhere
        try:
            plan = make_plan(items, options, self._files, self.address)
            if not plan.days:
                why = f"none of {len(items)} items has any data in the area"
                raise InputError("no usable date", path=self.address, why=why, remedy="ask for another area or season")
        except BaseException:
            self.close()
            raise
        self.grid = plan.grid
        self.bands = plan.bands
        self.clear = options.clear
        self.dates: tuple[date, ...] = tuple(plan.days)
        self.name = _name(options.collection, plan, self.dates)
        self.provenance = _provenance(self.address, plan, options)
        self.scenes = list(plan.days.values())
        self._unused = [item.identifier for item in plan.empty]
        self.notes = log_notes(self.name, plan.warnings, plan.merges)

    def recipe_material(self) -> dict[str, Any]:
        """What the values come from: addresses without signatures, and what the catalogue says of their state."""
        takes = [take for several in self.scenes for take in several]
        return {
            "address": self.address,
            "options": self.options.to_json(),
            "items": [_material(take) for take in takes],
            "without_data": self._unused,
        }

    def close(self) -> None:
        self._files.close()

    def containing(self, layer: Layer, window: Window) -> NDArray[Any]:
        return containing(self._files, layer, window, self.grid)

    def resampled(self, layer: Layer, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        numbers, present = resampled(self._files, layer, window, self.grid, self.options.resampling)
        way = layer.asset.reflectance
        return to_values(numbers, way.offset, way.gain), present


def _name(collection: str, plan: Plan, dates: tuple[date, ...]) -> str:
    """Collection, place and years: another area or season is another scene of a store."""
    code = CRS.from_wkt(plan.grid.crs).to_epsg() or "grid"
    left, _, _, top = plan.grid.bounds
    return name_with_years(collection, code, f"{left:.0f}", f"{top:.0f}", dates=dates)


def _material(take: Take) -> dict[str, Any]:
    assets = [layer.asset for layer in (*take.layers, *([take.scene_classes] if take.scene_classes else []))]
    return {
        "id": take.item.identifier,
        "updated": take.item.updated,
        "assets": [[asset.key, public_address(asset.href), asset.checksum] for asset in assets],
        "reflectance": [[asset.reflectance.offset, asset.reflectance.gain] for asset in assets],
    }


def _provenance(address: str, plan: Plan, options: StacOptions) -> dict[str, Any]:
    """What the manifest and every tile say of where the values come from."""
    takes = [take for several in plan.days.values() for take in several]
    return {
        "source": "stac",
        "address": address,
        "collection": options.collection,
        "area": list(options.bbox),
        "products": [take.item.identifier for take in takes],
        "baselines": [take.item.baseline_name for take in takes],
        "reflectance_offsets": [[layer.asset.reflectance.offset for layer in take.layers] for take in takes],
        "reflectance_gains": [[layer.asset.reflectance.gain for layer in take.layers] for take in takes],
        "without_data": [item.identifier for item in plan.empty],
        "resampling": options.resampling,
        "scene_classes": list(options.clear),
    }
