"""What the header of a GeoTIFF says, and whether it can be a part of a series at all."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.geo.sensors import SCALE
from cropstar.sources.stack.handles import OpenRasters

INTEGERS = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
# GDAL decodes whole blocks: a whole granule in one strip still fits, a lie of the header does not.
MAXIMUM_BLOCK_BYTES, MAXIMUM_PIXEL_BYTES = 2**30, 8


@dataclass(frozen=True)
class Header:
    """Of each band: description or tag, nodata (None: zero), and scale and offset with Sentinel-2's where unset."""

    path: Path
    grid: Grid
    names: tuple[str, ...]
    nodata: tuple[float | None, ...]
    radiometry: tuple[tuple[float, float], ...]
    block: tuple[int, int]

    @property
    def count(self) -> int:
        return len(self.names)


def read_header(path: Path, files: OpenRasters, *, mask: bool = False) -> Header:
    """Look at a file; one that can be no band, or no mask, is refused."""
    dataset = files.dataset(path)
    if mask:
        _require_place(dataset, path)
        _require_blocks(dataset, path)
        if "complex" in dataset.dtypes[0]:
            why = f"values are {dataset.dtypes[0]}"
            raise InputError("not a mask", path=path, why=why, remedy="store 0 for clear and 1 for not clear")
    else:
        _require_scaled_integers(dataset, path)
    names = [dataset.tags(index).get("BAND") or dataset.descriptions[index - 1] or "" for index in dataset.indexes]
    pairs = list(zip(dataset.scales, dataset.offsets, strict=True))
    return Header(
        path,
        Grid.of(dataset),
        tuple(name.strip() for name in names),
        dataset.nodatavals,
        tuple((SCALE, 0.0) if pair == (1.0, 0.0) else (float(pair[0]), float(pair[1])) for pair in pairs),
        dataset.block_shapes[0],
    )


def _require_scaled_integers(dataset: Any, path: Path) -> None:
    """Reflectance is stored as whole numbers, on a known place, in blocks that can be decoded."""
    _require_place(dataset, path)
    if dataset.dtypes[0] not in INTEGERS:
        why = f"values are {dataset.dtypes[0]}"
        raise InputError("not a scaled integer stack", path=path, why=why, remedy="store reflectance x 10000 as uint16")
    _require_blocks(dataset, path)


def require_radiometry(header: Header, index: int) -> tuple[float, float]:
    """Scale and offset of a reflectance band."""
    scale, offset = header.radiometry[index - 1]
    if not (math.isfinite(scale) and math.isfinite(offset) and scale > 0):
        why = f"scale {scale:g}, offset {offset:g}"
        raise InputError("no usable scale", path=header.path, why=why, remedy="set it with gdal_edit -scale 0.0001")
    return scale, offset


def _require_place(dataset: Any, path: Path) -> None:
    if dataset.crs is None:
        raise InputError("no coordinate system", path=path, remedy="set one with gdal_edit -a_srs")
    numbers = tuple(dataset.transform)[:6]
    if not all(map(math.isfinite, numbers)) or not numbers[0] or not numbers[4]:
        why = f"its transform is {', '.join(f'{number:g}' for number in numbers)}"
        raise InputError("no usable pixel size", path=path, why=why, remedy="bring it to a grid with gdalwarp -tr")


def _require_blocks(dataset: Any, path: Path) -> None:
    height, width = dataset.block_shapes[0]
    # Where bands lie pixel by pixel, a block holds all of them.
    together = dataset.count if dataset.profile.get("interleave") == "pixel" else 1
    pixel = max(np.dtype(dataset.dtypes[0]).itemsize * together, MAXIMUM_PIXEL_BYTES)
    if height * width * pixel > MAXIMUM_BLOCK_BYTES:
        why = f"it is stored in blocks of {width} x {height} pixels" + (f" of {together} bands" if together > 1 else "")
        remedy = "store it in tiles with gdal_translate -co TILED=YES -co INTERLEAVE=BAND"
        raise InputError("blocks too large to read", path=path, why=why, remedy=remedy)
