"""Items of a STAC API as a Series: one grid over the area, one scale, clouds masked, read window by window.

The rules are those of SAFE products (`cropstar.sources.sentinel2`), so that both give the same values:

* The grid is the area of the search on the pixels of the finest band, in the CRS of most items. Files whose pixels
  fit are brought to it exactly, by georeference; others (another zone or resolution) by GDAL's warper. The scene
  classification is always that of the containing pixel. Nodata (0) never mixes with data.
* reflectance = value * 1e-4 in every series; see `items` for where an item's scale and offset come from.
  A reflectance at or below zero becomes 1, for 0 is nodata.
* A pixel is valid where no band's number is nodata and the scene class is one of the clear ones; of Landsat and HLS,
  where no bit of QA_PIXEL or Fmask hides the ground.
* Of several items of one day (granules, neighbouring tiles, reprocessed copies) a pixel is taken from the first in
  which it is valid; items in the grid's CRS come first, then higher processing baselines, then later generation.
* A date without any data is dropped, and `notes` name it.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning
from rasterio.warp import transform_bounds
from shapely import box, union_all

from cropstar.errors import InputError
from cropstar.geo.grid import Grid, parse_crs
from cropstar.geo.raster import GDAL_ERRORS, OPEN_ENVIRONMENT, rasterio_window, require_pixels, warped_to
from cropstar.geo.resampling import MARGIN, Alignment, NotAligned, RasterPart, grid_difference, nearest, resample
from cropstar.geo.sensors import SCENE_CLASSIFICATION, clear_bits
from cropstar.geo.windows import Window, split
from cropstar.inputs import MAXIMUM_RASTER_SIDE
from cropstar.registry import short_list
from cropstar.sources.base import (
    Bands,
    HandleCache,
    MergedSeries,
    SceneOnGrid,
    ScenesByDate,
    choose_bands,
    closed_on_failure,
    describe_merges,
    empty_dates_note,
    log_notes,
    missing_bands,
    name_with_years,
    to_values,
)
from cropstar.sources.sentinel2.series import DEFAULT_BANDS, MAXIMUM_SIDE
from cropstar.sources.stac.items import Asset, Item, gdal_name, read_item
from cropstar.sources.stac.search import Box, StacOptions, find_items, public_address


def open_stac(url: str, options: StacOptions) -> list[StacSeries]:
    """The items that a search at a STAC API finds, as one mosaic over its area."""
    wanted = options.bands or DEFAULT_BANDS
    items = [read_item(feature, url, wanted) for feature in find_items(url, options)]
    inside = [item for item in items if options.start <= item.day <= options.end]
    if not inside:
        why = f"all {len(items)} items found are outside the season"
        raise InputError("no items", path=public_address(url), why=why, remedy="use another API")
    return [StacSeries(url, inside, options)]


class StacSeries(MergedSeries["_AssetLayer"]):
    """Items on one grid as a Series. For one thread; a copy in another process opens files of its own."""

    scenes: list[list[ItemOnGrid]]

    def __init__(self, url: str, items: Sequence[Item], options: StacOptions) -> None:
        self.options = options
        self.address = public_address(url)
        self._files = AssetFiles()
        self.files: list[Path] = []  # all of it is elsewhere
        with closed_on_failure([self]):
            found = _find_scenes(items, options, self._files, self.address)
            if not found.days:
                why = f"none of {len(items)} items has any data in the area"
                raise InputError("no usable date", path=self.address, why=why, remedy="choose another area or season")
        self.grid = found.grid
        self.bands = found.bands
        self.clear = options.clear
        self.dates: tuple[date, ...] = tuple(found.days)
        self.name = _name("+".join(options.collections), found, self.dates)
        self.provenance = _provenance(self.address, found, options)
        self.scenes = list(found.days.values())
        self._unused = [item.identifier for item in found.empty]
        self.notes = log_notes(self.name, found.warnings, found.merges)

    def recipe_material(self) -> dict[str, Any]:
        """The sources of the values for the recipe: addresses without signatures, update times and checksums."""
        scenes = [scene for several in self.scenes for scene in several]
        return {
            "address": self.address,
            "options": self.options.to_json(),
            "items": [_material(scene) for scene in scenes],
            "without_data": self._unused,
        }

    def close(self) -> None:
        self._files.close()

    def clear_pixels(self, scene: SceneOnGrid[_AssetLayer], window: Window) -> NDArray[np.bool_]:
        mask = scene.scene_classes
        if mask is None or mask.asset.quality is None:
            return super().clear_pixels(scene, window)
        clear: NDArray[np.bool_] = self.read_nearest(mask, window) != 0
        return clear

    def read_nearest(self, layer: _AssetLayer, window: Window) -> NDArray[Any]:
        return _read_nearest(self._files, layer, window, self.grid)

    def read_resampled(self, layer: _AssetLayer, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        numbers, present = _read_resampled(self._files, layer, window, self.grid, self.options.resampling)
        way = layer.asset.reflectance
        return to_values(numbers, way.offset, way.gain), present


def _name(collection: str, found: ScenesByDate[ItemOnGrid, Item], dates: tuple[date, ...]) -> str:
    """Collection, place and years: another area or season is another scene of a store."""
    code = CRS.from_wkt(found.grid.crs).to_epsg() or "grid"
    left, _, _, top = found.grid.bounds
    return name_with_years(collection, code, f"{left:.0f}", f"{top:.0f}", dates=dates)


def _material(scene: ItemOnGrid) -> dict[str, Any]:
    assets = [layer.asset for layer in (*scene.layers, *([scene.scene_classes] if scene.scene_classes else []))]
    return {
        "id": scene.item.identifier,
        "updated": scene.item.updated,
        "assets": [[asset.key, public_address(asset.href), asset.checksum] for asset in assets],
        "reflectance": [[asset.reflectance.offset, asset.reflectance.gain] for asset in assets],
    }


def _provenance(address: str, found: ScenesByDate[ItemOnGrid, Item], options: StacOptions) -> dict[str, Any]:
    """The provenance in the manifest and every tile."""
    scenes = [scene for several in found.days.values() for scene in several]
    return {
        "source": "stac",
        "address": address,
        "collection": options.collection,
        "area": list(options.bbox),
        "products": [scene.item.identifier for scene in scenes],
        "baselines": [scene.item.baseline_name for scene in scenes],
        "reflectance_offsets": [[layer.asset.reflectance.offset for layer in scene.layers] for scene in scenes],
        "reflectance_gains": [[layer.asset.reflectance.gain for layer in scene.layers] for scene in scenes],
        "without_data": [item.identifier for item in found.empty],
        "resampling": options.resampling,
        "scene_classes": list(options.clear),
    }


# --- Which item is read for which date


@dataclass(frozen=True)
class ItemOnGrid:
    """One item on the grid."""

    item: Item
    layers: tuple[_AssetLayer, ...]  # in the order of the bands
    scene_classes: _AssetLayer | None
    extent: Box | None  # on the grid, where it is in the grid's CRS

    @property
    def is_warped(self) -> bool:
        return any(layer.alignment is None for layer in self.layers)


def _find_scenes(
    items: Sequence[Item], options: StacOptions, files: AssetFiles, where: str
) -> ScenesByDate[ItemOnGrid, Item]:
    """Fit every item to one grid; look at pixels until some have data. What does not fit is refused."""
    warnings: list[str] = []
    ordered = sorted(sorted(items, key=lambda item: item.age, reverse=True), key=lambda item: item.day)
    bands, with_mask = _choose_bands(ordered, options.bands, warnings, where)
    finest = [_finest(item, bands, files) for item in ordered]
    grid = _target_grid(finest, options, where)
    native = [_is_same_crs(own.crs, grid.crs) for own in finest]
    days: dict[date, list[ItemOnGrid]] = defaultdict(list)
    empty = []
    # Items in the grid's own CRS come first on a day; their files need no warping.
    for position in sorted(range(len(ordered)), key=lambda place: (ordered[place].day, not native[place])):
        item, own = ordered[position], finest[position]
        shown = _bounds_in(own.bounds, own.crs, grid.crs)
        if not _overlaps(shown, grid.bounds) or (
            not native[position] and _is_covered(shown, days.get(item.day, []), grid)
        ):
            continue
        scene = _item_on_grid(item, bands, with_mask, grid, files, shown if native[position] else None)
        mask = scene.scene_classes
        first = [mask] if mask and not mask.asset.quality else []  # of bits, none may be set under a clear sky
        if all(_has_data(files, layer, grid) for layer in (*first, scene.layers[0])):
            days[item.day].append(scene)
        else:
            empty.append(item)
    warnings += _describe_problems(days, empty)
    merges = describe_merges(
        {day: [scene.item.identifier for scene in scenes] for day, scenes in days.items()}, "items"
    )
    return ScenesByDate(grid, bands, dict(days), empty, warnings, merges)


def _choose_bands(items: Sequence[Item], wanted: Bands | None, warnings: list[str], where: str) -> tuple[Bands, bool]:
    """The bands asked for; else those of the default that any item has. Every item must have them all.

    Of several products, such as both of HLS, the default are the bands that all of them have.
    """
    shared = [set(item.product.bands.values()) for item in items if item.product]
    usual = tuple(band for band in DEFAULT_BANDS if all(band in bands for bands in shared))
    bands, with_mask = choose_bands((item.assets for item in items), wanted, usual, "item", warnings)
    if not bands:
        why = "no asset is recognised as a band of Sentinel-2, Landsat or HLS"
        raise InputError("no reflectance bands", path=where, why=why, remedy="choose another collection")
    for item in items:
        if missing := missing_bands(bands, with_mask, item.assets):
            why = f"the item {item.identifier} of {item.day} has no {missing}"
            remedy = "name the bands to read with --bands, or choose another season"
            raise InputError("a band is missing", path=where, why=why, remedy=remedy)
    return bands, with_mask


def _is_covered(shown: Box, scenes: Sequence[ItemOnGrid], grid: Grid) -> bool:
    """Whether the scenes of a day already show all that a box of another zone has of the grid.

    Tiles of neighbouring zones overlap and hold one acquisition twice; warping the copy would add nothing.
    """
    aligned = [scene.extent for scene in scenes if scene.extent]
    rest = box(*shown).intersection(box(*grid.bounds))
    return bool(union_all([box(*extent) for extent in aligned]).buffer(grid.resolution / 2).contains(rest))


def _finest(item: Item, bands: Bands, files: AssetFiles) -> Grid:
    return min((files.grid(item.assets[band]) for band in bands), key=lambda grid: grid.resolution)


def _item_on_grid(
    item: Item, bands: Bands, with_mask: bool, grid: Grid, files: AssetFiles, extent: Box | None
) -> ItemOnGrid:
    names = [*bands, *([SCENE_CLASSIFICATION] * with_mask)]
    layers = [_align_asset(item.assets[name], files.grid(item.assets[name]), grid) for name in names]
    return ItemOnGrid(item, tuple(layers[: len(bands)]), layers[-1] if with_mask else None, extent)


def _describe_problems(days: dict[date, list[ItemOnGrid]], empty: list[Item]) -> list[str]:
    """Warnings about the items."""
    warnings = empty_dates_note({item.day for item in empty} - set(days), len(days))
    scenes = [scene for several in days.values() for scene in several]
    assumed = [scene.item for scene in scenes if any(layer.asset.reflectance.assumed for layer in scene.layers)]
    if assumed:
        warnings.append(
            f"{len(assumed)} of {len(scenes)} items give neither offset nor processing baseline, no offset is assumed: "
            + short_list((item.identifier for item in assumed), 5)
        )
    warped = sum(scene.is_warped for scene in scenes)
    if warped:
        warnings.append(f"{warped} of {len(scenes)} items do not fit the pixels of the grid and are warped by GDAL")
    return warnings


# --- One grid for all items: the area of the search, on pixels that the files themselves have

LONGITUDE_LATITUDE = CRS.from_epsg(4326)
ROUNDING = 1e-6  # of a pixel


def _target_grid(finest: Sequence[Grid], options: StacOptions, where: str) -> Grid:
    """The area as far as the items cover it, given the grid of each item's finest band.

    Pixel edges are those of the first item in the grid's CRS, so that its files need no resampling.
    """
    crs = options.crs and parse_crs(options.crs).to_wkt()
    crs = crs or Counter(grid.crs for grid in finest).most_common(1)[0][0]
    native = next((grid for grid in finest if _is_same_crs(grid.crs, crs)), None)
    size = options.resolution or (native or finest[0]).resolution
    anchor = (native.transform[2], native.transform[5]) if native else (0.0, 0.0)
    area = _bounds_in(options.bbox, LONGITUDE_LATITUDE.to_wkt(), crs)
    boxes = [_bounds_in(grid.bounds, grid.crs, crs) for grid in finest]
    covered = [box for box in boxes if _overlaps(box, area)]
    if not covered:
        why = "their files lie outside of the area although the search found them"
        raise InputError("no items", path=where, why=why, remedy="check --bbox")
    left, bottom = (max(area[side], min(box[side] for box in covered)) for side in (0, 1))
    right, top = (min(area[side], max(box[side] for box in covered)) for side in (2, 3))
    first_column = math.floor((left - anchor[0]) / size + ROUNDING)
    last_column = math.ceil((right - anchor[0]) / size - ROUNDING)
    first_row = math.floor((anchor[1] - top) / size + ROUNDING)
    last_row = math.ceil((anchor[1] - bottom) / size - ROUNDING)
    height, width = last_row - first_row, last_column - first_column
    if max(height, width) > MAXIMUM_RASTER_SIDE:
        why = f"{width:,} x {height:,} pixels of {size:g} m"
        raise InputError("the area is too large", path=where, why=why, remedy="choose a smaller one")
    corner = (anchor[0] + first_column * size, anchor[1] - first_row * size)
    return Grid(crs, (size, 0.0, corner[0], 0.0, -size, corner[1]), max(height, 1), max(width, 1))


def _bounds_in(box: Box, own: str, other: str) -> Box:
    """A box of one coordinate system in another, a little too large where edges bend."""
    if _is_same_crs(own, other):
        return box
    try:
        left, bottom, right, top = transform_bounds(CRS.from_wkt(own), CRS.from_wkt(other), *box)
    except GDAL_ERRORS as failure:
        raise InputError("the area cannot be projected", why=str(failure), remedy="choose another --crs") from None
    if not all(map(math.isfinite, (left, bottom, right, top))):
        raise InputError("the area cannot be projected", remedy="choose a smaller area or another --crs")
    return left, bottom, right, top


def _is_same_crs(first: str, second: str) -> bool:
    return first == second or bool(CRS.from_wkt(first) == CRS.from_wkt(second))


def _overlaps(first: Box, second: Box) -> bool:
    return max(first[0], second[0]) < min(first[2], second[2]) and max(first[1], second[1]) < min(first[3], second[3])


# --- Assets on the grid: exactly where their pixels fit it, by GDAL's warper where they do not

LOOK = 1024  # pixels a side that are looked at together


@dataclass(frozen=True)
class _AssetLayer:
    """One asset and how it lies on the grid; without an alignment it is warped."""

    asset: Asset
    alignment: Alignment | None


def _align_asset(asset: Asset, own: Grid, grid: Grid) -> _AssetLayer:
    """The layer of an asset, which may cover any part of the grid or lie beyond it."""
    try:
        # Alignment wants a raster that covers its grid: the piece of the grid at the raster's corner.
        column = math.floor((own.transform[2] - grid.transform[2]) / grid.transform[0])
        row = math.floor((own.transform[5] - grid.transform[5]) / grid.transform[4])
        alignment = Alignment.of(own, grid.crop(Window(row, column, 1, 1)))
    except NotAligned:
        return _AssetLayer(asset, None)
    return _AssetLayer(asset, replace(alignment, top=alignment.top + row, left=alignment.left + column))


def _read_nearest(files: AssetFiles, layer: _AssetLayer, window: Window, grid: Grid) -> NDArray[Any]:
    """The asset's pixel that contains each pixel of the window, zero beyond the asset."""
    if layer.alignment is None:
        return files.read_warped(layer.asset, window, grid, "nearest")
    place = layer.alignment.source(window, margin=0)
    return nearest(RasterPart(files.read(layer.asset, place), place, layer.alignment), window)


def _read_resampled(
    files: AssetFiles, layer: _AssetLayer, window: Window, grid: Grid, method: str
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Numbers (h, w) of the window, and where there are any: where the containing pixel has data."""
    if layer.alignment is None:
        numbers = files.read_warped(layer.asset, window, grid, method)
        present: NDArray[np.bool_] = numbers != 0
        return numbers, present if method == "nearest" else present & (_read_nearest(files, layer, window, grid) != 0)
    place = layer.alignment.source(window, margin=0 if method == "nearest" else MARGIN)
    return resample(RasterPart(files.read(layer.asset, place), place, layer.alignment), window, method)


def _has_data(files: AssetFiles, layer: _AssetLayer, grid: Grid) -> bool:
    """Whether any pixel on the grid is there; most answer at the first look."""
    return any(_read_nearest(files, layer, window, grid).any() for window in split(grid.shape, LOOK))


# --- Files behind assets
#
# GeoTIFF or JPEG 2000 and nothing else, over a network that may fail. GDAL goes by what a file holds, not by its name:
# without the list of drivers a server could answer with a VRT and have any file of this machine read.

DRIVERS = ("GTiff", "JP2OpenJPEG")
ENVIRONMENT = {
    "GDAL_DISABLE_READDIR_ON_OPEN": OPEN_ENVIRONMENT["GDAL_DISABLE_READDIR_ON_OPEN"],
    "GDAL_HTTP_CONNECTTIMEOUT": "10",
    "GDAL_HTTP_TIMEOUT": "60",
    "GDAL_HTTP_MAX_RETRY": "3",
    "GDAL_HTTP_RETRY_DELAY": "0.5",
    "GDAL_HTTP_MULTIPLEX": "YES",
    "GDAL_HTTP_MERGE_CONSECUTIVE_RANGES": "YES",
    "GDAL_INGESTED_BYTES_AT_OPEN": "32768",  # the header of a cloud-optimised file in one request
}
REMEDY = "try again, or leave the date out"
DatasetKey = tuple[str, Grid | None, str]  # address, and for a warped one the grid and the resampling


class AssetFiles(HandleCache[DatasetKey]):
    """Open files of assets. Zero is nodata in all that is read; of bands of bits, one is clear and zero is not."""

    def grid(self, asset: Asset) -> Grid:
        """The grid in the catalogue, else in the file's header."""
        return asset.grid or Grid.of(self._dataset(asset))

    def read(self, asset: Asset, window: Window) -> NDArray[Any]:
        """Pixels (h, w) of a window of the file, which may be empty."""
        if not window.height or not window.width:
            return np.zeros((window.height, window.width), dtype=np.uint16)
        return _numbers(asset, _pixels(asset, self._dataset(asset), window))

    def read_warped(self, asset: Asset, window: Window, grid: Grid, resampling: str) -> NDArray[Any]:
        """Pixels (h, w) of a window of another grid, by GDAL's warper; nodata mixes with nothing.

        The warped dataset spans the whole grid and is made block by block, so no value depends on the window.
        """
        return _numbers(asset, _pixels(asset, self._dataset(asset, grid, resampling), window))

    def _dataset(self, asset: Asset, grid: Grid | None = None, resampling: str = "") -> Any:
        def open_one(stack: ExitStack) -> Any:
            dataset = stack.enter_context(_open_asset(asset))
            _check(asset, dataset)
            if grid is None:
                return dataset
            nodata = asset.nodata
            return stack.enter_context(warped_to(dataset, grid, resampling, src_nodata=nodata, nodata=nodata))

        return self.get((asset.href, grid, resampling), open_one)


def _open_asset(asset: Asset) -> Any:
    name = gdal_name(asset.href)
    likely = 1 if name.partition("?")[0].lower().endswith((".jp2", ".j2k")) else 0
    reason = ""
    for driver in (DRIVERS[likely], DRIVERS[1 - likely]):
        try:
            with rasterio.Env(**ENVIRONMENT), warnings.catch_warnings():
                warnings.simplefilter("ignore", NotGeoreferencedWarning)
                return rasterio.open(name, driver=driver, sharing=False)
        except GDAL_ERRORS as failure:
            reason = reason or _reason(failure)
    why = f"it cannot be opened as GeoTIFF or JPEG 2000 ({reason})"
    raise InputError("unreadable asset", path=asset.label, why=why, remedy=REMEDY)


def _check(asset: Asset, dataset: Any) -> None:
    """Check the header before any pixel is decoded."""
    sides = (*dataset.shape, *dataset.block_shapes[0])
    if max(sides) > MAXIMUM_SIDE:
        why = f"{dataset.width} x {dataset.height} pixels in blocks of {sides[3]} x {sides[2]}"
        raise InputError("a raster too large to be a granule", path=asset.label, why=why, remedy=REMEDY)
    kinds = ("int16",) if asset.nodata < 0 else ("uint8", "uint16")
    if dataset.count != 1 or dataset.dtypes[0] not in kinds:
        why = f"{dataset.count} bands of {dataset.dtypes[0]} instead of one of {' or '.join(kinds)}"
        raise InputError("not a band of its product", path=asset.label, why=why, remedy="choose another collection")
    if asset.nodata < 0 and dataset.nodata not in (None, asset.nodata):
        why = f"its nodata is {dataset.nodata:g} instead of {asset.nodata}"
        raise InputError("not a band of its product", path=asset.label, why=why, remedy=REMEDY)
    if dataset.crs is None:
        raise InputError("no coordinate system", path=asset.label, remedy=REMEDY)
    require_pixels(dataset, asset.label)
    if asset.grid and (difference := grid_difference(Grid.of(dataset), asset.grid)):
        why = f"the file has {difference} as the catalogue says"
        raise InputError("an asset is not what its item says", path=asset.label, why=why, remedy=REMEDY)


def _pixels(asset: Asset, dataset: Any, window: Window) -> NDArray[Any]:
    try:
        with rasterio.Env(**ENVIRONMENT):
            pixels: NDArray[Any] = dataset.read(1, window=rasterio_window(window))
    except GDAL_ERRORS as failure:
        why = f"the pixels cannot be read ({_reason(failure)})"
        raise InputError("damaged asset", path=asset.label, why=why, remedy=REMEDY) from None
    return pixels


def _numbers(asset: Asset, pixels: NDArray[Any]) -> NDArray[Any]:
    """Bits are told apart before they are brought to the grid: beyond the mask's edge nothing is clear."""
    if asset.quality:
        return clear_bits(pixels, asset.quality).astype(np.uint8)
    return pixels if asset.nodata == 0 else np.where(pixels == asset.nodata, 0, np.maximum(pixels, 1)).astype(np.uint16)


def _reason(failure: BaseException) -> str:
    """GDAL's own word, without the address: it may hold a signature."""
    text = " ".join(str(failure.__cause__ or failure).split())
    return " ".join(word.partition("?")[0] if "://" in word else word for word in text.split())[:200]
