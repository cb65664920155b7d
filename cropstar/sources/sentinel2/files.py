"""Opening band files: JPEG 2000 or GeoTIFF and nothing else, looked at before GDAL sees them."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning, RasterioError

from cropstar.errors import InputError
from cropstar.geo.paths import require_name
from cropstar.geo.raster import OPEN_ENVIRONMENT, rasterio_window
from cropstar.geo.windows import Window
from cropstar.sources.base import HandleCache
from cropstar.sources.sentinel2.containers import REMEDY, Place

# A granule is 10,980 pixels a side at 10 m.
MAXIMUM_SIDE = 12_000
MAXIMUM_BOXES = 100
LEAST_ROWS = 256  # to be read at a time
DRIVERS = {".jp2": "JP2OpenJPEG", ".tif": "GTiff", ".tiff": "GTiff"}
JP2_SIGNATURE = b"\x00\x00\x00\x0cjP  \r\n\x87\n"
CODESTREAM_START, CODESTREAM_END = b"\xff\x4f\xff\x51", b"\xff\xd9"


class BandFiles(HandleCache[Place]):
    """Open band files."""

    def dataset(self, place: Place) -> Any:
        """The open rasterio dataset of a band file."""
        return self.get(place, lambda stack: stack.enter_context(_open_band(place)))

    def read(self, place: Place, window: Window) -> NDArray[Any]:
        """Pixels (h, w) of a window, which may be empty."""
        dataset = self.dataset(place)
        if not window.height or not window.width:
            return np.zeros((window.height, window.width), dtype=dataset.dtypes[0])
        try:
            pixels: NDArray[Any] = dataset.read(1, window=rasterio_window(window))
        except RasterioError as failure:
            why = f"the pixels cannot be read ({failure.__cause__ or failure})"
            raise InputError("damaged band file", path=place.label, why=why, remedy=REMEDY) from None
        return pixels

    def strips(self, place: Place, window: Window) -> Iterator[tuple[int, NDArray[Any]]]:
        """All rows of a window, as many at a time as are stored together, with where they begin in the window."""
        step = self.dataset(place).block_shapes[0][0]
        step *= max(LEAST_ROWS // step, 1)
        top = window.top
        while top < window.bottom:
            bottom = min((top // step + 1) * step, window.bottom)
            yield top - window.top, self.read(place, Window(top, window.left, bottom - top, window.width))
            top = bottom


def _open_band(place: Place) -> Any:
    driver = DRIVERS["." + place.member.rpartition(".")[2].lower()]
    require_name(Path(place.gdal_name))
    with place.open() as handle:
        _look_at(place, handle, driver)
    try:
        with rasterio.Env(**OPEN_ENVIRONMENT), warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            dataset = rasterio.open(place.gdal_name, driver=driver)
    except RasterioError as failure:
        raise _unreadable(place, f"GDAL's {driver} driver cannot open it ({failure})") from None
    try:
        _check(place, dataset)
    except InputError:
        dataset.close()
        raise
    return dataset


def _check(place: Place, dataset: Any) -> None:
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


def _check_size(place: Place, width: int, height: int) -> None:
    if max(width, height) > MAXIMUM_SIDE:
        why = f"{width} x {height} pixels"
        raise InputError("a raster too large to be a granule", path=place.label, why=why, remedy=REMEDY)


def _look_at(place: Place, handle: IO[bytes], driver: str) -> None:
    """What a file is, how large it says it is and whether its end is there, before GDAL allocates anything."""
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


def _codestream(place: Place, handle: IO[bytes]) -> tuple[int, int]:
    """Where the image begins and ends in the chain of boxes that a JP2 file is."""
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


def _unreadable(place: Place, why: str) -> InputError:
    return InputError("unreadable band file", path=place.label, why=why, remedy=REMEDY)
