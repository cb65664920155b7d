"""Regular dates: the same as averaging and drawing lines by hand, in training and wherever else."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import AugmentationConfig, RegularConfig, SplitConfig, resolve_config
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.datasets.transforms import Draw, augment, count_periods, regularise, season_starts
from cropstar.geo.calendar import Season, to_days
from cropstar.store.store import Store
from tests.datasets.batches import a_batch

SEASON = Season.of([date(2022, 4, 18), date(2022, 7, 27)])  # days 19,100 to 19,200, of which batches have dates


def by_hand(
    x: np.ndarray, valid: np.ndarray, days: np.ndarray, start: int, every: int, fill: str
) -> tuple[list[np.ndarray | None], list[int]]:
    """One pixel, x (T, C): the mean of each stretch of days, None where there is none."""
    stretches = range(start, start + SEASON.length + 1, every)
    means: list[np.ndarray | None] = []
    for first in stretches:
        inside = valid & (days >= first) & (days < first + every)
        means.append(x[inside].mean(axis=0, dtype=np.float64) if inside.any() else None)
    middles = [first + every // 2 for first in stretches]
    if fill == "linear":
        known = [place for place, mean in enumerate(means) if mean is not None]
        for place in range(len(means)):
            if known and known[0] < place < known[-1]:
                columns = [
                    np.interp(middles[place], np.array(middles)[known], band)
                    for band in np.array([means[k] for k in known]).T
                ]
                means[place] = np.array(columns)
    return means, middles


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(1, 150),
    st.sampled_from(["none", "linear"]),
    st.sampled_from([None, 2]),
    st.integers(0, 99),
)
def test_it_is_what_one_gets_by_hand(lengths: list[int], every: int, fill: str, size: int | None, first: int) -> None:
    batch = a_batch(lengths, size, first=first)
    config = RegularConfig.model_validate({"every": every, "fill": fill})
    x, valid, days = regularise(batch.x, batch.valid, batch.days, SEASON, config)
    assert x.shape == (len(lengths), count_periods(SEASON, every), *batch.x.shape[2:])
    assert (valid.shape, days.shape) == ((*x.shape[:2], *x.shape[3:]), x.shape[:2])
    assert (x.dtype, valid.dtype, days.dtype) == (torch.float32, torch.bool, batch.days.dtype)
    for sample in range(len(lengths)):
        for pixel in [()] if size is None else list(np.ndindex(size, size)):
            place = (sample, slice(None), *pixel)
            given_x = batch.x[(sample, slice(None), slice(None), *pixel)].numpy()
            expected, middles = by_hand(
                given_x, batch.valid[place].numpy(), batch.days[sample].numpy(), 19_100, every, fill
            )
            assert days[sample].tolist() == middles
            assert valid[place].tolist() == [mean is not None for mean in expected]
            found = x[(sample, slice(None), slice(None), *pixel)].numpy()
            for got, mean in zip(found, expected, strict=True):
                assert got == pytest.approx(np.zeros(3) if mean is None else mean, abs=1e-5)


@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.integers(1, 40), st.sampled_from([None, 3]))
def test_company_does_not_matter_to_the_last_bit(lengths: list[int], every: int, size: int | None) -> None:
    config = RegularConfig(every=every, fill="linear")
    batch = a_batch(lengths, size)
    together = regularise(batch.x, batch.valid, batch.days, SEASON, config)
    for place, length in enumerate(lengths):
        own = a_batch([length], size, first=place)
        alone = regularise(own.x, own.valid, own.days, SEASON, config)
        assert all(torch.equal(part[place], single[0]) for part, single in zip(together, alone, strict=True))


def test_dates_as_they_are_where_nothing_is_asked() -> None:
    batch = a_batch([4])
    assert regularise(batch.x, batch.valid, batch.days, SEASON, RegularConfig())[0] is batch.x


def test_what_was_not_valid_leaves_no_trace() -> None:
    batch = a_batch([30, 20], 2)
    spoilt = torch.where(batch.valid.unsqueeze(2), batch.x, torch.nan)
    config = RegularConfig(every=7, fill="linear")
    found, expected = (regularise(x, batch.valid, batch.days, SEASON, config) for x in (spoilt, batch.x))
    assert all(torch.equal(part, other) for part, other in zip(found, expected, strict=True))


# --- which year's season


@given(st.integers(1, 365), st.integers(0, 360), st.integers(1985, 2030), st.data())
def test_the_season_of_the_year_that_the_dates_are_of(start: int, length: int, year: int, data: st.DataObject) -> None:
    first = (date(year, 1, 1) - date(1970, 1, 1)).days + start - 1
    days = data.draw(st.lists(st.integers(first, first + length), min_size=1, max_size=5))
    assert season_starts(np.array([sorted(days)], dtype=np.int32), Season(start, length)).tolist() == [first]


def test_seasons_over_the_turn_of_the_year_and_dates_a_little_outside() -> None:
    winter = Season(300, 250)  # from the end of October
    days = np.array(
        [
            to_days([date(2021, 11, 5), date(2022, 6, 1)]),
            to_days([date(2022, 1, 5), date(2022, 3, 1)]),
            to_days([date(2021, 10, 15), date(2022, 3, 1)]),  # two weeks early
            to_days([date(2022, 3, 1), date(2022, 7, 20)]),  # two weeks late
        ]
    )
    assert season_starts(days, winter).tolist() == [to_days([date(2021, 10, 27)])[0]] * 4


def test_early_dates_are_of_the_season_that_has_just_begun() -> None:
    """A map in the season has its first dates alone."""
    days = np.array([to_days([date(2023, 1, 4), date(2023, 2, 1)])])
    assert season_starts(days, Season(1, 364)).tolist() == to_days([date(2023, 1, 1)]).tolist()
    assert season_starts(days, Season(1, 700)).tolist() == to_days([date(2023, 1, 1)]).tolist()


# --- in data sets


def test_data_sets_give_regular_dates_in_every_part(small_store: Path) -> None:
    store = Store.open(small_store)
    split = split_parcels(store, SplitConfig(), 0)
    config = resolve_config(None, {"store": small_store})
    plain, _ = open_parts(store, split, config, spatial=True)
    regular, _ = open_parts(store, split, config, spatial=True, regular=RegularConfig(every=30))
    season = store.fingerprint.season
    for part, dataset in regular.items():
        batch = dataset.batch([0, 1])
        assert batch.days.shape[1] == count_periods(season, 30)
        assert torch.equal(batch.labels, plain[part].batch([0, 1]).labels)
        assert torch.equal(batch.valid.any(dim=1), plain[part].batch([0, 1]).valid.any(dim=1))
    assert len(regular["train"]) == len(plain["train"])
    counts = plain["train"].class_counts(len(store.fingerprint.classes))
    assert counts.sum() == int((plain["train"].batch(list(range(len(counts)))).labels >= 0).sum())
    store.close()


def test_dates_are_hidden_before_they_are_averaged(small_store: Path) -> None:
    store = Store.open(small_store)
    split = split_parcels(store, SplitConfig(), 0)
    config = resolve_config(None, {"store": small_store})
    regular = RegularConfig(every=60, fill="linear")
    dataset = open_parts(store, split, config, spatial=True, regular=regular)[0]["train"]
    changes, draw = AugmentationConfig(date_dropout=0.5, noise=0.2), Draw(0, 3, [5, 6])
    hidden = augment(dataset.samples.batch([2, 0]), changes, draw)
    expected = regularise(hidden.x, hidden.valid, hidden.days, store.fingerprint.season, regular)
    batch = dataset.augmented([2, 0], changes, draw)
    assert all(torch.equal(*pair) for pair in zip((batch.x, batch.valid, batch.days), expected, strict=True))
    assert torch.equal(dataset.augmented([1], AugmentationConfig(), Draw(0, 0, [0])).x, dataset.batch([1]).x)
    store.close()
