"""Names of scenes and lists in messages."""

from __future__ import annotations

from datetime import date

from hypothesis import given
from hypothesis import strategies as st

from cropstar.sources.naming import left_out, safe_name, short_list, with_years


@given(st.text(max_size=30))
def test_a_safe_name_is_a_part_of_a_file_s_name(text: str) -> None:
    name = safe_name(text)
    assert set(name) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
    assert safe_name(name) == name
    assert bool(name) == bool(text)


@given(st.lists(st.integers(0, 99), max_size=12), st.integers(1, 12))
def test_a_list_tells_how_many_it_leaves_out(numbers: list[int], most: int) -> None:
    told = short_list(numbers, most)
    listed, _, more = told.partition(" and ")
    assert listed == ", ".join(map(str, numbers[:most]))
    assert more == (f"{len(numbers) - most} more" if len(numbers) > most else "")


def test_the_years_of_a_series() -> None:
    assert with_years("T31TEJ", dates=[date(2018, 1, 1), date(2018, 6, 1)]) == "T31TEJ-2018"
    assert with_years("a", 7, dates=[date(2018, 1, 1), date(2020, 6, 1)]) == "a-7-2018-2020"


def test_dates_without_data() -> None:
    assert left_out([], 3) == []
    days = {date(2018, 3, 1), date(2018, 1, 1)}
    assert left_out(days, 3) == ["2 of 5 dates left out, without any data: 2018-01-01, 2018-03-01"]
