"""Parcel vectors: which field grows what, burnt onto a scene's grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.limits import MAXIMUM_CLASSES
from cropstar.store.classes import UNLABELLED, ClassTable
from cropstar.store.tile import ParcelTable

LABEL_COLUMNS = ("crop", "crop_name", "crop_type", "croptype", "label", "class", "classname", "culture")
# How the files begin that may be read. GDAL follows other ones (OGR VRT, GDALG, WFS) to any file or host.
BINARY_FORMATS = (b"SQLite format 3\0", b"\x00\x00\x27\x0a", b"fgb")  # GeoPackage, shapefile, FlatGeobuf
REMEDY = "give a GeoPackage, shapefile, FlatGeobuf or GeoJSON"
KEY_COLUMNS = ("parcel_id", "id_parcel", "parcel", "field_id", "id", "fid")


@dataclass(frozen=True)
class Parcels:
    """Parcels on one grid. Smaller parcels come last, so that they win where parcels overlap."""

    classes: ClassTable
    table: ParcelTable
    shapes: list[Any]  # shapely geometries in the grid's coordinates, in the order of the table

    def relabelled(self, classes: ClassTable) -> Parcels:
        """The same parcels with the numbers of a table that has all of their classes."""
        numbers = np.array([classes.number_of(name) for name in self.classes.names], dtype=np.int16)
        return Parcels(classes, replace(self.table, labels=numbers[self.table.labels]), self.shapes)

    def burn(self, grid: Grid) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        """Label and parcel rasters (H, W) of a piece of the grid; a pixel belongs to the parcel at its centre."""
        from rasterio.features import rasterize

        numbers = np.zeros(grid.shape, dtype=np.int32)
        if self.shapes:
            pairs = zip(self.shapes, self.table.numbers.tolist(), strict=True)
            rasterize(pairs, out=numbers, transform=grid.affine)
        lookup = np.full(int(self.table.numbers.max(initial=0)) + 1, UNLABELLED, dtype=np.int16)
        lookup[self.table.numbers] = self.table.labels
        return lookup[numbers], numbers


def read_parcels(path: Path, grid: Grid, *, label_column: str | None = None) -> Parcels:
    """Read a vector file and bring it to the grid's coordinate system."""
    import geopandas

    name = _vector_name(path)
    try:
        frame = geopandas.read_file(name)
    except (RuntimeError, ValueError, OSError) as failure:
        why = f"not a vector file that can be read ({failure})"
        raise InputError("unreadable parcels", path=path, why=why, remedy=REMEDY) from None
    if not isinstance(frame, geopandas.GeoDataFrame) or frame.crs is None:
        raise InputError("no coordinate system", path=path, remedy="give parcels with geometries and a CRS")
    label = _find_column(frame, label_column, path)
    key = next((name for name in frame.columns if name.lower() in KEY_COLUMNS and _tells_apart(frame[name])), None)

    frame["_key"] = frame[key].astype(str) if key else [str(row + 1) for row in range(len(frame))]
    frame = frame.to_crs(grid.rasterio_crs)
    usable = (frame.geometry.area > 0) & frame[label].notna()  # a field has an area: no points, lines or nothing
    left, bottom, right, top = grid.bounds
    frame = frame[usable].cx[left:right, bottom:top]
    if frame.empty:
        raise InputError(
            "no labelled parcel lies on the scene", path=path, remedy="check that both cover the same place"
        )
    names = frame[label].astype(str)
    classes = ClassTable.from_names(names)
    if len(classes) > MAXIMUM_CLASSES:
        why = f"{len(classes)} different values in column '{label}'"
        raise InputError("too many classes", path=path, why=why, remedy="choose another column with --label-column")

    order = np.lexsort((frame["_key"].to_numpy(), -frame.geometry.area.to_numpy()))
    frame, names = frame.iloc[order], names.iloc[order]
    numbers = np.arange(1, len(frame) + 1, dtype=np.int32)
    labels = np.array([classes.number_of(name) for name in names], dtype=np.int16)
    return Parcels(classes, ParcelTable(numbers, frame["_key"].tolist(), labels), frame.geometry.tolist())


def _vector_name(path: Path) -> str:
    """The name by which GDAL reads the file as what it is and as nothing else."""
    if not path.is_file():
        raise InputError("no such file", path=path, remedy="check the path")
    with path.open("rb") as handle:
        start = handle.read(64)
    if start.startswith(BINARY_FORMATS):
        return str(path)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return f"GeoJSON:{path}"
    raise InputError("unreadable parcels", path=path, why="not a known vector format", remedy=REMEDY)


def _tells_apart(column: Any) -> bool:
    """Whether a column can name parcels: many files have an id that is empty or the same everywhere."""
    return bool(column.notna().all()) and column.nunique() > 1


def _find_column(frame: Any, wanted: str | None, path: Path) -> str:
    columns = [str(name) for name in frame.columns if name != frame.geometry.name]
    if wanted is not None:
        found = wanted if wanted in columns else None
        what = f"no column '{wanted}'"
    else:
        found = next((name for name in columns if name.lower() in LABEL_COLUMNS), None)
        what = "no label column"
    if found is None:
        why = f"the columns are {', '.join(columns) or 'none'}"
        raise InputError(what, path=path, why=why, remedy="name it with --label-column")
    return found
