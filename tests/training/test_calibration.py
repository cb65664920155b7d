"""Temperature and calibration error against torch and scikit-learn, and what chance alone makes of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray
from sklearn.calibration import calibration_curve

from cropstar.errors import ArtifactError, InputError
from cropstar.training import calibration as module
from cropstar.training.calibration import (
    BINS,
    COOLEST,
    HOTTEST,
    Calibration,
    bin_table,
    calibrate,
    fit_temperature,
    parcel_weights,
    reliability,
    softmax,
)
from cropstar.training.metrics import ScoreSample

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
    assert found.ece_before > 0.15
    assert found.ece_after < 0.01
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
    assert parts.ece_after == pytest.approx(whole.ece_after, rel=1e-6)


def test_bounds_and_silence() -> None:
    sure = np.eye(3)[[0, 1, 2, 0]] * 5
    labels = np.array([0, 1, 2, 0])
    assert fit_temperature(sure, labels) == (COOLEST, True)  # no mistake: the surer the better
    assert fit_temperature(sure, (labels + 1) % 3) == (HOTTEST, True)  # nothing but mistakes
    assert fit_temperature(np.zeros((4, 3)), labels) == (1.0, False)
    alone = calibrate(np.ones((5, 1)), np.zeros(5, dtype=np.int64))
    assert (alone.temperature, alone.ece_before, alone.before.accuracy) == (1.0, 0.0, 1.0)
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
    assert judged.ece_after != fitted.ece_after
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
        assert sample._rows < 600  # what is held, not what passed
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
