"""Sets of classes that hold the true one as often as promised: split conformal prediction, calibrated by parcel.

A score says how odd a class is for a sample; a set holds all classes that are no odder than a threshold, learned from
samples with known labels.
    lac   1 - p(class): the smallest sets on average (Sadinle, Lei, Wasserman 2019)
    aps   the probability of the class and all likelier ones: sets that grow where the model is in doubt (Romano, Sesia,
          Candès 2020), here without its random part, thus a little too large

Pixels of one field are no independent samples. With P parcels, each weighs 1/(P+1), shared by its pixels, and the rest
stands for the parcel to come; the threshold is the smallest score up to which the weights reach the coverage. This
promises, for a pixel of a new parcel of the same kind, at least the coverage (hierarchical conformal prediction, Lee,
Barber, Willett 2023). Of parcels with one pixel it is the usual quantile at ceil((P+1) coverage)/P.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError
from cropstar.training.calibration import parcel_weights

Floats = NDArray[np.float64]
Score = Literal["lac", "aps"]


@dataclass(frozen=True)
class Promise:
    """What sets turned out to be on samples that the threshold was not learned from; every parcel counts the same."""

    coverage: float
    mean_size: float
    single: float  # the share of sets of one class
    class_coverage: tuple[float | None, ...]  # within each true class: not promised
    parcels: int

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "class_coverage": list(self.class_coverage)}


@dataclass(frozen=True)
class ConformalSets:
    """A threshold and the coverage that it promises. With too few parcels for it, all classes are in every set."""

    score: Score
    coverage: float
    threshold: float  # of scores, up to 1
    parcels: int

    def sets(self, probabilities: NDArray[Any]) -> NDArray[np.bool_]:
        """Which classes (N, K) are in the set of each sample. The likeliest always is: a map must say something."""
        chosen: NDArray[np.bool_] = oddness(probabilities, self.score) <= self.threshold
        chosen[np.arange(len(chosen)), probabilities.argmax(axis=1)] = True
        return chosen

    def judged(self, probabilities: NDArray[Any], labels: NDArray[Any], parcels: NDArray[Any]) -> Promise:
        chosen = self.sets(probabilities)
        weights = parcel_weights(parcels)
        held, sizes = chosen[np.arange(len(labels)), labels], chosen.sum(axis=1)
        by_class = [labels == number for number in range(probabilities.shape[1])]
        return Promise(
            float(np.average(held, weights=weights)),
            float(np.average(sizes, weights=weights)),
            float(np.average(sizes == 1, weights=weights)),
            tuple(float(np.average(held[own], weights=weights[own])) if own.any() else None for own in by_class),
            len(np.unique(parcels)),
        )

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ConformalSets:
        try:
            found = cls(data["score"], float(data["coverage"]), float(data["threshold"]), int(data["parcels"]))
            if found.score not in get_args(Score) or not 0 <= found.threshold <= 1:
                raise ValueError(f"score {found.score!r} up to {found.threshold}")
        except (KeyError, TypeError, ValueError) as failure:
            why = f"they cannot be understood ({failure})"
            raise ArtifactError("the sets of classes cannot be used", why=why, remedy="train again") from None
        return found


def learn_sets(
    probabilities: NDArray[Any],
    labels: NDArray[Any],
    parcels: NDArray[Any],
    *,
    coverage: float = 0.9,
    score: Score = "lac",
) -> ConformalSets:
    """From probabilities (N, K), labels (N,) and parcels (N,) that no weight of the model was trained on."""
    if not 0 < coverage < 1:
        raise InputError("no sets of classes", why=f"a coverage of {coverage}", remedy="choose one between 0 and 1")
    odd = oddness(probabilities, score)[np.arange(len(labels)), labels]
    count = len(np.unique(parcels))
    order = np.argsort(odd, kind="stable")
    reached = np.cumsum(parcel_weights(parcels)[order]) / (count + 1)
    place = int(np.searchsorted(reached, coverage - 1e-12))  # sums of 1/n miss whole numbers by a hair
    threshold = float(odd[order][place]) if place < len(odd) else 1.0
    return ConformalSets(score, coverage, threshold, count)


def oddness(probabilities: NDArray[Any], score: Score) -> Floats:
    """The score of every class of every sample, from 0 to 1."""
    likely: Floats = probabilities.astype(np.float64)
    if score == "lac":
        return 1.0 - likely
    order = np.argsort(-likely, axis=1, kind="stable")
    summed = np.cumsum(np.take_along_axis(likely, order, axis=1), axis=1)
    odd: Floats = np.empty_like(likely)
    np.put_along_axis(odd, order, np.minimum(summed, 1.0), axis=1)
    return odd
