"""Dates as numbers, and seasons that know no new year."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.geo.calendar import Season, from_days, to_days

dates = st.dates(date(1950, 1, 1), date(2100, 12, 31))
years = st.dates(date(2015, 1, 1), date(2030, 12, 31))


@st.composite
def stretches(draw: st.DrawFn) -> list[date]:
    """The dates of one season, in any order."""
    first = draw(years)
    return [first + timedelta(days=offset) for offset in draw(st.lists(st.integers(0, 330), min_size=1, max_size=8))]


@given(st.lists(dates))
def test_days_and_back(days: list[date]) -> None:
    assert from_days(to_days(days)) == tuple(days)
    assert to_days(days).dtype == np.int32


def test_days_count_from_1970() -> None:
    assert to_days([date(1970, 1, 1), date(1969, 12, 31), date(2000, 3, 1)]).tolist() == [0, -1, 11_017]


def test_the_season_of_dates_in_any_order() -> None:
    assert Season.of([date(2023, 5, 1), date(2023, 3, 1), date(2023, 10, 30)]) == Season(60, 243)
    assert Season.of([date(2023, 3, 1)]) == Season(60, 0)


@pytest.mark.parametrize(
    ("day", "inside"),
    [
        (date(2024, 3, 1), True),  # the same day of another year
        (date(2021, 7, 15), True),
        (date(2023, 2, 9), True),  # 20 days early
        (date(2023, 2, 8), False),
        (date(2023, 10, 19), True),  # 20 days late
        (date(2023, 10, 20), False),
        (date(2023, 12, 24), False),
    ],
)
def test_a_summer_season(day: date, inside: bool) -> None:
    season = Season.of([date(2023, 3, 1), date(2023, 9, 29)])
    assert season.covers(day) is inside


@pytest.mark.parametrize(
    ("day", "inside"),
    [
        (date(2022, 10, 15), True),
        (date(2022, 12, 31), True),
        (date(2023, 1, 1), True),
        (date(2025, 2, 1), True),
        (date(2023, 9, 26), True),
        (date(2023, 9, 24), False),
        (date(2023, 3, 19), True),
        (date(2023, 3, 24), False),
        (date(2023, 6, 1), False),
    ],
)
def test_a_season_across_the_new_year(day: date, inside: bool) -> None:
    season = Season.of([date(2022, 10, 15), date(2023, 2, 28)])
    assert season.covers(day) is inside


def test_a_whole_year_covers_everything() -> None:
    season = Season.of([date(2022, 9, 1), date(2023, 8, 15)])
    assert all(season.covers(date(2024, 1, 1) + timedelta(days=offset)) for offset in range(366))


@given(stretches())
def test_a_season_covers_its_own_dates(days: list[date]) -> None:
    season = Season.of(days)
    assert all(season.covers(day, tolerance=1) for day in days)
    assert all(season.covers(date(day.year + 4, day.month, min(day.day, 28)), tolerance=3) for day in days)


@given(stretches(), stretches())
def test_a_merged_season_covers_both(some: list[date], others: list[date]) -> None:
    one, two = Season.of(some), Season.of(others)
    merged = one.merge(two)
    assert all(merged.covers(day, tolerance=2) for day in some + others)
    assert merged.length >= max(one.length, two.length)
    assert merged.start in (one.start, two.start)
    assert two.merge(one).length == merged.length


def test_merging_takes_the_short_way_round() -> None:
    autumn, winter = Season(300, 40), Season(10, 30)
    assert autumn.merge(winter) == Season(300, 105)
    assert autumn.merge(autumn) == autumn
    assert Season(60, 200).merge(Season(100, 20)) == Season(60, 200)


@given(st.integers(1, 366), st.integers(0, 400))
def test_json_and_back(start: int, length: int) -> None:
    assert Season.from_json(Season(start, length).to_json()) == Season(start, length)
