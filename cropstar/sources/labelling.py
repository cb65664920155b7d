"""From open series and a file of parcels to scenes with labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.limits import MAXIMUM_CLASSES, MAXIMUM_TILE_BYTES
from cropstar.logs import logger
from cropstar.sources.class_rules import KEEP_ALL, read_rules
from cropstar.sources.parcels import NothingLabelled, Parcels, read_parcels
from cropstar.sources.request import Request
from cropstar.sources.scene import RasterScene, Scene, recipe_of
from cropstar.sources.series import Series

TILE_SIZE = 240
MAXIMUM_TILES = 1_000_000  # of a scene: a whole Sentinel-2 tile in the smallest ones are half of it
LABEL_OPTIONS = ("parcels", "label_column", "tile_size", "classes", "erode")  # of all that burn parcels onto images
VECTOR_ENDINGS = (".gpkg", ".shp", ".geojson", ".fgb", ".geoparquet")  # not .json, which may be anything
SHAPEFILE_COMPANIONS = (".dbf", ".prj", ".cpg")  # the labels of a shapefile are in its .dbf


@dataclass(frozen=True)
class Opened:
    """An open series and all that tells what it is made from."""

    series: Series
    files: list[Path]
    material: dict[str, Any] = field(default_factory=dict)  # what is not in files on this disk


def label_scenes(opened: Sequence[Opened], request: Request, options: dict[str, Any]) -> Sequence[Scene]:
    """Scenes of the series, all labelled from one parcel file and with one class table."""
    try:
        parcel_file = request.parcels or _parcels_beside(request.path)
        companions = _with_companions(parcel_file)
        tile_size = request.tile_size or TILE_SIZE
        options = {"tile_size": tile_size, "label_column": request.label_column, **options}
        rules, erode = KEEP_ALL, float(request.special.get("erode", 0))
        if "classes" in request.special:
            rules = read_rules(request.special["classes"])
            options["classes"] = rules.to_json()
        if erode:
            options["erode"] = erode
        for one in opened:
            _require_bounded(one.series, tile_size)
        labelled = _labelled(
            opened,
            lambda grid: read_parcels(parcel_file, grid, label_column=request.label_column, rules=rules, erode=erode),
        )
        classes = rules.table(name for _, parcels in labelled for name in parcels.classes.names)
        if len(classes) > MAXIMUM_CLASSES:
            why = f"{len(classes)} in all tiles together"
            raise InputError("too many classes", path=parcel_file, why=why, remedy="merge classes with --classes")
        origin = recipe_of(companions, {})
        return [
            RasterScene(
                one.series,
                parcels.relabelled(classes),
                tile_size,
                recipe_of([*one.files, *companions], {**options, **one.material}),
                origin,
            )
            for one, parcels in labelled
        ]
    except Exception:
        for one in opened:
            one.series.close()
        raise


def _require_bounded(series: Series, tile_size: int) -> None:
    """A tile is made in memory: one of a long season must be small enough for that, and their list too."""
    height, width = series.grid.shape
    count = math.ceil(height / tile_size) * math.ceil(width / tile_size)
    if count > MAXIMUM_TILES:
        why = f"{width} x {height} pixels are {count:,} tiles"
        what = f"tiles of {tile_size} pixels are too many"
        raise UsageError(what, path=series.name, why=why, remedy="give a larger --tile-size")
    side = min(tile_size, max(series.grid.shape))
    size = 2 * len(series.dates) * len(series.bands) * side**2
    if size > MAXIMUM_TILE_BYTES:
        why = f"{len(series.dates)} dates of {len(series.bands)} bands are {size / 2**30:.1f} GiB a tile"
        raise UsageError(f"tiles of {tile_size} pixels are too large", why=why, remedy="give a smaller --tile-size")


def _labelled(opened: Sequence[Opened], read: Callable[[Grid], Parcels]) -> list[tuple[Opened, Parcels]]:
    """The series with their parcels; of several, those where no labelled parcel lies are left out."""
    labelled = []
    for position, one in enumerate(opened):
        try:
            labelled.append((one, read(one.series.grid)))
        except NothingLabelled as failure:
            if not labelled and position == len(opened) - 1:
                raise
            logger.warning("%s is left out: %s", one.series.name, failure)
            one.series.close()
    return labelled


def _with_companions(path: Path) -> list[Path]:
    """All files that a vector file consists of."""
    if path.suffix.lower() != ".shp":
        return [path]
    beside = sorted(entry for entry in path.parent.iterdir() if entry.stem == path.stem)
    return [path, *(entry for entry in beside if entry.suffix.lower() in SHAPEFILE_COMPANIONS)]


def _parcels_beside(path: Path | None) -> Path:
    """The one vector file beside the raster, or in or beside its folder; more than one is no guess to make."""
    places = [] if path is None else [path, path.parent] if path.is_dir() else [path.parent]
    for place in places:
        found = sorted(entry for entry in place.iterdir() if entry.suffix.lower() in VECTOR_ENDINGS)
        if len(found) == 1:
            return found[0]
        if found:
            why = f"{len(found)} lie {'in the folder' if place == path else 'beside the raster'}"
            raise UsageError("which parcels?", why=why, remedy="give them with --parcels parcels.gpkg")
    raise UsageError(
        "which parcels?", why="none lies beside the raster", remedy="give them with --parcels parcels.gpkg"
    )
