"""Labels by date: as batches, as counts, and which target a store has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cropstar.config import SplitConfig, TrainConfig
from cropstar.datasets.fields import choose_target
from cropstar.datasets.samples import SeriesDataset, measure_series, open_parts
from cropstar.datasets.splits import PARTS, split_parcels
from cropstar.errors import UsageError
from cropstar.store.classes import UNLABELLED
from cropstar.store.store import Store
from tests.datasets.dated import CLOUD, a_dated_store, a_dated_tile, without_parcel_labels
from tests.examples import a_raster_tile, a_series_tile, store_of


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(a_dated_store(tmp_path / "store"))
    yield opened
    opened.close()


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.model_validate({"store": "anywhere", "model": {"name": "star"}, **changes})


def opened(folder: Path, tile: Any) -> Store:
    return Store.open(store_of(folder, {"tile": tile}))


def test_a_batch_has_the_labels_of_its_dates(store: Store) -> None:
    split = split_parcels(store, SplitConfig(), 0, target="date")
    normalisation = measure_series(store, split)
    reader = store.reader("dated-n0")
    assert reader.date_labels is not None
    running = {number: parcel for parcel, number in split.running_numbers().items()}
    found = set()
    for part in PARTS:
        dataset = SeriesDataset(store, split, part, normalisation, 8, dated=True)
        batch = dataset.batch(list(range(len(dataset))))
        assert batch.is_dated
        assert batch.labels.shape == batch.valid.shape == batch.shows.shape
        for row, parcel in enumerate(batch.parcels.tolist()):
            place = running[parcel][1] - 1
            stored = reader.date_labels[reader.starts[place] : reader.starts[place + 1]]
            assert batch.labels[row, : len(stored)].tolist() == stored.tolist()
            assert (batch.labels[row, len(stored) :] == UNLABELLED).all()
            own = reader.table.labels[place] if reader.table.labels[place] != UNLABELLED else CLOUD
            assert batch.shows[row, : len(stored)].tolist() == (stored == own).tolist()
            assert not batch.shows[row, len(stored) :].any()
            found.add(place)
    assert found == set(range(60))  # the one of clouds alone, too


def test_without_dates_as_target_a_series_has_one_label(store: Store) -> None:
    split = split_parcels(store, SplitConfig(), 0)
    assert len(split.part_of) == 59  # clouds alone are no parcel's class
    parts, _ = open_parts(store, split, config(), spatial=False)
    batch = parts["train"].batch([0, 1])
    assert not batch.is_dated
    assert batch.labels.shape == (2,)


def test_classes_are_counted_on_the_dates_that_are_seen(store: Store) -> None:
    split = split_parcels(store, SplitConfig(), 0, target="date")
    parts, _ = open_parts(store, split, config(target="date"), spatial=False)
    dataset = parts["train"]
    batch = dataset.batch(list(range(len(dataset))))
    counts = dataset.class_counts(3)
    for row, own in enumerate(counts):
        kept = batch.labels[row][batch.valid[row]]
        assert own.tolist() == [int((kept == number).sum()) for number in range(3)]
    hidden = (batch.labels == CLOUD) & ~batch.valid
    assert hidden.any()  # there were labels that must not count
    assert counts.sum() == int(((batch.labels != UNLABELLED) & batch.valid).sum())


def test_the_target_follows_from_the_labels(tmp_path: Path, store: Store) -> None:
    dates_alone = opened(tmp_path / "dates", without_parcel_labels(a_dated_tile(20)))
    parcels_alone = opened(tmp_path / "parcels", a_series_tile([3, 4, 5]))
    images = opened(tmp_path / "images", a_raster_tile())
    assert choose_target(config(), store) == "parcel"
    assert choose_target(config(target="date"), store) == "date"
    assert choose_target(config(), dates_alone) == "date"
    assert choose_target(config(), parcels_alone) == "parcel"
    assert choose_target(config(), images) == "pixel"
    assert choose_target(config(target="parcel"), images) == "parcel"
    refusals = (
        (parcels_alone, {"target": "date"}, "one class per series"),
        (images, {"target": "date"}, "one class each"),
        (dates_alone, {"target": "parcel"}, "by date alone"),
        (store, {"target": "pixel"}, "no pixels"),
        (store, {"target": "date", "regular": {"every": 10}}, "regular dates have no labels"),
        (dates_alone, {"regular": {"every": 10}}, "regular dates have no labels"),
    )
    for where, changes, words in refusals:
        with pytest.raises(UsageError, match=words):
            choose_target(config(**changes), where)
    for each in (dates_alone, parcels_alone, images):
        each.close()


def test_labels_that_are_nowhere_are_none(tmp_path: Path) -> None:
    tile = a_dated_tile(20)
    assert tile.date_labels is not None
    blank = opened(tmp_path, replace(tile, date_labels=np.full_like(tile.date_labels, UNLABELLED)))
    assert choose_target(config(), blank) == "parcel"
    with pytest.raises(UsageError, match="no labels by date"):
        choose_target(config(target="date"), blank)
    blank.close()


def test_series_with_dates_alone_are_dealt_out_by_their_most_frequent_class(tmp_path: Path) -> None:
    tile = without_parcel_labels(a_dated_tile(40))
    store = opened(tmp_path, tile)
    split = split_parcels(store, SplitConfig(), 0)  # no word of the target: the store has nothing else
    assert tile.date_labels is not None
    for (_, number), label in split.label_of.items():
        own = tile.date_labels[tile.starts[number - 1] : tile.starts[number]]
        assert label == np.bincount(own[own != UNLABELLED], minlength=3).argmax()
    assert len(split.label_of) == 40
    store.close()
