"""The order of an epoch: each sample once, or rare classes more often."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import SamplingConfig, SplitConfig
from cropstar.datasets.batches import balanced_weights, epoch_order
from cropstar.datasets.samples import PatchDataset, measure_patches
from cropstar.datasets.splits import split_parcels
from cropstar.store.store import Store

SHUFFLED = SamplingConfig()
BALANCED = SamplingConfig(order="balanced")
counts_of_samples = st.lists(st.tuples(*[st.integers(0, 100)] * 3), min_size=1, max_size=60)


def single(classes: list[int]) -> np.typing.NDArray[np.int64]:
    """Samples of one class each."""
    return np.eye(max(classes) + 1, dtype=np.int64)[classes]


def test_shuffled_is_the_order_that_it_always_was() -> None:
    order = epoch_order(50, 3, 2, SHUFFLED)
    assert order.tolist() == np.random.default_rng([3, 2]).permutation(50).tolist()


@given(counts_of_samples, st.integers(0, 2**63), st.integers(0, 99), st.floats(0.05, 1))
def test_a_sample_is_drawn_as_often_as_its_weight_says(
    rows: list[tuple[int, ...]], seed: int, epoch: int, power: float
) -> None:
    counts, config = np.array(rows, dtype=np.int64), SamplingConfig(order="balanced", power=power)
    order = epoch_order(len(rows), seed, epoch, config, counts)
    assert order.tolist() == epoch_order(len(rows), seed, epoch, config, counts).tolist()
    drawn, wanted = np.bincount(order, minlength=len(rows)), balanced_weights(counts, power) * len(rows)
    assert len(order) == len(rows)
    assert (np.abs(drawn - wanted) < 1 + 1e-6).all()


@given(st.integers(0, 2**32))
def test_classes_come_alike_however_rare(seed: int) -> None:
    classes = [0] * 300 + [1] * 60 + [2] * 3
    order = epoch_order(363, seed, 0, BALANCED, single(classes))
    drawn = np.bincount(np.array(classes)[order])
    assert drawn == pytest.approx([121] * 3, abs=1)


def test_half_a_power_is_half_way() -> None:
    classes = [0] * 900 + [1] * 100
    weights = balanced_weights(single(classes), 0.5)
    assert weights[:900].sum() / weights[900:].sum() == pytest.approx(3)
    assert balanced_weights(single(classes), 1)[:900].sum() == pytest.approx(0.5)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    counts = single([0] * 30 + [1] * 10)
    for config in (SHUFFLED, BALANCED):
        orders = {tuple(epoch_order(40, seed, epoch, config, counts)) for seed in range(3) for epoch in range(3)}
        assert len(orders) == 9


def test_samples_of_mixed_classes_count_by_their_pixels() -> None:
    counts = np.array([[90, 0], [80, 10], [0, 0]])
    weights = balanced_weights(counts, 1)
    common, rare = 180 / 170, 180 / 10
    assert weights[1] / weights[0] == pytest.approx((8 * common + rare) / 9 / common)
    assert weights[2] == 0
    assert balanced_weights(np.zeros((4, 2), dtype=np.int64), 1).tolist() == [0.25] * 4


def test_classes_that_are_not_given_are_asked_for() -> None:
    with pytest.raises(ValueError, match="needs the classes of every sample"):
        epoch_order(3, 0, 0, BALANCED)


def test_patches_with_rare_classes_come_more_often(small_store: Path) -> None:
    store = Store.open(small_store)
    split = split_parcels(store, SplitConfig(), 0)
    dataset = PatchDataset(store, split, "train", 12, measure_patches(store, split))
    counts = dataset.class_counts(len(store.fingerprint.classes))
    spread = []
    for config in (SHUFFLED, BALANCED):
        pixels = np.sum(
            [counts[epoch_order(len(dataset), 0, epoch, config, counts)].sum(axis=0) for epoch in range(9)], axis=0
        )
        spread.append(pixels.max() / pixels.min())
    assert spread[1] < 0.7 * spread[0]
    store.close()
