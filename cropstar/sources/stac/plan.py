"""What is read from where: bands, one grid, and the items of each date in the order of their merging."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from shapely import box, union_all

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.sensors import SCENE_CLASSIFICATION
from cropstar.sources.base import Bands, choose_bands, describe_merges, empty_dates_note, missing_bands, short_list
from cropstar.sources.sentinel2.options import DEFAULT_BANDS
from cropstar.sources.stac.files import AssetFiles
from cropstar.sources.stac.grid import bounds_in, is_same_crs, overlaps, target_grid
from cropstar.sources.stac.items import Item
from cropstar.sources.stac.layers import Layer, has_data, lay
from cropstar.sources.stac.options import Box, StacOptions


@dataclass(frozen=True)
class Take:
    """One item on the grid."""

    item: Item
    layers: tuple[Layer, ...]  # in the order of the bands
    scene_classes: Layer | None
    extent: Box | None  # on the grid, where it is in the grid's CRS

    @property
    def is_warped(self) -> bool:
        return any(layer.alignment is None for layer in self.layers)


@dataclass(frozen=True)
class Plan:
    """The takes of a day stand in the order in which they are asked."""

    grid: Grid
    bands: Bands
    days: dict[date, list[Take]]
    empty: list[Item]
    warnings: list[str]
    merges: list[str]


def make_plan(items: Sequence[Item], options: StacOptions, files: AssetFiles, where: str) -> Plan:
    """Fit every item to one grid; look at pixels until some have data. What does not fit is refused."""
    warnings: list[str] = []
    ordered = sorted(sorted(items, key=lambda item: item.age, reverse=True), key=lambda item: item.day)
    bands, with_mask = _choose_bands(ordered, options.bands, warnings, where)
    finest = [_finest(item, bands, files) for item in ordered]
    grid = target_grid(finest, options, where)
    native = [is_same_crs(own.crs, grid.crs) for own in finest]
    days: dict[date, list[Take]] = defaultdict(list)
    empty = []
    # Items in the grid's own CRS come first on a day; their files need no warping.
    for position in sorted(range(len(ordered)), key=lambda place: (ordered[place].day, not native[place])):
        item, own = ordered[position], finest[position]
        shown = bounds_in(own.bounds, own.crs, grid.crs)
        if not overlaps(shown, grid.bounds) or (
            not native[position] and _is_covered(shown, days.get(item.day, []), grid)
        ):
            continue
        take = _take(item, bands, with_mask, grid, files, shown if native[position] else None)
        first = [take.scene_classes] if take.scene_classes else []
        if all(has_data(files, layer, grid) for layer in (*first, take.layers[0])):
            days[item.day].append(take)
        else:
            empty.append(item)
    warnings += _warnings(days, empty)
    merges = describe_merges({day: [take.item.identifier for take in takes] for day, takes in days.items()}, "items")
    return Plan(grid, bands, dict(days), empty, warnings, merges)


def _choose_bands(items: Sequence[Item], wanted: Bands | None, warnings: list[str], where: str) -> tuple[Bands, bool]:
    """The bands asked for; else those of the default that any item has. Every item must have them all."""
    bands, with_mask = choose_bands((item.assets for item in items), wanted, DEFAULT_BANDS, "item", warnings)
    if not bands:
        why = "no asset can be told to be a Sentinel-2 band"
        raise InputError("no reflectance bands", path=where, why=why, remedy="choose another collection")
    for item in items:
        if missing := missing_bands(bands, with_mask, item.assets):
            why = f"the item {item.identifier} of {item.day} has no {missing}"
            remedy = "name the bands to read with --bands, or choose another season"
            raise InputError("a band is missing", path=where, why=why, remedy=remedy)
    return bands, with_mask


def _is_covered(shown: Box, takes: Sequence[Take], grid: Grid) -> bool:
    """Whether the takes of a day already show all that a box of another zone has of the grid.

    Tiles of neighbouring zones overlap and hold one acquisition twice; warping the copy would add nothing.
    """
    aligned = [take.extent for take in takes if take.extent]
    rest = box(*shown).intersection(box(*grid.bounds))
    return bool(union_all([box(*extent) for extent in aligned]).buffer(grid.resolution / 2).contains(rest))


def _finest(item: Item, bands: Bands, files: AssetFiles) -> Grid:
    return min((files.grid(item.assets[band]) for band in bands), key=lambda grid: grid.resolution)


def _take(item: Item, bands: Bands, with_mask: bool, grid: Grid, files: AssetFiles, extent: Box | None) -> Take:
    names = [*bands, *([SCENE_CLASSIFICATION] * with_mask)]
    layers = [lay(item.assets[name], files.grid(item.assets[name]), grid) for name in names]
    return Take(item, tuple(layers[: len(bands)]), layers[-1] if with_mask else None, extent)


def _warnings(days: dict[date, list[Take]], empty: list[Item]) -> list[str]:
    """What a user should know of the items."""
    warnings = empty_dates_note({item.day for item in empty} - set(days), len(days))
    takes = [take for several in days.values() for take in several]
    assumed = [take.item for take in takes if any(layer.asset.reflectance.assumed for layer in take.layers)]
    if assumed:
        warnings.append(
            f"{len(assumed)} of {len(takes)} items say neither offset nor processing baseline, no offset is assumed: "
            + short_list((item.identifier for item in assumed), 5)
        )
    warped = sum(take.is_warped for take in takes)
    if warped:
        warnings.append(f"{warped} of {len(takes)} items do not fit the pixels of the grid and are warped by GDAL")
    return warnings
