"""How much of each class there is: the mapped area, adjusted by what a sample found in the field.

Counting the pixels of a map is biased by the map's mistakes. The estimator for a sample stratified by the map's classes
(Olofsson et al. 2014, https://doi.org/10.1016/j.rse.2014.02.015; the equations' numbers are theirs) weighs what the
sample found in each mapped class i by its share of the map W_i: p_ij = W_i n_ij / n_i. Its standard errors hold for
samples that were drawn by chance, and only for those: without a design there are none.

Pixels come in parcels and are nearly copies of each other there: what was drawn is a parcel. Errors are then those
between parcels (`area_spread.py`), which are the paper's own where every parcel is one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cropstar.errors import InputError
from cropstar.reports.wording import percent
from cropstar.training.area_spread import TINY, Design, Spread, between_parcels, between_units, divide
from cropstar.training.intervals import ParcelCounts
from cropstar.training.metrics import Confusion

Floats = NDArray[np.float64]

NO_DESIGN = (
    "the test parcels are not known to be a probability sample of the map: the areas are adjusted as if they were, "
    "and how far they may be off cannot be said; if they were drawn by chance, say so with --design"
)


@dataclass(frozen=True)
class Estimate:
    """A figure and how far it may be off; None where it is not defined."""

    value: float | None
    error: float | None  # the standard error
    margin: float | None  # half of the interval

    def to_json(self) -> dict[str, Any]:
        return {"value": self.value, "error": self.error, "margin": self.margin}


@dataclass(frozen=True)
class AreaEstimates:
    """Areas in the unit of the mapped areas; accuracies by area, not by count. One entry a class."""

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
    """From a sample's confusion matrix, rows the truth and columns the map as everywhere here, and the mapped areas.

    A matrix alone is a sample of single units; with the counts of each parcel, parcels are what was drawn. A mapped
    class without a sample tells nothing of what grows there: its area is left out, and a warning says so.
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
    sampled: Floats, areas: Floats, names: Sequence[str] | None, spread: Spread, design: Design | None
) -> list[str]:
    def listed(chosen: NDArray[np.bool_]) -> str:
        return ", ".join(names[int(place)] if names else f"class {place}" for place in np.flatnonzero(chosen))

    said = [NO_DESIGN] if design is None else []
    unsampled = (sampled == 0) & (areas > 0)
    if unsampled.any():
        share = percent(areas[unsampled].sum() / areas.sum())
        said.append(f"no sample in what is mapped as {listed(unsampled)}: {share} of the map are left out")
    single = spread.single & (areas > 0)
    tiny = single & (areas <= TINY * areas[sampled > 0].sum())
    if design is not None and tiny.any():
        said.append(f"a single sample in what is mapped as {listed(tiny)}, little as it is: its widest error is taken")
    if design is not None and (single & ~tiny).any():
        said.append(f"a single sample in what is mapped as {listed(single & ~tiny)}: standard errors cannot be given")
    absent = (sampled > 0) & (areas == 0)
    if absent.any():
        said.append(f"samples mapped as {listed(absent)}, which the map does not show, do not count")
    if design == "stratified" and spread.mixed > 0.005:
        unlike = f"{100 * spread.mixed:.0f} % of the pixels are mapped unlike most of their parcel"
        said.append(f"{unlike}: strata are taken to be what most of a parcel is mapped as")
    return said


def _estimates(values: Floats, errors: Floats, wide: float) -> tuple[Estimate, ...]:
    return tuple(_estimate(float(value), float(error), wide) for value, error in zip(values, errors, strict=True))


def _estimate(value: float, error: float, wide: float) -> Estimate:
    if not np.isfinite(value):
        return Estimate(None, None, None)
    return Estimate(value, error, wide * error) if np.isfinite(error) else Estimate(value, None, None)
