"""The image series of MTLCC: a year of tiles of one size, each tile an image.

Tiles are TFRecords as published, or GeoTIFFs, a folder per tile, in the two ways that are about:

<tile>/<YYYYMMDD>_{10m,20m,60m}.tif   y.tif
<tile>/{10m,20m,60m}/<YYYYMMDD>.tif   labels.tif
"""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray
from rasterio.crs import CRS

from cropstar.errors import InputError
from cropstar.geo.calendar import Season, to_days
from cropstar.geo.grid import Grid
from cropstar.geo.raster import open_raster
from cropstar.geo.sensors import SCALE
from cropstar.inputs import MAXIMUM_CLASSES, reading
from cropstar.runtime import event, logger, track
from cropstar.sources.base import (
    UNPLACED,
    PatchImage,
    SampleScene,
    TileSpec,
    Transform,
    equal_parts,
    pack_patches,
    recipe_of,
    safe_name,
)
from cropstar.sources.tum.folders import (
    CLASSES,
    LABEL_FILES,
    PLACES,
    RASTERS,
    TILE_IDS,
    DataFolder,
    TumOptions,
    label_file,
    lines_of,
    list_tiles,
)
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.tile import PatchTile

TILE_BYTES = 2**26  # of the values of a tile: it is built in memory
RESOLUTION = 10.0


@dataclass(frozen=True)
class _Look:
    """The tiles, dates and size that a first pass over all tiles found."""

    tiles: dict[int, Path]  # those with a date
    dates: tuple[date, ...]
    longest: int
    shape: tuple[int, int]
    empty: int


class ImageScene(SampleScene):
    """The tiles in the order of their ids, each an image; they are opened as they are wanted."""

    layout = "patches"

    def __init__(self, folder: DataFolder, year: int | None, options: TumOptions) -> None:
        root = folder.root
        self._folder, self._year = folder, year
        classes, self._numbers = _read_classes(root)
        found = list_tiles(folder)
        self._look = self._look_through(found)
        self.dates = self._look.dates
        tiles = self._look.tiles
        self.year = year or self._look.dates[-1].year
        parts = (*((root.name,) if root != folder.path else ()), folder.path.name, str(self.year))
        self.name = safe_name("-".join(parts))
        self._crs, self._transforms = self._places(root)
        self._splits = _read_splits(root, set(tiles))
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

    def cuts(self) -> list[tuple[int, int]]:
        return equal_parts(len(self._look.tiles), self._images_per_tile)

    def build(self, spec: TileSpec) -> PatchTile:
        chosen = list(self._look.tiles)[spec.window.top : spec.window.bottom]
        return pack_patches(self, [self._image(tile) for tile in chosen], spec.window.top, self._crs)

    def counts(self) -> dict[str, Any]:
        return {
            "images": len(self._look.tiles),
            "splits": self._splits,
        }

    def log_summary(self) -> None:
        images, dates = len(self._look.tiles), len(self._look.dates)
        size = " x ".join(map(str, self._look.shape))
        event(f"{self.name}: {images} images of {size} pixels, {dates} dates", images=images, dates=dates)
        if self._look.empty:
            logger.warning("%s: %d tiles without a date left out", self.name, self._look.empty)

    def _look_through(self, tiles: dict[int, Path]) -> _Look:
        """Read the dates of all tiles: of records this means to unpack them once."""
        kept: dict[int, Path] = {}
        dates, longest, shape = set[date](), 0, (0, 0)
        for tile, path in track(tiles.items(), len(tiles), f"look through {self._folder.label}", "tile"):
            own, size = self._look_at(path)
            if not own:
                continue
            if kept and size != shape:
                why = f"it has {size[0]} x {size[1]} pixels, others have {shape[0]} x {shape[1]}"
                raise InputError(
                    "a tile of another size", path=path, why=why, remedy="put each size into its own folder"
                )
            kept[tile], shape = path, size
            dates.update(own)
            longest = max(longest, len(own))
        if not kept:
            why = f"{len(tiles)} tiles, none of them with a date"
            raise InputError("no image", path=self._folder.path, why=why, remedy="give the folder of the image series")
        return _Look(kept, tuple(sorted(dates)), longest, shape, len(tiles) - len(kept))

    def _look_at(self, path: Path) -> tuple[tuple[date, ...], tuple[int, int]]:
        if self._folder.kind != RASTERS:
            assert self._year is not None  # `open_tum` asks for it
            return _look_at_record(path, self._year)
        return tuple(_in_year(_list_dates(path), self._year).values()), _grid_of(path).shape

    def _places(self, root: Path) -> tuple[str, dict[int, Transform]]:
        """The coordinate system of all tiles and the place of each: from the list, else from the rasters."""
        tiles, listed = self._look.tiles, _read_places(root)
        if listed is not None:
            missing = next((tile for tile in tiles if tile not in listed.transforms), None)
            if missing is not None:
                raise InputError(
                    f"no geotransform of the tile {missing}", path=listed.path, remedy="add it to the list"
                )
            codes = {listed.codes[tile] for tile in tiles}
            if len(codes) > 1:
                why = f"EPSG {' and '.join(map(str, sorted(codes)))}"
                raise InputError(
                    "tiles in several coordinate systems", path=listed.path, why=why, remedy="ingest them separately"
                )
            return _coordinate_system(codes.pop(), listed.path), {tile: listed.transforms[tile] for tile in tiles}
        if self._folder.kind != RASTERS:
            logger.warning("no %s in %s: the tiles have no coordinates", PLACES, root)
            return "", dict.fromkeys(tiles, UNPLACED)
        grids = {tile: _grid_of(path) for tile, path in tiles.items()}
        systems = {grid.crs for grid in grids.values()}
        if len(systems) > 1:
            raise InputError(
                "tiles in several coordinate systems", path=self._folder.path, remedy="ingest them separately"
            )
        crs = systems.pop()
        coarse = next((tile for tile, grid in grids.items() if crs and abs(grid.resolution - RESOLUTION) > 1e-6), None)
        if coarse is not None:
            why = f"they have {grids[coarse].resolution:g} m"
            raise InputError("not pixels of 10 m", path=tiles[coarse], why=why, remedy="check the conversion")
        return crs, {tile: grid.transform if crs else UNPLACED for tile, grid in grids.items()}

    def _affordable(self, wanted: int) -> int:
        height, width = self._look.shape
        return max(min(wanted, TILE_BYTES // (2 * self._look.longest * len(ALL_BANDS) * height * width)), 1)

    def _files(self, tile: Path) -> list[Path]:
        return sorted(_all_files(tile)) if self._folder.kind == RASTERS else [tile]

    def _image(self, tile: int) -> PatchImage:
        path = self._look.tiles[tile]
        with reading(NO_TILE, path):
            if self._folder.kind == RASTERS:
                raw = _read_raster_tile(path, self._year)
            else:
                raw = _read_record_tile(path, self.year)
            if [array.shape[3] for array in raw.bands.values()] != [len(bands) for bands in BANDS.values()]:
                raise ValueError(f"not the bands {', '.join(ALL_BANDS)}")
            if raw.bands[10].shape[1:3] != self._look.shape or raw.labels.shape != self._look.shape:
                raise ValueError("its images and labels are not of one size, or it changed since it was first read")
            return _to_image(raw, str(tile), self._transforms[tile], self._numbers)


# --- A tile as its files have it, and the image that is made of it

# As GDAL hands out Level-1C products, which is where the tiles come from: red first among the bands of 10 m.
BANDS = {
    10: ("B04", "B03", "B02", "B08"),
    20: ("B05", "B06", "B07", "B8A", "B11", "B12"),
    60: ("B01", "B09", "B10"),
}
ALL_BANDS = tuple(band for bands in BANDS.values() for band in bands)
LARGEST = np.iinfo(np.uint16).max
NO_TILE = "not a tile of MTLCC, or a damaged one"


@dataclass(frozen=True)
class _RawTile:
    """The dates in their order, each once; padding is gone."""

    path: Path
    dates: tuple[date, ...]
    bands: dict[int, NDArray[Any]]  # by resolution, (T, h, w, C)
    labels: NDArray[Any]  # (H, W) ids of the class file


def _to_image(tile: _RawTile, name: str, transform: Transform, numbers: dict[int, int]) -> PatchImage:
    """All bands on the pixels of 10 m, coarser ones by repeating the pixel that the centre lies in. A pixel is valid
    where every band of 10 m is above zero. Touching pixels of one class are a field: the tiles know no parcels."""
    height, width = tile.bands[10].shape[1:3]
    finest = tile.bands[10]
    valid: NDArray[np.bool_] = np.asarray((finest > 0).all(axis=-1))  # (T, H, W)
    values = np.zeros((len(tile.dates), len(ALL_BANDS), height, width), dtype=np.uint16)
    place = 0
    for array in tile.bands.values():
        if array.size and array.max() > LARGEST:
            raise ValueError(f"a value of {int(array.max())} cannot be ten thousand times a reflectance")
        on_grid = np.clip(array, 0, LARGEST)[:, _nearest(array.shape[1], height)][:, :, _nearest(array.shape[2], width)]
        values[:, place : place + array.shape[3]] = on_grid.transpose(0, 3, 1, 2)  # (T, C, H, W)
        place += array.shape[3]
    values *= valid[:, None]
    labels = _renumber(tile, numbers)
    fields = np.where(labels == UNLABELLED, 0, connected_regions(labels))
    return PatchImage(
        name=name,
        transform=transform,
        days=to_days(tile.dates),
        values=values,
        valid=valid,
        labels=labels,
        fields=fields,
        keys={int(number): name for number in np.unique(fields[fields > 0])},  # a lot keeps a tile's fields together
        group=name,
    )


def _nearest(count: int, wanted: int) -> NDArray[np.int64]:
    """For each of the wanted pixels, the coarse one that contains its centre."""
    places: NDArray[np.int64] = (2 * np.arange(wanted) + 1) * count // (2 * wanted)
    return places


def _renumber(tile: _RawTile, numbers: dict[int, int]) -> NDArray[np.int16]:
    ids, places = np.unique(tile.labels, return_inverse=True)
    new = np.full(len(ids), UNLABELLED, dtype=np.int16)
    for rank, label in enumerate(ids):
        if label != 0:
            if int(label) not in numbers:
                why = f"the id {int(label)} is not among {', '.join(map(str, sorted(numbers)))}"
                raise InputError("an unknown class", path=tile.path, why=why, remedy="add it to classes.txt")
            new[rank] = numbers[int(label)]
    renumbered: NDArray[np.int16] = new[places].reshape(tile.labels.shape)
    return renumbered


def connected_regions(labels: NDArray[Any]) -> NDArray[np.int64]:
    """A number above zero for each pixel, the same for pixels of one label that touch with a side."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    places = np.arange(labels.size).reshape(labels.shape)
    across, down = labels[:, 1:] == labels[:, :-1], labels[1:] == labels[:-1]
    one = np.concatenate([places[:, :-1][across], places[:-1][down]])
    other = np.concatenate([places[:, 1:][across], places[1:][down]])
    touching = coo_array((np.ones(len(one), dtype=bool), (one, other)), shape=(labels.size, labels.size))
    _, regions = connected_components(touching, directed=False)
    _, firsts = np.unique(regions, return_index=True)
    numbers: NDArray[np.int64] = (firsts[regions] + 1).reshape(labels.shape)
    return numbers


# --- Tiles in TFRecords
#
# A record holds x10, x20 and x60 (T, h, w, C), labels (T, H, W) and the days of the year, all int64, little-endian and
# in C order. Every record says 2017, so that the year is taken from elsewhere. A day of zero or below is padding.


def _look_at_record(path: Path, year: int) -> tuple[tuple[date, ...], tuple[int, int]]:
    """The dates of a tile, none where all are padding, and the rows and columns of its image."""
    with reading(NO_TILE, path):
        features = read_example(path, check=False)
        _, height, width, _ = features["x10/shape"]
        return _dates(features, year)[0], (height, width)


def _read_record_tile(path: Path, year: int) -> _RawTile:
    features = read_example(path)
    dates, places = _dates(features, year)
    bands = {resolution: _array(features, f"x{resolution}")[places] for resolution in BANDS}
    first = int(places.min()) if len(places) else 0  # labels are the same on all dates; padding has none
    return _RawTile(path, dates, bands, _array(features, "labels")[first])


def _dates(features: Features, year: int) -> tuple[tuple[date, ...], NDArray[Any]]:
    """The dates in their order, of two equal ones the first, and their places in the record."""
    days = _array(features, "dates", "doy")
    real = np.flatnonzero(days > 0)
    once, firsts = np.unique(days[real], return_index=True)
    return tuple(date(year, 1, 1) + timedelta(days=int(day) - 1) for day in once), real[firsts]


def _array(features: Features, name: str, values: str = "data") -> NDArray[Any]:
    return np.frombuffer(features[f"{name}/{values}"], dtype="<i8").reshape(features[f"{name}/shape"])


# --- Tiles as GeoTIFFs

FLAT = re.compile(r"(\d{8})_(10|20|60)m\.tif", re.ASCII)
NESTED = re.compile(r"(\d{8})\.tif", re.ASCII)
RASTER_REMEDY = "get or convert the tile again"


def _list_dates(folder: Path) -> dict[date, dict[int, Path]]:
    """The file of each resolution by date, in order."""
    files_of: dict[date, dict[int, Path]] = {}
    places = [(folder, FLAT, 0), *((folder / f"{resolution}m", NESTED, resolution) for resolution in BANDS)]
    for place, pattern, resolution in places:
        for path in place.iterdir() if place.is_dir() else ():
            if match := pattern.fullmatch(path.name):
                files_of.setdefault(_date(match[1], path), {})[resolution or int(match[2])] = path
    for day, files in files_of.items():
        missing = [f"{resolution} m" for resolution in BANDS if resolution not in files]
        if missing:
            raise InputError(f"no raster of {missing[0]} on {day}", path=folder, remedy=RASTER_REMEDY)
    return dict(sorted(files_of.items()))


def _all_files(folder: Path) -> list[Path]:
    labels = label_file(folder)
    own = [path for files in _list_dates(folder).values() for path in files.values()]
    return [*own, *([] if labels is None else [labels])]


def _in_year(days: Iterable[date], year: int | None) -> dict[date, date]:
    """The dates that file names stand for. Converters write the year of the records, which is 2017 in all of them:
    where the names have one year and the folder is of another, only the day of the year counts."""
    days = list(days)
    if year is None or {day.year for day in days} == {year} or len({day.year for day in days}) != 1:
        return {day: day for day in days}
    return {day: date(year, 1, 1) + timedelta(days=day.timetuple().tm_yday - 1) for day in days}


def _read_raster_tile(folder: Path, year: int | None) -> _RawTile:
    listed = _list_dates(folder)
    meant = _in_year(listed, year)
    labels = _read_raster(_require_labels(folder))
    bands = {
        resolution: np.stack([_read_raster(files[resolution]) for files in listed.values()]).transpose(0, 2, 3, 1)
        for resolution in BANDS  # (T, h, w, C)
    }
    return _RawTile(folder, tuple(meant[day] for day in listed), bands, labels[0])


def _grid_of(folder: Path) -> Grid:
    """The grid of a tile's label raster."""
    with open_raster(_require_labels(folder)) as dataset:
        return Grid.of(dataset)


def _require_labels(folder: Path) -> Path:
    path = label_file(folder)
    if path is None:
        raise InputError("no labels", path=folder, why=f"there is no {' or '.join(LABEL_FILES)}", remedy=RASTER_REMEDY)
    return path


def _read_raster(path: Path) -> NDArray[Any]:
    """(C, h, w)."""
    with open_raster(path) as dataset, reading("a damaged raster", path, RASTER_REMEDY):
        pixels: NDArray[Any] = dataset.read()
    return pixels


def _date(text: str, path: Path) -> date:
    with reading("not a date in a file's name", path, "name it YYYYMMDD"):
        return datetime.strptime(text, "%Y%m%d").date()


# --- The files beside the tiles: class names, places, folds, years

KNOWN_CLASSES = {
    1: "sugar beet",
    2: "summer oat",
    3: "meadow",
    5: "rape",
    8: "hop",
    9: "winter spelt",
    12: "winter triticale",
    13: "beans",
    15: "peas",
    16: "potatoes",
    17: "soybeans",
    19: "asparagus",
    22: "winter wheat",
    23: "winter barley",
    24: "winter rye",
    25: "summer barley",
    26: "maize",
}
UNKNOWN = 0  # the id of pixels without a known crop


@dataclass(frozen=True)
class _Places:
    """The coordinates of the tiles."""

    path: Path
    transforms: dict[int, Transform]
    codes: dict[int, int]  # the EPSG code of each tile's coordinate system


def _read_classes(root: Path) -> tuple[ClassTable, dict[int, int]]:
    """The classes in the order of their ids, and the number of each id; 0, the unknown, is none of them."""
    path = root / CLASSES
    names = KNOWN_CLASSES
    if path.is_file():
        names = _parse_classes(path)
    else:
        logger.warning("no %s in %s: taking the %d published classes", CLASSES, root, len(names))
    return ClassTable.in_order(list(names.values())), {label: number for number, label in enumerate(names)}


def _read_places(root: Path) -> _Places | None:
    """xmin, xres, 0, ymax, 0, -yres and the EPSG code of each tile; None without the file."""
    path = root / PLACES
    if not path.is_file():
        return None
    with reading("not a list of geotransforms", path):
        rows = np.loadtxt(lines_of(path), delimiter=",", ndmin=2)
        if rows.shape[1] != 8 or not np.isfinite(rows).all():
            raise ValueError("a line is not a tile, six numbers and an EPSG code")
        if (np.abs(rows[:, [2, 6]]) != RESOLUTION).any() or rows[:, [3, 5]].any():
            raise ValueError("the pixels are not 10 m wide and high")
        places = {int(row[0]): (RESOLUTION, 0.0, float(row[1]), 0.0, -RESOLUTION, float(row[4])) for row in rows}
        return _Places(path, places, {int(row[0]): int(row[7]) for row in rows})


def _coordinate_system(code: int, path: Path) -> str:
    with reading(f"unknown coordinate system EPSG:{code}", path, "correct it"):
        return str(CRS.from_epsg(code).to_wkt())


def _read_splits(root: Path, present: set[int]) -> dict[str, dict[str, list[str]]]:
    """The folds of the tiles that are there.

    The authors train on `train_fold<k>`, look at `test_fold<k>` while training, and report on `eval`: these are our
    train, validation and test. Without tiles of `eval` the fold's own test tiles are the test.
    """
    folder = root / TILE_IDS
    held_out = _tile_ids(folder / "eval.tileids", present)
    splits: dict[str, dict[str, list[str]]] = {}
    for path in sorted(folder.glob("train_fold*.tileids")):
        fold = path.name.removeprefix("train_fold").removesuffix(".tileids")
        train, other = _tile_ids(path, present), _tile_ids(folder / f"test_fold{fold}.tileids", present)
        parts = {"train": train, "validation": other, "test": held_out}
        if not held_out:
            parts = {"train": train, "validation": [], "test": other}
        if parts["train"] and parts["test"]:
            splits[f"fold{fold}"] = parts
    return splits


def _parse_classes(path: Path) -> dict[int, str]:
    """The name of each id; headings and empty lines are skipped, as the authors' reader does."""
    with reading("unusable classes", path, "give lines such as 1|sugar beet"):
        pairs = [line.split("|", 1) for line in lines_of(path) if "|" in line]
        names = {int(label): name.strip() for label, name in pairs if int(label) != UNKNOWN}
        if not 0 < len(set(names.values())) == len(names) <= MAXIMUM_CLASSES:
            raise ValueError(f"{len(set(names.values()))} different names of {len(names)} ids")
        return dict(sorted(names.items()))


def _tile_ids(path: Path, present: set[int]) -> list[str]:
    if not path.is_file():
        return []
    with reading("not a list of tile ids", path, "give one whole number per line"):
        return [str(tile) for tile in sorted({int(line) for line in lines_of(path) if line.strip()} & present)]


# --- TFRecord files of one tf.train.Example, with their checksums; no TensorFlow is needed
#
# The Example is read from the wire format of protocol buffers: Example {1: Features}, Features {1: entry, repeated},
# entry {1: name, 2: Feature}, Feature {1: bytes list or 3: int64 list}, each list {1: value, repeated}.

GZIP = b"\x1f\x8b"
HEADER, FOOTER = 12, 4  # the length and its checksum, and the checksum of the record
VARINT, DELIMITED = 0, 2

Features = dict[str, Any]  # by name: a bytes list of one value as a memoryview, an int64 list as a list


def read_example(path: Path, *, check: bool = True) -> Features:
    """The features of the one Example in a file. Without `check` the checksum of its content is not compared."""
    with reading("not a TFRecord, or a damaged one", path):
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(GZIP) else content
        length, checksum = struct.unpack_from("<QI", content)
        if masked(google_crc32c.value(content[:8])) != checksum:
            raise ValueError("the checksum of its length does not match")
        if len(content) != HEADER + length + FOOTER:
            raise ValueError(f"{len(content)} bytes, with one record of {length} it would have {length + 16}")
        record = content[HEADER:-FOOTER]
        if check and masked(google_crc32c.value(record)) != struct.unpack("<I", content[-FOOTER:])[0]:
            raise ValueError("the checksum of its record does not match")
        return _parse_example(memoryview(record))


def masked(checksum: int) -> int:
    """As TFRecords store it: turned and shifted, so that a checksum of data with checksums stays a good one."""
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _parse_example(record: memoryview) -> Features:
    entries = [entry for message in _messages(record, 1) for entry in _messages(message, 1)]
    return {bytes(_messages(entry, 1)[-1]).decode(): _values(_messages(entry, 2)[-1]) for entry in entries}


def _values(feature: memoryview) -> memoryview | list[int] | None:
    for values in _messages(feature, 1):
        return _messages(values, 1)[0]
    for values in _messages(feature, 3):  # packed, or value by value
        numbers: list[int] = []
        for _, value in _fields(values):
            numbers += [value] if isinstance(value, int) else _varints(value)
        return [number - 2**64 if number >= 2**63 else number for number in numbers]
    return None


def _messages(message: memoryview, wanted: int) -> list[memoryview]:
    """The fields of a number, which are bytes, texts or messages."""
    return [value for number, value in _fields(message) if number == wanted and isinstance(value, memoryview)]


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind not in (VARINT, DELIMITED):
            raise ValueError(f"a field of the type {kind}")
        value, place = _varint(message, place)
        if kind == VARINT:
            yield number, value
            continue
        yield number, message[place : place + value]
        place += value


def _varints(message: memoryview) -> Iterator[int]:
    place = 0
    while place < len(message):
        value, place = _varint(message, place)
        yield value


def _varint(message: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := message[place]) >= 0x80:
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return value | byte << shift, place + 1
