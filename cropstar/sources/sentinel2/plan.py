"""What is read from where: bands, one grid, and the products of each date with the way to their reflectance."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.resampling import Alignment, NotAligned, grid_difference
from cropstar.geo.sensors import SCALE, SCENE_CLASSIFICATION
from cropstar.geo.windows import split
from cropstar.sources.base import Bands, choose_bands, describe_merges, empty_dates_note, missing_bands
from cropstar.sources.sentinel2.containers import REMEDY, Place
from cropstar.sources.sentinel2.files import BandFiles
from cropstar.sources.sentinel2.options import DEFAULT_BANDS
from cropstar.sources.sentinel2.products import Product


@dataclass(frozen=True)
class Layer:
    """One band file on the grid; value = (number + offset) * gain."""

    place: Place
    alignment: Alignment
    offset: float = 0.0
    gain: float = 1.0


@dataclass(frozen=True)
class Take:
    """One product on the grid."""

    product: Product
    layers: tuple[Layer, ...]  # in the order of the bands
    scene_classes: Layer | None

    @property
    def places(self) -> list[Place]:
        masks = [self.scene_classes] if self.scene_classes else []
        return [self.product.metadata, *(layer.place for layer in (*self.layers, *masks))]


class Layers:
    """All layers of a series in the order of the dates, each product's scene classification before its bands."""

    def __init__(self, days: Iterable[list[Take]]) -> None:
        self.all: list[Layer] = []
        self.chains: list[range] = []  # the layers of one product each
        self.masks: set[int] = set()
        for take in (take for takes in days for take in takes):
            if take.scene_classes:
                self.masks.add(len(self.all))
            layers = [*([take.scene_classes] if take.scene_classes else []), *take.layers]
            self.chains.append(range(len(self.all), len(self.all) + len(layers)))
            self.all += layers
        self.numbers = {layer.place: number for number, layer in enumerate(self.all)}


@dataclass(frozen=True)
class Plan:
    """All of one tile. The takes of a day stand newest first."""

    grid: Grid
    bands: Bands
    days: dict[date, list[Take]]
    empty: list[Product]
    warnings: list[str]
    merges: list[str]


def make_plan(products: Iterable[Product], wanted: Bands | None, files: BandFiles) -> Plan:
    """Look at every file's header, and at pixels until some have data; whatever does not fit is refused."""
    warnings: list[str] = []
    ordered = _without_copies(products, warnings)
    bands, with_mask = _choose_bands(ordered, wanted, warnings)
    grid = _one_grid(ordered, bands, files)
    days: dict[date, list[Take]] = defaultdict(list)
    empty = []
    for product in ordered:
        take = _take(product, bands, with_mask, grid, files)
        if _has_data(take, files):
            days[product.day].append(take)
        else:
            empty.append(product)
    warnings += _warnings(days, empty, files)
    merges = describe_merges({day: [take.product.name for take in takes] for day, takes in days.items()}, "products")
    return Plan(grid, bands, dict(days), empty, warnings, merges)


def _without_copies(products: Iterable[Product], warnings: list[str]) -> list[Product]:
    """By day, the newest of a day first; the same product found twice counts once."""
    kept: dict[tuple[date, str], Product] = {}
    for product in products:
        first = kept.setdefault((product.day, product.name), product)
        if first is not product:
            where, other = product.metadata.container, first.metadata.container
            warnings.append(f"{product.name} is there twice: {other} is read, {where} is not")
    newest = sorted(kept.values(), key=lambda product: product.age, reverse=True)
    return sorted(newest, key=lambda product: product.day)


def _choose_bands(products: list[Product], wanted: Bands | None, warnings: list[str]) -> tuple[Bands, bool]:
    """The bands asked for; else those of the default that any date has. Every date must have them all."""
    bands, with_mask = choose_bands((product.files for product in products), wanted, DEFAULT_BANDS, "date", warnings)
    if not bands:
        raise InputError("no reflectance bands", path=products[0].metadata.container, remedy=REMEDY)
    for product in products:
        if missing := missing_bands(bands, with_mask, product.files):
            why = f"{product.day} ({product.name}) has no {missing}"
            remedy = "get the product again, leave the date out, or name the bands to read"
            raise InputError("a band is missing", path=product.metadata.container, why=why, remedy=remedy)
    return bands, with_mask


def _one_grid(products: list[Product], bands: Bands, files: BandFiles) -> Grid:
    """The grid of the finest band, which all products share."""
    first, *others = products
    grid = _finest(first, bands, files)
    for product in others:
        if difference := grid_difference(_finest(product, bands, files), grid):
            why = f"{product.name} has {difference} as {first.name} has"
            remedy = "cut or reproject the products to one grid"
            raise InputError("dates on different grids", path=product.metadata.container, why=why, remedy=remedy)
    return grid


def _finest(product: Product, bands: Bands, files: BandFiles) -> Grid:
    grids = [Grid.of(files.dataset(product.files[band])) for band in bands]
    return min(grids, key=lambda grid: grid.resolution)


def _take(product: Product, bands: Bands, with_mask: bool, grid: Grid, files: BandFiles) -> Take:
    layers = []
    for band in bands:
        if product.offsets and band not in product.offsets:
            why = f"BOA_ADD_OFFSET is listed for {', '.join(sorted(product.offsets))} and not for {band}"
            raise InputError("no reflectance offset", path=product.metadata.label, why=why, remedy=REMEDY)
        place = product.files[band]
        gain = 1 / (SCALE * product.quantification)
        gain = 1.0 if abs(gain - 1) < 1e-9 else gain
        layers.append(Layer(place, _align(place, grid, files), product.offsets.get(band, 0.0), gain))
    mask = None
    if with_mask:
        place = product.files[SCENE_CLASSIFICATION]
        mask = Layer(place, _align(place, grid, files))
    return Take(product, tuple(layers), mask)


def _align(place: Place, grid: Grid, files: BandFiles) -> Alignment:
    own = Grid.of(files.dataset(place))
    try:
        alignment = Alignment.of(own, grid)
        if alignment.ratio == 1 and (difference := grid_difference(own, grid)):
            raise NotAligned(f"{difference} as the grid has")
    except NotAligned as failure:
        remedy = "cut or reproject all bands to grids that share their pixel edges"
        raise InputError("a band does not fit the grid", path=place.label, why=str(failure), remedy=remedy) from None
    return alignment


def _has_data(take: Take, files: BandFiles) -> bool:
    """Whether any pixel is there, in the scene classification and in the first band; most answer at the first block."""
    layers = [take.scene_classes, take.layers[0]] if take.scene_classes else [take.layers[0]]
    for layer in layers:
        dataset = files.dataset(layer.place)
        blocks = split(dataset.shape, min(max(256, *dataset.block_shapes[0]), 2048))
        if not any(files.read(layer.place, block).any() for block in blocks):
            return False
    return True


def _warnings(days: dict[date, list[Take]], empty: list[Product], files: BandFiles) -> list[str]:
    """What a user should know of the products."""
    warnings = empty_dates_note({product.day for product in empty} - set(days), len(days))
    for product in empty:
        if product.day in days:
            warnings.append(f"{product.day}: {product.name} left out, without any data")
    takes = [take for several in days.values() for take in several]
    unsaid = [take.product for take in takes if not take.product.offsets and 4 <= take.product.baseline[0] < 99]
    if unsaid:
        names = ", ".join(product.name for product in unsaid)
        warnings.append(
            f"no BOA_ADD_OFFSET is listed although the baseline is 04.00 or later, none is applied: {names}"
        )
    lossy = [take for take in takes if take.scene_classes and _is_lossy(take.scene_classes, files)]
    if lossy:
        count = f"{len(lossy)} of {len(takes)} products"
        warnings.append(f"{count} store the scene classification lossy: classes may be wrong along its edges")
    return warnings


def _is_lossy(layer: Layer, files: BandFiles) -> bool:
    tags = files.dataset(layer.place).tags(ns="IMAGE_STRUCTURE")
    return str(tags.get("COMPRESSION_REVERSIBILITY", "")) == "LOSSY"
