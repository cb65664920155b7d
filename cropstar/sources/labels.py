"""Labels of scenes: parcels or points from files, burnt onto the grid, with the user's class table (--classes)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.geo.grid import Grid
from cropstar.geo.landcover import LandCover, background_values, open_land_cover
from cropstar.geo.sensors import Sensor
from cropstar.geo.windows import Window
from cropstar.inputs import MAXIMUM_CLASSES, MAXIMUM_TILE_BYTES, require_file
from cropstar.runtime import logger
from cropstar.sources.base import RasterScene, Scene, SceneContext, Series, closed_on_failure, recipe_of
from cropstar.sources.class_rules import EVERY_LABEL, ClassRules, read_rules
from cropstar.sources.label_rasters import KEY, LABEL, is_label_raster, read_label_raster
from cropstar.sources.multisensor import sensors_of
from cropstar.sources.points import GROUP_DISTANCE, WGS84, fields_by_distance, outside_of_season
from cropstar.sources.vectors import find_label_column, keys_of, labels_of, open_vector
from cropstar.store.classes import NOT_A_FIELD, UNLABELLED, ClassTable, CropClass
from cropstar.store.tile import ParcelTable

TILE_SIZE = 240
MAXIMUM_TILES = 1_000_000  # of a scene: a whole Sentinel-2 tile in the smallest ones are half of it
VECTOR_ENDINGS = (".gpkg", ".shp", ".geojson", ".fgb", ".geoparquet")  # not .json, which may be anything
SHAPEFILE_COMPANIONS = (".dbf", ".prj", ".cpg")  # the labels of a shapefile are in its .dbf


@dataclass(frozen=True)
class LabelOptions:
    """Which parcels label a series, and how its tiles are cut. Without a file the one beside the images is taken."""

    parcels: Path | None = None
    label_column: str | None = None
    tile_size: int | None = None
    classes: Path | None = None
    erode: float = 0.0  # metres
    field_column: str | None = None  # parcels or points of one field stay together in every split
    point_radius: float | None = None  # metres around a point that have its label; None: its pixel alone
    group_distance: float | None = None  # metres: nearer points of one label are of one field; None: the usual
    background: Path | None = None  # a raster of land cover, from which the class "not a field" is taken
    background_classes: tuple[int, ...] | None = None  # its values that are not a field

    @property
    def grouping(self) -> dict[str, Any]:
        """The options given that say which labels are of one field."""
        given = {name: getattr(self, name) for name in ("field_column", "point_radius", "group_distance")}
        return {name: value for name, value in given.items() if value is not None}

    def recipe(self, rules: ClassRules) -> dict[str, Any]:
        """The options that decide what a tile holds."""
        return {
            "label_column": self.label_column,
            **({} if self.classes is None else {"classes": rules.to_json()}),
            **self.grouping,
            **({"erode": float(self.erode)} if self.erode else {}),
            **({} if self.background is None else {"background_classes": self.background_classes}),
        }


LABEL_OPTIONS = tuple(one.name for one in fields(LabelOptions))


@dataclass(frozen=True)
class OpenedSeries:
    """An open series and its origin."""

    series: Series
    files: list[Path]
    material: dict[str, Any] = field(default_factory=dict)  # what is not in files on this disk
    others: list[Series] = field(default_factory=list)  # of further sensors, on the same grid
    context: SceneContext | None = None

    @property
    def sensors(self) -> list[Sensor]:
        """The sensors of all series."""
        return [sensor for series in (self.series, *self.others) for sensor in sensors_of(series)]

    def close(self) -> None:
        for series in (self.series, *self.others):
            series.close()


def label_scenes(
    opened: Sequence[OpenedSeries], images: Path | None, labels: LabelOptions, reading: dict[str, Any]
) -> Sequence[Scene]:
    """Scenes of the series at `images`, all labelled from one parcel file and with one class table.

    `reading` are the options by which the series were read: they belong to the recipe.
    """
    with closed_on_failure(opened):
        parcel_file = labels.parcels or _parcels_beside(images)
        companions = _with_companions(parcel_file)
        tile_size = labels.tile_size or TILE_SIZE
        rules = EVERY_LABEL if labels.classes is None else read_rules(labels.classes)
        options = {"tile_size": tile_size, **reading, **labels.recipe(rules)}
        for one in opened:
            _require_reasonable_tiles(one.series, tile_size)
        if labels.background is None and labels.background_classes is not None:
            raise UsageError("--background-classes without --background", remedy="give the raster with --background")
        if labels.background is not None:
            companions = [*companions, labels.background]

        def read(series: Series) -> Parcels:
            parcels = read_parcels(
                parcel_file,
                series.grid,
                label_column=labels.label_column,
                rules=rules,
                erode=float(labels.erode),
                dates=series.dates,
                **labels.grouping,
            )
            if labels.background is None:
                return parcels
            return with_background(parcels, labels.background, series.grid, labels.background_classes)

        labelled = _read_all_parcels(opened, read)
        classes = _joint_classes([parcels.classes for _, parcels in labelled], rules, parcel_file)
        origin = recipe_of(companions, {})
        return [
            RasterScene(
                one.series,
                parcels.relabelled(classes),
                tile_size,
                recipe_of([*one.files, *companions], {**options, **one.material}),
                origin,
                one.others,
                one.sensors if one.others or one.context else (),
                one.context,
            )
            for one, parcels in labelled
        ]


def _joint_classes(tables: Sequence[ClassTable], rules: ClassRules, path: Path) -> ClassTable:
    """One class table for all tiles; what is not a field comes last."""
    names = [name for table in tables for name in table.names]
    classes = rules.table(name for name in names if name != NOT_A_FIELD)
    if NOT_A_FIELD in names:
        classes = _appended(classes)
    if len(classes) > MAXIMUM_CLASSES:
        why = f"{len(classes)} in all tiles together"
        raise InputError("too many classes", path=path, why=why, remedy="merge classes with --classes")
    return classes


def _require_reasonable_tiles(series: Series, tile_size: int) -> None:
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
        why = f"{len(series.dates)} dates of {len(series.bands)} bands are {size / 2**30:.1f} GiB per tile"
        raise UsageError(f"tiles of {tile_size} pixels are too large", why=why, remedy="give a smaller --tile-size")


def _read_all_parcels(
    opened: Sequence[OpenedSeries], read: Callable[[Series], Parcels]
) -> list[tuple[OpenedSeries, Parcels]]:
    """The series with their parcels; of several series, those without a labelled parcel are left out."""
    labelled = []
    for position, one in enumerate(opened):
        try:
            labelled.append((one, read(one.series)))
        except NoLabelledParcel as failure:
            if not labelled and position == len(opened) - 1:
                raise
            logger.warning("%s is left out: %s", one.series.name, failure)
            one.close()
    return labelled


def _with_companions(path: Path) -> list[Path]:
    """All files that a vector file consists of."""
    if path.suffix.lower() != ".shp":
        return [path]
    beside = sorted(entry for entry in path.parent.iterdir() if entry.stem == path.stem)
    return [path, *(entry for entry in beside if entry.suffix.lower() in SHAPEFILE_COMPANIONS)]


def _parcels_beside(path: Path | None) -> Path:
    """The only vector file beside the raster, or in or beside its folder; refused if there are several."""
    places = [] if path is None else [path, path.parent] if path.is_dir() else [path.parent]
    for place in places:
        vectors = sorted(entry for entry in place.iterdir() if entry.suffix.lower() in VECTOR_ENDINGS)
        if len(vectors) == 1:
            return vectors[0]
        if vectors:
            why = f"{len(vectors)} lie {'in the folder' if place == path else 'beside the raster'}"
            raise UsageError("several vector files", why=why, remedy="choose one with --parcels parcels.gpkg")
    raise UsageError(
        "no parcels given", why="there is none beside the raster", remedy="give them with --parcels parcels.gpkg"
    )


# --- Parcels


@dataclass(frozen=True)
class Parcels:
    """Parcels on one grid. Smaller parcels come last, so that they win where parcels overlap.

    An eroded parcel is two shapes: its outline, painted with 0, and then what is left of it with its number. So the
    margin of a small parcel is unlabelled even within a larger one.
    """

    classes: ClassTable
    table: ParcelTable
    shapes: list[Any]  # shapely geometries in the grid's coordinates, in the order in which they are painted
    paints: list[int]  # what each is painted with: a number of the table, or 0

    def relabelled(self, classes: ClassTable) -> Parcels:
        """The same parcels with the numbers of a table that has all of their classes."""
        numbers = np.array([classes.number_of(name) for name in self.classes.names], dtype=np.int16)
        return replace(self, classes=classes, table=replace(self.table, labels=numbers[self.table.labels]))

    def burn(self, grid: Grid) -> tuple[NDArray[np.int16], NDArray[np.int32]]:
        """Label and parcel rasters (H, W) of a piece of the grid; a pixel belongs to the parcel at its centre."""
        from rasterio.features import rasterize

        numbers = np.zeros(grid.shape, dtype=np.int32)
        if pairs := [(self.shapes[row], self.paints[row]) for row in np.flatnonzero(_meet(self._boxes, grid.bounds))]:
            rasterize(pairs, out=numbers, transform=grid.affine)
        lookup = np.full(int(self.table.numbers.max(initial=0)) + 1, UNLABELLED, dtype=np.int16)
        lookup[self.table.numbers] = self.table.labels
        return lookup[numbers], numbers

    @cached_property
    def _boxes(self) -> NDArray[np.float64]:
        return np.array([shape.bounds for shape in self.shapes], dtype=np.float64).reshape(-1, 4)


NOTABLE_OVERLAP = 0.01  # of the labelled area; neighbours that share a border overlap a little
BESIDE = "beside the scene"
SEASON = "of another season than the images"


class NoLabelledParcel(InputError):
    """No parcel of the file labels this scene; other scenes may have some."""


@dataclass(frozen=True)
class _Candidates:
    """The rows of the file that can be used, and how many were left out, by reason."""

    keys: NDArray[np.object_]
    names: NDArray[np.object_]
    shapes: Shapes
    fields: NDArray[np.object_] | None = None  # None: every one is a field of its own
    left_out: dict[str, int] = field(default_factory=dict)

    def without(self, useless: Flags, why: str) -> _Candidates:
        left_out = {**self.left_out, why: self.left_out.get(why, 0) + int(useless.sum())}
        return replace(self.rows(~useless), left_out=left_out)

    def rows(self, chosen: Any) -> _Candidates:
        """The candidates at these places."""
        fields = None if self.fields is None else self.fields[chosen]
        return _Candidates(self.keys[chosen], self.names[chosen], self.shapes[chosen], fields, self.left_out)

    @property
    def losses(self) -> str:
        return ", ".join(f"{count} {why}" for why, count in self.left_out.items() if count)


def read_parcels(
    path: Path,
    grid: Grid,
    *,
    label_column: str | None = None,
    rules: ClassRules = EVERY_LABEL,
    erode: float = 0.0,
    field_column: str | None = None,
    point_radius: float = 0.0,
    group_distance: float | None = None,
    dates: Sequence[date] = (),
) -> Parcels:
    """Read parcels or points, bring them to the grid's coordinate system and make them ready to burn.

    Distances are in metres. `dates` are those of the images: points of another season are left out.
    """
    margin = _metres_on(grid, erode, "--erode")
    require_file(path)
    if is_label_raster(path):
        frame, label_column = read_label_raster(path, grid, label_column), LABEL
        keys = frame[KEY].tolist()
    else:
        frame = open_vector(path)
        keys = keys_of(frame)
    has_points = _are_points(frame.geometry.to_numpy())
    if has_points:  # a row of several points is several points of one field
        frame = frame.reset_index(drop=True).explode()
        keys = [keys[row] for row in frame.index]
    column = find_label_column(frame, label_column, path)
    shapes = shapes_in_crs(frame, grid, path)
    names = labels_of(frame[column])
    if has_points:
        _refuse({"--erode": erode}, "points", path)
    else:
        _refuse({"--point-radius": point_radius, "--group-distance": group_distance}, "parcels", path)
    fields = None
    if field_column is not None:
        fields = _fields_by_column(frame, field_column, keys, path)
    elif has_points:
        distance = GROUP_DISTANCE if group_distance is None else group_distance
        # Nearer ones would share the pixels between them.
        fields = _fields_nearby(frame, names, keys, max(distance, 2 * point_radius), path)
    everything = _Candidates(_object_array(keys), _object_array(names), shapes, fields)
    if has_points and dates:
        everything = everything.without(outside_of_season(frame, dates, path), SEASON)
    found = _with_classes(_on_scene(everything, grid, path, points=has_points), rules, path)
    classes = rules.table(found.names.tolist())
    if len(classes) > MAXIMUM_CLASSES:
        why = f"{len(classes)} different values in column '{column}'"
        remedy = "choose another column with --label-column or merge classes with --classes"
        raise InputError("too many classes", path=path, why=why, remedy=remedy)
    if has_points:
        return _number_points(found, classes, grid, path, point_radius)
    if (share := _overlap_share(found.shapes)) > NOTABLE_OVERLAP:
        logger.info("%s: parcels overlap on about %.0f %% of their area; the smaller one wins", path, 100 * share)
    rest = _erode_shapes(found.shapes, margin, grid) if margin else found.shapes
    return _number_parcels(found, rest, classes, grid, path, erode)


def _refuse(given: dict[str, float | None], kind: str, path: Path) -> None:
    """Refuse options that do not apply to this kind of labels."""
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} does not apply to {kind}", path=path, remedy="leave it out")


def _on_scene(everything: _Candidates, grid: Grid, path: Path, *, points: bool = False) -> _Candidates:
    """The labelled points, or parcels with a valid outline and an area, that meet the grid."""
    import shapely

    nothing = shapely.is_missing(everything.shapes) | shapely.is_empty(everything.shapes)
    found = everything.without(nothing, "without a geometry")
    found = found.without(_is_missing(found.names), "without a label")
    found = found.without(~shapes_meet(found.shapes, grid.bounds), BESIDE)
    if points:
        column, row = _pixels_of(found.shapes, grid)
        return found.without((column < 0) | (column >= grid.width) | (row < 0) | (row >= grid.height), BESIDE)
    shapes, repaired = repair_shapes(found.shapes, path)
    if repaired:
        logger.info("%s: %d parcels with an invalid outline were repaired", path, repaired)
    found = replace(found, shapes=shapes)
    found = found.without(shapely.area(found.shapes) <= 0, "without an area")
    return found.without(~shapely.intersects(found.shapes, shapely.box(*grid.bounds)), BESIDE)


def shapes_in_crs(frame: Any, grid: Grid, path: Path, *, whose: str = "the images'") -> Shapes:
    """The geometries of parcels in the coordinate system of a grid."""
    from pyproj.exceptions import ProjError

    try:
        shapes: Shapes = frame.geometry.to_crs(grid.rasterio_crs).to_numpy()
    except ProjError as failure:
        why = f"their coordinate system cannot be transformed to {whose} ({failure})"
        raise InputError(
            "parcels in another coordinate system", path=path, why=why, remedy="reproject them first"
        ) from None
    return shapes


def _with_classes(found: _Candidates, rules: ClassRules, path: Path) -> _Candidates:
    """The parcels with their classes in place of the labels, the largest first."""
    import shapely

    names = _object_array(rules.apply(found.names.tolist()))
    found = replace(found, names=names).without(_is_missing(names), "left out by the class table")
    if not len(found.shapes):
        why, remedy = found.losses or "there are no parcels in it", "check that both cover the same place"
        if SEASON in found.left_out:
            remedy += " and season"
        raise NoLabelledParcel("no labelled parcel lies on the scene", path=path, why=why, remedy=remedy)
    if found.losses:
        logger.info("%s: parcels not used: %s", path, found.losses)
    order = np.lexsort((found.keys, -shapely.area(found.shapes)))
    return found.rows(order)


def _number_parcels(
    found: _Candidates, rest: Shapes, classes: ClassTable, grid: Grid, path: Path, metres: float
) -> Parcels:
    """The eroded parcels, numbered and ready to be rasterised."""
    import shapely

    lives = ~shapely.is_empty(rest)
    if not lives.any():
        why = f"--erode {metres:g} leaves nothing of {len(rest)}"
        raise NoLabelledParcel("no parcel is left", path=path, why=why, remedy="erode less")
    if vanished := len(rest) - int(lives.sum()):
        logger.info("%s: %d parcels are too small for --erode %g", path, vanished, metres)
    if small := _count_without_pixel(rest[lives], grid):
        logger.info("%s: %d parcels are too small for a pixel", path, small)

    numbers = np.cumsum(lives, dtype=np.int32)
    painted: list[tuple[Any, int]] = []
    for outline, inner, number, alive in zip(found.shapes, rest, numbers.tolist(), lives, strict=True):
        painted += [(outline, 0)] if metres else []
        painted += [(inner, number)] if alive else []
    labels = np.array([classes.number_of(name) for name in found.names[lives]], dtype=np.int16)
    fields = None if found.fields is None else found.fields[lives].tolist()
    table = ParcelTable(numbers[lives], found.keys[lives].tolist(), labels, fields=fields)
    return Parcels(classes, table, [shape for shape, _ in painted], [paint for _, paint in painted])


# --- Points: each labels the pixel that it lies in, or all within a radius


def _are_points(shapes: Shapes) -> bool:
    """Whether a file has points and nothing else."""
    import shapely

    kinds = shapely.get_dimensions(shapes[~(shapely.is_missing(shapes) | shapely.is_empty(shapes))])
    return bool(len(kinds)) and bool((kinds == 0).all())


def _fields_by_column(frame: Any, column: str, keys: Sequence[str], path: Path) -> NDArray[np.object_]:
    """The field of each row, from a column; a row without a value is a separate field."""
    if column not in frame.columns:
        why = f"the columns are {', '.join(str(name) for name in frame.columns if name != frame.geometry.name)}"
        raise UsageError(f"no column '{column}'", path=path, why=why, remedy="correct --field-column")
    named = labels_of(frame[column])
    return _object_array([key if name is None else name for name, key in zip(named, keys, strict=True)])


def _fields_nearby(
    frame: Any, names: Sequence[str | None], keys: Sequence[str], distance: float, path: Path
) -> NDArray[np.object_]:
    fields = fields_by_distance(frame.geometry.to_crs(WGS84).to_numpy(), names, keys, distance)
    count, most = len(set(fields)), max(Counter(fields).values(), default=0)
    logger.info("%s: %d points, %d fields: points of one label within %g m are one", path, len(keys), count, distance)
    if most > max(len(keys) // 2, 20):
        logger.warning(
            "%s: %d of %d points are one field, for each is within %g m of the next: a smaller --group-distance, or "
            "--field-column, makes more of them",
            *(path, most, len(keys), distance),
        )
    return _object_array(fields)


def _number_points(found: _Candidates, classes: ClassTable, grid: Grid, path: Path, radius: float) -> Parcels:
    """Points ready to be painted: circles first, nothing where those of two classes meet, own pixels last."""
    import shapely

    reach = _metres_on(grid, radius, "--point-radius")
    found = _one_point_a_pixel(found, grid)
    if not len(found.shapes):
        raise NoLabelledParcel(
            "no labelled point is left", path=path, why=found.losses, remedy="give points of one class per pixel"
        )
    if found.losses:
        logger.info("%s: points not used: %s", path, found.losses)
    labels = np.array([classes.number_of(name) for name in found.names], dtype=np.int16)
    numbers = np.arange(1, len(labels) + 1, dtype=np.int32)
    painted: list[tuple[Any, int]] = []
    if reach:
        circles = shapely.buffer(found.shapes, reach, quad_segs=ARC)
        painted += list(zip(circles, numbers.tolist(), strict=True))
        first, second = shapely.STRtree(circles).query(circles, predicate="intersects")
        torn = (first < second) & (labels[first] != labels[second])
        shared = shapely.intersection(circles[first[torn]], circles[second[torn]])
        painted += [(shape, 0) for shape in shared if shapely.get_dimensions(shape) == 2]
    column, row = _pixels_of(found.shapes, grid)
    # Of pixels: a point on an edge is of one pixel, in every tile.
    centres = shapely.points(*(grid.affine @ (column + 0.5, row + 0.5)))
    painted += list(zip(centres, numbers.tolist(), strict=True))
    fields = None if found.fields is None else found.fields.tolist()
    table = ParcelTable(numbers, found.keys.tolist(), labels, fields=fields)
    return Parcels(classes, table, [shape for shape, _ in painted], [paint for _, paint in painted])


def _one_point_a_pixel(found: _Candidates, grid: Grid) -> _Candidates:
    """The first of several points in one pixel, or none if their classes differ."""
    column, row = _pixels_of(found.shapes, grid)
    place = row * grid.width + column
    classes = np.unique(found.names.astype(str), return_inverse=True)[1]
    pairs = np.unique(np.stack([place, classes]), axis=1)
    torn = pairs[0][1:][pairs[0][1:] == pairs[0][:-1]]
    found = found.without(np.isin(place, torn), "in one pixel with a point of another class")
    column, row = _pixels_of(found.shapes, grid)
    first = np.unique(row * grid.width + column, return_index=True)[1]
    repeated = np.ones(len(found.shapes), dtype=bool)
    repeated[first] = False
    return found.without(repeated, "in one pixel with another of its class")


def _pixels_of(shapes: Shapes, grid: Grid) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Column and row of the pixel that each point lies in, perhaps beyond the grid."""
    import shapely

    columns, rows = ~grid.affine @ (shapely.get_x(shapes), shapely.get_y(shapes))
    return np.floor(columns).astype(np.int64), np.floor(rows).astype(np.int64)


def _object_array(values: Sequence[str | None]) -> NDArray[np.object_]:
    return np.array(values, dtype=object)


def _is_missing(names: NDArray[np.object_]) -> Flags:
    return np.array([name is None for name in names], dtype=bool)


# --- The ground that is not a field: squares of land cover, a parcel each
#
# A model knows the classes of its parcels and no others: woods become the crop that they are least unlike. Squares
# within woods, water and houses, as a land cover raster has them, teach it a class for that. They are parcels like any
# other: split, weighted and judged by parcel. As many are taken as the largest crop has parcels, each value alike.

GREY = "#9a9a9a"
SQUARE = 6  # pixels a side
FEWEST_SQUARES = 30
MOST_LOOKED_AT = 20_000  # squares of each value, before those on parcels are left out


def with_background(parcels: Parcels, raster: Path, grid: Grid, values: tuple[int, ...] | None) -> Parcels:
    """The parcels, and squares of other land cover that touch none of them."""
    import shapely

    with open_land_cover(raster, grid) as cover:
        others = background_values(cover.values, values, raster)
        places = _uniform_squares(cover, grid, others)
    random = np.random.default_rng(0)
    tree = shapely.STRtree(parcels.shapes)
    wanted = max(int(np.bincount(parcels.table.labels).max(initial=0)), FEWEST_SQUARES)
    chosen: list[Any] = []
    by_value = {value: random.permutation(found)[:MOST_LOOKED_AT] for value, found in places.items() if len(found)}
    for value, own in by_value.items():
        squares = np.array([_square(grid, row, column) for row, column in own.tolist()], dtype=object)
        free = np.ones(len(squares), dtype=bool)
        free[np.unique(tree.query(squares, predicate="intersects")[0])] = False
        chosen += squares[free][: math.ceil(wanted / len(by_value))].tolist()
        logger.debug("%s: %d squares of value %d", raster, min(int(free.sum()), wanted), value)
    if not chosen:
        why = f"no square of {SQUARE} x {SQUARE} pixels lies in one kind of it, apart from all parcels"
        raise InputError("no land outside of fields", path=raster, why=why, remedy="give a raster that has some")
    logger.info("%s: %d squares of values %s as '%s'", raster, len(chosen), ", ".join(map(str, others)), NOT_A_FIELD)
    first, table = int(parcels.table.numbers.max(initial=0)) + 1, parcels.table
    numbers = np.arange(first, first + len(chosen), dtype=np.int32)
    keys = [f"{NOT_A_FIELD} {place}" for place in range(1, len(chosen) + 1)]
    labels = np.full(len(chosen), len(parcels.classes), dtype=np.int16)
    joined = ParcelTable(
        np.concatenate([table.numbers, numbers]), [*table.keys, *keys], np.concatenate([table.labels, labels])
    )
    shapes, paints = [*chosen, *parcels.shapes], [*numbers.tolist(), *parcels.paints]
    return Parcels(_appended(parcels.classes), joined, shapes, paints)


def _appended(classes: ClassTable) -> ClassTable:
    if NOT_A_FIELD in classes.names:
        why = f"'{NOT_A_FIELD}' is the class of the background"
        raise UsageError("a class of the same name", why=why, remedy="rename it with --classes")
    return ClassTable((*classes, CropClass(len(classes), NOT_A_FIELD, GREY)))


def _uniform_squares(cover: LandCover, grid: Grid, wanted: tuple[int, ...]) -> dict[int, NDArray[np.int64]]:
    """Rows and columns (n, 2) of the upper left pixels of squares that hold one value alone, for each value."""
    squares: dict[int, list[NDArray[np.int64]]] = {value: [] for value in wanted}
    across = grid.width // SQUARE
    for top in range(0, grid.height - SQUARE + 1, SQUARE):
        values, present = cover.read(Window(top, 0, SQUARE, grid.width))
        blocks = values[:, : across * SQUARE].reshape(SQUARE, across, SQUARE)
        whole = present[:, : across * SQUARE].reshape(SQUARE, across, SQUARE).all(axis=(0, 2))
        first = blocks[0, :, 0]
        whole &= (blocks == first[None, :, None]).all(axis=(0, 2))
        for value in wanted:
            columns = np.flatnonzero(whole & (first == value)) * SQUARE
            squares[value].append(np.stack([np.full(len(columns), top), columns], axis=1))
    return {value: np.concatenate(parts) for value, parts in squares.items() if parts}


def _square(grid: Grid, row: int, column: int) -> Any:
    import shapely

    corners = [(column, row), (column + SQUARE, row), (column + SQUARE, row + SQUARE), (column, row + SQUARE)]
    return shapely.Polygon([grid.affine @ corner for corner in corners])


# --- Outlines: arrays of shapely geometries

Shapes = NDArray[np.object_]
Flags = NDArray[np.bool_]
Numbers = NDArray[np.float64]

MAXIMUM_PAIRS = 100_000  # of neighbours whose overlap is measured: some seconds; of more a part stands for all
COLLECTION = 7  # shapely's number for a mixture of kinds
MOST_CROSSINGS = 1000  # of an outline with itself: a second
SEGMENTS_LOOKED_AT = 1000
MOST_ARCS = 20_000  # vertices of an outline that is eroded by GEOS
PIECE = 64  # vertices of a piece of a longer outline
CENTRES_AT_ONCE = 20_000
ARC = 32  # segments of a quarter circle: an eroded corner is then exact to 0.03 % of the distance


def shapes_meet(shapes: Shapes, bounds: tuple[float, float, float, float]) -> Flags:
    """Which bounding boxes touch an area; coordinates that a projection cannot reach are nowhere."""
    import shapely

    boxes = shapely.bounds(shapes).reshape(-1, 4)
    touching: Flags = _meet(boxes, bounds) & np.isfinite(boxes).all(axis=1)
    return touching


def _meet(boxes: Numbers, bounds: tuple[float, float, float, float]) -> Flags:
    left, bottom, right, top = bounds
    return (boxes[:, 0] <= right) & (boxes[:, 2] >= left) & (boxes[:, 1] <= top) & (boxes[:, 3] >= bottom)


def repair_shapes(shapes: Shapes, path: Path) -> tuple[Shapes, int]:
    """Outlines that cross themselves made valid, and how many; what of a mixture is only a line or a point goes."""
    import shapely

    invalid = ~shapely.is_valid(shapes)
    mended = shapes.copy()
    for row in np.flatnonzero(invalid | (shapely.get_type_id(shapes) == COLLECTION)):
        if invalid[row] and (count := _crossings(shapes[row])) > MOST_CROSSINGS:
            why = f"its outline crosses itself some {count:,.0f} times"
            raise InputError(f"no parcel in row {row + 1}", path=path, why=why, remedy="leave it out")
        try:
            parts = shapely.get_parts(shapely.get_parts(shapely.make_valid(shapes[row])))  # also of a part's parts
            mended[row] = shapely.union_all(parts[shapely.get_dimensions(parts) == 2])
        except shapely.errors.GEOSException:  # a coordinate that is not a number
            mended[row] = shapely.Polygon()
    return mended, int((invalid & ~shapely.is_empty(mended)).sum())


def _crossings(shape: Any) -> float:
    """About how often an outline crosses itself: GEOS takes minutes and gigabytes to mend one that does so everywhere.

    Of very many segments some stand for all.
    """
    import shapely

    places, owners = shapely.get_coordinates(shapely.get_rings(shapely.get_parts(shape)), return_index=True)
    lines = shapely.linestrings(np.stack([places[:-1], places[1:]], axis=1)[owners[:-1] == owners[1:]])
    lines = lines[np.isfinite(shapely.bounds(lines)).all(axis=1)]
    tree, step = shapely.STRtree(lines), max(1, len(lines) // SEGMENTS_LOOKED_AT)
    found, looked_at = 0, 0
    for start in range(0, len(lines), step):
        found += max(len(tree.query(lines[start], predicate="crosses")), 0)
        looked_at += 1
        if found > 2 * MOST_CROSSINGS and looked_at > 20:
            break
    return found * len(lines) / max(looked_at, 1) / 2


def _metres_on(grid: Grid, metres: float, option: str) -> float:
    """A distance in metres in the units of the grid."""
    if not 0 <= metres < math.inf:
        raise UsageError(f"{option} {metres:g}", why="not a distance in metres", remedy="give 0 or more")
    if metres == 0:
        return 0.0
    crs = grid.rasterio_crs
    if not crs.is_projected:
        why = "the scene's coordinates are degrees, not metres"
        raise UsageError(
            f"{option} {metres:g} is not possible here", why=why, remedy="leave it out or project the scene"
        )
    return metres / float(crs.linear_units_factor[1])


def _erode_shapes(shapes: Shapes, margin: float, grid: Grid) -> Shapes:
    """The part of each shape farther than the margin from its outline; empty if there is none.

    Of an outline of very many vertices these are the pixels' centres: GEOS lays an arc around each vertex and cuts all
    arcs with each other, which takes gigabytes where they are closer than the margin. The pixels are the same.
    """
    import shapely

    many = shapely.get_num_coordinates(shapes) > MOST_ARCS
    eroded: Shapes = shapes.copy()
    eroded[~many] = shapely.buffer(shapes[~many], -margin, quad_segs=ARC)
    for row in np.flatnonzero(many):
        eroded[row] = _inner_pixels(shapes[row], margin, grid)
    return eroded


def _inner_pixels(shape: Any, margin: float, grid: Grid) -> Any:
    """The centres of the pixels in a shape that are farther than the margin from its outline."""
    import shapely
    from rasterio.features import rasterize

    window = _window_around(shape, grid)
    if window is None:
        return shapely.Polygon()
    piece = grid.crop(window)
    rows, columns = np.nonzero(rasterize([shape], piece.shape, transform=piece.affine, dtype="uint8"))
    centres = shapely.points(*(grid.affine @ (columns + window.left + 0.5, rows + window.top + 0.5)))
    tree = shapely.STRtree(_outline_pieces(shape))
    near = np.zeros(len(centres), dtype=bool)
    for start in range(0, len(centres), CENTRES_AT_ONCE):
        found, _ = tree.query(centres[start : start + CENTRES_AT_ONCE], predicate="dwithin", distance=margin)
        near[start + found] = True
    return shapely.multipoints(centres[~near]) if not near.all() else shapely.Polygon()


def _outline_pieces(shape: Any) -> Shapes:
    """The outline in short pieces, each with the last vertex of the one before, for a tree to find."""
    import shapely

    pieces: list[Any] = []
    for ring in shapely.get_rings(shapely.get_parts(shape)):
        vertices = shapely.get_coordinates(ring)
        pieces += [
            shapely.LineString(vertices[start : start + PIECE + 1]) for start in range(0, len(vertices) - 1, PIECE)
        ]
    return np.array(pieces, dtype=object)


def _overlap_share(shapes: Shapes) -> float:
    """About how much of the parcels' area lies in another parcel too."""
    import shapely

    first, second = shapely.STRtree(shapes).query(shapes)
    once = first < second
    first, second = first[once], second[once]
    step = math.ceil(len(first) / MAXIMUM_PAIRS) or 1
    common = shapely.area(shapely.intersection(shapes[first[::step]], shapes[second[::step]])).sum() * step
    return min(float(common / shapely.area(shapes).sum()), 1.0)


def _count_without_pixel(shapes: Shapes, grid: Grid) -> int:
    """How many shapes have no pixel's centre on the grid. Most show one near their middle; the others are burnt."""
    import shapely

    inside = shapely.point_on_surface(shapes)
    columns, rows = map(np.floor, ~grid.affine @ (shapely.get_x(inside), shapely.get_y(inside)))
    on_grid = (columns >= 0) & (columns < grid.width) & (rows >= 0) & (rows < grid.height)
    covered = on_grid & shapely.contains_xy(shapes, *(grid.affine @ (columns + 0.5, rows + 0.5)))
    return sum(not _has_pixel(shape, grid) for shape in shapes[~covered])


def _has_pixel(shape: Any, grid: Grid) -> bool:
    from rasterio.features import rasterize

    window = _window_around(shape, grid)
    if window is None:
        return False
    piece = grid.crop(window)
    return bool(rasterize([shape], piece.shape, transform=piece.affine, dtype="uint8").any())


def _window_around(shape: Any, grid: Grid) -> Window | None:
    """The pixels of the grid that a shape's bounding box touches; None where there is none."""
    left, bottom, right, top = shape.bounds
    columns, rows = ~grid.affine @ (np.array([left, left, right, right]), np.array([bottom, top, bottom, top]))
    column, row = max(math.floor(columns.min()), 0), max(math.floor(rows.min()), 0)
    width, height = min(math.ceil(columns.max()), grid.width) - column, min(math.ceil(rows.max()), grid.height) - row
    return Window(row, column, height, width) if width > 0 and height > 0 else None
