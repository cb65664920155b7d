"""Vector files of labels: their outlines or points, the column of the crop, the user's ids."""

from __future__ import annotations

import glob
import json
import re
import sqlite3
import struct
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from cropstar.errors import InputError, one_line
from cropstar.inputs import require_file
from cropstar.registry import short_list
from cropstar.runtime import logger
from cropstar.sources.points import is_point_table, read_point_table

# Of public registers and surveys: EuroCrops, the French register (RPG), Swiss cantons, LUCAS.
REGISTER_LABELS = ("ec_hcat_n", "code_cultu", "nutzung", "lc1_label", "lc1")
LABEL_COLUMNS = ("crop", "crop_name", "crop_type", "croptype", "label", "class", "classname", "culture")
KEY_COLUMNS = ("parcel_id", "id_parcel", "parcel", "field_id", "point_id", "sample_id", "id", "fid")
# How the files begin that may be read. GDAL follows other ones (OGR VRT, GDALG, WFS) to any file or host.
BINARY_FORMATS = (b"SQLite format 3\0", b"\x00\x00\x27\x0a", b"fgb")  # GeoPackage, shapefile, FlatGeobuf
GEOPACKAGE, SHAPEFILE = BINARY_FORMATS[:2]
PARQUET = b"PAR1"
# A code, a name, or one of OGC's, which looks like an address and is not fetched.
CRS_NAME = re.compile(r"(https?://www\.opengis\.net/)?((?!//)[\w:./ ()+-])*", re.ASCII)
FORMATS_REMEDY = "give a GeoPackage, shapefile, FlatGeobuf, GeoJSON or GeoParquet"
WRITE_ANEW = "write the parcels to a new file with QGIS or ogr2ogr"
MOST_COLUMNS = 2000  # as many as SQLite takes: parcels are written with all their columns
# pyogrio reads names as if they were addresses: it looks for an archive before "!" and drops the others.
MISREAD = re.compile(r"[!;\t\r\n]")


def open_vector(path: Path) -> Any:
    """The file as a GeoDataFrame with a coordinate system."""
    import geopandas

    require_file(path)
    if is_point_table(path):
        return read_point_table(path)
    name = _vector_name(path)
    if name.startswith("GeoJSON:"):
        _require_own_json(path)
    layer = None
    try:
        parquet = _is_parquet(path)
        if not parquet and not name.startswith("GeoJSON:"):
            _require_own_features(path, name, layer := _layer_of(path))
        frame = geopandas.read_parquet(path) if parquet else geopandas.read_file(name, layer=layer)
        for column in frame.select_dtypes("string"):
            frame[column].tolist()  # pyarrow decodes texts late: here those that are not UTF-8 are noticed
    except InputError:
        raise
    except ImportError:
        remedy = "install it with: pip install 'cropstar[parquet]'"
        raise InputError("GeoParquet files need pyarrow", path=path, remedy=remedy) from None
    except Exception as failure:
        why = f"not a vector file that can be read ({one_line(failure)})"
        raise InputError("unreadable parcels", path=path, why=why, remedy=FORMATS_REMEDY) from None
    if not isinstance(frame, geopandas.GeoDataFrame) or frame.crs is None:
        raise InputError("no coordinate system", path=path, remedy="give parcels with geometries and a CRS")
    _require_columns(len(frame.columns), path)
    if not frame.columns.is_unique:
        why = f"'{frame.columns[frame.columns.duplicated()][0]}' is there twice"
        raise InputError("a repeated column", path=path, why=why, remedy="rename or remove one of them")
    return frame


def _require_columns(count: int, path: Path) -> None:
    if count > MOST_COLUMNS:
        why = f"{count:,} columns are more than {MOST_COLUMNS:,}"
        raise InputError("too many columns", path=path, why=why, remedy="leave out what does not describe the parcels")


def _require_own_features(path: Path, name: str, layer: str | None) -> None:
    """Refuse a file that claims more features than fit in it, room for which would be made, or very many columns."""
    import pyogrio

    info = pyogrio.read_info(name, layer=layer)
    _require_columns(len(info["fields"]), path)
    claimed = info["features"]
    size = sum(each.stat().st_size for each in path.parent.glob(f"{glob.escape(path.stem)}.*") if each.is_file())
    if claimed > size:
        why = f"it claims {claimed:,} parcels and has {size:,} bytes"
        raise InputError("damaged parcels", path=path, why=why, remedy=WRITE_ANEW)


def _layer_of(path: Path) -> str | None:
    """The first layer of a GeoPackage, which must be stored there; None of other files, which have one.

    GDAL looks at the first rows of whatever it opens, and a view can have rows without end, a generated column texts of
    any length. So SQLite tells what is what before, and no layer but this one is opened.
    """
    with path.open("rb") as handle:
        if handle.read(len(GEOPACKAGE)) != GEOPACKAGE:
            return None
    journal = path.with_name(f"{path.name}-journal")
    if journal.is_file() and journal.stat().st_size:
        why = f"'{journal.name}' beside it has a change that was not finished"
        raise InputError("parcels that were being written", path=path, why=why, remedy="open and save them in QGIS")
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
        _require_stored(base, path, "gpkg_*")
        found = base.execute(
            "select table_name from gpkg_contents where data_type = 'features' order by rowid limit 20"
        )
        layers = [str(name) for (name,) in found]
        layer = next(iter(layers), None)
        if len(layers) > 1:
            logger.warning("%s has several layers of outlines, %s: '%s' is read", path, short_list(layers), layer)
        if layer is None:
            raise InputError("unreadable parcels", path=path, why="no layer has outlines", remedy=FORMATS_REMEDY)
        _require_stored(base, path, re.sub(r"[*?[]", r"[\g<0>]", layer))
    return layer


def _require_stored(base: sqlite3.Connection, path: Path, names: str) -> None:
    """Refuse tables that are computed when they are read."""
    query = "select name, type, sql from sqlite_master where lower(name) glob lower(?)"
    for name, kind, sql in base.execute(query, (names,)).fetchall():
        hidden = base.execute("select max(hidden) from pragma_table_xinfo(?)", (name,)).fetchone()[0]
        if kind == "view" or str(sql).lower().startswith("create virtual") or hidden:
            why = f"'{name}' is not stored there but computed"
            raise InputError("not a plain table of parcels", path=path, why=why, remedy=WRITE_ANEW)


def _require_own_json(path: Path) -> None:
    """Refuse a GeoJSON file whose coordinate system is somewhere else, or with very many columns.

    GDAL would fetch the system from there.
    GDAL looks for `crs` in the file and in its geometries, in capitals too, and takes the first or the last of several:
    each must be a name, wherever it stands.
    """

    columns: set[str] = set()

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        for key, value in pairs:
            if key.lower() == "crs" and isinstance(value, dict) and not _names_crs(value):
                raise LinkedCrs
            if key == "properties" and isinstance(value, dict):
                columns.update(value)
                _require_columns(len(columns), path)
        return dict(pairs)

    try:
        json.loads(path.read_bytes(), object_pairs_hook=look)
    except LinkedCrs:
        remedy = "leave crs out, or name it: urn:ogc:def:crs:EPSG::4326"
        raise InputError(
            "the coordinate system is a link", path=path, why="it is not followed", remedy=remedy
        ) from None
    except InputError:
        raise
    except (ValueError, RecursionError) as failure:
        why = f"not JSON that can be read ({one_line(failure)})"
        raise InputError("unreadable parcels", path=path, why=why, remedy=FORMATS_REMEDY) from None


class LinkedCrs(Exception):
    """A coordinate system that is not in the file."""


def _names_crs(crs: dict[str, Any]) -> bool:
    """Whether it is `{"type": "name", "properties": {"name": "EPSG:4326"}}`, and no more than that."""
    members = {key.lower(): value for key, value in crs.items()}
    properties = members.get("properties")
    if str(members.get("type")).lower() not in ("name", "epsg") or not isinstance(properties, dict):
        return False
    texts = [str(value) for value in properties.values()]
    return {key.lower() for key in properties} <= {"name", "code"} and all(map(CRS_NAME.fullmatch, texts))


def find_label_column(frame: Any, wanted: str | None, path: Path) -> str:
    """The column that names the crop."""
    columns = [str(name) for name in frame.columns if name != frame.geometry.name]
    if wanted is not None:
        column = wanted if wanted in columns else None
        what = f"no column '{wanted}'"
    else:
        column = guess_label_column(columns)
        what = "no label column"
    if column is None:
        why = f"the columns are {', '.join(columns) or 'none'}"
        raise InputError(what, path=path, why=why, remedy="name it with --label-column")
    return column


def guess_label_column(columns: Sequence[str]) -> str | None:
    """The first column that is called as people call the crop, else one that a public register or survey has."""
    column = next((name for name in columns if name.lower() in LABEL_COLUMNS), None)
    return column or next((name for known in REGISTER_LABELS for name in columns if name.lower() == known), None)


def keys_of(frame: Any) -> list[str]:
    """The user's own names of the parcels, else the numbers of the rows."""
    key = next((name for name in frame.columns if name.lower() in KEY_COLUMNS and _tells_apart(frame[name])), None)
    return [str(value) for value in frame[key]] if key else [str(row + 1) for row in range(len(frame))]


def labels_of(column: Any) -> list[str | None]:
    """The labels as text, None where there is none."""
    missing = column.isna().tolist()
    return [None if gap else label_text(value) or None for value, gap in zip(column.tolist(), missing, strict=True)]


def label_text(value: Any) -> str:
    """A label as text: a column of whole numbers with gaps is read as 1.0, 2.0, nan."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()


def _vector_name(path: Path) -> str:
    """The name by which GDAL reads the file as what it is and as nothing else."""
    require_file(path)
    with path.open("rb") as handle:
        start = handle.read(64)
    name = str(path) if path.is_absolute() else f"./{path}"  # or it could begin like an address or a database
    if start.startswith((GEOPACKAGE, SHAPEFILE)):
        _require_companions(path)
    if start.startswith(SHAPEFILE):
        _require_one_shapefile(path)
    if start.startswith(BINARY_FORMATS):
        if MISREAD.search(name):
            why = "its name contains !, ;, a tab or a line break"
            raise InputError("unreadable parcels", path=path, why=why, remedy="rename the file or folder")
        return name
    if start.startswith(PARQUET):
        return name
    if start.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{"):
        return f"GeoJSON:{name}"
    raise InputError("unreadable parcels", path=path, why="not a known vector format", remedy=FORMATS_REMEDY)


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(len(PARQUET)) == PARQUET


def _require_companions(path: Path) -> None:
    """GDAL opens what lies beside a shapefile or database under its name, and would wait for a pipe."""
    for entry in path.parent.iterdir():
        if (
            (entry.stem == path.stem or entry.name.startswith(f"{path.name}-"))
            and entry.exists()
            and not entry.is_dir()
        ):
            require_file(entry)


def _require_one_shapefile(path: Path) -> None:
    """Refuse the parts of different shapefiles, or of one that was cut off: GDAL takes as many parcels as it finds."""
    beside = {entry.suffix.lower(): entry for entry in path.parent.iterdir() if entry.stem == path.stem}
    heads: dict[str, tuple[bytes, int]] = {}
    for ending in (".shp", ".shx", ".dbf"):
        if ending in beside and beside[ending].is_file():
            with beside[ending].open("rb") as handle:
                heads[ending] = handle.read(100).ljust(100, b"\0"), beside[ending].stat().st_size
    counts, why = {}, None
    if ".shx" in heads:
        counts[".shx"] = max(heads[".shx"][1] - 100, 0) // 8
    if ".dbf" in heads:
        counts[".dbf"] = struct.unpack("<I", heads[".dbf"][0][4:8])[0]
    if len(set(counts.values())) > 1:
        why = f"its .shx has {counts['.shx']:,} parcels and its .dbf {counts['.dbf']:,}"
    for ending in {".shp", ".shx"} & heads.keys():
        head, size = heads[ending]
        if size < (claimed := 2 * struct.unpack(">I", head[24:28])[0]):
            why = f"its {ending} has {size:,} of {claimed:,} bytes"
    if heads.keys() >= {".shp", ".shx"}:
        places = np.fromfile(beside[".shx"], dtype=">i4", offset=100, count=2 * counts[".shx"]).reshape(-1, 2)
        if len(places) and 2 * int(places.astype(np.int64).sum(axis=1).max()) + 8 > heads[".shp"][1]:
            why = why or "its .shx is not of its .shp"
    if why is not None:
        remedy = "copy all of its parts together"
        raise InputError("parts of different shapefiles, or cut off", path=path, why=why, remedy=remedy)


def _tells_apart(column: Any) -> bool:
    """Whether a column can name parcels: many files have an id that is empty or the same everywhere."""
    return bool(column.notna().all()) and column.map(str).nunique() > 1  # as text: a value may be a list
