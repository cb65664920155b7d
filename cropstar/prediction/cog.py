"""Cloud-optimised GeoTIFFs: first a plain file that takes windows in any order, then a copy laid out for reading.

The plain file (the draft) is also what smoothing, parcels and pictures are made from. GDAL keeps a full disk to itself
until it is too late, and a failed copy removes what was there: the copy is made under another name and read back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import rasterio.shutil
from numpy.typing import NDArray
from rasterio.errors import RasterioError

from cropstar.errors import ResourceError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import checksum, rasterio_window
from cropstar.geo.windows import Window
from cropstar.prediction.layers import Layer
from cropstar.prediction.names import band_tags
from cropstar.store.classes import ClassTable
from cropstar.store.files import atomic_path

NODATA = 255
BLOCK = 256
FULL_DISK = "free some disk space and run again"


@dataclass(frozen=True)
class RasterKind:
    """What a raster holds, and how its overviews are made."""

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
        try:
            self._dataset.write(values, window=rasterio_window(window))
        except RasterioError as failure:
            raise ResourceError("cannot write", path=self.path, why=str(failure), remedy=FULL_DISK) from None
        self.written.append((window, checksum(values)))

    def read(self, window: Window) -> NDArray[Any]:
        """(bands, h, w) of a draft that is finished."""
        try:
            with rasterio.open(self.path, driver="GTiff") as dataset:
                values: NDArray[Any] = dataset.read(window=rasterio_window(window))
        except RasterioError as failure:
            raise ResourceError("cannot read back", path=self.path, why=str(failure), remedy=FULL_DISK) from None
        return values


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
    try:
        with rasterio.open(path, "w", **profile) as dataset:
            if kind.classes is not None:
                dataset.write_colormap(1, {entry.number: (*entry.rgb, 255) for entry in kind.classes})
                dataset.update_tags(1, **band_tags(kind.classes))
            dataset.descriptions = tuple(kind.bands)
            draft._dataset = dataset
            yield draft
    except RasterioError as failure:
        raise ResourceError("cannot write", path=path, why=str(failure), remedy=FULL_DISK) from None
    finally:
        draft._dataset = None
    _require_whole(path, draft.written, path)


def publish(draft: Draft, final: Path, tags: dict[str, str]) -> None:
    """Copy a finished draft to its final name, cloud-optimised, once it reads back as it was written."""
    layout = {"compress": "deflate", "blocksize": BLOCK, "overview_resampling": draft.kind.overviews}
    if draft.kind.classes is None:
        layout["predictor"] = "standard"
    try:
        with atomic_path(final) as partial:
            with rasterio.open(draft.path, "r+", driver="GTiff") as dataset:
                dataset.update_tags(**tags)
                dataset.scales = (draft.kind.scale,) * dataset.count
                dataset.units = (draft.kind.unit,) * dataset.count
            rasterio.shutil.copy(
                draft.path, partial, driver="COG", bigtiff="if_safer", num_threads="all_cpus", **layout
            )
            _require_whole(partial, draft.written, final)
    except RasterioError as failure:
        raise ResourceError("cannot write the map", path=final, why=str(failure), remedy=FULL_DISK) from None


def read_thinned(path: Path, longest_side: int) -> NDArray[Any]:
    """The first band, every n-th pixel of it: two rasters of one grid are thinned to the same pixels."""
    with rasterio.open(path, driver="GTiff", overview_level="none") as dataset:
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
            whole = all(checksum(dataset.read(window=rasterio_window(window))) == wanted for window, wanted in written)
    except RasterioError:
        whole = False
    if not whole:
        why = "not all of it reached the disk"
        raise ResourceError("cannot write the map", path=final, why=why, remedy=FULL_DISK)
