"""Areas against the worked example of Olofsson et al. 2014, and against drawing samples again and again."""

from __future__ import annotations

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.training.areas import NO_DESIGN, AreaEstimates, Estimate, estimate_areas

# Deforestation, forest gain, stable forest, stable non-forest: rows are the map, as published.
PUBLISHED = np.array([[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]])
MAPPED = np.array([200_000, 150_000, 3_200_000, 6_450_000])  # pixels of 30 m
HECTARES = 0.09


@pytest.fixture(scope="module")
def example() -> AreaEstimates:
    return estimate_areas(PUBLISHED.T, MAPPED * HECTARES, design="stratified")


def test_published_areas(example: AreaEstimates) -> None:
    values = [entry.value for entry in example.area]
    margins = [entry.margin for entry in example.area]
    assert values == pytest.approx([21_158, 11_686, 285_770, 581_386], abs=1)
    assert margins == pytest.approx([6_158, 3_756, 15_510, 16_282], abs=1)
    in_pixels = estimate_areas(PUBLISHED.T, MAPPED, design="random").area[0]
    assert in_pixels.value == pytest.approx(235_086, abs=1)
    assert in_pixels.error == pytest.approx(34_097, rel=0.03)  # printed from a rounded 0.0035
    assert sum(value for value in values if value is not None) == pytest.approx(MAPPED.sum() * HECTARES)
    assert example.mapped == tuple(MAPPED * HECTARES)


def test_published_accuracies(example: AreaEstimates) -> None:
    def rounded(*entries: Estimate) -> list[tuple[float, float]]:
        return [(round(entry.value or 0, 2), round(entry.margin or 0, 2)) for entry in entries]

    assert rounded(example.overall_accuracy) == [(0.95, 0.02)]
    assert rounded(*example.users_accuracy) == [(0.88, 0.07), (0.73, 0.10), (0.93, 0.04), (0.96, 0.02)]
    assert rounded(example.producers_accuracy[0]) == [(0.75, 0.21)]
    assert [value for value, _ in rounded(*example.producers_accuracy)] == [0.75, 0.85, 0.93, 0.96]
    assert example.warnings == ()


@pytest.mark.parametrize("column", range(4))
def test_errors_of_producers_to_the_letter(example: AreaEstimates, column: int) -> None:
    """Equation 7 in pixels, sum by sum."""
    rows = [0, 1, 2, 3]
    sizes = PUBLISHED.sum(axis=1)
    inside = PUBLISHED / sizes[:, None]
    truly = sum(MAPPED[row] * inside[row, column] for row in rows)
    users, producers = inside[column, column], MAPPED[column] * inside[column, column] / truly
    own = MAPPED[column] ** 2 * (1 - producers) ** 2 * users * (1 - users) / (sizes[column] - 1)
    others = [
        MAPPED[row] ** 2 * inside[row, column] * (1 - inside[row, column]) / (sizes[row] - 1)
        for row in rows
        if row != column
    ]
    variance = (own + producers**2 * sum(others)) / truly**2
    assert example.producers_accuracy[column].error == pytest.approx(np.sqrt(variance))


def test_samples_drawn_again_spread_as_the_errors_say() -> None:
    """A map whose truth is known: the estimates scatter around it by their standard errors."""
    generator = np.random.default_rng(1)
    mapped = np.array([0.1, 0.3, 0.6])
    mixture = np.array([[0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.02, 0.03, 0.95]])  # truth within each mapped class
    drawn = [
        estimate_areas(np.stack([generator.multinomial(100, row) for row in mixture]).T, mapped, design="stratified")
        for _ in range(500)
    ]
    cases = {
        "area": ([each.area[0] for each in drawn], mapped @ mixture[:, 0]),
        "overall": ([each.overall_accuracy for each in drawn], mapped @ mixture.diagonal()),
        "producer": ([each.producers_accuracy[0] for each in drawn], 0.08 / (mapped @ mixture[:, 0])),
    }
    for name, (estimates, truth) in cases.items():
        values = np.array([entry.value for entry in estimates], dtype=float)
        errors = np.array([entry.error for entry in estimates], dtype=float)
        margins = np.array([entry.margin for entry in estimates], dtype=float)
        assert values.mean() == pytest.approx(truth, rel=0.02), name
        assert errors.mean() == pytest.approx(values.std(), rel=0.12), name
        assert 0.90 <= (np.abs(values - truth) <= margins).mean() <= 0.985, name


def test_an_unknown_design_is_warned_of_and_has_no_intervals(example: AreaEstimates) -> None:
    found = estimate_areas(PUBLISHED.T, MAPPED * HECTARES, design=None)
    assert found.warnings == (NO_DESIGN,)
    assert [entry.value for entry in found.area] == [entry.value for entry in example.area]
    figures = [found.overall_accuracy, *found.area, *found.users_accuracy, *found.producers_accuracy]
    assert all(entry.error is None and entry.margin is None for entry in figures)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["warnings"] == [NO_DESIGN]


def test_classes_without_samples_are_left_out_and_named() -> None:
    sample = np.array([[8, 1, 0, 0], [2, 9, 0, 1], [0, 0, 0, 0], [0, 0, 0, 3]])  # rows are the truth
    found = estimate_areas(sample, [50, 30, 20, 0], names=["maize", "wheat", "hemp", "peas"], design="stratified")
    assert found.warnings == (
        "no sample in what is mapped as hemp: 20.0 % of the map are left out",
        "samples mapped as peas, which the map does not show, do not count",
    )
    areas = [entry.value for entry in found.area]
    assert areas == pytest.approx([50 * 0.8 + 30 * 0.1, 50 * 0.2 + 30 * 0.9, 0, 0])
    assert found.users_accuracy[2].value is None
    assert found.producers_accuracy[2].value is None


def test_a_single_sample_gives_no_error() -> None:
    found = estimate_areas(np.array([[9, 0], [1, 1]]), [50, 50], design="stratified")
    assert found.area[0].value == pytest.approx(45)
    assert found.area[0].error is None
    assert found.users_accuracy[0].error is not None
    assert found.warnings == ("a single sample in what is mapped as class 1: standard errors cannot be given",)


def test_a_tiny_class_of_a_single_sample_takes_the_widest_error() -> None:
    """It would be no help to lose all intervals for a class of half a per cent."""
    found = estimate_areas(np.array([[80, 10, 0], [20, 90, 1], [0, 0, 0]]), [50, 49.5, 0.5], design="random")
    variance = 0.5**2 * 0.8 * 0.2 / 99 + 0.495**2 * 0.1 * 0.9 / 99 + 0.005**2 * 0.25
    assert found.area[0].error == pytest.approx(100 * np.sqrt(variance))
    assert found.users_accuracy[2].error is None
    assert "mapped as class 2, little as it is" in found.warnings[0]


def test_a_perfect_map_stays_as_it_is() -> None:
    found = estimate_areas(np.diag([40, 60]), [10.0, 90.0], design="random")
    assert [entry.value for entry in found.area] == pytest.approx([10, 90])
    assert [entry.error for entry in (found.overall_accuracy, *found.producers_accuracy)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("sample", "mapped", "why"),
    [
        (np.ones((2, 2)), [1.0, 2.0, 3.0], "does not fit 3"),
        (np.ones((2, 2)), [1.0, -2.0], "from 0"),
        (np.ones((2, 2)), [np.nan, 1.0], "from 0"),
        (np.zeros((2, 2)), [1.0, 1.0], "no mapped class has a sample"),
        (np.ones((2, 2)), [0.0, 0.0], "no mapped class has a sample"),
    ],
)
def test_nonsense_is_refused(sample: NDArray[np.float64], mapped: list[float], why: str) -> None:
    with pytest.raises(InputError, match=why):
        estimate_areas(sample.astype(np.int64), mapped, design=None)
