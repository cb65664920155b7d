"""The classified GeoTIFF: one byte a pixel, 255 where nothing was seen, colours and names inside."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import rasterio
from numpy.typing import NDArray

from cropstar.errors import ResourceError
from cropstar.geo.grid import Grid
from cropstar.geo.raster import checksum, rasterio_window, reads_back
from cropstar.geo.windows import Window
from cropstar.store.atomic import atomic_path, write_text
from cropstar.store.classes import ClassTable

NODATA = 255
BLOCK = 256


class MapWriter:
    """An open map; remembers a checksum of each window so that the file can be verified."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.written: list[tuple[int, Window, int]] = []

    def write(self, window: Window, classes: NDArray[np.uint8]) -> None:
        self._dataset.write(classes, 1, window=rasterio_window(window))
        self.written.append((1, window, checksum(classes)))


@contextmanager
def create_map(path: Path, grid: Grid, classes: ClassTable, tags: dict[str, str]) -> Iterator[MapWriter]:
    """Write a map beside its place; it gets its name once it is closed and reads back as written."""
    profile = {
        "driver": "GTiff",
        "dtype": "uint8",
        "count": 1,
        "height": grid.height,
        "width": grid.width,
        "crs": grid.rasterio_crs,
        "transform": grid.affine,
        "nodata": NODATA,
        "compress": "deflate",
        "tiled": True,
        "blockxsize": BLOCK,
        "blockysize": BLOCK,
        "bigtiff": "if_safer",
    }
    with atomic_path(path) as partial:
        with rasterio.open(partial, "w", **profile) as dataset:
            dataset.write_colormap(1, {entry.number: (*entry.rgb, 255) for entry in classes})
            dataset.set_band_description(1, "crop class")
            dataset.update_tags(**tags)
            dataset.update_tags(1, **{f"CLASS_{entry.number}": entry.name for entry in classes})
            writer = MapWriter(dataset)
            yield writer
        if not reads_back(partial, writer.written):
            why = "not all of it reached the disk"
            raise ResourceError("cannot write the map", path=path, why=why, remedy="free some disk space and run again")
        write_text(names_file(path), _category_names(classes))


def names_file(path: Path) -> Path:
    """Where GDAL and QGIS look for the names of a raster's values."""
    return path.with_name(f"{path.name}.aux.xml")


def _category_names(classes: ClassTable) -> str:
    rows = "\n".join(f"      <Category>{escape(entry.name)}</Category>" for entry in classes)
    band = f'  <PAMRasterBand band="1">\n    <CategoryNames>\n{rows}\n    </CategoryNames>\n  </PAMRasterBand>'
    return f"<PAMDataset>\n{band}\n</PAMDataset>\n"


def read_for_display(path: Path, longest_side: int = 2000) -> NDArray[np.uint8]:
    """The map, thinned out to what a picture can show."""
    with rasterio.open(path, driver="GTiff") as dataset:
        grid = Grid.of(dataset)
        factor = max(1.0, max(grid.shape) / longest_side)
        height, width = max(1, round(grid.height / factor)), max(1, round(grid.width / factor))
        thinned: NDArray[np.uint8] = dataset.read(1, out_shape=(height, width))
    return thinned
