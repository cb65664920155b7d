"""Temperature scaling and conformal sets: the optimum, bins by hand, and coverage as promised."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray
from sklearn.calibration import calibration_curve

from cropstar.errors import ArtifactError, InputError
from cropstar.models import calibration as module
from cropstar.models.calibration import (
    BINS,
    COOLEST,
    HOTTEST,
    Calibration,
    ConformalSets,
    bin_table,
    calibrate,
    fit_temperature,
    learn_sets,
    nonconformity,
    parcel_weights,
    reliability,
    softmax,
)
from cropstar.training.metrics import ScoreSample

# --- temperature and calibration error against torch and scikit-learn, and what chance alone makes of them


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def drawn(seed: int, count: int, classes: int, temperature: float) -> tuple[Floats, Integers]:
    """Scores whose labels were drawn with the probabilities at that temperature: it is the true one."""
    generator = np.random.default_rng(seed)
    scores = generator.normal(0, 3, (count, classes))
    thresholds = np.cumsum(softmax(scores, temperature), axis=1)
    labels = (generator.random((count, 1)) > thresholds[:, :-1]).sum(axis=1)
    return scores, labels


def by_torch(scores: Floats, labels: Integers, weights: Floats | None) -> float:
    """The usual way: LBFGS on the logarithm of the temperature."""
    logarithm = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([logarithm], max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe")
    share = torch.ones(len(labels), dtype=torch.float64) if weights is None else torch.from_numpy(weights)

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        scaled = torch.from_numpy(scores) / logarithm.exp()
        each = torch.nn.functional.cross_entropy(scaled, torch.from_numpy(labels), reduction="none")
        total = (each * share).sum() / share.sum()
        total.backward()
        return total

    optimiser.step(loss)
    return float(logarithm.detach().exp())


@settings(max_examples=15, deadline=None)
@given(
    seed=some.integers(0, 9999),
    classes=some.integers(2, 9),
    temperature=some.floats(0.5, 6),
    weighted=some.booleans(),
)
def test_the_temperature_equals_that_of_torch(seed: int, classes: int, temperature: float, weighted: bool) -> None:
    scores, labels = drawn(seed, 300, classes, temperature)
    weights = np.random.default_rng(seed).random(300) if weighted else None
    found, bounded = fit_temperature(scores, labels, weights)
    assert bounded or found == pytest.approx(by_torch(scores, labels, weights), rel=1e-4)


def test_the_true_temperature_is_found_and_calibrates() -> None:
    scores, labels = drawn(1, 40_000, 5, 2.5)
    found = calibrate(scores, labels)
    assert found.temperature == pytest.approx(2.5, rel=0.03)
    assert found.samples == 40_000
    assert found.before.ece > 0.15
    assert found.after.ece < 0.01
    assert found.after.ece_equal_mass < 0.01
    assert found.after.likelihood < found.before.likelihood
    assert found.after.accuracy == found.before.accuracy  # no class changes its place
    np.testing.assert_array_equal(found.probabilities(scores), softmax(scores, found.temperature))


@settings(max_examples=15, deadline=None)
@given(seed=some.integers(0, 9999), factor=some.floats(0.5, 2))
def test_scaled_and_shifted_scores_scale_the_temperature(seed: int, factor: float) -> None:
    scores, labels = drawn(seed, 200, 3, 1.5)
    found, _ = fit_temperature(scores, labels)
    shifted, _ = fit_temperature(scores * factor + 1000, labels)
    assert shifted == pytest.approx(found * factor, rel=1e-6)


def test_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, labels = drawn(2, 1000, 4, 2.0)
    weights = parcel_weights(np.arange(1000) // 7)
    whole = calibrate(scores, labels, weights)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 99)
    parts = calibrate(scores, labels, weights)
    assert parts.temperature == pytest.approx(whole.temperature, rel=1e-9)
    assert parts.after.ece == pytest.approx(whole.after.ece, rel=1e-6)


def test_bounds_and_silence() -> None:
    sure = np.eye(3)[[0, 1, 2, 0]] * 5
    labels = np.array([0, 1, 2, 0])
    assert fit_temperature(sure, labels) == (COOLEST, True)  # no mistake: the surer the better
    assert fit_temperature(sure, (labels + 1) % 3) == (HOTTEST, True)  # nothing but mistakes
    assert fit_temperature(np.zeros((4, 3)), labels) == (1.0, False)
    alone = calibrate(np.ones((5, 1)), np.zeros(5, dtype=np.int64))
    assert (alone.temperature, alone.before.ece, alone.before.accuracy) == (1.0, 0.0, 1.0)
    huge, _ = fit_temperature(np.array([[8e4, 0.0], [8e4, 0.0], [0.0, 1e4]]), np.array([0, 1, 1]))
    assert huge == HOTTEST


@pytest.mark.parametrize(("scheme", "strategy"), [("equal-width", "uniform"), ("equal-mass", "quantile")])
def test_bins_equal_scikit_learn(scheme: Any, strategy: str) -> None:
    scores, labels = drawn(3, 2000, 4, 2.0)
    likely = softmax(scores)
    confidence, right = likely.max(axis=1), (likely.argmax(axis=1) == labels).astype(float)
    accuracies, confidences = calibration_curve(right, confidence, n_bins=BINS, strategy=strategy)
    table = bin_table(confidence, right, None, scheme)
    assert [each.accuracy for each in table] == pytest.approx(list(accuracies))
    assert [each.confidence for each in table] == pytest.approx(list(confidences))
    assert sum(each.count for each in table) == 2000
    by_hand = sum(each.count / 2000 * abs(each.accuracy - each.confidence) for each in table)
    found = reliability(scores, labels)
    assert (found.ece if scheme == "equal-width" else found.ece_equal_mass) == pytest.approx(by_hand)
    if scheme == "equal-mass":
        assert {each.count for each in table} <= {133, 134}


def test_weights_count_as_repeats() -> None:
    scores, labels = drawn(4, 300, 3, 2.0)
    repeats = np.random.default_rng(4).integers(1, 5, 300)
    weighted = reliability(scores, labels, repeats.astype(float))
    repeated = reliability(np.repeat(scores, repeats, axis=0), np.repeat(labels, repeats))
    assert weighted.ece == pytest.approx(repeated.ece)
    assert weighted.likelihood == pytest.approx(repeated.likelihood)
    assert [each.share for each in weighted.bins] == pytest.approx([each.share for each in repeated.bins])


def test_every_parcel_counts_the_same() -> None:
    assert parcel_weights(np.array([7, 7, 3, 7])) == pytest.approx([1 / 3, 1 / 3, 1, 1 / 3])


def test_a_calibration_outlives_json() -> None:
    scores, labels = drawn(5, 400, 3, 2.0)
    fitted = calibrate(scores, labels)
    judged = fitted.judged(*drawn(6, 500, 3, 2.0))
    assert (judged.part, judged.samples, judged.temperature) == ("test", 500, fitted.temperature)
    assert judged.after.ece != fitted.after.ece
    for found in (fitted, judged):
        assert Calibration.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


@pytest.mark.parametrize("wrong", [{"temperature": 0.0}, {"temperature": "warm"}, {"before": None}, {"more": 1}])
def test_a_broken_calibration_is_refused(wrong: dict[str, Any]) -> None:
    data = calibrate(*drawn(5, 50, 3, 2.0)).to_json()
    with pytest.raises(ArtifactError, match="calibration cannot be used"):
        Calibration.from_json(data | wrong)


@pytest.mark.parametrize("scores", [np.full((3, 2), np.nan), np.zeros((2, 2)), np.zeros((0, 2))])
def test_nonsense_is_refused(scores: Floats) -> None:
    with pytest.raises(InputError, match="cannot calibrate"):
        calibrate(scores, np.zeros(0 if not len(scores) else 3, dtype=np.int64))


# --- the sample that it is fitted on


def test_a_sample_keeps_some_of_every_parcel_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cropstar.training.metrics.SLACK", 500)
    sample = ScoreSample(2, most=10, seed=1)
    sizes = [3, 10, 400, 1000]
    parcels = np.random.default_rng(2).permutation(np.repeat([5, 2, 9, 7], sizes))
    numbers = np.arange(len(parcels))
    for rows in np.array_split(numbers, 40):
        sample.add(np.stack([rows, parcels[rows]], axis=1), parcels[rows] % 3, parcels[rows])
        assert sample.held < 600
    scores, labels, kept = sample.arrays()
    assert dict(zip(*np.unique(kept, return_counts=True), strict=True)) == {2: 10, 5: 3, 7: 10, 9: 10}
    np.testing.assert_array_equal(scores[:, 1], kept)  # rows stay together
    np.testing.assert_array_equal(labels, kept % 3)
    assert len(set(scores[:, 0])) == 33
    late = [self_drawn(seed) for seed in range(60)]
    assert 0.4 < np.mean(late) < 0.6  # early and late pixels have the same chance


def self_drawn(seed: int) -> float:
    sample = ScoreSample(1, most=10, seed=seed)
    for start in range(0, 1000, 100):
        rows = np.arange(start, start + 100)
        sample.add(rows[:, None], np.zeros(100), np.zeros(100))
    return float((sample.arrays()[0] >= 500).mean())


def test_an_empty_sample_is_empty() -> None:
    scores, labels, parcels = ScoreSample(4).arrays()
    assert (scores.shape, labels.shape, parcels.shape) == ((0, 4), (0,), (0,))


# --- sets of classes: the textbook quantile, the promise kept by parcel, and never nothing


def fields(
    generator: np.random.Generator, parcels: int, each: int, classes: int = 4
) -> tuple[Floats, Integers, Integers]:
    """Pixels that share the luck of their parcel; the model is far too sure of itself."""
    labels = generator.integers(0, classes, parcels)
    scores = 2 * np.eye(classes)[labels] + generator.normal(0, 1.2, (parcels, classes))
    pixels = np.repeat(scores, each, axis=0) + generator.normal(0, 0.3, (parcels * each, classes))
    return softmax(pixels, 0.4), np.repeat(labels, each), np.repeat(np.arange(parcels), each)


@settings(max_examples=40, deadline=None)
@given(seed=some.integers(0, 9999), count=some.integers(1, 60), coverage=some.sampled_from([0.5, 0.8, 0.9, 0.95]))
def test_of_single_pixels_it_is_the_textbook_quantile(seed: int, count: int, coverage: float) -> None:
    likely, labels, parcels = fields(np.random.default_rng(seed), count, 1)
    found = learn_sets(likely, labels, parcels, coverage=coverage)
    rank = math.ceil(round((count + 1) * coverage, 9))
    scores = np.sort(1 - likely[np.arange(count), labels])
    assert found.threshold == (scores[rank - 1] if rank <= count else 1.0)
    if rank > count:
        assert found.sets(likely).all()  # too few to promise anything: every class is in


def test_the_promise_is_kept_for_new_parcels() -> None:
    """Few parcels with many pixels; were the pixels counted as if they were parcels, too little would be held."""
    generator = np.random.default_rng(3)
    promises, naive = [], []
    for _ in range(200):
        likely, labels, parcels = fields(generator, 20, 20)
        fresh = fields(generator, 100, 3)
        promises.append(learn_sets(likely, labels, parcels, coverage=0.9).judged(*fresh))
        by_pixel = learn_sets(likely, labels, np.arange(len(labels)), coverage=0.9)
        naive.append(by_pixel.judged(*fresh).coverage)
    assert 0.9 <= np.mean([promise.coverage for promise in promises]) <= 0.97
    assert np.mean(naive) < 0.9
    assert 1 <= np.mean([promise.mean_size for promise in promises]) < 3
    assert promises[0].parcels == 100


def test_pixels_of_large_parcels_do_not_drown_small_ones() -> None:
    """One large parcel that is easy, nine small ones that are hard: the small ones decide."""
    hard, easy = np.array([0.3, 0.7]), np.array([0.99, 0.01])
    likely = np.stack([easy] * 1000 + [hard] * 9)
    parcels = np.array([0] * 1000 + list(range(1, 10)))
    labels = np.zeros(1009, dtype=np.int64)
    found = learn_sets(likely, labels, parcels, coverage=0.8)
    assert found.threshold == pytest.approx(0.7)
    assert found.parcels == 10
    assert learn_sets(likely, labels, np.arange(1009), coverage=0.8).threshold == pytest.approx(0.01)


def test_sets_hold_what_is_no_odder_than_the_threshold() -> None:
    likely = np.array([[0.6, 0.3, 0.1], [0.34, 0.33, 0.33]])
    assert nonconformity(likely) == pytest.approx(1 - likely)
    sets = ConformalSets(0.9, 0.5, 10).sets(likely)
    np.testing.assert_array_equal(sets, [[True, False, False], [True, False, False]])  # never empty
    sets = ConformalSets(0.9, 0.68, 10).sets(likely)
    np.testing.assert_array_equal(sets, [[True, False, False], [True, True, True]])


def test_what_is_judged() -> None:
    likely = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.9, 0.05, 0.05]])
    promise = ConformalSets(0.9, 0.65, 10).judged(likely, np.array([0, 1, 1, 0]), np.array([1, 1, 2, 3]))
    assert promise.coverage == pytest.approx((0.5 + 1 + 1) / 3)
    assert promise.mean_size == pytest.approx((1 + 2 + 1) / 3)
    assert promise.single == pytest.approx(2 / 3)
    assert promise.class_coverage[:2] == pytest.approx((1.0, 1 / 1.5))
    assert promise.class_coverage[2] is None
    assert json.loads(json.dumps(promise.to_json(), allow_nan=False))["parcels"] == 3


def test_sets_outlive_json() -> None:
    found = learn_sets(*fields(np.random.default_rng(1), 50, 3))
    assert ConformalSets.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize("wrong", [{"score": "best"}, {"threshold": 2.0}, {"threshold": None}, {"coverage": "all"}])
def test_broken_sets_are_refused(wrong: dict[str, Any]) -> None:
    data = {"score": "lac", "coverage": 0.9, "threshold": 0.5, "parcels": 9}
    with pytest.raises(ArtifactError, match="cannot be used"):
        ConformalSets.from_json(data | wrong)


@pytest.mark.parametrize("coverage", [0.0, 1.0, math.nan])
def test_a_coverage_is_a_share(coverage: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        learn_sets(*fields(np.random.default_rng(1), 5, 1), coverage=coverage)
