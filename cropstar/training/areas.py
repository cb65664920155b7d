"""How much of each class there is: the mapped area put right by what a sample found in the field.

Counting the pixels of a map is biased by the map's mistakes. The estimator for a sample stratified by the map's classes
(Olofsson et al. 2014, https://doi.org/10.1016/j.rse.2014.02.015; the equations' numbers are theirs) weighs what the
sample found in each mapped class i by its share of the map W_i: p_ij = W_i n_ij / n_i. Its standard errors hold for
samples that were drawn by chance, and only for those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cropstar.errors import InputError
from cropstar.training.metrics import Confusion

Floats = NDArray[np.float64]

NO_DESIGN = (
    "the test parcels are not known to be a probability sample of the map: the areas are put right as if they were, "
    "and the intervals leave out the error of a choice that was not by chance"
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

    level: float
    mapped: tuple[float, ...]
    area: tuple[Estimate, ...]
    overall_accuracy: Estimate
    users_accuracy: tuple[Estimate, ...]
    producers_accuracy: tuple[Estimate, ...]
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "mapped": list(self.mapped),
            "area": [entry.to_json() for entry in self.area],
            "overall_accuracy": self.overall_accuracy.to_json(),
            "users_accuracy": [entry.to_json() for entry in self.users_accuracy],
            "producers_accuracy": [entry.to_json() for entry in self.producers_accuracy],
            "warnings": list(self.warnings),
        }


def estimate_areas(
    sample: Confusion,
    mapped: ArrayLike,
    *,
    names: Sequence[str] | None = None,
    probability_sample: bool = False,
    level: float = 0.95,
) -> AreaEstimates:
    """From a sample's confusion matrix, rows the truth and columns the map as everywhere here, and the mapped areas.

    A mapped class without a sample tells nothing of what grows there: its area is left out, and a warning says so.
    """
    areas = np.asarray(mapped, dtype=np.float64)
    counts = np.asarray(sample, dtype=np.float64).T  # (map i, truth j), as in the paper
    _check(counts, areas)
    sampled = counts.sum(axis=1)  # n_i
    used = np.where(sampled > 0, areas, 0.0)
    total = used.sum()
    weights = used / total  # W_i
    inside = _divide(counts, sampled[:, None])  # n_ij / n_i
    # A stratum without weight adds nothing, whatever its sample.
    shares = np.where(weights[:, None] > 0, weights[:, None] * np.nan_to_num(inside), 0.0)  # p_ij
    spread = _divide(inside * (1 - inside), sampled[:, None] - 1)  # the variance of n_ij / n_i; nan for one sample
    weighed = np.where(weights[:, None] > 0, weights[:, None] ** 2 * spread, 0.0)

    true_shares = shares.sum(axis=0)  # p_.j, eq. 9
    area_errors = np.sqrt(weighed.sum(axis=0))  # eq. 10
    producers = _divide(shares.diagonal(), true_shares)  # eq. 3
    missed = producers**2 * (weighed.sum(axis=0) - weighed.diagonal())
    producers_errors = _divide(np.sqrt((1 - producers) ** 2 * weighed.diagonal() + missed), true_shares)  # eq. 7

    wide = NormalDist().inv_cdf((1 + level) / 2)
    return AreaEstimates(
        level,
        tuple(float(area) for area in areas),
        _estimates(total * true_shares, total * area_errors, wide),
        _estimate(float(shares.trace()), float(np.sqrt(weighed.trace())), wide),  # eqs. 1 and 5
        _estimates(inside.diagonal(), np.sqrt(spread.diagonal()), wide),  # eqs. 2 and 6
        _estimates(producers, producers_errors, wide),
        tuple(_warnings(sampled, areas, names, probability_sample=probability_sample)),
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


def _warnings(sampled: Floats, areas: Floats, names: Sequence[str] | None, *, probability_sample: bool) -> list[str]:
    def listed(chosen: NDArray[np.bool_]) -> str:
        return ", ".join(names[int(place)] if names else f"class {place}" for place in np.flatnonzero(chosen))

    said = [] if probability_sample else [NO_DESIGN]
    unsampled = (sampled == 0) & (areas > 0)
    if unsampled.any():
        share = 100 * areas[unsampled].sum() / areas.sum()
        said.append(f"no sample in what is mapped as {listed(unsampled)}: {share:.1f} % of the map are left out")
    single = (sampled == 1) & (areas > 0)
    if single.any():
        said.append(f"a single sample in what is mapped as {listed(single)}: standard errors cannot be given")
    absent = (sampled > 0) & (areas == 0)
    if absent.any():
        said.append(f"samples mapped as {listed(absent)}, which the map does not show, do not count")
    return said


def _estimates(values: Floats, errors: Floats, wide: float) -> tuple[Estimate, ...]:
    return tuple(_estimate(float(value), float(error), wide) for value, error in zip(values, errors, strict=True))


def _estimate(value: float, error: float, wide: float) -> Estimate:
    if not np.isfinite(value):
        return Estimate(None, None, None)
    return Estimate(value, error, wide * error) if np.isfinite(error) else Estimate(value, None, None)


def _divide(part: Floats, whole: Floats) -> Floats:
    quotient: Floats = np.full(part.shape, np.nan)
    np.divide(part, whole, out=quotient, where=whole > 0)
    return quotient
