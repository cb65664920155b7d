"""Adjusted areas: the mapped area of each class, corrected by a reference sample.

Pixel counts are biased by the errors of the map. The estimator for a sample stratified by the map's classes
(Olofsson et al. 2014, https://doi.org/10.1016/j.rse.2014.02.015; the equations' numbers are theirs) weighs what the
sample found in each mapped class i by its share of the map W_i: p_ij = W_i n_ij / n_i. Its standard errors hold for
random samples only: without a design there are none.

Pixels come in parcels and are nearly copies of each other there: what was drawn is a parcel. Errors are then those
between parcels (`between_parcels`), which are the paper's own where every parcel is one pixel.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cropstar.errors import InputError, MismatchError
from cropstar.geo.grid import Grid, hectares_per_pixel
from cropstar.geo.raster import GDAL_ERRORS, open_raster, rasterio_window
from cropstar.geo.windows import split
from cropstar.inputs import MAXIMUM_CLASSES, MAXIMUM_CONFIG_BYTES, is_geotiff, require_file
from cropstar.reports.wording import percent
from cropstar.store.classes import MARKS, NODATA
from cropstar.training.metrics import Confusion, ParcelCounts, divide

Floats = NDArray[np.float64]

NO_DESIGN = (
    "the test parcels are not known to be a probability sample of the map: the areas are adjusted as if they were, "
    "and without intervals; if they are a random sample, give its --design"
)


@dataclass(frozen=True)
class Estimate:
    """A figure and its standard error; None where it is not defined."""

    value: float | None
    error: float | None  # the standard error
    margin: float | None  # half of the interval

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "error": self.error, "margin": self.margin}


@dataclass(frozen=True)
class AreaEstimates:
    """Areas in the unit of the mapped areas; accuracies by area, not by count. One entry per class."""

    design: Design | None  # None: not known, and no figure has an error
    level: float
    mapped: tuple[float, ...]
    area: tuple[Estimate, ...]
    overall_accuracy: Estimate
    users_accuracy: tuple[Estimate, ...]
    producers_accuracy: tuple[Estimate, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "design": self.design,
            "level": self.level,
            "mapped": list(self.mapped),
            "area": [entry.to_json() for entry in self.area],
            "overall_accuracy": self.overall_accuracy.to_json(),
            "users_accuracy": [entry.to_json() for entry in self.users_accuracy],
            "producers_accuracy": [entry.to_json() for entry in self.producers_accuracy],
            "warnings": list(self.warnings),
        }


def estimate_areas(
    sample: Confusion | ParcelCounts,
    mapped: ArrayLike,
    *,
    design: Design | None,
    names: Sequence[str] | None = None,
    level: float = 0.95,
) -> AreaEstimates:
    """Estimate areas from a sample's confusion matrix (rows are the truth, columns the map) and the mapped areas.

    A matrix alone is a sample of single units; `ParcelCounts` are a sample of parcels. The area of a mapped class
    without a sample is left out, with a warning.
    """
    areas = np.asarray(mapped, dtype=np.float64)
    matrix = sample.matrix() if isinstance(sample, ParcelCounts) else sample
    counts = np.asarray(matrix, dtype=np.float64).T  # (map i, truth j), as in the paper
    _check(counts, areas)
    sampled = counts.sum(axis=1)  # n_i
    used = np.where(sampled > 0, areas, 0.0)
    total = used.sum()
    weights = used / total  # W_i
    inside = divide(counts, sampled[:, None])  # n_ij / n_i
    # A stratum without weight adds nothing, whatever its sample.
    shares = np.where(weights[:, None] > 0, weights[:, None] * np.nan_to_num(inside), 0.0)  # p_ij
    true_shares = shares.sum(axis=0)  # p_.j, eq. 9
    producers = divide(shares.diagonal(), true_shares)  # eq. 3
    if isinstance(sample, ParcelCounts):
        spread = between_parcels(sample, weights, design or "random")
    else:
        spread = between_units(counts, weights)
    if design is None:
        spread = spread.unknown()
    wide = NormalDist().inv_cdf((1 + level) / 2)
    return AreaEstimates(
        design,
        level,
        tuple(float(area) for area in areas),
        _estimates(total * true_shares, total * spread.area, wide),
        _estimate(float(shares.trace()), spread.overall, wide),  # eq. 1
        _estimates(inside.diagonal(), spread.users, wide),  # eq. 2
        _estimates(producers, spread.producers, wide),
        tuple(_warnings(sampled, areas, names, spread, design)),
    )


def _check(counts: Floats, areas: Floats) -> None:
    why = None
    if counts.ndim != 2 or counts.shape != (len(areas), len(areas)):
        why = f"a sample of shape {counts.shape} does not fit {areas.size} mapped areas"
    elif not np.isfinite(areas).all() or (areas < 0).any() or (counts < 0).any():
        why = "areas and counts must be numbers from 0"
    elif not ((counts.sum(axis=1) > 0) & (areas > 0)).any():
        why = "no mapped class has a sample"
    if why:
        raise InputError("areas cannot be estimated", why=why, remedy="check the sample and the map")


def _warnings(
    sampled: Floats, areas: Floats, names: Sequence[str] | None, spread: StandardErrors, design: Design | None
) -> list[str]:
    def listed(chosen: NDArray[np.bool_]) -> str:
        return ", ".join(names[int(place)] if names else f"{place}" for place in np.flatnonzero(chosen))

    warnings = [NO_DESIGN] if design is None else []
    unsampled = (sampled == 0) & (areas > 0)
    if unsampled.any():
        share = percent(areas[unsampled].sum() / areas.sum())
        warnings.append(f"no sample in the mapped class {listed(unsampled)}: {share} of the map is left out")
    single = spread.single & (areas > 0)
    tiny = single & (areas <= TINY * areas[sampled > 0].sum())
    if design is not None and tiny.any():
        warnings.append(f"a single sample in the small mapped class {listed(tiny)}: the largest error is assumed")
    if design is not None and (single & ~tiny).any():
        warnings.append(f"a single sample in the mapped class {listed(single & ~tiny)}: no standard error")
    absent = (sampled > 0) & (areas == 0)
    if absent.any():
        warnings.append(f"samples mapped as {listed(absent)} are ignored: the map has no such class")
    if design == "stratified" and spread.mixed > 0.005:
        unlike = f"{100 * spread.mixed:.0f} % of the pixels are mapped differently from most of their parcel"
        warnings.append(f"{unlike}: the stratum of a parcel is its most frequent mapped class")
    return warnings


def _estimates(values: Floats, errors: Floats, wide: float) -> tuple[Estimate, ...]:
    return tuple(_estimate(float(value), float(error), wide) for value, error in zip(values, errors, strict=True))


def _estimate(value: float, error: float, wide: float) -> Estimate:
    if not np.isfinite(value):
        return Estimate(None, None, None)
    return Estimate(value, error, wide * error) if np.isfinite(error) else Estimate(value, None, None)


# --- standard errors: between single units, or between parcels


Design = Literal["random", "stratified"]  # of all parcels alike; or so many of each mapped class


TINY = 0.01  # share of the map: a class this small may take the widest error there is, and the others keep theirs
WIDEST = 0.25  # variance of one unit that is of a class or not, at most


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of area shares and accuracies; NaN where they cannot be estimated."""

    area: Floats  # (K,)
    overall: float
    users: Floats
    producers: Floats
    single: NDArray[np.bool_]  # (K,) mapped classes with one sample: nothing tells how samples differ there
    mixed: float = 0.0  # share of the pixels that are not of the class that most of their parcel is mapped as

    def unknown(self) -> StandardErrors:
        nothing = np.full_like(self.area, np.nan)
        return replace(self, area=nothing, overall=float("nan"), users=nothing, producers=nothing)


def between_units(counts: Floats, weights: Floats) -> StandardErrors:
    """The paper's estimator, from counts (map i, truth j) of single units drawn in each mapped class of weight W_i.

    It holds for a simple random sample too, given the numbers that fell into each class.
    """
    sampled = counts.sum(axis=1)
    inside = divide(counts, sampled[:, None])
    shares = np.where(weights[:, None] > 0, weights[:, None] * np.nan_to_num(inside), 0.0)
    truly = shares.sum(axis=0)
    spread = divide(inside * (1 - inside), sampled[:, None] - 1)  # the variance of n_ij / n_i; nan for one sample
    single = sampled == 1
    bounded = np.where((single & (weights <= TINY))[:, None], WIDEST, spread)
    weighed = np.where(weights[:, None] > 0, weights[:, None] ** 2 * bounded, 0.0)
    producers = divide(shares.diagonal(), truly)
    missed = producers**2 * (weighed.sum(axis=0) - weighed.diagonal())
    return StandardErrors(
        np.sqrt(weighed.sum(axis=0)),  # eq. 10
        float(np.sqrt(weighed.trace())),  # eq. 5
        np.sqrt(spread.diagonal()),  # eq. 6
        divide(np.sqrt((1 - producers) ** 2 * weighed.diagonal() + missed), truly),  # eq. 7
        single,
    )


def between_parcels(sample: ParcelCounts, weights: Floats, design: Design) -> StandardErrors:
    """The same for whole parcels, linearised: from how much each parcel moves a figure.

    A parcel moves n_ij / n_i by (its pixels of i and j - n_ij / n_i times its pixels of i) / n_i. Parcels vary among
    all others or, in a stratified sample, among those that are mapped mostly as the same class.
    """
    size, parcels = sample.classes, len(sample.parcels)
    truth, predicted = np.divmod(sample.cell, size)
    counts = sample.matrix().T.astype(np.float64)
    sampled = counts.sum(axis=1)
    inside = np.nan_to_num(divide(counts, sampled[:, None]))
    each = np.nan_to_num(divide(np.ones(size), sampled))  # 1 / n_i

    mapped: Floats = np.zeros((parcels, size))  # pixels of each parcel by their mapped class
    np.add.at(mapped, (sample.parcel, predicted), sample.count)
    found: Floats = np.zeros((parcels, size))  # weighed pixels by true class
    np.add.at(found, (sample.parcel, truth), sample.count * (weights * each)[predicted])
    hits: Floats = np.zeros((parcels, size))
    right = truth == predicted
    np.add.at(hits, (sample.parcel[right], truth[right]), sample.count[right])

    area = found - mapped @ ((weights * each)[:, None] * inside)  # (P, K) what each parcel moves
    users = (hits - mapped * inside.diagonal()) * each
    shares = weights[:, None] * inside
    truly = shares.sum(axis=0)
    producers = (weights * users - divide(shares.diagonal(), truly) * area) / np.where(truly > 0, truly, np.nan)

    most = mapped.argmax(axis=1)
    strata = most if design == "stratified" else np.zeros(parcels, dtype=np.int64)
    lone = np.bincount(most, minlength=size) == 1 if design == "stratified" else np.zeros(size, dtype=bool)
    single = ((mapped > 0).sum(axis=0) == 1) | lone
    moved = np.column_stack([area, users @ weights, users, producers])
    variance = _variance(moved, strata)
    widest = WIDEST * (weights[single] ** 2).sum()
    if (weights[single] > TINY).any():  # one class whose spread is not known leaves every sum over classes unknown
        widest = np.nan
    variance[: size + 1] += widest
    variance[2 * size + 1 :] += divide(np.full(size, widest), truly**2)
    errors = np.sqrt(variance)
    own = np.where(single | (sampled == 0), np.nan, errors[size + 1 : 2 * size + 1])
    mixed = 1 - mapped.max(axis=1).sum() / max(mapped.sum(), 1)
    return StandardErrors(errors[:size], float(errors[size]), own, errors[2 * size + 1 :], single, float(mixed))


def _variance(moved: Floats, strata: NDArray[np.int64]) -> Floats:
    """The variance of sums over parcels (P, figures), drawn independently within strata; single parcels add none."""
    total: Floats = np.zeros(moved.shape[1])
    for stratum in np.unique(strata):
        members = moved[strata == stratum]
        if len(members) > 1:
            total += len(members) * members.var(axis=0, ddof=1)
    return total


# --- mapped areas: counted in a classified GeoTIFF, or read from a table


BLOCK = 1024  # pixels a side that are read at once
EARTH = 5.2e10  # hectares
AREA_COLUMNS = ("class", "hectares")
AREA_TABLE = "give a table with the columns class and hectares, or a map that 'cropstar predict' made"


@dataclass(frozen=True)
class MappedAreas:
    hectares: tuple[float, ...]  # of each of the model's classes
    model: str | None  # digest of the one that made the map; None: not known


def read_mapped(path: Path, names: Sequence[str]) -> MappedAreas:
    """The mapped hectares of each class; zero for a class that the map does not have."""
    require_file(path)
    if is_geotiff(path):
        return _count(path, names)
    if path.suffix.lower() == ".csv":
        return MappedAreas(_read_table(path, names), None)
    raise InputError("no areas", path=path, why="neither .tif nor .csv", remedy=AREA_TABLE)


def _count(path: Path, names: Sequence[str]) -> MappedAreas:
    with open_raster(path) as dataset:
        share = hectares_per_pixel(Grid.of(dataset))
        tags = dataset.tags(1)
        named = {value: tags[f"CLASS_{value}"] for value in range(MAXIMUM_CLASSES) if f"CLASS_{value}" in tags}
        why = None
        if not named or dataset.dtypes[0] != "uint8":
            why = "it has no class names, unlike maps made by cropstar"
        elif share is None:
            why = "its coordinates are not in metres, so pixels differ in size"
        if why:
            raise InputError("the areas cannot be counted", path=path, why=why, remedy=AREA_TABLE)
        counts = _count_values(path, dataset)
        model = dataset.tags().get("CROPSTAR_MODEL")
    unnamed = [str(value) for value in np.flatnonzero(counts[:NODATA]) if int(value) not in named]
    if unnamed:
        why = f"its values {', '.join(unnamed)} have no name"
        raise InputError("the areas cannot be counted", path=path, why=why, remedy=AREA_TABLE)
    for mark, (name, _) in MARKS.items():  # no class: neither its area nor part of the mapped one
        if named.get(mark) == name and name not in names:
            del named[mark]
    strange = [name for value, name in named.items() if counts[value] and name not in names]
    if strange:
        raise _unknown_classes(path, strange)
    assert share is not None
    hectares = dict.fromkeys(names, 0.0)
    for value, name in named.items():
        if counts[value]:
            hectares[name] += float(counts[value]) * share
    return MappedAreas(tuple(hectares.values()), model)


def _count_values(path: Path, dataset: Any) -> NDArray[np.int64]:
    counts = np.zeros(256, dtype=np.int64)
    try:
        for window in split(dataset.shape, BLOCK):
            counts += np.bincount(dataset.read(1, window=rasterio_window(window)).ravel(), minlength=256)
    except GDAL_ERRORS as failure:
        remedy = "make the map again"
        raise InputError("the map cannot be read", path=path, why=str(failure), remedy=remedy) from None
    return counts


def _read_table(path: Path, names: Sequence[str]) -> tuple[float, ...]:
    if path.stat().st_size > MAXIMUM_CONFIG_BYTES:
        raise InputError("the table of areas is too large", path=path, remedy=AREA_TABLE)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines)
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as failure:
        raise InputError("the table cannot be read", path=path, why=str(failure), remedy=AREA_TABLE) from None
    if not rows or not set(AREA_COLUMNS) <= rows[0].keys():
        why = "no rows" if not rows else f"its columns are {', '.join(str(name) for name in rows[0])}"
        raise InputError("not a table of areas", path=path, why=why, remedy=AREA_TABLE)
    for column in AREA_COLUMNS:
        if (count := list(reader.fieldnames or ()).count(column)) > 1:
            why = f"the column '{column}' is there {count} times"
            raise InputError("not a table of areas", path=path, why=why, remedy="keep one of them")
    hectares: dict[str, float] = {}
    for place, row in enumerate(rows, start=2):
        name, text = (str(row[column] or "").strip() for column in AREA_COLUMNS)
        if name in hectares:
            raise InputError(f"'{name}' is listed twice", path=path, why=f"line {place}", remedy="keep one of them")
        hectares[name] = _hectares(path, place, text)
    strange = [name for name in hectares if name not in names]
    if strange:
        raise _unknown_classes(path, strange)
    return tuple(hectares.get(name, 0.0) for name in names)


def _hectares(path: Path, place: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= EARTH:
        why = f"'{text}' in line {place} is not an area"
        raise InputError(
            "not a table of areas", path=path, why=why, remedy="give hectares as numbers from 0, like 12.5"
        )
    return value


def _unknown_classes(path: Path, strange: Sequence[str]) -> MismatchError:
    why = f"the model does not know the classes [{', '.join(strange)}]"
    return MismatchError("the areas do not fit the model", path=path, why=why, remedy="give areas of its classes")
