"""Pooling: a parcel's series is the mean of its clear pixels, wherever its pieces lie."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cropstar.config import SplitConfig
from cropstar.datasets.samples import CLEAR_SHARE, ParcelDataset, measure_pooled, pool_parcels
from cropstar.datasets.splits import Split, split_parcels
from cropstar.store.store import Store
from tests.examples import a_patch_tile, a_raster_tile, store_of


def everything(store: Store) -> Split:
    parcels = {(reader.scene, int(number)) for reader in store.tiles for number in reader.table.numbers}
    return Split(dict.fromkeys(parcels, "train"), dict.fromkeys(parcels, 1))


def test_the_mean_of_clear_pixels_over_all_tiles(tmp_path: Path) -> None:
    """Two tiles larger than a block, parcels across the border between them."""
    random = np.random.default_rng(0)
    tiles = [
        a_raster_tile((3, 2, 100, 110), parcels=random.integers(0, 4, (100, 110)).astype(np.int32), seed=seed)
        for seed in (1, 2)
    ]
    store = Store.open(store_of(tmp_path, {"left": tiles[0], "right": tiles[1]}))
    pooled = pool_parcels(store, everything(store))
    assert set(pooled) == {("scene", number) for number in (1, 2, 3)}
    for (_, number), series in pooled.items():
        assert series.days.tolist() == tiles[0].days.tolist()
        for date in range(3):
            clear = [tile.values[date][:, (tile.parcels == number) & tile.valid[date]] for tile in tiles]
            expected = np.concatenate(clear, axis=1).astype(np.float64).mean(axis=1)
            np.testing.assert_allclose(series.values[date], expected, rtol=1e-6)
        assert series.valid.all()
    store.close()


def test_a_date_with_too_few_clear_pixels_is_not_valid(tmp_path: Path) -> None:
    tile = a_raster_tile((3, 2, 4, 4), parcels=np.ones((4, 4), dtype=np.int32))
    valid = np.ones((3, 4, 4), dtype=bool)
    valid[1] = False
    valid[1, 0, : int(16 * CLEAR_SHARE) - 1] = True
    valid[2] = False
    store = Store.open(store_of(tmp_path, {"tile": replace(tile, valid=valid)}))
    (series,) = pool_parcels(store, everything(store)).values()
    assert series.valid.tolist() == [True, False, False]
    assert not series.values[1:].any()
    store.close()


def test_patches_with_dates_of_their_own(tmp_path: Path) -> None:
    tile = a_patch_tile([2, 4])
    store = Store.open(store_of(tmp_path, {"tile": tile}))
    pooled = pool_parcels(store, everything(store))
    assert len(pooled) == 8
    assert pooled["patches", 1].days.tolist() == tile.days[0, :2].tolist()
    assert pooled["patches", 5].days.tolist() == tile.days[1].tolist()
    store.close()


def test_the_data_set_of_a_part(small_store: Path) -> None:
    store = Store.open(small_store)
    split = split_parcels(store, SplitConfig(), 0)
    pooled = pool_parcels(store, split)
    assert set(pooled) == set(split.part_of)
    normalisation = measure_pooled(pooled, store, split)
    seen = 0
    for part in ("train", "validation", "test"):
        dataset = ParcelDataset(pooled, store, split, part, normalisation, 4)
        batch = dataset.batch(list(range(len(dataset))))
        assert batch.x.shape == (len(dataset), 6, len(store.fingerprint.bands))
        members = sorted(split.part_of)
        for row, running in enumerate(batch.parcels.tolist()):
            assert split.part_of[members[running]] == part
            assert split.label_of[members[running]] == batch.labels[row]
        seen += len(dataset)
        if part == "train":
            assert batch.x[batch.valid].mean(dim=0).numpy() == pytest.approx(0, abs=1e-4)
            assert batch.x[batch.valid].std(dim=0, correction=0).numpy() == pytest.approx(1, abs=1e-3)
    assert seen == len(split.part_of)
    store.close()
