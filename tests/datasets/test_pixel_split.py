"""Splits of single pixels: allowed, warned of, and the same in whatever window a pixel is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import SplitConfig
from cropstar.datasets.samples import PatchDataset, measure_patches
from cropstar.datasets.splits import PARTS, PatchWindow, describe_split, split_parcels
from cropstar.errors import UsageError
from cropstar.geo.windows import Window
from cropstar.store.store import Store
from tests.examples import a_patch_tile, a_raster_tile, a_series_tile, store_of

BY_PIXEL = SplitConfig(by="pixel")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    tiles = {"a": a_patch_tile([2] * 20, size=12), "b": a_patch_tile([3] * 20, size=12, first=20)}
    store = Store.open(store_of(tmp_path_factory.mktemp("images"), tiles))
    yield store
    store.close()


def test_the_warning_says_why_it_lies(images: Store, caplog: pytest.LogCaptureFixture) -> None:
    split_parcels(images, BY_PIXEL, 0)
    assert "pixels of one field stand in training and in test" in caplog.text
    assert "split.by=parcel" in caplog.text
    caplog.clear()
    split_parcels(images, SplitConfig(), 0)
    assert not caplog.text


@given(st.integers(0, 2**63))
def test_every_labelled_pixel_is_in_one_part_and_fields_are_in_all(images: Store, seed: int) -> None:
    split = split_parcels(images, BY_PIXEL, seed)
    shares = []
    for entry, reader in images.readers():
        masks = np.array([split.tile_mask(entry.name, reader, part) for part in PARTS])
        assert np.array_equal(masks.sum(axis=0), reader.parcels() > 0)
        shares.append(masks.mean(axis=(1, 2, 3)))
    assert np.mean(shares, axis=0) == pytest.approx([0.6, 0.15, 0.25], abs=0.03)
    assert sum(split.counts(2)["train"]) == len(split.label_of)  # of 36 pixels of a field, some are for training
    assert sum(split.counts(2)["test"]) > 0.99 * len(split.label_of)


@given(st.integers(0, 11), st.integers(0, 11), st.integers(1, 12), st.integers(1, 12), st.integers(0, 19))
def test_a_window_has_the_parts_of_the_whole(
    images: Store, top: int, left: int, height: int, width: int, number: int
) -> None:
    split = split_parcels(images, BY_PIXEL, 5)
    reader = images.reader("b")
    window = Window(top, left, min(height, 12 - top), min(width, 12 - left))
    place = PatchWindow("b", number, window)
    for part in PARTS:
        whole = split.tile_mask("b", reader, part)[number]
        asked = split.mask(reader.scene, reader.images[number].parcels(window), part, place)
        assert np.array_equal(asked, whole[window.slices])


def test_images_seeds_and_tiles_are_unlike(images: Store) -> None:
    split, other = (split_parcels(images, BY_PIXEL, seed) for seed in (0, 1))
    first = split.tile_mask("a", images.reader("a"), "train")
    for unlike in (
        split.tile_mask("b", images.reader("b"), "train"),
        other.tile_mask("a", images.reader("a"), "train"),
        np.roll(first, 1, axis=0),
        np.roll(first, 1, axis=1),
        np.roll(first, 1, axis=2),
    ):
        assert np.mean(first == unlike) == pytest.approx(0.6**2 + 0.4**2, abs=0.05)


def test_folds_of_pixels_test_every_pixel_once(images: Store) -> None:
    tested = np.zeros((20, 12, 12), dtype=int)
    for fold in range(1, 5):
        split = split_parcels(images, SplitConfig(by="pixel", folds=4, fold=fold, validation=0.2), 3)
        masks = [split.tile_mask("a", images.reader("a"), part) for part in PARTS]
        assert sum(mask.mean() for mask in masks) == 1
        assert masks[1].mean() == pytest.approx(0.75 * 0.2, abs=0.03)
        tested += masks[2]
    assert (tested == 1).all()


def test_data_sets_eat_every_pixel_once(images: Store) -> None:
    split = split_parcels(images, BY_PIXEL, 0)
    normalisation = measure_patches(images, split)
    pixels = describe_split(images, split)["pixels"]
    for part in PARTS:
        dataset = PatchDataset(images, split, part, 5, normalisation)
        batch = dataset.batch(list(range(len(dataset)))).as_series()
        assert np.bincount(batch.labels.numpy(), minlength=2).tolist() == pixels[part]
        assert dataset.class_counts(2).sum(axis=0).tolist() == pixels[part]
        assert int(batch.parcels.min()) >= 0
    assert sum(map(sum, pixels.values())) == 40 * 144


def test_a_part_without_a_pixel_is_said(tmp_path: Path) -> None:
    store = Store.open(
        store_of(tmp_path, {"tile": a_raster_tile((1, 1, 1, 1), parcels=np.ones((1, 1), dtype=np.int32))})
    )
    with pytest.raises(ValueError, match="no parcel is left for"):
        split_parcels(store, BY_PIXEL, 0)
    store.close()


def test_series_have_no_pixels(tmp_path: Path) -> None:
    store = Store.open(store_of(tmp_path, {"table": a_series_tile([3] * 30)}))
    with pytest.raises(UsageError, match=r"no split by pixel .*take split.by=parcel"):
        split_parcels(store, BY_PIXEL, 0)
    with pytest.raises(UsageError, match=r"no split by block .*series without coordinates"):
        split_parcels(store, SplitConfig(by="block"), 0)
    store.close()
