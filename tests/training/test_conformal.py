"""Sets of classes: the textbook quantile, the promise kept by parcel, and never nothing."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from numpy.typing import NDArray

from cropstar.errors import ArtifactError, InputError
from cropstar.training.calibration import ConformalSets, Score, learn_sets, oddness, softmax

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


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


@pytest.mark.parametrize("score", ["lac", "aps"])
def test_the_promise_is_kept_for_new_parcels(score: Score) -> None:
    """Few parcels with many pixels; were the pixels counted as if they were parcels, too little would be held."""
    generator = np.random.default_rng(3)
    promises, naive = [], []
    for _ in range(200):
        likely, labels, parcels = fields(generator, 20, 20)
        fresh = fields(generator, 100, 3)
        promises.append(learn_sets(likely, labels, parcels, coverage=0.9, score=score).judged(*fresh))
        by_pixel = learn_sets(likely, labels, np.arange(len(labels)), coverage=0.9, score=score)
        naive.append(by_pixel.judged(*fresh).coverage)
    assert 0.9 <= np.mean([promise.coverage for promise in promises]) <= 0.97
    assert score == "aps" or np.mean(naive) < 0.9  # aps holds a little more anyway
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
    assert oddness(likely, "aps") == pytest.approx(np.array([[0.6, 0.9, 1.0], [0.34, 0.67, 1.0]]))
    assert oddness(likely, "lac") == pytest.approx(1 - likely)
    sets = ConformalSets("lac", 0.9, 0.5, 10).sets(likely)
    np.testing.assert_array_equal(sets, [[True, False, False], [True, False, False]])  # never empty
    sets = ConformalSets("lac", 0.9, 0.68, 10).sets(likely)
    np.testing.assert_array_equal(sets, [[True, False, False], [True, True, True]])
    sets = ConformalSets("aps", 0.9, 0.9, 10).sets(likely)
    np.testing.assert_array_equal(sets, [[True, True, False], [True, True, False]])


def test_what_is_judged() -> None:
    likely = np.array([[0.6, 0.3, 0.1], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.9, 0.05, 0.05]])
    promise = ConformalSets("lac", 0.9, 0.65, 10).judged(likely, np.array([0, 1, 1, 0]), np.array([1, 1, 2, 3]))
    assert promise.coverage == pytest.approx((0.5 + 1 + 1) / 3)
    assert promise.mean_size == pytest.approx((1 + 2 + 1) / 3)
    assert promise.single == pytest.approx(2 / 3)
    assert promise.class_coverage[:2] == pytest.approx((1.0, 1 / 1.5))
    assert promise.class_coverage[2] is None
    assert json.loads(json.dumps(promise.to_json(), allow_nan=False))["parcels"] == 3


def test_sets_outlive_json() -> None:
    found = learn_sets(*fields(np.random.default_rng(1), 50, 3), score="aps")
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
