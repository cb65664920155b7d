"""Augmentation that follows from the seed alone, and regular dates."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import AugmentationConfig, RegularConfig, SplitConfig, resolve_config
from cropstar.datasets.batches import Batch
from cropstar.datasets.samples import open_parts
from cropstar.datasets.splits import split_parcels
from cropstar.datasets.transforms import (
    Draw,
    add_noise,
    augment,
    count_periods,
    flip,
    hide_dates,
    jitter_days,
    mix_series,
    regularise,
    scale_bands,
    season_starts,
    turn,
)
from cropstar.geo.calendar import Season, to_days
from cropstar.store.store import Store
from tests.datasets.batches import a_batch, same, sample_of

ALL = AugmentationConfig(date_dropout=0.3, day_jitter=4, flips=True, noise=0.1, scale=0.2)
DRAW = Draw(0, 0, range(200))
sizes = st.sampled_from([None, 4])
SEASON = Season.of([date(2022, 4, 18), date(2022, 7, 27)])  # days 19,100 to 19,200, of which batches have dates


@given(st.lists(st.integers(1, 20), min_size=2, max_size=6), sizes, st.integers(0, 2**63), st.integers(0, 99))
def test_a_sample_is_changed_alike_in_any_batch(lengths: list[int], size: int | None, seed: int, epoch: int) -> None:
    places = [7 * place for place in range(len(lengths))]
    together = augment(a_batch(lengths, size), ALL, Draw(seed, epoch, places))
    for place, length in enumerate(lengths):
        alone = augment(a_batch([length], size, first=place), ALL, Draw(seed, epoch, [places[place]]))
        assert same(sample_of(together, place, length), alone)


@given(sizes, st.integers(0, 2**63), st.integers(0, 99))
def test_other_seeds_epochs_and_places_change_otherwise(size: int | None, seed: int, epoch: int) -> None:
    batch = a_batch([12, 12], size)
    once = augment(batch, ALL, Draw(seed, epoch, [0, 1]))
    assert same(once, augment(batch, ALL, Draw(seed, epoch, [0, 1])))
    for other in (Draw(seed + 1, epoch, [0, 1]), Draw(seed, epoch + 1, [0, 1]), Draw(seed, epoch, [1, 0])):
        assert not torch.equal(once.x, augment(batch, ALL, other).x)


def test_nothing_asked_is_nothing_done() -> None:
    batch = a_batch([5, 3])
    assert augment(batch, AugmentationConfig(), Draw(0, 0, [0, 1])) is batch
    with pytest.raises(ValueError, match="1 places for 2 samples"):
        augment(batch, ALL, Draw(0, 0, [0]))


def test_one_change_does_not_stir_another() -> None:
    batch = a_batch([15] * 8, 4)
    draw = Draw(3, 1, range(8))
    alone = augment(batch, AugmentationConfig(date_dropout=0.3), draw)
    assert torch.equal(augment(batch, ALL.model_copy(update={"flips": False}), draw).valid, alone.valid)


@pytest.mark.parametrize("size", [None, 3])
def test_hidden_dates_only_take_away(size: int | None) -> None:
    batch = a_batch([30] * 200, size)
    hidden = hide_dates(batch, 0.4, DRAW)
    assert not (hidden.valid & ~batch.valid).any()
    assert float(hidden.valid.sum() / batch.valid.sum()) == pytest.approx(0.6, abs=0.02)
    if size:  # a date is hidden as a whole
        kept = hidden.valid.flatten(2).any(dim=2)
        assert torch.equal(hidden.valid, batch.valid & kept[:, :, None, None])
    assert torch.equal(hidden.x, batch.x)


@given(st.integers(1, 60))
def test_days_stay_near_and_in_order(most: int) -> None:
    batch = a_batch([20, 7, 1])
    moved = jitter_days(batch, most, Draw(most, 0, range(3)))
    shifts = moved.days - batch.days
    assert int(shifts.abs().max()) <= most
    assert (moved.days.diff(dim=1) >= 0).all()
    assert moved.days.dtype == batch.days.dtype
    assert (moved.days[1, 6:] == moved.days[1, 6]).all()  # padding stays on the last date
    assert (moved.days[2] == moved.days[2, 0]).all()


def test_days_move_both_ways_alike() -> None:
    batch = a_batch([1] * 2000)
    shifts = (jitter_days(batch, 2, Draw(0, 0, range(2000))).days - batch.days).flatten()
    counts = torch.bincount(shifts + 2, minlength=5)
    assert len(counts) == 5
    assert counts.double() / 2000 == pytest.approx([0.2] * 5, abs=0.04)


def test_images_are_turned_with_all_that_lies_on_them() -> None:
    batch = a_batch([4] * 200, 5)
    turned = flip(batch, DRAW)
    ways = set()
    for place in range(200):
        way = next(way for way in range(8) if torch.equal(turned.x[place], turn(batch.x[place], way)))
        ways.add(way)
        for name in ("valid", "labels", "parcels"):
            assert torch.equal(getattr(turned, name)[place], turn(getattr(batch, name)[place], way))
    assert ways == set(range(8))
    assert turned.days is batch.days
    series = a_batch([4])
    assert flip(series, Draw(0, 0, [0])) is series


def test_the_eight_ways_are_eight() -> None:
    image = torch.arange(9).reshape(3, 3)
    assert len({tuple(turn(image, way).flatten().tolist()) for way in range(8)}) == 8
    assert torch.equal(turn(image, 1), torch.tensor([[2, 5, 8], [1, 4, 7], [0, 3, 6]]))


@pytest.mark.parametrize("size", [None, 4])
def test_noise_is_of_the_size_asked_where_something_was_seen(size: int | None) -> None:
    batch = a_batch([20] * 200, size)
    noise = (add_noise(batch, 0.25, DRAW).x - batch.x).transpose(1, 2)  # (B,C,T,...)
    seen = batch.valid.unsqueeze(1).expand_as(noise)
    assert not noise[~seen].any()
    assert np.array([float(noise[seen].mean()), float(noise[seen].std())]) == pytest.approx([0, 0.25], abs=0.01)


@pytest.mark.parametrize("size", [None, 4])
def test_a_band_is_stretched_alike_on_all_dates_of_a_sample(size: int | None) -> None:
    batch = a_batch([6] * 200, size)
    factors = (scale_bands(batch, 0.3, DRAW).x / batch.x).transpose(1, 2).flatten(2)  # (B,C,T*pixels)
    torch.testing.assert_close(factors, factors[:, :, :1].expand_as(factors), rtol=1e-5, atol=0)
    drawn = factors[:, :, 0].log()
    assert np.array([float(drawn.mean()), float(drawn.std())]) == pytest.approx([0, 0.3], abs=0.03)
    assert float(np.corrcoef(drawn.T.numpy())[0, 1]) == pytest.approx(0, abs=0.2)  # each band by itself


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


def test_series_are_mixed_on_the_same_days_of_the_season() -> None:
    """By hand: the other series lies a year later, on other days, with a masked date that leaves no trace."""
    season = Season(1, 365)
    january = 18_262  # 2020-01-01
    days = torch.tensor([[january + 10, january + 20, january + 90]], dtype=torch.int32)
    later = torch.tensor([[january + 366, january + 366 + 15, january + 366 + 20]], dtype=torch.int32)
    own = Batch(torch.tensor([[[1.0], [2.0], [3.0]]]), torch.ones(1, 3, dtype=torch.bool), days, *[torch.zeros(1)] * 2)
    seen = torch.tensor([[True, False, True]])
    others = Batch(torch.tensor([[[0.0], [99.0], [4.0]]]), seen, later, *[torch.zeros(1)] * 2)
    mixed = mix_series(own, others, np.array([0.25], dtype=np.float32), season)
    assert mixed.x[0, :, 0].tolist() == pytest.approx([0.75 * 1 + 0.25 * 2, 0.75 * 2 + 0.25 * 4, 0.75 * 3 + 0.25 * 4])
    assert own.x[0, 0, 0] == 1
    nothing = replace(others, valid=torch.zeros(1, 3, dtype=torch.bool))
    assert torch.equal(mix_series(own, nothing, np.array([0.25], dtype=np.float32), season).x, own.x)
