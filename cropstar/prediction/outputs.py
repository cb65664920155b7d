"""The files of a map, written from its finished blocks.

Blocks are gathered in drafts, plain GeoTIFFs that take windows in any order; drafts are smoothed, and then published
as cloud-optimised GeoTIFFs, the map itself last. What GIS programs look for stands beside each map: the names of the
classes (`<map>.tif.aux.xml`) and their colours (`<map>.qml`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from cropstar import __version__
from cropstar.errors import EITHER, NO_ROOM, ResourceError, write_error
from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.geo.raster import GDAL_ERRORS, OPEN_ENVIRONMENT, checksum, rasterio_window
from cropstar.geo.windows import Window, split
from cropstar.prediction.blocks import BlockResult
from cropstar.prediction.layers import (
    BY_DATE,
    CONFIDENCE,
    EARLIEST,
    LAYERS,
    PROBABILITIES,
    VALID_DATES,
    Layer,
    PixelResults,
    Smoothing,
    bayesian,
    compute_layers,
    likeliest,
    majority,
    stored_probabilities,
)
from cropstar.prediction.page import write_page
from cropstar.prediction.parcels import ParcelClassifier, ParcelCount, ParcelProduct, classify_parcels
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.request import MapFiles, MapOptions, names_file, style_file
from cropstar.prediction.styles import day_ramp, describe_style, plain, ramp_style
from cropstar.prediction.trust import COUNTED, Trust
from cropstar.reports.map import draw_map
from cropstar.runtime import event, track
from cropstar.sources.class_rules import EVERY_LABEL, read_rules
from cropstar.store.classes import MASKED, NODATA, UNKNOWN, ClassTable
from cropstar.store.files import atomic_path, library_writes, write_text

MAP = "map"

DATES = "CROPSTAR_DATES"  # the tag of a map with its dates
DISPLAY = 2000  # pixels of a picture's long side
OPEN_AT_ONCE = 32  # files of single dates
EARLIEST_MEANING = "day of the year from which the class stayed the same with a confidence of at least {:g}; 0 if never"
SMOOTHED_AT_ONCE = 8_000_000  # probabilities; some hundred megabytes with what is computed from them


@dataclass(frozen=True)
class MapResult:
    """The result of a request."""

    files: MapFiles
    pixels: NDArray[np.int64]  # of each class
    unseen: int  # pixels without a valid date
    unknown: int = 0  # pixels of no class that the model knows
    masked: int = 0  # pixels outside the mask
    parcels: ParcelCount | None = None
    finished: bool = True  # false while other shards have blocks to do

    @classmethod
    def of(cls, files: MapFiles, written: MapContents, classes: int, *, finished: bool = True) -> MapResult:
        counts, marks = written.counts, files.options.marks
        unknown, masked = (int(counts[mark]) if mark in marks else 0 for mark in (UNKNOWN, MASKED))
        return cls(files, counts[:classes], int(counts[NODATA]), unknown, masked, written.parcels, finished)

    def announce(self) -> None:
        """Say how much was left without a class on purpose, and name every file that was written."""
        total = self.total
        counts = {UNKNOWN: (self.unknown, "unknown"), MASKED: (self.masked, "outside of the mask")}
        marks = [counts[mark] for mark in self.files.options.marks]
        if marks and total:
            shares = ", ".join(f"{number / total:.1%} {what}" for number, what in marks)
            event(f"of {total:,} pixels {shares}", unknown=self.unknown, masked=self.masked)
        for path in self.files.all():
            event(f"{self.files.kind(path):<7} {path}")

    def reason_for_emptiness(self) -> tuple[str, str]:
        """Why a map has no class at all, by the most frequent cause, and what helps."""
        causes = [
            (self.unseen, "were never seen clearly", "check the images and their cloud mask"),
            (self.unknown, "are unknown", "check the warnings above, or allow more by --unknown or --min-confidence"),
            (self.masked, "lie outside of the mask", "check the mask (--mask-classes) or the parcels (--only-parcels)"),
        ]
        number, what, remedy = max(causes)
        return f"{number:,} of {self.total:,} pixels {what}", remedy

    @property
    def total(self) -> int:
        """The pixels that were counted: none of a map that is not finished, or that another call finished."""
        return int(self.pixels.sum()) + self.unknown + self.masked + self.unseen

    @property
    def raster(self) -> Path:
        return self.files.map

    @property
    def picture(self) -> Path:
        return self.files.picture


@dataclass(frozen=True)
class MapContents:
    """Pixels and parcels of a map that was written."""

    counts: NDArray[np.int64]  # (256,): pixels of each value
    parcels: ParcelCount | None  # of the parcels beside it


@dataclass(frozen=True)
class MapWriter:
    """Writes a map and the files beside it.

    `parcel_model` classifies parcels where the model does so itself; else what the map shows in them counts.
    """

    files: MapFiles
    grid: Grid
    classes: ClassTable
    tags: dict[str, str]
    title: str
    work: Path  # the folder of drafts, which are gone afterwards
    trust: Trust = field(default_factory=Trust)
    model: Path | None = None
    parcel_model: ParcelClassifier | None = None

    @property
    def options(self) -> MapOptions:
        return self.files.options

    @property
    def shown(self) -> ClassTable:
        """The classes of the map, with what else its pixels may be."""
        return self.classes.with_marks(self.options.marks)

    def write(self, blocks: Iterable[BlockResult]) -> MapContents:
        """Write all files, from blocks in any order."""
        options = self.options
        self.work.mkdir(parents=True, exist_ok=True)
        with rasterio.Env(**OPEN_ENVIRONMENT), ExitStack() as hold:  # no file beside a draft is looked at
            drafts, counts = self._gather(blocks, hold)
            if options.smoothing is not None:
                drafts, counts = self._smooth(drafts, options.smoothing, hold)
            parcels = None if options.parcels is None else self._classify_parcels(options.parcels, drafts)
            self._draw(drafts, counts)
            self._publish(drafts, counts)
        return MapContents(counts, parcels)

    def _gather(self, blocks: Iterable[BlockResult], hold: ExitStack) -> tuple[Drafts, NDArray[np.int64]]:
        """One draft for the map and one for each layer."""
        counts = np.zeros(256, dtype=np.int64)
        names = self.options.layers_of_blocks
        with ExitStack() as writing:
            drafts = self._open_drafts(self._kinds(names), "draft", hold, writing)
            for block in blocks:
                drafts[MAP].write(block.window, block.classes[None])
                for name in names:
                    drafts[name].write(block.window, block.layers[name])
                counts += np.bincount(block.classes.ravel(), minlength=256)
        return drafts, counts

    def _smooth(self, rough: Drafts, smoothing: Smoothing, hold: ExitStack) -> tuple[Drafts, NDArray[np.int64]]:
        """New drafts of the smoothed map and of the layers that follow from it; the valid dates stay as they are."""
        names = tuple(name for name in self.options.layers_of_files if name != VALID_DATES)
        counts = np.zeros(256, dtype=np.int64)
        shape, marked = self.grid.shape, bool(self.options.marks)
        side = 512 if len(self.classes) * 512 * 512 <= SMOOTHED_AT_ONCE else 256
        with ExitStack() as writing:
            drafts = self._open_drafts(self._kinds(names), "smooth", hold, writing)
            windows = list(split(shape, side))
            for window in track(windows, len(windows), "smooth", "block"):
                outer = window.expand(smoothing.margin, shape)
                inner = window.relative_to(outer).slices
                numbers = rough[MAP].read(outer)[0]
                stored = rough[PROBABILITIES].read(outer) if PROBABILITIES in rough else None
                chosen, layers = smoothed_block(numbers, stored, inner, smoothing, names, marked=marked)
                drafts[MAP].write(window, chosen[None])
                for name, values in layers.items():
                    drafts[name].write(window, values)
                counts += np.bincount(chosen.ravel(), minlength=256)
        return drafts | ({VALID_DATES: rough[VALID_DATES]} if VALID_DATES in rough else {}), counts

    def _kinds(self, names: Iterable[str]) -> dict[str, RasterKind]:
        """The kinds of the map and of the layers of these names."""
        layers = {name: RasterKind.of_layer(LAYERS[name], self.classes) for name in names}
        return {MAP: RasterKind.of_map(self.shown), **layers}

    def _open_drafts(self, kinds: Mapping[str, RasterKind], stem: str, hold: ExitStack, writing: ExitStack) -> Drafts:
        """Drafts that are open until `writing` ends and there until `hold` does."""
        drafts = {}
        for name, kind in kinds.items():
            path = self.work / f"{stem}-{name}.tif"
            hold.callback(path.unlink, missing_ok=True)
            drafts[name] = writing.enter_context(drafting(path, self.grid, kind))
        return drafts

    def _classify_parcels(self, outlines: Path, drafts: Drafts) -> ParcelCount:
        options = self.options
        rate = options.unknown if options.min_confidence is None else None  # the one of unknown parcels
        rules = EVERY_LABEL if options.declared_classes is None else read_rules(options.declared_classes)
        product = ParcelProduct(
            *(self.files.parcels, self.classes, options.declared_column, rules),
            *(self.model, self.grid, rate, self.trust.tags()),
        )
        if self.parcel_model is not None:
            return self.parcel_model(outlines, product)
        return classify_parcels(outlines, product, drafts[MAP].path, drafts[PROBABILITIES].path)

    def _draw(self, drafts: Drafts, counts: NDArray[np.int64]) -> None:
        """The page and the picture, of those that are asked for."""
        options, files, trust = self.options, self.files, self.trust
        thinned = read_thinned(drafts[MAP].path, DISPLAY)
        if options.page:
            confidence = read_thinned(drafts[CONFIDENCE].path, DISPLAY)
            parcels = files.parcels if options.parcels is not None else None
            what = (files.page, thinned, confidence, self.grid, self.shown, counts)
            write_page(*what, title=self.title, parcels=parcels, trust=trust)
        if options.picture:
            tested = [f"Tested {trust.accuracy}"] if trust.accuracy else []
            notes = [*tested, *(f"Caution: {text}" for text in (*trust.caveats, trust.note) if text)]
            notes += [COUNTED] if hectares_per_pixel(self.grid) is not None else []
            draw_map(files.picture, thinned, self.grid, self.shown, title=self.title, counts=counts, notes=notes)

    def _publish(self, drafts: Drafts, counts: NDArray[np.int64]) -> None:
        """The names and colours of the classes, the layers and, last, the map."""
        options, files = self.options, self.files
        tags = {**self.tags, **self.trust.tags()}
        if options.smoothing is not None:  # what a layer says of confidence is then said of a window, not of a pixel
            tags["CROPSTAR_SMOOTHING"] = str(options.smoothing)
        write_text(names_file(files.map), describe_names(self.shown, counts, hectares_per_pixel(self.grid)))
        write_text(style_file(files.map), describe_style(self.shown))
        for name in options.layers:
            write_text(style_file(files.layer(name)), LAYERS[name].style())
            publish(drafts[name], files.layer(name), {**tags, "CROPSTAR_LAYER": LAYERS[name].meaning})
        publish(drafts[MAP], files.map, tags)

    # --- maps of single dates, and the date from which each pixel's class stays

    def write_per_date(self, blocks: Callable[[], Iterable[BlockResult]], stable_confidence: float) -> None:
        """Write the maps of all dates; blocks are read again for every `OPEN_AT_ONCE` of them."""
        files, shown = self.files, self.shown
        self.work.mkdir(parents=True, exist_ok=True)
        confidence = f"{stable_confidence:g}"
        meaning = EARLIEST_MEANING.format(stable_confidence)
        kind = RasterKind("uint16", 0, [meaning], "NEAREST")
        days = [day.timetuple().tm_yday for day in files.dates]
        with ExitStack() as hold:
            write_text(style_file(files.earliest), ramp_style(day_ramp(days)))
            (draft,) = self._gather_by(blocks(), {EARLIEST: (kind, lambda block: block.layers[EARLIEST])}, hold)
            tags = {**self.tags, "CROPSTAR_LAYER": meaning, "CROPSTAR_CONFIDENCE": confidence}
            publish(draft, files.earliest, tags)
        for start in range(0, len(files.dates), OPEN_AT_ONCE):
            numbers = range(start, min(start + OPEN_AT_ONCE, len(files.dates)))
            counts = np.zeros((len(files.dates), 256), dtype=np.int64)

            def one(number: int, counts: NDArray[np.int64] = counts) -> Callable[[BlockResult], NDArray[Any]]:
                def take(block: BlockResult) -> NDArray[Any]:
                    chosen: NDArray[np.uint8] = block.layers[BY_DATE][number]
                    counts[number] += np.bincount(chosen.ravel(), minlength=256)
                    return chosen[None]

                return take

            with ExitStack() as hold:
                rasters = {str(number): (RasterKind.of_map(shown), one(number)) for number in numbers}
                for number, draft in zip(numbers, self._gather_by(blocks(), rasters, hold), strict=True):
                    path = files.layer(files.dates[number].isoformat())
                    write_text(names_file(path), describe_names(shown, counts[number], hectares_per_pixel(self.grid)))
                    write_text(style_file(path), describe_style(shown))
                    until = " ".join(day.isoformat() for day in files.dates[: number + 1])
                    publish(draft, path, {**self.tags, DATES: until})

    def _gather_by(
        self,
        blocks: Iterable[BlockResult],
        rasters: dict[str, tuple[RasterKind, Callable[[BlockResult], NDArray[Any]]]],
        hold: ExitStack,
    ) -> list[Draft]:
        """A draft of each raster, there until `hold` ends."""
        with ExitStack() as writing:
            drafts = self._open_drafts({name: kind for name, (kind, _) in rasters.items()}, "dated", hold, writing)
            for block in blocks:
                for name, (_, take) in rasters.items():
                    drafts[name].write(block.window, take(block))
        return list(drafts.values())


def provenance_tags(predictor: Predictor, dates: Sequence[date]) -> dict[str, str]:
    """The provenance of a map, as tags."""
    return {
        "CROPSTAR_VERSION": __version__,
        "CROPSTAR_MODEL": predictor.digest,
        "CROPSTAR_FINGERPRINT": predictor.card.fingerprint.dumps(),
        DATES: " ".join(day.isoformat() for day in dates),
    }


def smoothed_block(
    classes: NDArray[np.uint8],
    stored: NDArray[np.uint16] | None,
    inner: tuple[slice, slice],
    smoothing: Smoothing,
    names: tuple[str, ...],
    *,
    marked: bool = False,
) -> tuple[NDArray[np.uint8], dict[str, NDArray[Any]]]:
    """The smoothed inner part of a window that is read with its margin, and the layers that go with it."""
    seen = (classes < MASKED) if marked else (classes != NODATA)
    probabilities: NDArray[Any] | None = None if stored is None else stored_probabilities(stored)
    if smoothing.method == "bayesian":
        assert probabilities is not None
        probabilities = bayesian(probabilities, seen, smoothing.window, smoothing.smoothness)
        chosen = likeliest(probabilities, seen)
    else:
        chosen = majority(np.where(seen, classes, NODATA).astype(np.uint8), smoothing.window)
    # What is unknown or outside the mask has no voice and stays what it is.
    chosen = np.where(seen, chosen, classes)[inner]
    if not names:
        return chosen, {}
    assert probabilities is not None
    pixels = PixelResults(probabilities[:, *inner], chosen, seen[inner], np.zeros(1, dtype=np.int64))
    return chosen, compute_layers(pixels, names)


# --- Drafts and cloud-optimised GeoTIFFs
#
# GDAL keeps a full disk to itself until it is too late, and a failed copy removes what was there: the copy is made
# under another name and read back.

BLOCK = 256
GDAL_HEADER = b"GDAL_STRUCTURAL_METADATA_SIZE="  # of cloud-optimised files, before the first directory
BIG_TIFF = 43  # the version number of files of more than 4 GB


@dataclass(frozen=True)
class RasterKind:
    """The type of a raster's values, and how its overviews are made."""

    dtype: str
    nodata: int | None
    bands: list[str]  # what each is called
    overviews: str  # GDAL's name of the way to make them
    classes: ClassTable | None = None  # whose colours and names the file carries
    scale: float = 1.0
    unit: str = ""

    @classmethod
    def of_map(cls, classes: ClassTable) -> RasterKind:
        """Overviews show the class that most pixels have, never a mean of two numbers."""
        return cls("uint8", NODATA, ["crop class"], "MODE", classes)

    @classmethod
    def of_layer(cls, layer: Layer, classes: ClassTable) -> RasterKind:
        if layer.of_classes:
            return cls(layer.dtype, layer.nodata, layer.bands(classes), "MODE", classes)
        return cls(layer.dtype, layer.nodata, layer.bands(classes), "AVERAGE", None, layer.scale, layer.unit)


@dataclass
class Draft:
    """A plain GeoTIFF in the making; remembers a checksum of each window so that its copy can be verified."""

    path: Path
    grid: Grid
    kind: RasterKind
    written: list[tuple[Window, int]] = field(default_factory=list)
    _dataset: Any = None

    def write(self, window: Window, values: NDArray[Any]) -> None:
        """values (bands, h, w)."""
        with library_writes(self.path):
            self._dataset.write(values, window=rasterio_window(window))
        self.written.append((window, checksum(values)))

    def read(self, window: Window) -> NDArray[Any]:
        """(bands, h, w) of a draft that is finished."""
        with library_writes(self.path), rasterio.open(self.path, driver="GTiff") as dataset:
            values: NDArray[Any] = dataset.read(window=rasterio_window(window))
        return values


Drafts = dict[str, Draft]


@contextmanager
def drafting(path: Path, grid: Grid, kind: RasterKind) -> Iterator[Draft]:
    """A draft that takes windows; the file is closed afterwards and stays.

    Without the scale of its kind: exactextract 0.3 takes nodata of scaled files for values.
    """
    profile = {
        "driver": "GTiff",
        "dtype": kind.dtype,
        "count": len(kind.bands),
        "height": grid.height,
        "width": grid.width,
        "crs": grid.rasterio_crs,
        "transform": grid.affine,
        "nodata": kind.nodata,
        "compress": "zstd",
        "zstd_level": 1,
        "interleave": "band",
        "tiled": True,
        "blockxsize": BLOCK,
        "blockysize": BLOCK,
        "bigtiff": "if_safer",
    }
    draft = Draft(path, grid, kind)
    path.unlink(missing_ok=True)  # a link in its place would be written through
    try:
        with raising_gdal_errors(path), library_writes(path), rasterio.open(path, "w", **profile) as dataset:
            if kind.classes is not None:
                dataset.write_colormap(1, {entry.number: (*entry.rgb, 255) for entry in kind.classes})
                dataset.update_tags(1, **band_tags(kind.classes))
            dataset.descriptions = tuple(kind.bands)
            draft._dataset = dataset
            yield draft
    finally:
        draft._dataset = None
    _require_whole(path, draft.written, path)


def publish(draft: Draft, final: Path, tags: dict[str, str]) -> None:
    """Copy a finished draft to its final name, cloud-optimised, once it reads back as it was written."""
    layout = {"compress": "deflate", "blocksize": BLOCK, "overview_resampling": draft.kind.overviews}
    if draft.kind.classes is None:
        layout["predictor"] = "standard"
    with raising_gdal_errors(final), library_writes(final), atomic_path(final) as partial:
        with rasterio.open(draft.path, "r+", driver="GTiff") as dataset:
            dataset.update_tags(**tags)
            dataset.scales = (draft.kind.scale,) * dataset.count
            dataset.units = (draft.kind.unit,) * dataset.count
        rasterio.shutil.copy(draft.path, partial, driver="COG", bigtiff="if_safer", num_threads="all_cpus", **layout)
        _require_whole(partial, draft.written, final)
        require_cloud_optimised(partial, final)


@contextmanager
def raising_gdal_errors(path: Path) -> Iterator[None]:
    """Raise what GDAL only logs: after some failures to write it goes on, and the file is not what it should be."""
    complaints: list[str] = []
    heard = logging.Handler(logging.ERROR)
    heard.emit = lambda record: complaints.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("rasterio")
    log.addHandler(heard)
    before, log.propagate = log.propagate, False
    try:
        yield
    finally:
        log.removeHandler(heard)
        log.propagate = before
    if complaints:
        raise write_error(RasterioError(complaints[0]), path)


def read_thinned(path: Path, longest_side: int) -> NDArray[Any]:
    """The first band, every n-th pixel of it: two rasters of one grid are thinned to the same pixels."""
    with library_writes(path), rasterio.open(path, driver="GTiff", overview_level="none") as dataset:
        factor = max(1.0, max(dataset.shape) / longest_side)
        height, width = (max(1, round(side / factor)) for side in dataset.shape)
        rows = ((np.arange(height) + 0.5) * dataset.height / height).astype(np.intp)
        columns = ((np.arange(width) + 0.5) * dataset.width / width).astype(np.intp)
        thinned = np.empty((height, width), dtype=dataset.dtypes[0])
        for top in range(0, dataset.height, BLOCK):  # a row of blocks at a time
            bottom = min(top + BLOCK, dataset.height)
            chosen = np.flatnonzero((rows >= top) & (rows < bottom))
            if len(chosen):
                strip = dataset.read(1, window=rasterio_window(Window(top, 0, bottom - top, dataset.width)))
                thinned[chosen] = strip[np.ix_(rows[chosen] - top, columns)]
    return thinned


def _require_whole(path: Path, written: list[tuple[Window, int]], final: Path) -> None:
    """Of a cloud-optimised file the full image comes last: where it is whole, the overviews are there too."""
    try:
        with rasterio.open(path, driver="GTiff") as dataset:
            whole = all(checksum(dataset.read(window=rasterio_window(window))) == known for window, known in written)
    except GDAL_ERRORS:
        whole = False
    if not whole:
        why = "it could not be written completely"
        raise ResourceError("cannot write the map", path=final, why=why, remedy=NO_ROOM)


def require_cloud_optimised(path: Path, final: Path) -> None:
    """The first directory follows GDAL's own header, and all come before the pixels of the image, one behind the other:
    libtiff puts one that it failed to write at the end of what is there."""
    with rasterio.open(path, driver="GTiff") as dataset:
        pixels = int(dataset.get_tag_item("BLOCK_OFFSET_0_0", "TIFF", bidx=1))
    content = np.memmap(path, np.uint8, "r")

    def number(place: int, size: int) -> int:
        return int.from_bytes(content[place : place + size].tobytes(), "little")

    large = number(2, 2) == BIG_TIFF
    count, entry, pointer = (8, 20, 8) if large else (2, 12, 4)  # bytes of the parts of a directory
    directory = number(8, 8) if large else number(4, 4)
    begin = 16 if large else 8
    length = content[begin : begin + len(GDAL_HEADER) + 6].tobytes().removeprefix(GDAL_HEADER)
    last = begin + len(GDAL_HEADER) + len("000000 bytes\n") + (int(length) if length.isdigit() else 0)
    whole = directory in (last, last + 1)  # an even number
    while last <= directory < pixels:
        last, directory = directory, number(directory + count + entry * number(directory, count), pointer)
    if directory or not whole:
        why = "a part of it did not reach the disk at once"
        raise ResourceError("cannot write the map", path=final, why=why, remedy=EITHER)


# --- Names of the classes for GDAL and QGIS: `<map>.tif.aux.xml`, as GDAL's own PAM writes it
#
# A GeoTIFF itself has no place for category names or an attribute table; a copy of the file alone keeps the names in
# the tags of its band (`CLASS_0`, `CLASS_1`, ...).

# GDAL's numbers: field type (0 integer, 1 real, 2 text) and usage (what a GIS takes the column for).
INTEGER, REAL, TEXT = 0, 1, 2
COLUMNS = (
    ("Value", INTEGER, 5),
    ("Class", TEXT, 2),
    ("Count", INTEGER, 1),
    ("Hectares", REAL, 0),
    ("Red", INTEGER, 6),
    ("Green", INTEGER, 7),
    ("Blue", INTEGER, 8),
)


def band_tags(classes: ClassTable) -> dict[str, str]:
    """The names in the file itself."""
    return {f"CLASS_{entry.number}": entry.name for entry in classes}


def describe_names(classes: ClassTable, counts: NDArray[np.int64] | None = None, hectares: float | None = None) -> str:
    """Category names and attribute table of the first band; counts are of each value, hectares of a pixel."""
    names = {entry.number: entry.name for entry in classes}  # with a gap before the marks of a map
    texts = [names.get(number, "") for number in range(max(names, default=-1) + 1)]
    categories = "\n".join(f"      <Category>{plain(name)}</Category>" for name in texts)
    return (
        '<PAMDataset>\n  <PAMRasterBand band="1">\n'
        f"    <CategoryNames>\n{categories}\n    </CategoryNames>\n"
        f"{_attribute_table(classes, counts, hectares)}"
        "  </PAMRasterBand>\n</PAMDataset>\n"
    )


def _attribute_table(classes: ClassTable, counts: NDArray[np.int64] | None, hectares: float | None) -> str:
    missing = {"Count"} if counts is None else set()
    missing |= {"Hectares"} if counts is None or hectares is None else set()
    columns = [column for column in COLUMNS if column[0] not in missing]
    lines = ['    <GDALRasterAttributeTable tableType="thematic">']
    for index, (name, kind, usage) in enumerate(columns):
        field = f"<Name>{name}</Name><Type>{kind}</Type><Usage>{usage}</Usage>"
        lines.append(f'      <FieldDefn index="{index}">{field}</FieldDefn>')
    for row, entry in enumerate(classes):
        count = 0 if counts is None else int(counts[entry.number])
        red, green, blue = entry.rgb
        values = {
            "Value": str(entry.number),
            "Class": plain(entry.name),
            "Count": str(count),
            "Hectares": f"{count * (hectares or 0):.4f}",
            "Red": str(red),
            "Green": str(green),
            "Blue": str(blue),
        }
        fields = "".join(f"<F>{values[name]}</F>" for name, _, _ in columns)
        lines.append(f'      <Row index="{row}">{fields}</Row>')
    return "\n".join([*lines, "    </GDALRasterAttributeTable>\n"])
