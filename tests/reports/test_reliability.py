"""The plot of confidence against truth: shows the distance where there is one, and no more certainty than there is."""

from __future__ import annotations

import io
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from cropstar.reports.figures import GAP_SHADE, reliability_plots


def table(off: float, count: int = 1000, bins: int = 15) -> dict[str, Any]:
    """Bins whose accuracy lies below their confidence by so much."""
    rows = [
        {
            "low": place / bins,
            "high": (place + 1) / bins,
            "confidence": (place + 0.5) / bins,
            "accuracy": max((place + 0.5) / bins - off, 0.0),
            "count": count,
            "share": 1 / bins,
        }
        for place in range(bins)
    ]
    return {"bins": rows, "ece": off, "ece_equal_mass": off, "confidence": 0.5, "accuracy": 0.5, "likelihood": 1.0}


def calibration(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": 1.7, "bounded": False, "part": "test", "samples": 9, "before": before, "after": after}


def shaded(png: bytes) -> int:
    """How many pixels have the colour of the distance."""
    import matplotlib.image

    picture = np.round(matplotlib.image.imread(io.BytesIO(png))[:, :, :3] * 255)
    colour = [int(GAP_SHADE[place : place + 2], 16) for place in (1, 3, 5)]
    return int((picture == colour).all(axis=2).sum())


def test_the_distance_is_seen_where_there_is_one() -> None:
    far, near = reliability_plots(calibration(table(0.3), table(0.05)), "png")
    assert shaded(far) > 3 * shaded(near) > 3000


def test_bins_of_a_few_samples_show_no_distance() -> None:
    few, none = reliability_plots(calibration(table(0.3, count=5), table(0.0)), "png")
    assert shaded(few) == 0
    assert shaded(none) == 0


@pytest.mark.parametrize("bins", [1, 15])
def test_drawings_are_drawings_and_always_the_same(bins: int) -> None:
    data = calibration(table(0.3, bins=bins), table(0.1, bins=bins))
    drawings = reliability_plots(data)
    assert drawings == reliability_plots(data)
    assert drawings[0] != drawings[1]
    for svg in drawings:
        assert ElementTree.fromstring(svg).tag.endswith("svg")
        assert len(svg) < 200_000


def test_no_bins_are_an_empty_plot() -> None:
    empty = {**table(0.1), "bins": []}
    for svg in reliability_plots(calibration(empty, empty)):
        assert ElementTree.fromstring(svg).tag.endswith("svg")
