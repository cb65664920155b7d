"""How far areas and accuracies of a sample may be off: standard errors by what was drawn, single units or parcels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.training.intervals import ParcelCounts

Floats = NDArray[np.float64]
Design = Literal["random", "stratified"]  # of all parcels alike; or so many of each mapped class


TINY = 0.01  # share of the map: a class this small may take the widest error there is, and the others keep theirs
WIDEST = 0.25  # variance of one unit that is of a class or not, at most


@dataclass(frozen=True)
class Spread:
    """Standard errors, of area shares first; not a number where they cannot be given."""

    area: Floats  # (K,)
    overall: float
    users: Floats
    producers: Floats
    single: NDArray[np.bool_]  # (K,) mapped classes with one sample: nothing tells how samples differ there
    mixed: float = 0.0  # share of the pixels that are not of the class that most of their parcel is mapped as

    def unknown(self) -> Spread:
        nothing = np.full_like(self.area, np.nan)
        return replace(self, area=nothing, overall=float("nan"), users=nothing, producers=nothing)


def between_units(counts: Floats, weights: Floats) -> Spread:
    """The paper's own: counts (map i, truth j) of single units, drawn in each mapped class, whose weights are W_i.

    It holds for a simple random sample too, given how many of it fell into each class.
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
    return Spread(
        np.sqrt(weighed.sum(axis=0)),  # eq. 10
        float(np.sqrt(weighed.trace())),  # eq. 5
        np.sqrt(spread.diagonal()),  # eq. 6
        divide(np.sqrt((1 - producers) ** 2 * weighed.diagonal() + missed), truly),  # eq. 7
        single,
    )


def between_parcels(sample: ParcelCounts, weights: Floats, design: Design) -> Spread:
    """Of parcels as wholes: how much each moves a figure, to first order, and how that varies from parcel to parcel.

    A parcel moves n_ij / n_i by (its pixels of i and j - n_ij / n_i times its pixels of i) / n_i. Parcels vary among
    all others or, in a stratified sample, among those that are mapped mostly as the same class.
    """
    size, parcels = sample.classes, len(sample.parcels)
    truth, said = np.divmod(sample.cell, size)
    counts = sample.matrix().T.astype(np.float64)
    sampled = counts.sum(axis=1)
    inside = np.nan_to_num(divide(counts, sampled[:, None]))
    each = np.nan_to_num(divide(np.ones(size), sampled))  # 1 / n_i

    mapped: Floats = np.zeros((parcels, size))  # pixels of each parcel by their mapped class
    np.add.at(mapped, (sample.parcel, said), sample.count)
    found: Floats = np.zeros((parcels, size))  # weighed pixels by true class
    np.add.at(found, (sample.parcel, truth), sample.count * (weights * each)[said])
    hits: Floats = np.zeros((parcels, size))
    right = truth == said
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
    return Spread(errors[:size], float(errors[size]), own, errors[2 * size + 1 :], single, float(mixed))


def _variance(moved: Floats, strata: NDArray[np.int64]) -> Floats:
    """Of sums over parcels (P, figures), drawn independently within strata; a stratum of one adds what it can: none."""
    total: Floats = np.zeros(moved.shape[1])
    for stratum in np.unique(strata):
        members = moved[strata == stratum]
        if len(members) > 1:
            total += len(members) * members.var(axis=0, ddof=1)
    return total


def divide(part: NDArray[Any], whole: NDArray[Any]) -> Floats:
    """Not a number where the whole is nothing."""
    quotient: Floats = np.full(np.broadcast_shapes(part.shape, whole.shape), np.nan)
    np.divide(part, whole, out=quotient, where=np.broadcast_to(whole > 0, quotient.shape))
    return quotient
