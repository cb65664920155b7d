"""Augmentation: each change does what it says, and what a sample gets does not depend on its company."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import AugmentationConfig
from cropstar.datasets.transforms import Draw, add_noise, augment, flip, hide_dates, jitter_days, scale_bands, turn
from tests.datasets.batches import a_batch, same, sample_of

ALL = AugmentationConfig(date_dropout=0.3, day_jitter=4, flips=True, noise=0.1, scale=0.2)
DRAW = Draw(0, 0, range(200))
sizes = st.sampled_from([None, 4])


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
