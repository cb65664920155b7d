"""All figures from one confusion matrix: rows are the truth, columns the prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Confusion = NDArray[np.int64]


def confusion(truth: NDArray[np.int64], prediction: NDArray[np.int64], classes: int) -> Confusion:
    counts = np.bincount(truth * classes + prediction, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def overall_accuracy(matrix: Confusion) -> float | None:
    return _ratio(matrix.trace(), matrix.sum())


def kappa(matrix: Confusion) -> float | None:
    """Agreement beyond what the class shares alone would give."""
    total = matrix.sum()
    if total == 0:
        return None
    expected = float((matrix.sum(axis=0) / total) @ (matrix.sum(axis=1) / total))
    return _ratio(float(matrix.trace() / total) - expected, 1 - expected)


def macro_f1(matrix: Confusion) -> float | None:
    """The mean F1 of the classes that occur in truth or prediction."""
    scores = [score for score in class_f1(matrix) if score is not None]
    return float(np.mean(scores)) if scores else None


def weighted_f1(matrix: Confusion) -> float | None:
    support = matrix.sum(axis=1)
    pairs = [(score or 0.0, weight) for score, weight in zip(class_f1(matrix), support, strict=True)]
    return _ratio(sum(score * weight for score, weight in pairs), support.sum())


def class_f1(matrix: Confusion) -> list[float | None]:
    hits, truth, predicted = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    return [_ratio(2 * hit, own + other) for hit, own, other in zip(hits, truth, predicted, strict=True)]


def summary(matrix: Confusion) -> dict[str, Any]:
    """Everything the metrics file and the report show; None where a figure is not defined."""
    hits, truth, predicted = matrix.diagonal(), matrix.sum(axis=1), matrix.sum(axis=0)
    rows = [
        {
            "precision": _ratio(hit, seen),
            "recall": _ratio(hit, own),
            "f1": score,
            "iou": _ratio(hit, own + seen - hit),
            "support": int(own),
        }
        for hit, own, seen, score in zip(hits, truth, predicted, class_f1(matrix), strict=True)
    ]
    return {
        "overall_accuracy": overall_accuracy(matrix),
        "kappa": kappa(matrix),
        "macro_f1": macro_f1(matrix),
        "weighted_f1": weighted_f1(matrix),
        "confusion": matrix.tolist(),
        "classes": rows,
    }


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None
