"""Every figure against scikit-learn's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from sklearn import metrics as oracle

from cropstar.training.metrics import confusion, kappa, macro_f1, overall_accuracy, summary, weighted_f1


@settings(max_examples=40, deadline=None)
@given(seed=some.integers(0, 10_000), classes=some.integers(2, 7), size=some.integers(1, 80))
def test_figures_equal_scikit_learn(seed: int, classes: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, classes, size)
    prediction = np.where(generator.random(size) < 0.6, truth, generator.integers(0, classes, size))
    matrix = confusion(truth, prediction, classes)
    present = np.union1d(truth, prediction)

    np.testing.assert_array_equal(matrix, oracle.confusion_matrix(truth, prediction, labels=np.arange(classes)))
    assert overall_accuracy(matrix) == pytest.approx(oracle.accuracy_score(truth, prediction))
    assert macro_f1(matrix) == pytest.approx(oracle.f1_score(truth, prediction, labels=present, average="macro"))
    assert weighted_f1(matrix) == pytest.approx(
        oracle.f1_score(truth, prediction, average="weighted", zero_division=0.0)
    )
    if len(present) > 1:
        assert kappa(matrix) == pytest.approx(oracle.cohen_kappa_score(truth, prediction))
    rows = summary(matrix)["classes"]
    precision, recall, f1, support = oracle.precision_recall_fscore_support(
        truth, prediction, labels=np.arange(classes), zero_division=np.nan
    )
    for number in range(classes):
        assert rows[number]["support"] == support[number]
        for name, expected in (("precision", precision), ("recall", recall)):
            own = rows[number][name]
            assert own == pytest.approx(expected[number]) if own is not None else np.isnan(expected[number])
        if rows[number]["f1"] is not None:
            assert rows[number]["f1"] == pytest.approx(f1[number])


def test_nothing_to_judge_gives_no_figures() -> None:
    empty = np.zeros((3, 3), dtype=np.int64)
    figures = summary(empty)
    assert figures["overall_accuracy"] is None
    assert figures["macro_f1"] is None
    assert figures["kappa"] is None
    assert all(row["f1"] is None and row["support"] == 0 for row in figures["classes"])
