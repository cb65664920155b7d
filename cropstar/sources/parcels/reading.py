"""From a vector file to the parcels of a scene; what is left out or changed on the way is said aloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.geo.grid import Grid
from cropstar.limits import MAXIMUM_CLASSES
from cropstar.logs import logger
from cropstar.sources.class_rules import KEEP_ALL, ClassRules
from cropstar.sources.parcels import shapes as outlines
from cropstar.sources.parcels.burning import Parcels
from cropstar.sources.parcels.shapes import Flags, Shapes
from cropstar.sources.parcels.vector import find_label_column, keys_of, labels_of, open_vector
from cropstar.store.classes import ClassTable
from cropstar.store.tile import ParcelTable

NOTABLE_OVERLAP = 0.01  # of the labelled area; neighbours that share a border overlap a little
BESIDE = "beside the scene"


class NothingLabelled(InputError):
    """No parcel of the file is of use to the scene; with several scenes the others may have some."""


@dataclass(frozen=True)
class Candidates:
    """The rows of the file that are still of use, and how many are not and why."""

    keys: NDArray[np.object_]
    names: NDArray[np.object_]
    shapes: Shapes
    left_out: dict[str, int] = field(default_factory=dict)

    def without(self, useless: Flags, why: str) -> Candidates:
        left_out = {**self.left_out, why: self.left_out.get(why, 0) + int(useless.sum())}
        return Candidates(self.keys[~useless], self.names[~useless], self.shapes[~useless], left_out)

    @property
    def losses(self) -> str:
        return ", ".join(f"{count} {why}" for why, count in self.left_out.items() if count)


def read_parcels(
    path: Path,
    grid: Grid,
    *,
    label_column: str | None = None,
    rules: ClassRules = KEEP_ALL,
    erode: float = 0.0,
) -> Parcels:
    """Read a vector file, bring it to the grid's coordinate system and make it ready to burn; erosion is in metres."""
    margin = outlines.margin_on(grid, erode)
    frame = open_vector(path)
    column = find_label_column(frame, label_column, path)
    shapes = _on_grid(frame, grid, path)
    everything = Candidates(_array(keys_of(frame)), _array(labels_of(frame[column])), shapes)
    found = _with_classes(_on_scene(everything, grid, path), rules, path)
    classes = rules.table(found.names.tolist())
    if len(classes) > MAXIMUM_CLASSES:
        why = f"{len(classes)} different values in column '{column}'"
        remedy = "choose another column with --label-column or merge classes with --classes"
        raise InputError("too many classes", path=path, why=why, remedy=remedy)
    if (share := outlines.overlap_share(found.shapes)) > NOTABLE_OVERLAP:
        logger.info("%s: parcels overlap on about %.0f %% of their area; the smaller one wins", path, 100 * share)
    rest = outlines.erode(found.shapes, margin) if margin else found.shapes
    return _numbered(found, rest, classes, grid, path, erode)


def _on_scene(everything: Candidates, grid: Grid, path: Path) -> Candidates:
    """The labelled parcels that meet the grid, with outlines that are valid; a field has an area."""
    import shapely

    nothing = shapely.is_missing(everything.shapes) | shapely.is_empty(everything.shapes)
    found = everything.without(nothing, "without a geometry")
    found = found.without(_missing(found.names), "without a label")
    found = found.without(~outlines.meets(found.shapes, grid.bounds), BESIDE)
    shapes, repaired = outlines.repair(found.shapes)
    if repaired:
        logger.info("%s: %d parcels with an invalid outline were repaired", path, repaired)
    found = replace(found, shapes=shapes)
    found = found.without(shapely.area(found.shapes) <= 0, "without an area")
    return found.without(~shapely.intersects(found.shapes, shapely.box(*grid.bounds)), BESIDE)


def _on_grid(frame: Any, grid: Grid, path: Path) -> Any:
    """The geometries in the grid's coordinate system."""
    from pyproj.exceptions import ProjError

    try:
        return frame.geometry.to_crs(grid.rasterio_crs).to_numpy()
    except ProjError as failure:
        why = f"there is no way from their coordinate system to the images' ({failure})"
        raise InputError("parcels in other coordinates", path=path, why=why, remedy="reproject them first") from None


def _with_classes(found: Candidates, rules: ClassRules, path: Path) -> Candidates:
    """The parcels with their classes in place of the labels, the largest first."""
    import shapely

    names = _array(rules.apply(found.names.tolist()))
    found = replace(found, names=names).without(_missing(names), "left out by the class table")
    if not len(found.shapes):
        why, remedy = found.losses or "there are no parcels in it", "check that both cover the same place"
        raise NothingLabelled("no labelled parcel lies on the scene", path=path, why=why, remedy=remedy)
    if found.losses:
        logger.info("%s: parcels not used: %s", path, found.losses)
    order = np.lexsort((found.keys, -shapely.area(found.shapes)))
    return replace(found, keys=found.keys[order], names=found.names[order], shapes=found.shapes[order])


def _numbered(found: Candidates, rest: Shapes, classes: ClassTable, grid: Grid, path: Path, metres: float) -> Parcels:
    """What the erosion left of the parcels, numbered and ready to be painted."""
    import shapely

    lives = ~shapely.is_empty(rest)
    if not lives.any():
        why = f"--erode {metres:g} leaves nothing of {len(rest)}"
        raise NothingLabelled("no parcel is left", path=path, why=why, remedy="erode less")
    if vanished := len(rest) - int(lives.sum()):
        logger.info("%s: %d parcels vanish with --erode %g", path, vanished, metres)
    if small := outlines.count_without_pixel(rest[lives], grid):
        logger.info("%s: %d parcels are too small for a pixel", path, small)

    numbers = np.cumsum(lives, dtype=np.int32)
    painted: list[tuple[Any, int]] = []
    for outline, inner, number, alive in zip(found.shapes, rest, numbers.tolist(), lives, strict=True):
        painted += [(outline, 0)] if metres else []
        painted += [(inner, number)] if alive else []
    labels = np.array([classes.number_of(name) for name in found.names[lives]], dtype=np.int16)
    table = ParcelTable(numbers[lives], found.keys[lives].tolist(), labels)
    return Parcels(classes, table, [shape for shape, _ in painted], [paint for _, paint in painted])


def _array(values: Sequence[str | None]) -> NDArray[np.object_]:
    return np.array(values, dtype=object)


def _missing(names: NDArray[np.object_]) -> Flags:
    return np.array([name is None for name in names], dtype=bool)
