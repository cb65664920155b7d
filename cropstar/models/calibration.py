"""Calibration: temperature scaling, and measures of the calibration error.

Scores are divided by one temperature T, which no class changes its place by: the map stays, its confidence does not.
T makes the validation labels most likely. In b = 1/T the negative log-likelihood is convex, its derivative the mean of
E_p[z] - z_label and its second derivative the mean variance of z under p: Newton's step within a bracket that only
shrinks finds the optimum from anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError

# --- temperature scaling


Floats = NDArray[np.float64]
Scheme = Literal["equal-width", "equal-mass"]

COOLEST, HOTTEST = 0.05, 20.0
BINS = 15
STEPS = 100
ROWS_AT_ONCE = 100_000  # of scores turned into probabilities


@dataclass(frozen=True)
class Bin:
    """Samples of like confidence, above `low` and up to `high`."""

    low: float
    high: float
    confidence: float  # the mean
    accuracy: float
    count: int
    share: float  # of the weight of all samples


@dataclass(frozen=True)
class Reliability:
    """How confidence and accuracy go together; the calibration error is their mean distance over the bins."""

    bins: tuple[Bin, ...]  # of equal width, those that hold a sample
    ece: float  # over them
    ece_equal_mass: float  # over as many bins of like weight
    confidence: float
    accuracy: float
    likelihood: float  # the mean negative logarithm

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "bins": [vars(each) for each in self.bins]}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Reliability:
        return cls(**{**data, "bins": tuple(Bin(**each) for each in data["bins"])})


@dataclass(frozen=True)
class Calibration:
    """The temperature, and what it does to the samples of one part of the split."""

    temperature: float
    bounded: bool  # the optimum lies beyond what is sensible, as where validation holds no mistake
    part: str
    samples: int
    before: Reliability
    after: Reliability

    def probabilities(self, scores: NDArray[Any]) -> Floats:
        return softmax(scores, self.temperature)

    def judged(
        self, scores: NDArray[Any], labels: NDArray[Any], weights: Floats | None = None, part: str = "test"
    ) -> Calibration:
        """The same temperature on other samples than those that it was fitted to."""
        tables = (reliability(scores, labels, weights, temperature=each) for each in (1.0, self.temperature))
        return Calibration(self.temperature, self.bounded, part, len(labels), *tables)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "before": self.before.to_json(), "after": self.after.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Calibration:
        try:
            tables = {name: Reliability.from_json(data[name]) for name in ("before", "after")}
            read = cls(**{**data, **tables})
            if not COOLEST <= read.temperature <= HOTTEST:
                raise ValueError(f"a temperature of {read.temperature}")
        except (KeyError, TypeError, ValueError) as failure:
            why = f"it cannot be understood ({failure})"
            raise ArtifactError("the calibration cannot be used", why=why, remedy="train again") from None
        return read


def calibrate(
    scores: NDArray[Any], labels: NDArray[Any], weights: Floats | None = None, part: str = "validation"
) -> Calibration:
    """Fit the temperature to scores (N, K) and labels (N,); `parcel_weights` lets every parcel count the same."""
    temperature, bounded = fit_temperature(scores, labels, weights)
    tables = (reliability(scores, labels, weights, temperature=each) for each in (1.0, temperature))
    return Calibration(temperature, bounded, part, len(labels), *tables)


def fit_temperature(scores: NDArray[Any], labels: NDArray[Any], weights: Floats | None = None) -> tuple[float, bool]:
    """The maximum-likelihood temperature, and whether it reached a bound; 1 if there is only one class."""
    _check(scores, labels)
    low, high = 1 / HOTTEST, 1 / COOLEST
    if _slopes(scores, labels, weights, 1.0) == (0.0, 0.0):
        return 1.0, False
    if _slopes(scores, labels, weights, low)[0] >= 0:
        return HOTTEST, True
    if _slopes(scores, labels, weights, high)[0] <= 0:
        return COOLEST, True
    inverse = 1.0
    for _ in range(STEPS):
        slope, curvature = _slopes(scores, labels, weights, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else high
        if abs(step - inverse) <= 1e-12 * inverse:
            break
        inverse = step if low < step < high else (low + high) / 2
    return float(1 / inverse), False


def reliability(
    scores: NDArray[Any],
    labels: NDArray[Any],
    weights: Floats | None = None,
    *,
    temperature: float = 1.0,
) -> Reliability:
    """Compare confidence, the probability of the predicted class, with accuracy."""
    _check(scores, labels)
    count = len(labels)
    confidence, right, own = np.empty(count), np.empty(count), np.empty(count)
    for start in range(0, count, ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        likely = softmax(scores[rows], temperature)
        confidence[rows] = likely.max(axis=1)
        right[rows] = likely.argmax(axis=1) == labels[rows]
        own[rows] = _log_likelihood(scores[rows], labels[rows], temperature)
    weight = np.ones(count) if weights is None else np.asarray(weights, dtype=np.float64)
    table = bin_table(confidence, right, weights, "equal-width")
    return Reliability(
        table,
        _error(table),
        _error(bin_table(confidence, right, weights, "equal-mass")),
        float(np.average(confidence, weights=weight)),
        float(np.average(right, weights=weight)),
        -float(np.average(own, weights=weight)),
    )


def bin_table(confidence: Floats, right: Floats, weights: Floats | None, scheme: Scheme) -> tuple[Bin, ...]:
    """The bins that hold a sample. Like confidence is never parted, so bins of equal mass may be fewer."""
    steps = np.linspace(0.0, 1.0, BINS + 1)
    if scheme == "equal-width":
        edges = steps
    elif weights is None:
        edges = np.quantile(confidence, steps)
    else:
        edges = np.quantile(confidence, steps, weights=weights, method="inverted_cdf")
    weight = np.ones(len(confidence)) if weights is None else np.asarray(weights, dtype=np.float64)
    places = np.searchsorted(edges[1:-1], confidence)
    mass, sure, hits = (np.bincount(places, weight * each, BINS) for each in (np.ones(1), confidence, right))
    counts = np.bincount(places, minlength=BINS)
    return tuple(
        Bin(
            float(edges[place]),
            float(edges[place + 1]),
            float(sure[place] / mass[place]),
            float(hits[place] / mass[place]),
            int(counts[place]),
            float(mass[place] / mass.sum()),
        )
        for place in np.flatnonzero(mass > 0)
    )


def parcel_weights(parcels: NDArray[Any]) -> Floats:
    """Weights (N,) with which every parcel counts as one, however many pixels it has."""
    _, places, counts = np.unique(parcels, return_inverse=True, return_counts=True)
    weights: Floats = 1.0 / counts[places]
    return weights


def softmax(scores: NDArray[Any], temperature: float = 1.0) -> Floats:
    powers: Floats = np.exp(_shifted(scores, temperature))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _shifted(scores: NDArray[Any], temperature: float) -> Floats:
    """Scores over the temperature, the highest of each sample at 0, so that no power overflows."""
    scaled: Floats = scores.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    return scaled


def _log_likelihood(scores: NDArray[Any], labels: NDArray[Any], temperature: float) -> Floats:
    shifted = _shifted(scores, temperature)
    own: Floats = shifted[np.arange(len(labels)), labels] - np.log(np.exp(shifted).sum(axis=1))
    return own


def _slopes(scores: NDArray[Any], labels: NDArray[Any], weights: Floats | None, inverse: float) -> tuple[float, float]:
    """First and second derivative of the negative log-likelihood by 1/T."""
    slope = curvature = 0.0
    for start in range(0, len(labels), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        heights = _shifted(scores[rows], 1.0)
        likely = softmax(heights, 1 / inverse)
        mean = (likely * heights).sum(axis=1)
        spread = (likely * np.square(heights - mean[:, None])).sum(axis=1)
        weight = 1.0 if weights is None else weights[rows]
        slope += float(np.sum(weight * (mean - heights[np.arange(len(mean)), labels[rows]])))
        curvature += float(np.sum(weight * spread))
    return slope, curvature


def _error(table: tuple[Bin, ...]) -> float:
    return float(sum(each.share * abs(each.accuracy - each.confidence) for each in table))


def _check(scores: NDArray[Any], labels: NDArray[Any]) -> None:
    why = None
    if scores.ndim != 2 or len(scores) != len(labels) or not len(labels):
        why = f"{len(labels)} labels do not fit scores of shape {scores.shape}"
    elif not np.isfinite(scores).all():
        why = "some scores are not numbers"
    if why:
        raise InputError("cannot calibrate", why=why, remedy="train again with a smaller learning rate")


# --- conformal prediction sets
#
# Split conformal prediction, calibrated by parcel. A nonconformity score says how odd a class is for a sample; a set
# holds all classes that are no odder than a threshold, learned from samples with known labels. The score is `lac`,
# 1 - p(class), which gives the smallest sets on average (Sadinle, Lei, Wasserman 2019).
#
# Pixels of one field are not independent samples. With P parcels, each weighs 1/(P+1), shared by its pixels, and the
# rest stands for the parcel to come; the threshold is the smallest score up to which the weights reach the coverage. A
# pixel of a new parcel of the same kind is then covered with at least that probability (hierarchical conformal
# prediction, Lee, Barber, Willett 2023). Of parcels with one pixel it is the usual quantile at ceil((P+1) coverage)/P.


SCORE = "lac"


@dataclass(frozen=True)
class CoverageFigures:
    """Coverage and size of sets on samples that the threshold was not learned from; every parcel counts the same."""

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

    coverage: float
    threshold: float  # of scores, up to 1
    parcels: int

    def sets(self, probabilities: NDArray[Any]) -> NDArray[np.bool_]:
        """Which classes (N, K) are in the set of each sample. The likeliest always is: a map must say something."""
        chosen: NDArray[np.bool_] = nonconformity(probabilities) <= self.threshold
        chosen[np.arange(len(chosen)), probabilities.argmax(axis=1)] = True
        return chosen

    def judged(self, probabilities: NDArray[Any], labels: NDArray[Any], parcels: NDArray[Any]) -> CoverageFigures:
        return measure_coverage(self.sets(probabilities), labels, parcels)

    def to_json(self) -> dict[str, Any]:
        return {"score": SCORE, **vars(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> ConformalSets:
        try:
            read = cls(float(data["coverage"]), float(data["threshold"]), int(data["parcels"]))
            if data["score"] != SCORE or not 0 <= read.threshold <= 1:
                raise ValueError(f"score {data['score']!r} up to {read.threshold}")
        except (KeyError, TypeError, ValueError) as failure:
            why = f"they cannot be understood ({failure})"
            raise ArtifactError("the sets of classes cannot be used", why=why, remedy="train again") from None
        return read


def measure_coverage(chosen: NDArray[np.bool_], labels: NDArray[Any], parcels: NDArray[Any]) -> CoverageFigures:
    """The coverage of sets (N, K) of samples, whose parcels are given."""
    weights = parcel_weights(parcels)
    held, sizes = chosen[np.arange(len(labels)), labels], chosen.sum(axis=1)
    by_class = [labels == number for number in range(chosen.shape[1])]
    return CoverageFigures(
        float(np.average(held, weights=weights)),
        float(np.average(sizes, weights=weights)),
        float(np.average(sizes == 1, weights=weights)),
        tuple(float(np.average(held[own], weights=weights[own])) if own.any() else None for own in by_class),
        len(np.unique(parcels)),
    )


def learn_sets(
    probabilities: NDArray[Any], labels: NDArray[Any], parcels: NDArray[Any], *, coverage: float = 0.9
) -> ConformalSets:
    """From probabilities (N, K), labels (N,) and parcels (N,) that no weight of the model was trained on."""
    if not 0 < coverage < 1:
        raise InputError("no sets of classes", why=f"a coverage of {coverage}", remedy="choose one between 0 and 1")
    odd = nonconformity(probabilities)[np.arange(len(labels)), labels]
    count = len(np.unique(parcels))
    order = np.argsort(odd, kind="stable")
    reached = np.cumsum(parcel_weights(parcels)[order]) / (count + 1)
    place = int(np.searchsorted(reached, coverage - 1e-12))  # sums of 1/n miss whole numbers by a hair
    threshold = float(odd[order][place]) if place < len(odd) else 1.0
    return ConformalSets(coverage, threshold, count)


def nonconformity(probabilities: NDArray[Any]) -> Floats:
    """The score of every class of every sample, from 0 to 1."""
    odd: Floats = 1.0 - probabilities.astype(np.float64)
    return odd
