"""Errors of areas between parcels: the paper's where a parcel is one pixel, and true to samples drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.training.areas import AreaEstimates, Design, estimate_areas
from cropstar.training.metrics import count_parcels

Integers = NDArray[np.int64]


def errors(found: AreaEstimates) -> list[float | None]:
    figures = [*found.area, found.overall_accuracy, *found.users_accuracy, *found.producers_accuracy]
    return [entry.error for entry in figures]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60))
def test_parcels_of_one_pixel_have_the_errors_of_the_paper(units: list[tuple[int, int]]) -> None:
    truth, said = np.array(units, dtype=np.int64).T
    counts = count_parcels(np.arange(len(units)), truth, said, 3)
    mapped = [60.0, 39.5, 0.5]
    by_parcel = estimate_areas(counts, mapped, design="stratified")
    by_unit = estimate_areas(counts.matrix(), mapped, design="stratified")
    assert by_parcel.warnings == by_unit.warnings
    for one, other in zip(errors(by_parcel), errors(by_unit), strict=True):
        assert (one is None) == (other is None)
        # A single sample of a tiny class: both take a widest error, that of a producer's accuracy to first order alone.
        if one is not None and other is not None and not any("little" in each for each in by_unit.warnings):
            assert one == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("design", ["random", "stratified"])
def test_copies_of_a_pixel_add_no_certainty(design: Design) -> None:
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 2, 80)
    said = np.where(generator.random(80) < 0.8, truth, 1 - truth)
    parcels = np.arange(80)
    once = estimate_areas(count_parcels(parcels, truth, said, 2), [30.0, 70.0], design=design)
    copies = count_parcels(np.repeat(parcels, 25), np.repeat(truth, 25), np.repeat(said, 25), 2)
    often = estimate_areas(copies, [30.0, 70.0], design=design)
    assert errors(often) == pytest.approx(errors(once))
    naive = estimate_areas(copies.matrix(), [30.0, 70.0], design=design)  # as if each pixel had been drawn by itself
    assert (naive.area[0].error or 0) < 0.25 * (often.area[0].error or 0)


def fields(generator: np.random.Generator, number: int) -> tuple[Integers, Integers, Integers]:
    """Parcels of 1 to 30 pixels: one class each in the field, on the map some pixels of the other."""
    sizes, truth = generator.integers(1, 31, number), generator.integers(0, 3, number)
    wrong = generator.random(number) < 0.2
    said = np.where(wrong, (truth + 1) % 3, truth)
    pixels = np.repeat(said, sizes)
    noise = generator.random(len(pixels)) < 0.1
    return np.repeat(np.arange(number), sizes), np.repeat(truth, sizes), np.where(noise, (pixels + 1) % 3, pixels)


def test_samples_of_parcels_drawn_again_spread_as_the_errors_say() -> None:
    generator = np.random.default_rng(5)
    parcels, truth, said = fields(generator, 4000)
    starts = np.searchsorted(parcels, np.arange(4001))
    mapped = np.bincount(said, minlength=3)
    found = []
    for _ in range(300):
        drawn = generator.choice(4000, 150, replace=False)
        chosen = np.concatenate([np.arange(starts[one], starts[one + 1]) for one in drawn])
        counts = count_parcels(parcels[chosen], truth[chosen], said[chosen], 3)
        found.append(estimate_areas(counts, mapped, design="random"))
    cases: dict[str, tuple[list[Any], float]] = {
        "area": ([each.area[0] for each in found], float((truth == 0).sum())),
        "overall": ([each.overall_accuracy for each in found], float((truth == said).mean())),
        "user": ([each.users_accuracy[1] for each in found], float((truth == 1)[said == 1].mean())),
        "producer": ([each.producers_accuracy[2] for each in found], float((said == 2)[truth == 2].mean())),
    }
    for name, (estimates, true) in cases.items():
        values = np.array([entry.value for entry in estimates])
        margins = np.array([entry.margin for entry in estimates])
        assert values.mean() == pytest.approx(true, rel=0.03), name
        assert np.mean([entry.error for entry in estimates]) == pytest.approx(values.std(), rel=0.15), name
        assert 0.89 <= (np.abs(values - true) <= margins).mean() <= 0.99, name


def test_strata_that_parcels_do_not_keep_to_are_told() -> None:
    parcels, truth, said = fields(np.random.default_rng(1), 60)
    counts = count_parcels(parcels, truth, said, 3)
    told = [
        any("unlike most" in each for each in estimate_areas(counts, [1, 1, 1], design=design).warnings)
        for design in ("random", "stratified")
    ]
    assert told == [False, True]
