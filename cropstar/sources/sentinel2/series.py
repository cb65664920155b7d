"""Sentinel-2 products of one tile as a Series: one grid, one scale, clouds masked, read window by window.

The rules:

* The grid is that of the finest band, 10 m unless only coarser bands are asked for. Coarser bands come to it by
  georeference with the chosen resampling, the scene classification always by the containing pixel.
* value = (DN + BOA_ADD_OFFSET) * 10000 / QUANTIFICATION_VALUE, both from the product's own metadata, rounded and
  cut to 1 ... 65535: reflectance = value * 1e-4 in every series, so that products of all baselines can be mixed.
  A reflectance at or below zero, which products since baseline 04.00 can have, becomes 1, for 0 is nodata.
* A pixel is valid where no band's DN is 0 and the scene class is one of the clear ones.
* Of several products of one day (split granules, reprocessed copies) a pixel is taken from the first in which it
  is valid; higher processing baselines come first, then later generation times.
* A date without any data is dropped, and `notes` name it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.resampling import RasterPart, interpolate, nearest
from cropstar.geo.sensors import clear_sky
from cropstar.geo.windows import Window
from cropstar.sources.base import MergedSeries, log_notes, name_with_years, to_values
from cropstar.sources.decoding import Scratch
from cropstar.sources.sentinel2.files import BandFiles
from cropstar.sources.sentinel2.options import Sentinel2Options
from cropstar.sources.sentinel2.plan import Layer, Layers, Plan, Take, make_plan
from cropstar.sources.sentinel2.products import Product, find_products


def open_series(path: Path | Sequence[Path], options: Sentinel2Options | None = None) -> list[Sentinel2Series]:
    """The products at a path (see `find_products`) as series, one a tile."""
    tiles: dict[str, list[Product]] = defaultdict(list)
    for product in find_products(path):
        tiles[product.tile].append(product)
    opened: list[Sentinel2Series] = []
    try:
        for _, products in sorted(tiles.items()):
            opened.append(Sentinel2Series(products, options))
    except BaseException:
        for series in opened:
            series.close()
        raise
    return opened


class Sentinel2Series(MergedSeries[Layer]):
    """All products of one tile as a Series. For one thread; a copy in another process opens files of its own."""

    scenes: list[list[Take]]

    def __init__(self, products: Sequence[Product], options: Sentinel2Options | None = None) -> None:
        self.options = options or Sentinel2Options()
        self._files = BandFiles()
        try:
            plan = make_plan(products, self.options.bands, self._files)
            if not plan.days:
                why = f"none of {len(products)} products has any data"
                raise InputError("no usable date", path=products[0].metadata.container, why=why, remedy="get others")
        except BaseException:
            self.close()
            raise
        self.tile = products[0].tile
        self.grid = plan.grid
        self.bands = plan.bands
        self.clear = self.options.clear
        self.dates: tuple[date, ...] = tuple(plan.days)
        self.name = name_with_years(self.tile, dates=self.dates)
        self.provenance = _provenance(self.tile, plan, self.options)
        self.scenes = list(plan.days.values())
        self._unused = [product.metadata.file for product in plan.empty]
        self._layers = Layers(self.scenes)
        self._scratch: Scratch | None = None
        self.notes = log_notes(self.tile, plan.warnings, plan.merges)

    @property
    def files(self) -> list[Path]:
        """Every file on the disk that tells what the series is."""
        used = {place.file for takes in self.scenes for take in takes for place in take.places}
        return sorted(used.union(self._unused))

    def close(self) -> None:
        self._files.close()

    def decoded_places(self, window: Window) -> tuple[Window, ...]:
        """See `DecodedSeries`, also for the following ones."""
        return tuple(layer.alignment.source(window) for layer in self._layers.all)

    def decoding_chains(self) -> list[range]:
        return self._layers.chains

    def decode(self, number: int, scratch: Scratch) -> bool:
        place = self._layers.all[number].place
        found = False
        for first_row, rows in self._files.strips(place, scratch.places[number]):
            scratch.write(number, first_row, rows)
            if not found:
                seen = clear_sky(rows, self.options.clear) if number in self._layers.masks else rows
                found = bool(seen.any())
        self._files.release(place)
        return found

    def read_from(self, scratch: Scratch | None) -> None:
        self._scratch = scratch

    def containing(self, layer: Layer, window: Window) -> NDArray[Any]:
        return nearest(self._piece(layer, window), window)

    def resampled(self, layer: Layer, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        if layer.alignment.ratio == 1 or self.options.resampling == "nearest":
            numbers = self.containing(layer, window)
            present: NDArray[np.bool_] = numbers != 0
        else:
            numbers, present = interpolate(self._piece(layer, window), window, self.options.resampling)
        return to_values(numbers, layer.offset, layer.gain), present

    def _piece(self, layer: Layer, window: Window) -> RasterPart:
        place = layer.alignment.source(window)
        pixels = self._scratch.read(self._layers.numbers[layer.place], place) if self._scratch else None
        return RasterPart(self._files.read(layer.place, place) if pixels is None else pixels, place, layer.alignment)


def _provenance(tile: str, plan: Plan, options: Sentinel2Options) -> dict[str, Any]:
    """What the manifest and every tile say of where the values come from."""
    products = [take.product for takes in plan.days.values() for take in takes]
    return {
        "source": "sentinel2",
        "tile": tile,
        "products": [product.name for product in products],
        "baselines": [product.baseline_name for product in products],
        "quantification": [product.quantification for product in products],
        "reflectance_offsets": [[product.offsets.get(band, 0.0) for band in plan.bands] for product in products],
        "without_data": [product.name for product in plan.empty],
        "resampling": options.resampling,
        "scene_classes": list(options.clear),
    }
