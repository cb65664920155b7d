"""The sources by name, and the guess which one a path is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.logs import logger
from cropstar.places import DEMO
from cropstar.registry import Registry
from cropstar.sources.class_rules import KEEP_ALL, read_rules
from cropstar.sources.parcels import NothingLabelled, Parcels, read_parcels
from cropstar.sources.scene import RasterScene, Scene, recipe_of
from cropstar.sources.sentinel2.products import looks_like_sentinel2
from cropstar.sources.series import Series
from cropstar.sources.stack import StackSeries
from cropstar.store.atomic import locked, sweep

VECTOR_ENDINGS = (".gpkg", ".shp", ".geojson", ".json", ".fgb")
TABLE_ENDINGS = (".csv", ".tsv", ".parquet", ".geoparquet", ".pq")
LABEL_OPTIONS = ("classes", "erode")  # of all sources that burn parcels onto a raster
SHAPEFILE_COMPANIONS = (".dbf", ".prj", ".cpg")  # the labels of a shapefile are in its .dbf


@dataclass(frozen=True)
class Request:
    """What the user asked ingest for."""

    path: Path | None
    parcels: Path | None = None
    label_column: str | None = None
    tile_size: int = 240
    seed: int = 1
    special: Mapping[str, Any] = field(default_factory=dict)  # options of one source only, where they were given

    def take(self, source: str, *names: str) -> dict[str, Any]:
        """The special options of a source; others are no use to it and are refused."""
        for name in self.special:
            if name not in names:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} is not for the source '{source}'", remedy="see 'cropstar ingest --help'")
        return dict(self.special)

    def need_path(self, source: str, example: str) -> Path:
        if self.path is None:
            raise UsageError(f"the source '{source}' needs a path", remedy=f"cropstar ingest {source} {example}")
        return self.path


SOURCES: Registry[Callable[[Request], Sequence[Scene]]] = Registry("source")


@SOURCES.register("synthetic")
def synthetic(request: Request) -> Sequence[Scene]:
    """The embedded scene: written as files that a user would have, then read like any user's files."""
    from cropstar.sources.synthetic.files import write_scene
    from cropstar.sources.synthetic.options import SceneOptions

    labels = request.take("synthetic", *LABEL_OPTIONS)
    folder = request.path or DEMO
    with locked(folder, "the demonstration scene"):
        sweep(folder)
        tile, parcels = write_scene(folder, SceneOptions(seed=request.seed))
    return stack(Request(tile, parcels, "crop", request.tile_size, special=labels))


@SOURCES.register("stack")
def stack(request: Request) -> Sequence[Scene]:
    """A GeoTIFF with dates x bands, and a vector file of parcels."""
    request.take("stack", *LABEL_OPTIONS)
    path = request.need_path("stack", "tile.tif --parcels parcels.gpkg")
    series = StackSeries(path)
    return _with_parcels([(series, [path])], request, {})


@SOURCES.register("sentinel2")
def sentinel2(request: Request) -> Sequence[Scene]:
    """Sentinel-2 L2A products, SAFE folders or .zip archives: one scene a tile."""
    from cropstar.sources.sentinel2 import Sentinel2Options, open_series

    path = request.need_path("sentinel2", "FOLDER --parcels parcels.gpkg")
    given = request.take("sentinel2", "bands", "resampling", "clear", *LABEL_OPTIONS)
    options = Sentinel2Options(**{name: value for name, value in given.items() if name not in LABEL_OPTIONS})
    if request.parcels is None:
        raise UsageError("which parcels?", remedy="give them with --parcels parcels.gpkg")
    return _with_parcels([(series, series.files) for series in open_series(path, options)], request, options.to_json())


@SOURCES.register("table")
def table(request: Request) -> Sequence[Scene]:
    """A CSV or Parquet file with one row an observation."""
    from cropstar.sources.table import TableOptions, open_table

    path = request.need_path("table", "fields.parquet")
    if request.parcels is not None:
        raise UsageError(
            "--parcels is not for the source 'table'", remedy="a table names the crop in a column of its own"
        )
    names = (one.name for one in fields(TableOptions))
    return open_table(path, TableOptions(label_column=request.label_column, **request.take("table", *names)))


@SOURCES.register("breizhcrops")
def breizhcrops(request: Request) -> Sequence[Scene]:
    """BreizhCrops as its package stores it: one scene a region, year and level."""
    from cropstar.sources.breizhcrops import BreizhCropsOptions, open_breizhcrops

    path = request.need_path("breizhcrops", "breizhcrops_dataset")
    names = (one.name for one in fields(BreizhCropsOptions))
    return open_breizhcrops(path, BreizhCropsOptions(**request.take("breizhcrops", *names)))


def guess_source(path: Path | None) -> str:
    """Which source a path is when none is named."""
    from cropstar.sources.breizhcrops.files import looks_like_breizhcrops

    if path is None:
        return "synthetic"
    if not path.exists():
        raise InputError("no such file", path=path, remedy="check the path")
    if path.suffix.lower() in (".tif", ".tiff"):
        return "stack"
    if path.is_file() and path.suffix.lower() in TABLE_ENDINGS:
        return "table"
    if looks_like_sentinel2(path):
        return "sentinel2"
    if looks_like_breizhcrops(path):
        return "breizhcrops"
    raise UsageError(f"cannot tell what {path} is", remedy=f"name the source first, one of: {', '.join(SOURCES)}")


def _with_parcels(
    opened: Sequence[tuple[Series, list[Path]]], request: Request, options: dict[str, Any]
) -> Sequence[Scene]:
    """Scenes of open series and their files, all labelled from one parcel file and with one class table."""
    try:
        parcel_file = request.parcels or _parcels_beside(opened[0][1][0])
        companions = _with_companions(parcel_file)
        options = {"tile_size": request.tile_size, "label_column": request.label_column, **options}
        rules, erode = KEEP_ALL, float(request.special.get("erode", 0))
        if "classes" in request.special:
            rules = read_rules(request.special["classes"])
            options["classes"] = rules.to_json()
        if erode:
            options["erode"] = erode
        labelled = _labelled(
            opened,
            lambda grid: read_parcels(parcel_file, grid, label_column=request.label_column, rules=rules, erode=erode),
        )
        classes = rules.table(name for _, parcels, _ in labelled for name in parcels.classes.names)
        origin = recipe_of(companions, {})
        return [
            RasterScene(
                series,
                parcels.relabelled(classes),
                request.tile_size,
                recipe_of([*files, *companions], options),
                origin,
            )
            for series, parcels, files in labelled
        ]
    except Exception:
        for series, _ in opened:
            series.close()
        raise


def _labelled(
    opened: Sequence[tuple[Series, list[Path]]], read: Callable[[Grid], Parcels]
) -> list[tuple[Series, Parcels, list[Path]]]:
    """The series with their parcels; of several, those where no labelled parcel lies are left out."""
    labelled = []
    for position, (series, files) in enumerate(opened):
        try:
            labelled.append((series, read(series.grid), files))
        except NothingLabelled as failure:
            if not labelled and position == len(opened) - 1:
                raise
            logger.warning("%s is left out: %s", series.name, failure)
            series.close()
    return labelled


def _with_companions(path: Path) -> list[Path]:
    """All files that a vector file consists of."""
    if path.suffix.lower() != ".shp":
        return [path]
    beside = sorted(entry for entry in path.parent.iterdir() if entry.stem == path.stem)
    return [path, *(entry for entry in beside if entry.suffix.lower() in SHAPEFILE_COMPANIONS)]


def _parcels_beside(path: Path) -> Path:
    """The one vector file in the raster's folder; more than one is no guess to make."""
    found = sorted(entry for entry in path.parent.glob("*") if entry.suffix.lower() in VECTOR_ENDINGS)
    if len(found) != 1:
        why = "none lies beside the raster" if not found else f"{len(found)} lie beside the raster"
        raise UsageError("which parcels?", why=why, remedy="give them with --parcels parcels.gpkg")
    return found[0]
