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

import struct
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import IO, Annotated, Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from pydantic import AfterValidator, ConfigDict, field_validator
from rasterio.errors import NotGeoreferencedWarning

from cropstar.config import Options
from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import GDAL_ERRORS, OPEN_ENVIRONMENT, rasterio_window, require_pixels
from cropstar.geo.resampling import KERNELS, Alignment, NotAligned, RasterPart, grid_difference, nearest, resample
from cropstar.geo.sensors import (
    CLEAR_SCENE_CLASSES,
    NATIVE_RESOLUTION,
    SCALE,
    SCENE_CLASSIFICATION,
    band_name,
    clear_sky,
)
from cropstar.geo.windows import Window, split
from cropstar.inputs import require_name
from cropstar.registry import did_you_mean
from cropstar.sources.base import (
    Bands,
    HandleCache,
    MergedSeries,
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
from cropstar.sources.decoding import Scratch
from cropstar.sources.sentinel2.products import REMEDY, Product, ProductFile, find_products

DEFAULT_BANDS: Bands = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")
SCENE_CLASSES = range(1, 12)  # 0 is nodata
RESAMPLING = ("nearest", *KERNELS)


def _check_resampling(name: str) -> str:
    if name not in RESAMPLING:
        raise UsageError(f"unknown resampling '{name}'", remedy=did_you_mean(name, RESAMPLING))
    return name


def _check_scene_classes(given: tuple[int, ...]) -> tuple[int, ...]:
    wrong = [number for number in given if number not in SCENE_CLASSES]
    if wrong or not given:
        why = f"got {', '.join(map(str, wrong)) or 'none'}"
        raise UsageError("scene classes are 1 to 11", why=why, remedy="the default is 2,4,5,6,7")
    return tuple(sorted(set(given)))


Resampling = Annotated[str, AfterValidator(_check_resampling)]
SceneClasses = Annotated[tuple[int, ...], AfterValidator(_check_scene_classes)]


class Sentinel2Options(Options):
    """Bands (None: the ten of 10 and 20 m), resampling of the coarser ones, scene classes that count as clear."""

    model_config = ConfigDict(strict=False)  # lists are accepted for tuples

    bands: Bands | None = None
    resampling: Resampling = "bilinear"
    clear: SceneClasses = CLEAR_SCENE_CLASSES

    @field_validator("bands")
    @classmethod
    def _known_bands(cls, bands: Bands | None) -> Bands | None:
        if bands is None:
            return None
        names = tuple(dict.fromkeys(band_name(band) for band in bands))
        known = [band for band in NATIVE_RESOLUTION if band != "B10"]  # cirrus is not in L2A
        for name in names:
            if name not in known:
                raise UsageError(f"unknown Sentinel-2 L2A band '{name}'", remedy=did_you_mean(name, known))
        if not names:
            raise UsageError("no band is named", remedy=f"name some of {', '.join(known)}")
        return names

    def to_json(self) -> dict[str, Any]:
        return {"bands": self.bands, "resampling": self.resampling, "scene_classes": list(self.clear)}


def open_sentinel2(path: Path | Sequence[Path], options: Sentinel2Options | None = None) -> list[Sentinel2Series]:
    """The products at a path (see `find_products`) as series, one per tile."""
    tiles: dict[str, list[Product]] = defaultdict(list)
    for product in find_products(path):
        tiles[product.tile].append(product)
    opened: list[Sentinel2Series] = []
    with closed_on_failure(opened):
        for _, products in sorted(tiles.items()):
            opened.append(Sentinel2Series(products, options))
    return opened


class Sentinel2Series(MergedSeries["_FileLayer"]):
    """All products of one tile as a Series. For one thread; a copy in another process opens files of its own."""

    scenes: list[list[ProductOnGrid]]

    def __init__(self, products: Sequence[Product], options: Sentinel2Options | None = None) -> None:
        self.options = options or Sentinel2Options()
        self._files = BandFiles()
        with closed_on_failure([self]):
            found = _find_scenes(products, self.options.bands, self._files)
            if not found.days:
                why = f"none of {len(products)} products has any data"
                raise InputError(
                    "no usable date", path=products[0].metadata.container, why=why, remedy="get other images"
                )
        self.tile = products[0].tile
        self.grid = found.grid
        self.bands = found.bands
        self.clear = self.options.clear
        self.dates: tuple[date, ...] = tuple(found.days)
        self.name = name_with_years(self.tile, dates=self.dates)
        self.provenance = _provenance(self.tile, found, self.options)
        self.scenes = list(found.days.values())
        self._unused = [product.metadata.file for product in found.empty]
        self._layers = _LayerList(self.scenes)
        self._scratch: Scratch | None = None
        self.notes = log_notes(self.tile, found.warnings, found.merges)

    @property
    def files(self) -> list[Path]:
        """All files on disk that the series is read from."""
        used = {place.file for scenes in self.scenes for scene in scenes for place in scene.places}
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
        has_data = False
        for first_row, rows in self._files.strips(place, scratch.places[number]):
            scratch.write(number, first_row, rows)
            if not has_data:
                seen = clear_sky(rows, self.options.clear) if number in self._layers.masks else rows
                has_data = bool(seen.any())
        self._files.release(place)
        return has_data

    def read_from(self, scratch: Scratch | None) -> None:
        self._scratch = scratch

    def read_nearest(self, layer: _FileLayer, window: Window) -> NDArray[Any]:
        return nearest(self._read_part(layer, window), window)

    def read_resampled(self, layer: _FileLayer, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        numbers, present = resample(self._read_part(layer, window), window, self.options.resampling)
        return to_values(numbers, layer.offset, layer.gain), present

    def _read_part(self, layer: _FileLayer, window: Window) -> RasterPart:
        place = layer.alignment.source(window)
        pixels = self._scratch.read(self._layers.numbers[layer.place], place) if self._scratch else None
        return RasterPart(self._files.read(layer.place, place) if pixels is None else pixels, place, layer.alignment)


def _provenance(tile: str, found: ScenesByDate[ProductOnGrid, Product], options: Sentinel2Options) -> dict[str, Any]:
    """The provenance in the manifest and every tile."""
    products = [scene.product for scenes in found.days.values() for scene in scenes]
    return {
        "source": "sentinel2",
        "tile": tile,
        "products": [product.name for product in products],
        "baselines": [product.baseline_name for product in products],
        "quantification": [product.quantification for product in products],
        "reflectance_offsets": [[product.offsets.get(band, 0.0) for band in found.bands] for product in products],
        "without_data": [product.name for product in found.empty],
        "resampling": options.resampling,
        "scene_classes": list(options.clear),
    }


# --- Which product is read for which date


@dataclass(frozen=True)
class _FileLayer:
    """One band file on the grid; value = (number + offset) * gain."""

    place: ProductFile
    alignment: Alignment
    offset: float = 0.0
    gain: float = 1.0


@dataclass(frozen=True)
class ProductOnGrid:
    """One product on the grid."""

    product: Product
    layers: tuple[_FileLayer, ...]  # in the order of the bands
    scene_classes: _FileLayer | None

    @property
    def places(self) -> list[ProductFile]:
        masks = [self.scene_classes] if self.scene_classes else []
        return [self.product.metadata, *(layer.place for layer in (*self.layers, *masks))]


class _LayerList:
    """All layers of a series in the order of the dates, each product's scene classification before its bands."""

    def __init__(self, days: Iterable[list[ProductOnGrid]]) -> None:
        self.all: list[_FileLayer] = []
        self.chains: list[range] = []  # the layers of one product each
        self.masks: set[int] = set()
        for scene in (scene for scenes in days for scene in scenes):
            if scene.scene_classes:
                self.masks.add(len(self.all))
            layers = [*([scene.scene_classes] if scene.scene_classes else []), *scene.layers]
            self.chains.append(range(len(self.all), len(self.all) + len(layers)))
            self.all += layers
        self.numbers = {layer.place: number for number, layer in enumerate(self.all)}


def _find_scenes(
    products: Iterable[Product], wanted: Bands | None, files: BandFiles
) -> ScenesByDate[ProductOnGrid, Product]:
    """Check the headers of all files, and read pixels until some have data. Files that do not fit are refused."""
    warnings: list[str] = []
    ordered = _without_copies(products, warnings)
    bands, with_mask = _choose_bands(ordered, wanted, warnings)
    grid = _one_grid(ordered, bands, files)
    days: dict[date, list[ProductOnGrid]] = defaultdict(list)
    empty = []
    for product in ordered:
        scene = _product_on_grid(product, bands, with_mask, grid, files)
        if _has_data(scene, files):
            days[product.day].append(scene)
        else:
            empty.append(product)
    warnings += _describe_problems(days, empty)
    names = {day: [scene.product.name for scene in scenes] for day, scenes in days.items()}
    merges = describe_merges(names, "products")
    return ScenesByDate(grid, bands, dict(days), empty, warnings, merges)


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


def _product_on_grid(product: Product, bands: Bands, with_mask: bool, grid: Grid, files: BandFiles) -> ProductOnGrid:
    layers = []
    for band in bands:
        if product.offsets and band not in product.offsets:
            why = f"BOA_ADD_OFFSET is listed for {', '.join(sorted(product.offsets))} and not for {band}"
            raise InputError("no reflectance offset", path=product.metadata.label, why=why, remedy=REMEDY)
        place = product.files[band]
        gain = 1 / (SCALE * product.quantification)
        gain = 1.0 if abs(gain - 1) < 1e-9 else gain
        layers.append(_FileLayer(place, _align(place, grid, files), product.offsets.get(band, 0.0), gain))
    mask = None
    if with_mask:
        place = product.files[SCENE_CLASSIFICATION]
        mask = _FileLayer(place, _align(place, grid, files))
    return ProductOnGrid(product, tuple(layers), mask)


def _align(place: ProductFile, grid: Grid, files: BandFiles) -> Alignment:
    own = Grid.of(files.dataset(place))
    try:
        alignment = Alignment.of(own, grid)
        if alignment.ratio == 1 and (difference := grid_difference(own, grid)):
            raise NotAligned(f"{difference} as the grid has")
    except NotAligned as failure:
        remedy = "cut or reproject all bands to grids that share their pixel edges"
        raise InputError("a band does not fit the grid", path=place.label, why=str(failure), remedy=remedy) from None
    return alignment


def _has_data(scene: ProductOnGrid, files: BandFiles) -> bool:
    """Whether any pixel is there, in the scene classification and in the first band; most answer at the first block."""
    layers = [scene.scene_classes, scene.layers[0]] if scene.scene_classes else [scene.layers[0]]
    for layer in layers:
        dataset = files.dataset(layer.place)
        blocks = split(dataset.shape, min(max(256, *dataset.block_shapes[0]), 2048))
        if not any(files.read(layer.place, block).any() for block in blocks):
            return False
    return True


def _describe_problems(days: dict[date, list[ProductOnGrid]], empty: list[Product]) -> list[str]:
    """Warnings about the products."""
    warnings = empty_dates_note({product.day for product in empty} - set(days), len(days))
    for product in empty:
        if product.day in days:
            warnings.append(f"{product.day}: {product.name} left out, without any data")
    scenes = [scene for several in days.values() for scene in several]
    unsaid = [scene.product for scene in scenes if not scene.product.offsets and 4 <= scene.product.baseline[0] < 99]
    if unsaid:
        names = ", ".join(product.name for product in unsaid)
        warnings.append(
            f"no BOA_ADD_OFFSET is listed although the baseline is 04.00 or later, none is applied: {names}"
        )
    lossy = [scene for scene in scenes if scene.scene_classes and _is_lossy(scene.scene_classes.place)]
    if lossy:
        count = f"{len(lossy)} of {len(scenes)} products"
        warnings.append(f"{count} store the scene classification lossy: classes may be wrong along its edges")
    return warnings


def _is_lossy(place: ProductFile) -> bool:
    """By the wavelet that the image's header names. Not by GDAL's tag of it: boxes of length 0 keep GDAL for ever."""
    if not place.member.lower().endswith(".jp2"):
        return False
    with place.open() as handle, suppress(struct.error):
        position = _codestream(place, handle)[0] + len(SOC)
        for _ in range(MAXIMUM_BOXES):
            handle.seek(position)
            marker, length, *_, wavelet = struct.unpack(">HH9xB", handle.read(14))
            if marker == CODING_STYLE:
                return bool(wavelet == IRREVERSIBLE)
            position += 2 + length
    return False


# --- Band files: JPEG 2000 or GeoTIFF and nothing else, looked at before GDAL sees them

# A granule is 10,980 pixels per side at 10 m.
MAXIMUM_SIDE = 12_000
MAXIMUM_BOXES = 100
LEAST_ROWS = 256  # to be read at a time
DRIVERS = {".jp2": "JP2OpenJPEG", ".tif": "GTiff", ".tiff": "GTiff"}
JP2_SIGNATURE = b"\x00\x00\x00\x0cjP  \r\n\x87\n"
SOC, CODESTREAM_END = b"\xff\x4f", b"\xff\xd9"
CODESTREAM_START = SOC + b"\xff\x51"
CODING_STYLE, IRREVERSIBLE = 0xFF52, 0  # a marker, and the wavelet of lossy images


class BandFiles(HandleCache[ProductFile]):
    """Open band files."""

    def dataset(self, place: ProductFile) -> Any:
        """The open rasterio dataset of a band file."""
        return self.get(place, lambda stack: stack.enter_context(_open_band(place)))

    def read(self, place: ProductFile, window: Window) -> NDArray[Any]:
        """Pixels (h, w) of a window, which may be empty."""
        dataset = self.dataset(place)
        if not window.height or not window.width:
            return np.zeros((window.height, window.width), dtype=dataset.dtypes[0])
        try:
            pixels: NDArray[Any] = dataset.read(1, window=rasterio_window(window))
        except GDAL_ERRORS as failure:
            why = f"the pixels cannot be read ({failure.__cause__ or failure})"
            raise InputError("damaged band file", path=place.label, why=why, remedy=REMEDY) from None
        return pixels

    def strips(self, place: ProductFile, window: Window) -> Iterator[tuple[int, NDArray[Any]]]:
        """All rows of a window, as many at a time as are stored together, with where they begin in the window."""
        step = self.dataset(place).block_shapes[0][0]
        step *= max(LEAST_ROWS // step, 1)
        top = window.top
        while top < window.bottom:
            bottom = min((top // step + 1) * step, window.bottom)
            yield top - window.top, self.read(place, Window(top, window.left, bottom - top, window.width))
            top = bottom


def _open_band(place: ProductFile) -> Any:
    driver = DRIVERS["." + place.member.rpartition(".")[2].lower()]
    require_name(Path(place.gdal_name))
    with place.open() as handle:
        _look_at_header(place, handle, driver)
    try:
        with rasterio.Env(**OPEN_ENVIRONMENT), warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            dataset = rasterio.open(place.gdal_name, driver=driver)
    except GDAL_ERRORS as failure:
        raise _unreadable(place, f"GDAL's {driver} driver cannot open it ({failure})") from None
    try:
        _check_dataset(place, dataset)
        require_pixels(dataset, place.gdal_name)
    except InputError:
        dataset.close()
        raise
    return dataset


def _check_dataset(place: ProductFile, dataset: Any) -> None:
    _check_size(place, dataset.width, dataset.height)
    height, width = dataset.block_shapes[0]
    if max(height, width) > MAXIMUM_SIDE:  # GDAL decodes whole blocks, however small the image in them
        why = f"it is stored in blocks of {width} x {height} pixels"
        raise InputError("blocks too large to read", path=place.label, why=why, remedy=REMEDY)
    if dataset.count != 1 or dataset.dtypes[0] not in ("uint8", "uint16"):
        why = f"{dataset.count} bands of {dataset.dtypes[0]}"
        raise InputError("not a Sentinel-2 band", path=place.label, why=why, remedy="give one band of 16 bits")
    if dataset.crs is None:
        raise InputError("no coordinate system", path=place.label, remedy=REMEDY)


def _check_size(place: ProductFile, width: int, height: int) -> None:
    if max(width, height) > MAXIMUM_SIDE:
        why = f"{width} x {height} pixels"
        raise InputError("a raster too large to be a granule", path=place.label, why=why, remedy=REMEDY)


def _look_at_header(place: ProductFile, handle: IO[bytes], driver: str) -> None:
    """Check the type, size and end of a file before GDAL allocates anything."""
    start = handle.read(512)
    if not start:
        raise _unreadable(place, "the file is empty (zero bytes)")
    if start.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"<":
        raise _unreadable(place, "it is a web page or XML, not an image; perhaps the download asked for a login")
    if driver == "GTiff":
        return
    if not start.startswith(JP2_SIGNATURE):
        raise _unreadable(place, "it is not a JPEG 2000 file")
    try:
        offset, end = _codestream(place, handle)
        handle.seek(offset)
        head = handle.read(24)
        right, bottom, left, top = struct.unpack_from(">4I", head, 8)
    except struct.error:
        raise _unreadable(place, "it is cut off in its header") from None
    if not head.startswith(CODESTREAM_START):
        raise _unreadable(place, "it holds no JPEG 2000 image")
    _check_size(place, right - left, bottom - top)
    if not place.zipped:  # in an archive the end is far; GDAL misses it when the pixels are read
        handle.seek(end - 2)
        if handle.read(2) != CODESTREAM_END:
            raise _unreadable(place, "it is cut off: the end of the image is missing")


def _codestream(place: ProductFile, handle: IO[bytes]) -> tuple[int, int]:
    """The start and end of the codestream among the boxes of a JP2 file."""
    position = 0
    for _ in range(MAXIMUM_BOXES):
        handle.seek(position)
        head = handle.read(16)
        length, kind = struct.unpack_from(">I4s", head)
        begin = position + (16 if length == 1 else 8)
        if length == 1:
            (length,) = struct.unpack_from(">Q", head, 8)
        end = position + length if length else place.size
        if end > place.size or end < begin:
            raise _unreadable(place, f"it is cut off: {place.size:,} of {end:,} bytes are there")
        if kind == b"jp2c":
            return begin, end
        position = end
    raise _unreadable(place, "it holds no JPEG 2000 image")


def _unreadable(place: ProductFile, why: str) -> InputError:
    return InputError("unreadable band file", path=place.label, why=why, remedy=REMEDY)
