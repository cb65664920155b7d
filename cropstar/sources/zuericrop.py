"""ZueriCrop: one HDF5 file of small images with fields and clouds, and its label table.

data (N,T,H,W,9), gt (N,H,W,1), gt_instance (N,H,W,1), cloud_cover (N,T,H,W)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, field_validator

from cropstar.config import Options
from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import Season, to_days
from cropstar.geo.sensors import SCALE, band_name, in_order
from cropstar.inputs import MAXIMUM_CLASSES, reading, require_file
from cropstar.registry import did_you_mean, short_list
from cropstar.runtime import event, logger
from cropstar.sources.base import (
    UNPLACED,
    PatchImage,
    SampleScene,
    TileSpec,
    equal_parts,
    pack_patches,
    recipe_of,
    safe_name,
)
from cropstar.sources.stack.names import LIST_FILE, parse_dates
from cropstar.sources.texts import read_text_table
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.fingerprint import Fingerprint
from cropstar.store.gate import open_hdf5
from cropstar.store.tile import PatchTile

__all__ = ["ZueriCropOptions", "ZueriCropScene", "looks_like_zuericrop", "open_zuericrop"]


FILE_BANDS = ("B08", "B03", "B02", "B04", "B05", "B06", "B07", "B11", "B12")  # the file's order: NIR first
BANDS = tuple(in_order(FILE_BANDS))  # as all sources have them
FOLDS = 5


class ZueriCropOptions(Options):
    model_config = ConfigDict(strict=False)  # lists are accepted for tuples

    labels: Path | None = None  # labels.csv beside the data where it is not given
    dates: Path | None = None  # a text file with one date per line; the data themselves have none
    year: int = Field(2019, ge=2015, le=2100)  # over which the dates are spread where none are given
    level: Literal[1, 2, 3] = 3  # 5, 16 or 48 classes; the finer ones know their coarser ones
    cloud_limit: float = Field(0.1, ge=0)  # share of cloud up to which an observation is valid; published code: 0.1
    bands: tuple[str, ...] | None = None  # all nine where they are not given
    images_per_tile: int = Field(32, ge=1)

    @field_validator("bands")
    @classmethod
    def _known_bands(cls, given: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if given is None:
            return None
        bands = tuple(band_name(band) for band in given)
        for band in bands:
            if band not in BANDS:
                raise UsageError(f"unknown band '{band}'", remedy=did_you_mean(band, BANDS))
        if not bands or len(set(bands)) < len(bands):
            raise UsageError(
                "bands must be given once each, and at least one", remedy=f"choose from {', '.join(BANDS)}"
            )
        return bands

    @property
    def chosen_bands(self) -> tuple[str, ...]:
        """The chosen bands in the order of all sources."""
        return tuple(band for band in BANDS if self.bands is None or band in self.bands)

    def to_json(self) -> dict[str, Any]:
        """The options that change a tile, apart from the dates."""
        return {
            "bands": list(self.chosen_bands),
            "cloud_limit": self.cloud_limit,
            "images_per_tile": self.images_per_tile,
            "level": self.level,
        }


def fold_of(index: int, images: int) -> str:
    """The fold of an image: which fifth of the file it is in."""
    return next(f"fold{fold}" for fold in range(1, FOLDS + 1) if index < images * fold // FOLDS)


def _fold_splits() -> dict[str, dict[str, list[str]]]:
    """Each fold is tested by a model that was trained on the other four."""
    names = [f"fold{fold}" for fold in range(1, FOLDS + 1)]
    return {
        name: {"train": [other for other in names if other != name], "validation": [], "test": [name]} for name in names
    }


RESOLUTION = 10.0
LARGEST = np.iinfo(np.uint16).max
REFLECTANCE = 10.0  # fractions that never exceed it are reflectance already, not ten thousand times as much


class ZueriCropScene(SampleScene):
    """Images in the order of the file; ids of fields run through all of it, so a field may lie in several images."""

    layout = "patches"

    def __init__(self, path: Path, labels: _LabelTable, options: ZueriCropOptions) -> None:
        self.name = safe_name(path.stem)
        self._path, self._labels, self._options = path, labels, options
        with _open_datasets(path) as datasets:
            self._shape = _check_shape(datasets, path)
            self.dates = _choose_dates(self._shape, path, options)
            _require_scaled(datasets["data"], path)
            self.labelled, self.fields = self._look_through(datasets)
        if not self.labelled.any():
            why = f"none of {self._shape.images} images has a pixel of one of {labels.codes} codes"
            raise InputError("nothing is labelled", path=path, why=why, remedy=f"check {labels.path.name}")
        self.provenance: dict[str, Any] = {
            "source": "zuericrop",
            "file": path.name,
            "labels": labels.path.name,
            "level": options.level,
            "dates_assumed": options.dates is None,
        }
        settings = {"name": self.name, "dates": [day.isoformat() for day in self.dates], **options.to_json()}
        self.recipe = recipe_of([path, labels.path], settings)
        season = Season.of(self.dates)
        self.fingerprint = Fingerprint(options.chosen_bands, SCALE, 0.0, RESOLUTION, season, labels.classes)

    def _look_through(self, datasets: dict[str, Any]) -> tuple[NDArray[np.int64], int]:
        """The labelled pixels of each class and the number of labelled fields; every code has its row."""
        pixels = np.zeros(len(self._labels.classes), dtype=np.int64)
        fields: set[int] = set()
        for start, codes in _batches(datasets["gt"], 0, self._shape.images):
            labels = self._classify(codes, start)
            pixels += np.bincount(labels[labels != UNLABELLED], minlength=len(pixels))
            for first, part in _batches(datasets["gt_instance"], start, start + len(codes)):
                known = labels[first - start : first - start + len(part)] != UNLABELLED
                numbers = _whole_numbers(part[..., 0], "gt_instance", self._path)
                fields.update(np.unique(numbers[known]).tolist())
        return pixels, len(fields - {0})

    def _classify(self, values: NDArray[Any], first: int) -> NDArray[np.int16]:
        """(n, H, W, 1) codes as (n, H, W) classes."""
        codes = _whole_numbers(values[..., 0], "gt", self._path)
        table = self._labels
        inside = (codes >= 0) & (codes < len(table.known))
        strange = ~inside | ~table.known[np.where(inside, codes, 0)]
        if strange.any():
            image = first + int(np.argwhere(strange)[0][0])
            why = f"image {image} has the code {codes[strange][0]}, which has no row in {table.path.name}"
            raise InputError("an unknown code", path=self._path, why=why, remedy="use the label table of this file")
        return table.numbers[codes]

    @property
    def volume(self) -> int:
        """Bytes of all values."""
        shape = self._shape
        return 2 * shape.images * shape.dates * shape.height * shape.width * len(self.fingerprint.bands)

    def cuts(self) -> list[tuple[int, int]]:
        return equal_parts(self._shape.images, self._options.images_per_tile)

    def build(self, spec: TileSpec) -> PatchTile:
        window = spec.window
        with _open_datasets(self._path) as datasets:
            labels = self._classify(datasets["gt"][window.top : window.bottom], window.top)
            fields = datasets["gt_instance"][window.top : window.bottom][..., 0]
            fields = _whole_numbers(fields, "gt_instance", self._path)
            images = []
            for start, values in _batches(datasets["data"], window.top, window.bottom):
                clouds = datasets["cloud_cover"][start : start + len(values)]
                for place in range(len(values)):
                    index = start + place
                    own = index - window.top
                    images.append(self._image(index, values[place], clouds[place], labels[own], fields[own]))
        return pack_patches(self, images, window.top)

    def _image(
        self,
        index: int,
        values: NDArray[Any],
        clouds: NDArray[Any],
        labels: NDArray[np.int16],
        fields: NDArray[np.int64],
    ) -> PatchImage:
        """From (T, H, W, 9) to (T, C, H, W); clouds, empty pixels and what is not a digital number are not valid."""
        good = ((values >= 0) & (values <= LARGEST)).all(axis=-1)  # false where it is not a number, too
        valid = good & (values != 0).any(axis=-1) & (clouds <= self._options.cloud_limit)
        places = [FILE_BANDS.index(band) for band in self._options.chosen_bands]
        kept = np.where(valid[..., None], values[..., places], 0)
        return PatchImage(
            name=f"{index:05d}",
            transform=UNPLACED,
            days=to_days(self.dates),
            values=np.rint(kept).astype(np.uint16).transpose(0, 3, 1, 2),
            valid=valid,
            labels=labels,
            fields=fields,
            keys={int(number): str(number) for number in np.unique(fields)},
            group=fold_of(index, self._shape.images),
        )

    def counts(self) -> dict[str, Any]:
        return {
            "images": self._shape.images,
            "parcels": self.fields,
            "splits": _fold_splits(),
        }


def open_zuericrop(path: Path, options: ZueriCropOptions | None = None) -> list[ZueriCropScene]:
    """The scene of a file, or of the one in a folder."""
    options = options or ZueriCropOptions()
    file = _find_file(path)
    labels = read_labels(options.labels or file.parent / LABELS, options.level)
    scene = ZueriCropScene(file, labels, options)
    about, pixels = scene.describe(), scene.labelled
    event(
        f"{scene.name}: {about['images']} images of {len(about['dates'])} dates, {scene.fields} fields, "
        f"{(pixels > 0).sum()} of {len(pixels)} classes ({labels.codes} codes)",
        images=about["images"],
        parcels=scene.fields,
        classes=int((pixels > 0).sum()),
    )
    return [scene]


def _choose_dates(shape: _Shape, path: Path, options: ZueriCropOptions) -> list[date]:
    if options.dates is not None:
        return _read_dates(options.dates, shape.dates)
    return spread_dates(shape.dates, options.year, path)


def _require_scaled(dataset: Any, path: Path) -> None:
    """Fractions may be digital numbers, but not reflectance: rounded, that would be nothing but zeros and ones."""
    if dataset.dtype.kind != "f":
        return
    some = sorted({0, dataset.shape[0] // 2, dataset.shape[0] - 1})
    largest = max(float(np.nanmax(dataset[index], initial=0.0)) for index in some)
    if 0 < largest <= REFLECTANCE:
        why = f"'data' is at most {largest:g}, as reflectance is"
        raise InputError("values of another scale", path=path, why=why, remedy="multiply them by 10,000")


# --- The label table: from the codes of the Swiss farm census to classes on three levels

KIND_COLUMN = "1st_tier"
TIERS = ("2nd_tier", "3rd_tier", "4th_tier")  # the three levels, the coarsest first
CODE_COLUMN = "GT"
VEGETATION = "Vegetation"
LARGEST_CODE = 10_000
LABELS_REMEDY = "take the labels.csv that is published with the data"


@dataclass(frozen=True)
class _LabelTable:
    path: Path
    classes: ClassTable
    numbers: NDArray[np.int16]  # the class of each code, UNLABELLED where it has none; code 0 is unknown ground
    known: NDArray[np.bool_]  # whether the table has a row for a code

    @property
    def codes(self) -> int:
        """How many codes have a class."""
        return int((self.numbers != UNLABELLED).sum())


def read_labels(path: Path, level: int) -> _LabelTable:
    """Codes of vegetation that have a class on the finest level, whatever level is asked for: as published results."""
    if not path.is_file():
        raise InputError(
            "no label table", path=path, why="there is no such file", remedy=f"{LABELS_REMEDY}, or name it"
        )
    frame = read_text_table(path)
    present = [str(name) for name in frame]
    columns = [KIND_COLUMN, *(next((name for name in present if name.startswith(tier)), tier) for tier in TIERS)]
    missing = [name for name in columns if name not in present]
    if missing:
        why = f"no column {short_list(missing)} among {short_list(present)}"
        raise InputError("not a label table", path=path, why=why, remedy=LABELS_REMEDY)
    codes = _codes_of_rows(frame, path)
    rows = frame[columns].apply(lambda column: column.str.strip()).set_axis((KIND_COLUMN, *TIERS), axis=1)
    used = ((rows[KIND_COLUMN] == VEGETATION) & (rows[TIERS[-1]] != "")).to_numpy()
    paths = [tuple(row) for row in rows.loc[used, list(TIERS[:level])].itertuples(index=False)]
    if not paths:
        why = f"no row has {VEGETATION} in {KIND_COLUMN} and a class in {TIERS[-1]}"
        raise InputError("no class", path=path, why=why, remedy=LABELS_REMEDY)
    parents = _lineages(paths, path)
    if len(parents) > MAXIMUM_CLASSES:
        raise InputError("too many classes", path=path, why=f"{len(parents)}, at most {MAXIMUM_CLASSES}")
    classes = ClassTable.from_names(parents).with_lineages(parents)
    places = {name: place for place, name in enumerate(classes.names)}
    numbers = np.full(int(codes.max()) + 1, UNLABELLED, dtype=np.int16)
    numbers[codes[used]] = [places[names[-1]] for names in paths]
    known = np.zeros(len(numbers), dtype=bool)
    known[[0, *codes]] = True
    return _LabelTable(path, classes, numbers, known)


def _codes_of_rows(frame: pd.DataFrame, path: Path) -> NDArray[np.int64]:
    """The codes of the rows: their number in the file, which the first column of the published table repeats."""
    with reading("not a label table", path, LABELS_REMEDY):
        if CODE_COLUMN not in frame:
            return np.arange(1, len(frame) + 1)
        codes = frame[CODE_COLUMN].astype(np.int64)
        if not len(codes) or not codes.between(1, LARGEST_CODE).all() or codes.duplicated().any():
            raise ValueError(f"the column {CODE_COLUMN} has no codes, each once")
        return np.asarray(codes, dtype=np.int64)


def _lineages(paths: list[tuple[str, ...]], path: Path) -> dict[str, tuple[str, ...]]:
    """The coarser classes of each class; a class on any level has one place in the hierarchy."""
    for depth in range(1, len(paths[0]) + 1):
        parents: dict[str, tuple[str, ...]] = {}
        for names in paths:
            *above, name = names[:depth]
            if not name:
                why = f"'{names[-1]}' has no class in {TIERS[depth - 1]}"
                raise InputError("a gap in the hierarchy", path=path, why=why, remedy="fill it in")
            if parents.setdefault(name, tuple(above)) != tuple(above):
                why = f"'{name}' is under '{parents[name][-1]}' and '{above[-1]}'"
                raise InputError("not a hierarchy", path=path, why=why, remedy="give the two different names")
    return parents


# --- Dates: from the user's list, or assumed

DATES_REMEDY = "write one date per line, such as 2019-01-03, in the order of the images"


def _read_dates(path: Path, count: int) -> list[date]:
    """One date per line, ascending, one for each acquisition."""
    require_file(path)
    dates = parse_dates(f"{LIST_FILE}{path}")
    if list(dates) != sorted(dates) or len(dates) != count:
        why = f"{len(dates)} for {count} acquisitions, or not in order"
        raise InputError("dates that do not fit", path=path, why=why, remedy=DATES_REMEDY)
    return list(dates)


def spread_dates(count: int, year: int, path: Path) -> list[date]:
    """Evenly from the first day of the year to the last: two orbits of both satellites pass every few days."""
    first, last = date(year, 1, 1), date(year, 12, 31)
    days = (last - first).days
    if count > days + 1:
        why = f"{count} acquisitions are more than the days of {year}"
        raise InputError("no dates", path=path, why=why, remedy="list them in a file and give it with --dates")
    logger.warning(
        "%s has no dates: its %d acquisitions are taken as evenly spread over %d; --dates FILE gives the true ones",
        path.name,
        count,
        year,
    )
    if count == 1:
        return [first + timedelta(days=days // 2)]
    return [first + timedelta(days=place * days // (count - 1)) for place in range(count)]


# --- The HDF5 file: checked before anything is read, then read some images at a time

ENDINGS = (".h5", ".hdf5")
LABELS = "labels.csv"
DATASETS = ("data", "gt", "gt_instance", "cloud_cover")
READ_VALUES = 2**23  # read at once: 64 MB where they become 64-bit numbers
REMEDY = "download it again"


@dataclass(frozen=True)
class _Shape:
    images: int
    dates: int
    height: int
    width: int


def looks_like_zuericrop(path: Path) -> bool:
    """A file with these datasets, or a folder that holds one beside a label table."""
    if path.is_dir():
        return (path / LABELS).is_file() and any(_has_datasets(entry) for entry in _candidates(path))
    return path.is_file() and path.suffix.lower() in ENDINGS and _has_datasets(path)


def _find_file(path: Path) -> Path:
    """The file itself, or the one of a folder."""
    if not path.exists():
        raise InputError("no such file or folder", path=path, remedy="give ZueriCrop.hdf5 or the folder that holds it")
    if not path.is_dir():
        return path
    candidates = _candidates(path)
    fitting = [
        entry for entry in candidates if _has_datasets(entry)
    ] or candidates  # a damaged file is named as such later
    if len(fitting) != 1:
        why = "it holds no .hdf5 file" if not candidates else f"it holds {short_list(entry.name for entry in fitting)}"
        raise UsageError("no single file", path=path, why=why, remedy="give the path of ZueriCrop.hdf5 itself")
    return fitting[0]


@contextmanager
def _open_datasets(path: Path) -> Iterator[dict[str, Any]]:
    """The datasets by name, as long as the file is open; what HDF5 cannot read is one line."""
    with reading("damaged hdf5 file", path, REMEDY), open_hdf5(path) as handle:
        for name in DATASETS:
            if not isinstance(handle.get(name), h5py.Dataset):
                why = f"no dataset '{name}' among {short_list(sorted(handle)) or 'none'}"
                raise InputError("not ZueriCrop", path=path, why=why, remedy="give the file ZueriCrop.hdf5")
        yield {name: handle[name] for name in DATASETS}


def _check_shape(datasets: dict[str, Any], path: Path) -> _Shape:
    """The common shape of the datasets."""
    sizes = datasets["data"].shape
    if len(sizes) != 5 or sizes[4] != len(FILE_BANDS) or 0 in sizes:
        why = f"'data' is {sizes}, not images x dates x rows x columns x {len(FILE_BANDS)} bands"
        raise InputError("not ZueriCrop", path=path, why=why, remedy=REMEDY)
    shape = _Shape(*(int(side) for side in sizes[:4]))
    plane = (shape.height, shape.width)
    labels, clouds = (shape.images, *plane, 1), (shape.images, shape.dates, *plane)
    for name, wanted in (("gt", labels), ("gt_instance", labels), ("cloud_cover", clouds)):
        if datasets[name].shape != wanted:
            why = f"'{name}' is {datasets[name].shape}, with this 'data' it would be {wanted}"
            raise InputError("datasets of different shapes", path=path, why=why, remedy=REMEDY)
    return shape


def _batches(dataset: Any, first: int, end: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Some images after the other: the number of the first and their values."""
    size = max(READ_VALUES // math.prod(dataset.shape[1:]), 1)
    for start in range(first, end, size):
        yield start, dataset[start : min(start + size, end)]


def _whole_numbers(values: NDArray[Any], name: str, path: Path) -> NDArray[np.int64]:
    """Codes and ids, which some writers store as floating point."""
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        raise InputError("not ZueriCrop", path=path, why=f"'{name}' holds fractions, not codes", remedy=REMEDY)
    return values.astype(np.int64)


def _candidates(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in ENDINGS and entry.is_file())


def _has_datasets(path: Path) -> bool:
    try:
        with h5py.File(path, "r") as handle:  # an error is reported when the file is opened to be read
            return set(DATASETS) <= set(handle)
    except (OSError, RuntimeError):
        return False
