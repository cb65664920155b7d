"""The one HDF5 file: its datasets, checked before anything is read and then read some images at a time.

data (N,T,H,W,9), gt (N,H,W,1), gt_instance (N,H,W,1), cloud_cover (N,T,H,W)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.sources.base import short_list
from cropstar.sources.zuericrop.options import FILE_BANDS

ENDINGS = (".h5", ".hdf5")
LABELS = "labels.csv"
DATASETS = ("data", "gt", "gt_instance", "cloud_cover")
UNREADABLE = (OSError, RuntimeError, KeyError, ValueError, TypeError)
LARGEST_IMAGE = 2**28  # values of one image with all its dates: two hundred times those of the published file
LARGEST_CHUNK = 2**30  # bytes, which HDF5 holds at once
LARGEST_NUMBER = 2**31 - 1  # of a parcel: every pixel of every image could be one
READ_VALUES = 2**23  # read at once: 64 MB where they become 64-bit numbers
REMEDY = "download it again"


@dataclass(frozen=True)
class Shape:
    images: int
    dates: int
    height: int
    width: int

    @property
    def of(self) -> dict[str, tuple[int, ...]]:
        """What the shape of each dataset must be."""
        plane = (self.height, self.width)
        return {
            "data": (self.images, self.dates, *plane, len(FILE_BANDS)),
            "gt": (self.images, *plane, 1),
            "gt_instance": (self.images, *plane, 1),
            "cloud_cover": (self.images, self.dates, *plane),
        }


def looks_like_zuericrop(path: Path) -> bool:
    """A file with these datasets, or a folder that holds one beside a label table."""
    if path.is_dir():
        return (path / LABELS).is_file() and any(_has_datasets(entry) for entry in _candidates(path))
    return path.is_file() and path.suffix.lower() in ENDINGS and _has_datasets(path)


def find_file(path: Path) -> Path:
    """The file itself, or the one of a folder."""
    if not path.exists():
        raise InputError("no such file or folder", path=path, remedy="give ZueriCrop.hdf5 or the folder that holds it")
    if not path.is_dir():
        return path
    found = _candidates(path)
    fitting = [entry for entry in found if _has_datasets(entry)] or found  # a damaged file is named as such later
    if len(fitting) != 1:
        why = "it holds no .hdf5 file" if not found else f"it holds {short_list(entry.name for entry in fitting)}"
        raise UsageError("which file?", path=path, why=why, remedy="give the path of ZueriCrop.hdf5 itself")
    return fitting[0]


@contextmanager
def reading(path: Path) -> Iterator[dict[str, Any]]:
    """The datasets by name, as long as the file is open; what HDF5 cannot read is one line."""
    try:
        with h5py.File(path, "r") as handle:
            yield {name: _dataset(handle, name, path) for name in DATASETS}
    except CropstarError:
        raise
    except UNREADABLE as failure:
        raise InputError("damaged hdf5 file", path=path, why=str(failure), remedy=REMEDY) from None


def check_shape(datasets: dict[str, Any], path: Path) -> Shape:
    """The common shape of the datasets, which must hold numbers and be of a size that can be read piece by piece."""
    for name, dataset in datasets.items():
        if dataset.dtype.kind not in "iuf":
            why = f"'{name}' holds {dataset.dtype}, not numbers"
            raise InputError("not ZueriCrop", path=path, why=why, remedy=REMEDY)
    found = datasets["data"].shape
    if len(found) != 5 or found[4] != len(FILE_BANDS) or 0 in found:
        why = f"'data' is {found}, not images x dates x rows x columns x {len(FILE_BANDS)} bands"
        raise InputError("not ZueriCrop", path=path, why=why, remedy=REMEDY)
    shape = Shape(*(int(side) for side in found[:4]))
    for name, wanted in shape.of.items():
        if datasets[name].shape != wanted:
            why = f"'{name}' is {datasets[name].shape}, with this 'data' it would be {wanted}"
            raise InputError("datasets of different shapes", path=path, why=why, remedy=REMEDY)
        chunk = math.prod(datasets[name].chunks or ()) * datasets[name].dtype.itemsize
        if math.prod(wanted[1:]) > LARGEST_IMAGE or chunk > LARGEST_CHUNK:
            raise InputError("too large to be read", path=path, why=f"'{name}' is {wanted}", remedy=REMEDY)
    if shape.images * shape.height * shape.width > LARGEST_NUMBER:
        raise InputError("too many images", path=path, why=f"'data' is {found}", remedy="cut the file into several")
    return shape


def batches(dataset: Any, first: int, end: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Some images after the other: the number of the first and their values."""
    size = max(READ_VALUES // math.prod(dataset.shape[1:]), 1)
    for start in range(first, end, size):
        yield start, dataset[start : min(start + size, end)]


def whole_numbers(values: NDArray[Any], name: str, path: Path) -> NDArray[np.int64]:
    """Codes and ids, which some writers store as floating point."""
    if values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all():
        raise InputError("not ZueriCrop", path=path, why=f"'{name}' holds fractions, not codes", remedy=REMEDY)
    return values.astype(np.int64)


def _candidates(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if entry.suffix.lower() in ENDINGS and entry.is_file())


def _has_datasets(path: Path) -> bool:
    try:
        with h5py.File(path, "r") as handle:
            return set(DATASETS) <= set(handle)
    except UNREADABLE:
        return False


def _dataset(handle: Any, name: str, path: Path) -> Any:
    if name not in handle:
        why = f"no dataset '{name}' among {short_list(sorted(handle)) or 'none'}"
        raise InputError("not ZueriCrop", path=path, why=why, remedy="give the file ZueriCrop.hdf5")
    # What lies elsewhere is not followed: a file could otherwise make us read any other.
    elsewhere = not isinstance(handle.get(name, getlink=True), h5py.HardLink)
    found = None if elsewhere else handle[name]
    if not isinstance(found, h5py.Dataset) or found.is_virtual or found.external:
        raise InputError("not ZueriCrop", path=path, why=f"'{name}' is no dataset of this file", remedy=REMEDY)
    return found
