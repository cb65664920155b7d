"""Parcels with their classes on the map.

Added to the parcels' own columns:

    declared                    the crop that the file names, where it has a column for it
    mapped, mapped_number       the class of the highest mean probability, as in evaluation, or unknown
    probability                 that mean
    second, second_probability  the next class, and its mean
    agreement_with_declared     whether mapped and declared are the same; null where the model knows no such crop
    pixel_share                 of the parcel's pixels, those that the map gives the mapped class
    part                        what the parcel was to the model: train, validation, test or new
    pixels, hectares            pixels that were seen, those on the edge by their part; area on the ellipsoid
    p_<class>                   a mean probability for each class

A parcel beside the map, or where nothing was seen, is kept with nulls. Models of parcels say a class of the whole
parcel: see `classify_parcel_series`.
"""

from __future__ import annotations

import contextlib
import io
import math
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import rasterio
from numpy.typing import NDArray

from cropstar.datasets.samples import CLEAR_SHARE
from cropstar.datasets.splits import PARTS
from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.grid import SQUARE_METRES_PER_HECTARE, Grid, degrees_of
from cropstar.geo.raster import rasterio_window
from cropstar.geo.windows import Window, split
from cropstar.prediction.layers import STEPS
from cropstar.prediction.predictor import Predictor
from cropstar.prediction.styles import parcel_style
from cropstar.registry import short_list
from cropstar.reports.record import TestRecord, boxes_meet
from cropstar.reports.results import RESULT, read_result
from cropstar.runtime import event, logger, track
from cropstar.sources.base import Observations, Series
from cropstar.sources.class_rules import EVERY_LABEL, ClassRules
from cropstar.sources.labels import Parcels, repair_shapes, shapes_in_crs, shapes_meet
from cropstar.sources.vectors import KEY_COLUMNS, guess_label_column, keys_of, open_vector
from cropstar.store.classes import MARKS, MASKED, UNKNOWN, ClassTable
from cropstar.store.files import atomic_path, library_writes, write_text
from cropstar.store.model_file import ModelCard, read_model
from cropstar.store.store import Store
from cropstar.store.tile import ParcelTable

Floats = NDArray[np.float64]
Shapes = NDArray[np.object_]
ParcelClassifier = Callable[[Path, "ParcelProduct"], "ParcelCount"]  # from parcels to the product

CLASS, NUMBER, PROBABILITY, SECOND, SECOND_PROBABILITY = (
    "mapped",
    "mapped_number",
    "probability",
    "second",
    "second_probability",
)
DECLARED, AGREES, SHARE, PART, PIXELS, HECTARES = (
    "declared",
    "agreement_with_declared",
    "pixel_share",
    "part",
    "pixels",
    "hectares",
)
OLDER = {"map_class", "map_number", "map_probability", "map_agreement", "map_pixels", "map_hectares"}
NEW = "new"  # the part of a parcel that the model's store does not have
MOSTLY = 0.5  # of a parcel's pixels: more that are unknown make it unknown
FORMATS = (".gpkg", ".parquet", ".geoparquet")
CELLS_AT_ONCE = 8_000_000  # of all bands, eight bytes each
EVER = "1970-01-01T00:00:00.000Z"  # the date in a GeoPackage: the same parcels give the same bytes
STYLE_TABLE = """CREATE TABLE layer_styles (id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL, f_table_catalog TEXT(256),
f_table_schema TEXT(256), f_table_name TEXT(256), f_geometry_column TEXT(256), styleName TEXT(30), styleQML TEXT,
styleSLD TEXT, useAsDefault BOOLEAN, description TEXT, owner TEXT(30), ui TEXT(30), update_time DATETIME)"""
WGS84 = "EPSG:4326"


def require_parcels(path: Path, output: Path, declared_column: str | None = None) -> None:
    """Refuse parcels that cannot be used, before the map is made."""
    if output.suffix.lower() not in FORMATS:
        raise UsageError(
            "unknown type of output file", path=output, remedy=f"give one that ends in {', '.join(FORMATS)}"
        )
    try:
        import exactextract  # noqa: F401
    except ImportError:
        remedy = "install it with: pip install 'cropstar[parcels]'"
        raise UsageError("parcels need exactextract", remedy=remedy) from None
    frame = open_vector(path)
    if not len(frame):
        raise InputError("no parcels", path=path, why="the file has no rows", remedy="give the outlines of parcels")
    if declared_column is not None:
        _require_column(frame, declared_column, path)


@dataclass(frozen=True)
class ParcelCount:
    """How many parcels of a file have a class."""

    classified: int
    total: int


@dataclass(frozen=True)
class ParcelProduct:
    """The output of classified parcels, and the options for their columns."""

    path: Path
    classes: ClassTable
    declared_column: str | None = None
    rules: ClassRules = EVERY_LABEL  # from declared crops to classes of the model
    model: Path | None = None  # whose run tells which parcels it learnt from
    grid: Grid | None = None  # of the map
    rate: float | None = None  # of --unknown
    notes: Mapping[str, str] = field(default_factory=dict)  # test figures and caveats of the map


def classify_parcels(parcels: Path, product: ParcelProduct, classes_raster: Path, stored: Path) -> ParcelCount:
    """Write the parcels with their classes.

    `stored` has the probabilities as layers are stored, without GDAL's scale.
    """
    classes = product.classes
    frame = open_vector(parcels)
    with rasterio.open(classes_raster, driver="GTiff") as dataset:
        grid = Grid.of(dataset)
    shapes, usable = on_grid(frame, grid, parcels)
    means, pixels, shares = _statistics(shapes[usable], grid, classes_raster, stored, len(classes))
    unknown = shares[:, UNKNOWN] > MOSTLY if len(classes) <= UNKNOWN else np.zeros(len(shares), dtype=np.bool_)
    answers = ParcelAnswers(usable, means, pixels, shares[:, : len(classes)], unknown)
    return write_classes(frame, answers, parcels, product)


@dataclass(frozen=True)
class ParcelAnswers:
    """The predictions of the N usable parcels of a file."""

    usable: NDArray[np.bool_]  # of all parcels
    means: Floats  # (N, K)
    pixels: Floats  # (N,) that were seen
    shares: Floats | None  # (N, K) of the map's classes; None where no map was asked
    unknown: NDArray[np.bool_]  # (N,)


def write_classes(frame: Any, said: ParcelAnswers, parcels: Path, product: ParcelProduct) -> ParcelCount:
    """The parcels with what is known of the usable ones."""
    frame, declared = _with_declared(frame, product.declared_column, parcels)
    columns = _columns(said, product.classes) | {HECTARES: hectares_of(frame.geometry)}
    columns |= _declared_columns(declared, columns[CLASS], product)
    columns[PART] = parts_of(product, frame)
    _log_agreement(columns[AGREES], columns[PART])
    style = parcel_style(product.classes, unknown=bool(said.unknown.any()))
    write_frame(frame.assign(**_in_order(columns)), product.path, product.notes, style)
    write_text(product.path.with_suffix(".qml"), style)
    classified = int(np.sum(columns[PIXELS] > 0))
    text = f"{classified:,} of {len(frame):,} parcels have a class"
    (event if classified or not len(frame) else logger.warning)(text)
    if product.rate is not None:
        _warn_of_unknown(columns, product.classes, product.rate)
    return ParcelCount(classified, len(frame))


def _warn_of_unknown(columns: Mapping[str, Any], classes: ClassTable, rate: float) -> None:
    """Say where more parcels are unknown than --unknown can be wrong about.

    Those that declare a crop of the model count; where nothing is declared, all do.
    """
    known = {crop for crop in set(columns[DECLARED]) if isinstance(crop, str) and classes.find(crop) is not None}
    declares = [crop in known for crop in columns[DECLARED]]
    asked = (columns[PIXELS] > 0) & (np.array(declares) if any(declares) else True)
    count = int(asked.sum())
    unknown = int((columns[NUMBER][asked] == UNKNOWN).sum())
    if count and unknown > count * rate + 3 * math.sqrt(count * rate * (1 - rate)):
        which = "parcels that declare a crop of the model" if any(declares) else "parcels"
        logger.warning(
            "%d of %d %s are unknown (%.0f %%), where --unknown %g allows for %.0f %%: either so many are of another "
            "crop, or the model does not fit these images",
            *(unknown, count, which, 100 * unknown / count, rate, 100 * rate),
        )


def _in_order(columns: dict[str, Any]) -> dict[str, Any]:
    first = (DECLARED, CLASS, PROBABILITY, SECOND, AGREES, SHARE, PART, HECTARES)
    return {name: columns[name] for name in first} | columns


def _require_column(frame: Any, column: str, path: Path) -> None:
    if column not in frame.columns:
        own = short_list((str(name) for name in frame.columns if name != frame.geometry.name), 12)
        raise InputError(f"no column '{column}'", path=path, why=f"it has {own}", remedy="check --declared-column")


def _with_declared(frame: Any, column: str | None, path: Path) -> tuple[Any, Any]:
    """The parcels without columns of an earlier map, and their declared crops, None where they have none.

    A column of the user's that has the name of one of ours is kept under another name.
    """
    names = {str(name).lower(): name for name in frame.columns}
    source = None
    if column is not None:
        _require_column(frame, column, path)
        source = column
    else:
        source = names.get(DECLARED) or guess_label_column(list(map(str, frame.columns)))
    declared = None if source is None else frame[source].copy()
    ours = {CLASS, NUMBER, PROBABILITY, SECOND, SECOND_PROBABILITY, DECLARED, AGREES, SHARE, PART, PIXELS, HECTARES}
    if {CLASS, SHARE} <= names.keys() or {"map_class", "map_agreement"} <= names.keys():
        stale = [
            own
            for name, own in names.items()
            if name in ours | OLDER or (name.startswith("p_") and frame[own].dtype.kind == "f")
        ]
        logger.info("%s: columns of an earlier map are replaced", path)
        return frame.drop(columns=stale), declared
    taken = {names[name]: f"{names[name]}_input" for name in names if name in ours}
    if taken:
        logger.info("%s: columns with the names of new ones are kept as %s", path, ", ".join(taken.values()))
    return frame.rename(columns=taken), declared


def _declared_columns(declared: Any, mapped: NDArray[Any], product: ParcelProduct) -> dict[str, Any]:
    import pandas

    classes = product.classes
    count = len(mapped)
    agrees = pandas.array([None] * count, dtype="boolean")
    if declared is None:
        return {DECLARED: np.full(count, None, dtype=object), AGREES: agrees}
    texts = [None if pandas.isna(value) or not str(value).strip() else str(value).strip() for value in declared]
    texts = product.rules.rename(texts)
    known = {text: classes.find(text) for text in set(texts) if text is not None}
    strange = Counter[str]()
    for row, (text, crop) in enumerate(zip(texts, mapped, strict=True)):
        if text is None or crop is None:
            continue
        if known[text] is None:
            strange[text] += 1
        elif crop in classes.names:
            agrees[row] = known[text] == crop
    if strange:
        shown = short_list((name for name, _ in strange.most_common()), 5)
        logger.warning(
            "%d parcels declare a crop that the model does not know: %s; they are not compared (--declared-classes "
            "gives crops the names of classes)",
            strange.total(),
            shown,
        )
    return {DECLARED: np.array(texts, dtype=object), AGREES: agrees}


def _log_agreement(agrees: Any, parts: NDArray[np.object_]) -> None:
    """How many parcels are mapped as declared, and how many of those that the model did not learn from."""
    comparable = ~np.asarray(agrees.isna())
    if not comparable.any():
        return
    right = np.asarray(agrees.fillna(False), dtype=bool)
    unseen = comparable & np.isin(parts.astype(str), ["test", NEW])
    text = f"{int(right[comparable].sum()):,} of {int(comparable.sum()):,} parcels are mapped as declared"
    if 0 < unseen.sum() < comparable.sum():
        text += f"; of those that training never saw, {int(right[unseen].sum()):,} of {int(unseen.sum()):,}"
    elif not unseen.any():
        known = bool(np.isin(parts.astype(str), ["train", "validation"]).any())
        text += f"; the model {'learnt' if known else 'may have learnt'} from them: no test"
    event(text, agreeing=int(right[comparable].sum()))


def parts_of(product: ParcelProduct, frame: Any) -> NDArray[np.object_]:
    """The part of the model's split that each parcel was in, by the user's ids; None without ids or without a run."""
    parts = np.full(len(frame), None, dtype=object)
    if product.model is None or product.grid is None:
        return parts
    if not any(str(name).lower() in KEY_COLUMNS for name in frame.columns):
        return parts
    part_of = _parts_of_run(product.model, product.grid)
    if part_of is not None:
        parts[:] = [part_of.get(key, NEW) for key in keys_of(frame)]
    return parts


def _parts_of_run(model: Path, grid: Grid) -> dict[str, str] | None:
    """The part of each parcel of the run's store on this grid, by the user's ids; None if they are not known.

    Ids of another region may be the same: scenes that the map does not meet are left out.
    """
    if not (model.parent / RESULT).is_file():
        return None
    try:
        result, (card, _, _) = read_result(model.parent), read_model(model)
        record = TestRecord.from_json(card.provenance.get("record", {}))
        if record is not None and not record.is_of(result):
            logger.warning("%s is not of the model: which parcels it learnt from is not known", model.with_name(RESULT))
            return None
        store = Store.open(Path(str(result["data"]["store"])))
    except (CropstarError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
    try:
        with store:
            members = result["split"]["parcels"]
            # Judged out of fold, parcels are of the test and of the training: this model has learnt from them.
            by_number = {
                (scene, int(number)): part
                for part in reversed(PARTS)
                for scene, own in members[part].items()
                for number in own
            }
            parts = {}
            for _, reader in store.readers():
                if not _meet(reader.grid, grid):
                    continue
                for number, key in zip(reader.table.numbers.tolist(), reader.table.keys, strict=True):
                    if (part := by_number.get((reader.scene, int(number)))) is not None:
                        parts[key] = part
            return parts
    except (KeyError, TypeError, ValueError, AttributeError, CropstarError):
        return None


def _meet(one: Grid, other: Grid) -> bool:
    first, second = degrees_of(one), degrees_of(other)
    return first is None or second is None or boxes_meet(first, second)


def hectares_of(geometry: Any) -> Floats:
    """Areas on the ellipsoid, whatever the coordinate system; 0 of points and lines, NaN of what has no place."""
    import shapely
    from pyproj import Geod

    ellipsoid = Geod(ellps="WGS84")
    places = geometry.to_crs(WGS84).to_numpy()
    areas = np.full(len(places), np.nan)
    known = ~(shapely.is_missing(places) | shapely.is_empty(places))
    corners, owners = shapely.get_coordinates(places, return_index=True)
    known[owners[~np.isfinite(corners).all(axis=1)]] = False
    for row in np.flatnonzero(known):
        # Rings in the order that makes areas positive and holes negative.
        turned = shapely.orient_polygons(places[row])
        areas[row] = abs(ellipsoid.geometry_area_perimeter(turned)[0]) / SQUARE_METRES_PER_HECTARE
    return areas


def write_frame(frame: Any, output: Path, notes: Mapping[str, str] | None = None, style: str | None = None) -> None:
    """Write a GeoPackage or GeoParquet, by the suffix.

    A GeoPackage also holds `notes` as metadata and description, and `style` as the default style of its layer.
    """
    import pyogrio

    with library_writes(output), atomic_path(output) as partial:
        try:
            if output.suffix.lower() != ".gpkg":
                frame.to_parquet(partial)
                return
            others = [name for name in frame.columns if frame[name].dtype == "geometry" and name != frame.geometry.name]
            names = {str(name).lower() for name in frame.columns}
            # A column called fid would be taken for GDAL's own numbers, which must be whole and differ.
            own = {"FID": "gpkg_fid"} if "fid" in names else {}
            # In memory first: where the disk is full GDAL blames a column, or leaves out the index and says nothing.
            image = io.BytesIO()
            metadata = {**notes, "DESCRIPTION": " | ".join(notes.values())} if notes else {}
            _write_geopackage(frame.drop(columns=others), image, layer=output.stem, layer_metadata=metadata, **own)
            partial.write_bytes(image.getbuffer())
            if style is not None:
                _embed_style(partial, output.stem, style)
        except ImportError:
            remedy = "install it with: pip install 'cropstar[parquet]'"
            raise UsageError("GeoParquet files need pyarrow", path=output, remedy=remedy) from None
        except (pyogrio.errors.DataSourceError, pyogrio.errors.DataLayerError, ValueError, TypeError) as failure:
            remedy = "leave that column out of the parcels"
            raise InputError("cannot write the parcels", path=output, why=str(failure), remedy=remedy) from None


def _write_geopackage(frame: Any, image: io.BytesIO, **settings: Any) -> None:
    import pyogrio

    before = pyogrio.get_gdal_config_option("OGR_CURRENT_DATE")
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": EVER})
    try:
        # Version 1.3: the GDAL of older QGIS warns of 1.4.
        frame.to_file(image, driver="GPKG", engine="pyogrio", VERSION="1.3", **settings)
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": before})


def _embed_style(path: Path, layer: str, style: str) -> None:
    """In the table that QGIS itself writes and reads: the style stays with the file when it is copied alone."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = OFF")  # the file is not yet in its place: nothing to roll back
        database.execute(STYLE_TABLE)
        geometry = "SELECT column_name FROM gpkg_geometry_columns WHERE table_name = ?"
        (column,) = database.execute(geometry, (layer,)).fetchone()
        database.execute(
            "INSERT INTO layer_styles (f_table_catalog, f_table_schema, f_table_name, f_geometry_column, styleName,"
            " styleQML, styleSLD, useAsDefault, description, owner, update_time)"
            " VALUES ('', '', ?, ?, ?, ?, '', 1, '', '', ?)",
            (layer, column, layer, style, EVER),
        )
        database.execute(
            "INSERT INTO gpkg_contents (table_name, data_type, identifier, description, last_change)"
            " VALUES ('layer_styles', 'attributes', 'layer_styles', '', ?)",
            (EVER,),
        )


def on_grid(frame: Any, grid: Grid, path: Path) -> tuple[Shapes, NDArray[np.bool_]]:
    """The geometries in the map's coordinates, and which of them are areas that meet it."""
    import shapely

    places = shapes_in_crs(frame, grid, path, whose="the map's")
    near = ~(shapely.is_missing(places) | shapely.is_empty(places)) & shapes_meet(places, grid.bounds)
    near &= shapely.get_dimensions(places) == 2
    mended, _ = repair_shapes(places[near], path)
    shapes = places.copy()
    shapes[near] = mended
    usable = near.copy()
    usable[near] = shapely.area(mended) > 0
    return shapes, usable


def _statistics(
    shapes: Shapes, grid: Grid, classes_raster: Path, stored: Path, count: int
) -> tuple[Floats, Floats, Floats]:
    """For each shape: mean probabilities (N, K), pixels seen (N,), shares of the map's values (N, 256)."""
    means, pixels, shares = np.zeros((len(shapes), count)), np.zeros(len(shapes)), np.zeros((len(shapes), 256))
    if not len(shapes):
        return means, pixels, shares
    import geopandas
    import shapely
    from exactextract import exact_extract

    # One pass over the raster, whatever the order of the parcels: what lies apart is read apart.
    way = {"strategy": "raster-sequential", "output": "pandas", "max_cells_in_memory": CELLS_AT_ONCE // count}
    a, b, c, d, e, f = tuple(~grid.affine)[:6]
    in_pixels = shapely.transform(shapes, lambda places: places @ [[a, -d], [b, -e]] + [c, -f])
    frame = geopandas.GeoDataFrame({"row": range(len(shapes))}, geometry=in_pixels, crs=grid.rasterio_crs)
    with rasterio.open(stored, driver="GTiff") as dataset:
        pooled = exact_extract(_in_pixels(dataset, frame), frame, ["mean"], include_cols=["row"], **way)
    with rasterio.open(classes_raster, driver="GTiff") as dataset:
        statistics = ["count", "unique", "frac"]
        shown = exact_extract(_in_pixels(dataset, frame), frame, statistics, include_cols=["row"], **way)
    names = ["mean"] if count == 1 else [f"band_{band}_mean" for band in range(1, count + 1)]
    means[pooled["row"].to_numpy()] = pooled[names].to_numpy(dtype=np.float64) / STEPS
    rows = shown["row"].to_numpy()
    pixels[rows] = shown["count"].to_numpy(dtype=np.float64)
    for row, values, parts in zip(rows, shown["unique"], shown["frac"], strict=True):
        shares[row, np.asarray(values, dtype=np.intp)] = parts
    if count <= MASKED:  # what lies outside a mask was not mapped: shares are of the rest
        mapped = np.maximum(1 - shares[:, MASKED], 0)
        pixels *= mapped
        shares /= np.where(mapped > 0, mapped, 1)[:, None]
    return np.nan_to_num(means), pixels, shares


def _in_pixels(dataset: Any, frame: Any) -> list[Any]:
    """The bands of a raster for exactextract in columns and negative rows.

    By itself it takes no raster that is rotated or goes from south to north.
    """
    from exactextract.raster import RasterSource

    class Band(RasterSource):  # type: ignore[misc]
        def __init__(self, band: int) -> None:
            super().__init__()
            self.band = band
            self.set_name(f"band_{band}")

        def res(self) -> tuple[float, float]:
            return 1.0, 1.0

        def extent(self) -> tuple[float, float, float, float]:
            return 0.0, -float(dataset.height), float(dataset.width), 0.0

        def srs_wkt(self) -> str:
            return str(frame.crs.to_wkt())

        def nodata_value(self) -> int | None:
            return None if dataset.nodata is None else int(dataset.nodata)

        def read_window(self, left: int, top: int, width: int, height: int) -> NDArray[Any]:
            pixels: NDArray[Any] = dataset.read(self.band, window=rasterio_window(Window(top, left, height, width)))
            return pixels

    return [Band(band) for band in dataset.indexes]


def _columns(said: ParcelAnswers, classes: ClassTable) -> dict[str, Any]:
    """The columns of all parcels, with nulls for parcels without a prediction."""
    import pandas

    seen = said.pixels > 0
    rows = np.flatnonzero(said.usable)[seen]
    count, means, unknown = len(said.usable), said.means[seen], said.unknown[seen]
    order = np.argsort(-means, axis=1, kind="stable")
    numbers, picked = order[:, 0], np.arange(len(rows))
    names = np.array(classes.names, dtype=object)
    columns: dict[str, Any] = {
        **{name: np.full(count, None, dtype=object) for name in (CLASS, SECOND)},
        NUMBER: pandas.array([None] * count, dtype="Int16"),
        **{name: np.full(count, np.nan) for name in (PROBABILITY, SECOND_PROBABILITY, SHARE)},
        PIXELS: np.zeros(count),
    }
    columns[CLASS][rows] = np.where(unknown, MARKS[UNKNOWN][0], names[numbers])
    columns[NUMBER][rows] = np.where(unknown, UNKNOWN, numbers).astype(np.int16)
    columns[PROBABILITY][rows] = means[picked, numbers]
    if len(classes) > 1:
        columns[SECOND][rows] = names[order[:, 1]]
        columns[SECOND_PROBABILITY][rows] = means[picked, order[:, 1]]
    if said.shares is not None:
        columns[SHARE][rows] = said.shares[seen][picked, numbers]
    columns[PIXELS][rows] = said.pixels[seen]
    for number, name in enumerate(probability_columns(classes.names)):
        columns[name] = np.full(count, np.nan)
        columns[name][rows] = means[:, number]
    return columns


def probability_columns(names: list[str]) -> list[str]:
    """A column for each class; databases do not tell `Maize` from `maize`."""
    columns: list[str] = []
    for name in names:
        column, number = f"p_{name}", 1
        while column.lower() in {other.lower() for other in columns}:
            number += 1
            column = f"p_{name}_{number}"
        columns.append(column)
    return columns


# --- Models that learnt parcels: each is one series, on every date the mean of its clear pixels
#
# Pooled as in training: a pixel belongs to the parcel at its centre, of parcels that overlap to the smaller one, and a
# date counts where a quarter of the parcel is clear. The same columns are written; there is no agreement, for no pixel
# was asked.

WINDOW_BYTES = 64 * 2**20  # of the values of one window
LARGEST, SMALLEST = 512, 64  # pixels per side
POOLED_BYTES = 128 * 2**20  # of the sums of parcels that are pooled in one pass over the images


def is_parcel_model(card: ModelCard) -> bool:
    """Whether a model learnt the series of whole parcels."""
    return card.provenance.get("target") == "parcel"


def warn_of_parcel_model(card: ModelCard, parcels: Path | None) -> None:
    """Warn if a model of parcels maps single pixels."""
    if not is_parcel_model(card):
        return
    if parcels is None:
        logger.warning(
            "the model was trained on means of whole parcels and now maps single pixels, which vary more: "
            "give outlines with --parcels to have each classified as it was learnt"
        )
    else:
        logger.info("the model was trained on whole parcels: each of %s is classified by its own mean series", parcels)


def require_pixel_model(card: ModelCard, parcels: Path | None) -> None:
    """Refuse parcels where only the state of pixels goes on: the series of a parcel is not in it."""
    if parcels is not None and is_parcel_model(card):
        why = "the model was trained on whole parcels, and a state holds pixels"
        remedy = "give all images to 'cropstar predict --parcels'"
        raise UsageError("no parcels from a state", path=parcels, why=why, remedy=remedy)


def parcel_classifier(series: Series, predictor: Predictor) -> ParcelClassifier | None:
    """How a model of parcels classifies them; None of other models, whose map is asked."""
    if not is_parcel_model(predictor.card):
        return None
    return partial(classify_parcel_series, series=series, predictor=predictor)


def classify_parcel_series(parcels: Path, product: ParcelProduct, series: Series, predictor: Predictor) -> ParcelCount:
    """Write the parcels with their classes."""
    frame = open_vector(parcels)
    shapes, usable = on_grid(frame, series.grid, parcels)
    rows = np.flatnonzero(usable)
    probabilities = np.zeros((len(rows), len(product.classes)))
    pixels, unknown = np.zeros(len(rows)), np.zeros(len(rows), dtype=np.bool_)
    for pooled in pool_parcels(series, shapes[rows]):
        found, seen, strange = _classified(series, pooled, predictor)
        probabilities[pooled.rows] = found
        pixels[pooled.rows] = np.where(seen, pooled.seen, 0)
        unknown[pooled.rows] = strange & seen
    return write_classes(frame, ParcelAnswers(usable, probabilities, pixels, None, unknown), parcels, product)


@dataclass(frozen=True)
class PooledParcels:
    """The summed observations of some of the parcels."""

    rows: NDArray[np.intp]  # (N,) which of the shapes
    sizes: NDArray[np.int64]  # (N,) pixels
    seen: NDArray[np.int64]  # (N,) pixels that were clear on any date
    counts: NDArray[np.int64]  # (N, T) clear pixels
    sums: NDArray[np.float64]  # (N, T, C) over the clear pixels

    @property
    def valid(self) -> NDArray[np.bool_]:
        enough: NDArray[np.bool_] = (self.counts > 0) & (self.counts >= CLEAR_SHARE * self.sizes[:, None])
        return enough

    @property
    def means(self) -> NDArray[np.float32]:
        """(N, T, C), zero where not valid."""
        means = self.sums / np.maximum(self.counts, 1)[:, :, None]
        return np.where(self.valid[:, :, None], means, 0).astype(np.float32)


def pool_parcels(series: Series, shapes: NDArray[np.object_], *, most: int = POOLED_BYTES) -> Iterator[PooledParcels]:
    """Shapes in the coordinates of the series, a group of neighbours after the other."""
    if not len(shapes):
        return
    import shapely

    numbers = np.arange(1, len(shapes) + 1, dtype=np.int32)
    table = ParcelTable(numbers, [str(number) for number in numbers], np.zeros(len(shapes), dtype=np.int16))
    order = np.argsort(-shapely.area(shapes), kind="stable")  # the smaller one is painted last
    painted = Parcels(ClassTable(), table, list(shapes[order]), numbers[order].tolist())
    tops = _rows_of(series, shapes)
    at_once = max(most // (8 * len(series.dates) * (len(series.bands) + 1)), 1)
    from_above = np.argsort(tops[:, 0], kind="stable")
    for start in range(0, len(shapes), at_once):
        rows = np.sort(from_above[start : start + at_once])
        yield _pool_some(series, painted, rows, (tops[rows, 0].min(), tops[rows, 1].max()))


def _pool_some(series: Series, painted: Parcels, rows: NDArray[np.intp], extent: tuple[float, float]) -> PooledParcels:
    dates, bands = len(series.dates), len(series.bands)
    places = np.full(len(painted.table.numbers) + 1, -1, dtype=np.intp)  # by a parcel's number, which counts from 1
    places[rows + 1] = np.arange(len(rows))
    pooled = PooledParcels(
        rows,
        np.zeros(len(rows), dtype=np.int64),
        np.zeros(len(rows), dtype=np.int64),
        np.zeros((len(rows), dates), dtype=np.int64),
        np.zeros((len(rows), dates, bands)),
    )
    first, end = extent
    windows = [each for each in split(series.grid.shape, _side(series)) if each.bottom > first and each.top < end]
    for window in track(windows, len(windows), "pool parcels", "window"):
        _, burnt = painted.burn(series.grid.crop(window))
        own = places[burnt.ravel()]
        chosen = np.flatnonzero(own >= 0)
        if len(chosen):
            _add(pooled, series.read(window), own, chosen)
    return pooled


def _add(pooled: PooledParcels, observations: Observations, own: NDArray[np.intp], chosen: NDArray[np.intp]) -> None:
    """The pixels of a window, `own` the place of each one's parcel. Sums of whole numbers are exact in any order."""
    order = chosen[np.argsort(own[chosen], kind="stable")]
    found, starts, sizes = np.unique(own[order], return_index=True, return_counts=True)
    valid = observations.valid.reshape(len(observations.valid), -1)[:, order]  # (T, P)
    pooled.sizes[found] += sizes
    pooled.seen[found] += np.add.reduceat(valid.any(axis=0), starts, dtype=np.int64)
    pooled.counts[found] += np.add.reduceat(valid, starts, axis=1, dtype=np.int64).T
    for date, values in enumerate(observations.values):
        clear = values.reshape(len(values), -1)[:, order] * valid[date]  # (C, P)
        pooled.sums[found, date] += np.add.reduceat(clear, starts, axis=1, dtype=np.float64).T


def _classified(
    series: Series, pooled: PooledParcels, predictor: Predictor
) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
    """Probabilities (N, K), whether any date was valid and what is unknown (N,).

    To a model of series a parcel is what a pixel is.
    """
    means = cast("Any", pooled.means.transpose(1, 2, 0)[:, :, None])  # (T, C, 1, N)
    row = Window(0, 0, 1, len(pooled.rows))
    answer = predictor.answer(series, row, Observations(means, pooled.valid.T[:, None]))
    unknown = np.zeros(len(pooled.rows), dtype=np.bool_) if answer.unknown is None else answer.unknown[0]
    return answer.probabilities[:, 0].T.astype(np.float64), answer.seen[0], unknown


def _side(series: Series) -> int:
    a_pixel = len(series.dates) * (2 * len(series.bands) + 1)
    return min(max(math.isqrt(WINDOW_BYTES // a_pixel) // SMALLEST * SMALLEST, SMALLEST), LARGEST)


def _rows_of(series: Series, shapes: NDArray[np.object_]) -> Floats:
    """The first row of each shape and the one after its last (N, 2), with fractions."""
    import shapely

    left, bottom, right, top = shapely.bounds(shapes).reshape(-1, 4).T
    back = ~series.grid.affine
    corners = np.stack([(back @ (x, y))[1] for x in (left, right) for y in (bottom, top)])
    extent: Floats = np.stack([corners.min(axis=0), corners.max(axis=0)], axis=1)
    return extent
