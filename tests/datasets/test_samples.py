"""Samples of a store: patches of images, parcels as mean series, series of tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch

from cropstar.config import SplitConfig, resolve_config
from cropstar.datasets.batches import Batch
from cropstar.datasets.samples import (
    CLEAR_SHARE,
    ParcelDataset,
    PatchDataset,
    SeriesDataset,
    labelled_windows,
    measure_patches,
    measure_pooled,
    measure_series,
    open_parts,
    pool_parcels,
)
from cropstar.datasets.splits import PARTS, PatchWindow, Split, split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.geo.windows import Window
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.sources.ingest import ingest
from cropstar.store.classes import UNLABELLED
from cropstar.store.fingerprint import Normalisation
from cropstar.store.store import Store
from cropstar.training.train import TrainOptions, train
from tests.examples import a_patch_tile, a_raster_tile, store_of

PLAIN = Normalisation((0.0, 0.0), (1.0, 1.0))
CROPS = ("wheat", "maize")


def quarters() -> np.typing.NDArray[np.int32]:
    """20 x 30 pixels: parcels 1 to 4 in the corners, nothing in a cross between them."""
    parcels = np.zeros((20, 30), dtype=np.int32)
    parcels[:8, :12], parcels[:8, 18:], parcels[12:, :12], parcels[12:, 18:] = 1, 2, 3, 4
    return parcels


SPLIT = Split(
    {("scene", 1): "train", ("scene", 2): "validation", ("scene", 3): "test", ("scene", 4): "train"},
    {("scene", 1): 1, ("scene", 2): 0, ("scene", 3): 1, ("scene", 4): 0},
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(store_of(tmp_path / "store", {"tile": a_raster_tile(parcels=quarters())}))
    yield opened
    opened.close()


def whole(dataset: PatchDataset) -> Batch:
    return dataset.batch(list(range(len(dataset))))


# --- which patches


def test_places_are_the_windows_with_pixels_of_the_part(store: Store) -> None:
    assert list(labelled_windows(store, SPLIT, "validation", 10)) == [
        PatchWindow("tile", 0, Window(0, 10, 10, 10)),
        PatchWindow("tile", 0, Window(0, 20, 10, 10)),
    ]
    assert len(list(labelled_windows(store, SPLIT, "train", 10))) == 4
    assert list(labelled_windows(store, SPLIT, "nothing", 10)) == []


@pytest.mark.parametrize("size", [4, 7, 10, 24, 64])
def test_every_labelled_pixel_is_eaten_once(store: Store, size: int) -> None:
    labels = a_raster_tile(parcels=quarters()).labels
    for part in PARTS:
        batch = whole(PatchDataset(store, SPLIT, part, size, PLAIN))
        inside = SPLIT.mask("scene", quarters(), part)
        assert batch.labels.shape[1:] == (size, size)
        for label in (0, 1):
            assert int((batch.labels == label).sum()) == int((labels[inside] == label).sum())


# --- what is in them


def test_a_patch_is_what_the_tile_holds(store: Store) -> None:
    tile, normalisation = a_raster_tile(parcels=quarters()), Normalisation((0.2, 0.3), (0.1, 0.05))
    dataset = PatchDataset(store, SPLIT, "train", 10, normalisation)
    batch = dataset.batch([0, 1])
    expected = (tile.values * 1e-4 - np.array([0.2, 0.3])[:, None, None]) / np.array([0.1, 0.05])[:, None, None]
    assert dataset.places[0].window == Window(0, 0, 10, 10)
    assert batch.x[0].numpy() == pytest.approx(expected[:, :, :10, :10], abs=1e-4)
    assert np.array_equal(batch.valid[0].numpy(), tile.valid[:, :10, :10])
    assert np.array_equal(batch.days[0].numpy(), tile.days)
    kinds = [tensor.dtype for tensor in (batch.x, batch.valid, batch.labels)]
    assert kinds == [torch.float32, torch.bool, torch.int64]
    assert (len(dataset), batch.x.shape) == (4, (2, 3, 2, 10, 10))


@pytest.mark.parametrize("part", PARTS)
def test_labels_of_other_parts_are_hidden(store: Store, part: str) -> None:
    batch = PatchDataset(store, SPLIT, part, 30, PLAIN).batch([0])
    inside = np.zeros((30, 30), dtype=bool)
    inside[:20] = SPLIT.mask("scene", quarters(), part)
    assert np.array_equal(batch.labels[0].numpy() != UNLABELLED, inside)
    assert np.array_equal(batch.parcels[0].numpy() >= 0, inside)
    seen = {sorted(SPLIT.part_of)[number] for number in batch.parcels[batch.parcels >= 0].tolist()}
    assert {SPLIT.part_of[parcel] for parcel in seen} == {part}
    assert len(seen) == list(SPLIT.part_of.values()).count(part)


def test_pixels_outside_parcels_have_no_label_even_if_the_tile_says_so(tmp_path: Path) -> None:
    tile = a_raster_tile(parcels=quarters())
    labels = np.where(tile.labels == UNLABELLED, 1, tile.labels).astype(np.int16)
    store = Store.open(store_of(tmp_path, {"tile": replace(tile, labels=labels)}))
    batch = PatchDataset(store, SPLIT, "train", 30, PLAIN).batch([0])
    assert int((batch.labels != UNLABELLED).sum()) == 2 * 8 * 12
    store.close()


def test_partial_patches_are_filled_with_nothing(store: Store) -> None:
    dataset = PatchDataset(store, SPLIT, "train", 16, PLAIN)
    places = [place.window for place in dataset.places]
    index = places.index(Window(16, 16, 4, 14))
    batch = dataset.batch([index])
    assert batch.x.shape == (1, 3, 2, 16, 16)
    assert batch.valid[0, :, :4, :14].any()
    added = torch.ones(16, 16, dtype=torch.bool)
    added[:4, :14] = False
    assert not batch.valid[0][:, added].any()
    assert (batch.labels[0][added] == UNLABELLED).all()
    assert (batch.parcels[0][added] == -1).all()
    assert torch.isfinite(batch.x).all()


def test_images_of_a_tile_of_patches(tmp_path: Path) -> None:
    tile = a_patch_tile([2, 4], size=6)
    store = Store.open(store_of(tmp_path, {"patches": tile}))
    parcels = [("patches", number) for number in range(1, 9)]
    split = Split({parcel: "test" if parcel[1] == 6 else "train" for parcel in parcels}, dict.fromkeys(parcels, 1))
    dataset = PatchDataset(store, split, "train", 3, PLAIN)
    assert [(place.number, place.window.top, place.window.left) for place in dataset.places] == [
        *((0, 0, 0), (0, 0, 3), (0, 3, 0), (0, 3, 3)),
        *((1, 0, 0), (1, 3, 0), (1, 3, 3)),
    ]
    batch = whole(dataset)
    assert batch.x.shape == (7, 4, 2, 3, 3)
    assert not batch.valid[:4, 2:].any()
    assert np.array_equal(batch.valid[5].numpy(), tile.valid[1, :, 3:, :3])
    assert np.array_equal(batch.days[5].numpy(), tile.days[1])
    normalisation = measure_patches(store, split)
    chosen = tile.valid.copy()
    chosen[1, :, :3, 3:] = False
    reflectance = np.moveaxis(tile.values, 2, -1)[chosen] * 1e-4
    assert np.allclose(normalisation.mean, reflectance.mean(axis=0), atol=1e-6)
    store.close()


def test_scenes_of_different_length_share_a_batch(tmp_path: Path) -> None:
    long = a_raster_tile((5, 2, 8, 8), parcels=np.ones((8, 8), dtype=np.int32), scene="long")
    short = a_raster_tile((2, 2, 8, 8), parcels=np.ones((8, 8), dtype=np.int32), scene="short", first_day=19_400)
    store = Store.open(store_of(tmp_path, {"long": long, "short": short}))
    parcels = [("long", 1), ("short", 1)]
    split = Split(dict.fromkeys(parcels, "train"), dict.fromkeys(parcels, 1))
    batch = whole(PatchDataset(store, split, "train", 8, PLAIN))
    assert batch.x.shape == (2, 5, 2, 8, 8)
    assert np.array_equal(batch.valid[1, :2].numpy(), short.valid)
    assert not batch.valid[1, 2:].any()
    assert batch.days[1].tolist() == [19_400, 19_410, 19_410, 19_410, 19_410]  # still dates of the season
    assert batch.parcels[:, 0, 0].tolist() == [0, 1]
    store.close()


# --- series


def test_series_are_exactly_the_labelled_pixels(store: Store) -> None:
    batch = whole(PatchDataset(store, SPLIT, "train", 16, PLAIN))
    series = batch.as_series()
    places = [tuple(place) for place in (batch.labels != UNLABELLED).nonzero().tolist()]
    assert len(places) == len(series.labels) == 2 * 8 * 12
    assert series.x.shape == (len(places), 3, 2)
    for row, (sample, y, x) in enumerate(places):
        assert torch.equal(series.x[row], batch.x[sample, :, :, y, x])
        assert torch.equal(series.valid[row], batch.valid[sample, :, y, x])
        assert torch.equal(series.days[row], batch.days[sample])
        assert series.labels[row] == batch.labels[sample, y, x]
        assert series.parcels[row] == batch.parcels[sample, y, x]


def test_series_keep_the_days_of_their_own_patch() -> None:
    labels = torch.full((3, 2, 2), UNLABELLED)
    labels[0, 0, 1], labels[2] = 1, 0
    days = torch.tensor([[1, 2], [3, 4], [5, 6]])
    batch = Batch(torch.zeros(3, 2, 1, 2, 2), torch.ones(3, 2, 2, 2, dtype=torch.bool), days, labels, labels)
    assert batch.as_series().days.tolist() == [[1, 2]] + [[5, 6]] * 4


def test_one_labelled_pixel_keeps_all_dimensions() -> None:
    labels = torch.tensor([[[1]]])
    batch = Batch(torch.zeros(1, 1, 1, 1, 1), torch.ones(1, 1, 1, 1, dtype=torch.bool), labels[0], labels, labels)
    series = batch.as_series()
    shapes = [tuple(tensor.shape) for tensor in (series.x, series.valid, series.days, series.labels)]
    assert shapes == [(1, 1, 1), (1, 1), (1, 1), (1,)]


# --- normalisation


def test_normalisation_is_of_clear_training_pixels(store: Store) -> None:
    tile = a_raster_tile(parcels=quarters())
    chosen = tile.valid & SPLIT.mask("scene", quarters(), "train")
    reflectance = np.moveaxis(tile.values, 1, -1)[chosen] * 1e-4
    measured = measure_patches(store, SPLIT)
    assert measured.mean == pytest.approx(reflectance.mean(axis=0).tolist())
    assert measured.deviation == pytest.approx(reflectance.std(axis=0).tolist())


def test_nothing_but_training_pixels_enters_the_normalisation(store: Store, tmp_path: Path) -> None:
    tile = a_raster_tile(parcels=quarters())
    hidden = ~(tile.valid & SPLIT.mask("scene", quarters(), "train"))  # (T,H,W): clouds, other parts, no parcel
    values = np.where(hidden[:, None], 65_535, tile.values).astype(np.uint16)
    other = Store.open(store_of(tmp_path / "other", {"tile": replace(tile, values=values)}))
    assert measure_patches(other, SPLIT) == measure_patches(store, SPLIT)
    seen = np.where(hidden[:, None], tile.values, 65_535).astype(np.uint16)
    bright = Store.open(store_of(tmp_path / "bright", {"tile": replace(tile, values=seen)}))
    assert measure_patches(bright, SPLIT) != measure_patches(store, SPLIT)
    other.close()
    bright.close()


def test_training_parcels_that_were_never_clear(tmp_path: Path) -> None:
    tile = a_raster_tile(parcels=quarters())
    store = Store.open(store_of(tmp_path, {"tile": replace(tile, valid=np.zeros_like(tile.valid))}))
    with pytest.raises(InputError, match="no clear observation of a training parcel"):
        measure_patches(store, SPLIT)
    store.close()


def test_the_small_store_from_end_to_end(small_store: Path) -> None:
    store = Store.open(small_store)
    split = split_parcels(store, SplitConfig(), 0)
    normalisation = measure_patches(store, split)
    train = whole(PatchDataset(store, split, "train", 24, normalisation)).as_series()
    clear = train.x[train.valid]
    assert clear.mean(dim=0).numpy() == pytest.approx(np.zeros(clear.shape[1]), abs=1e-3)
    assert clear.std(dim=0).numpy() == pytest.approx(np.ones(clear.shape[1]), abs=1e-2)
    labelled = sum(int((reader.labels() >= 0).sum()) for _, reader in store.readers())
    parts = [whole(PatchDataset(store, split, part, 24, normalisation)).as_series() for part in PARTS]
    assert sum(len(part.labels) for part in parts) == labelled
    numbers = [set(part.parcels.tolist()) for part in parts]
    assert sum(map(len, numbers)) == len(set().union(*numbers)) == len(split.part_of)
    store.close()


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


@pytest.fixture(scope="module")
def series_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 fields of two crops that peak in different months, with 6 to 10 dates each."""
    random = np.random.default_rng(3)
    rows = []
    for field in range(60):
        crop = field % 2
        for month in sorted(random.choice(np.arange(1, 13), size=random.integers(6, 11), replace=False)):
            red = 3000 - 2500 * np.exp(-(((month - (5, 8)[crop]) / 2) ** 2)) + random.normal(0, 50)
            rows.append((f"f{field}", f"2023-{month:02d}-11", CROPS[crop], int(red), 3000))
    folder = tmp_path_factory.mktemp("series")
    frame = pandas.DataFrame(rows, columns=["field_id", "date", "crop", "B04", "B08"])
    frame.to_csv(folder / "fields.csv", index=False)
    ingest(SOURCES["table"](IngestRequest(folder / "fields.csv")), folder / "store")
    return folder / "store"


def test_batches_pad_short_series_as_invalid(series_store: Path) -> None:
    store = Store.open(series_store)
    split = split_parcels(store, SplitConfig(), 0)
    dataset = SeriesDataset(store, split, "train", measure_series(store, split), 8)
    batch = dataset.batch(list(range(len(dataset))))
    lengths = batch.valid.sum(dim=1)
    assert batch.x.shape == (len(dataset), int(lengths.max()), 2)
    assert int(lengths.min()) < int(lengths.max())
    for row, length in enumerate(lengths.tolist()):
        assert batch.valid[row, :length].all()
        assert not batch.x[row, length:].any()
        assert (batch.days[row, 1:length] > batch.days[row, : length - 1]).all()
    clear = batch.x[batch.valid]
    assert clear.mean(dim=0).numpy() == pytest.approx(np.zeros(2), abs=1e-5)
    store.close()


def test_every_sample_is_in_exactly_one_part(series_store: Path) -> None:
    store = Store.open(series_store)
    split = split_parcels(store, SplitConfig(), 0)
    normalisation = measure_series(store, split)
    parcels = [
        int(number)
        for part in PARTS
        for dataset in [SeriesDataset(store, split, part, normalisation, 8)]
        for number in dataset.batch(list(range(len(dataset)))).parcels
    ]
    assert sorted(parcels) == list(range(60))
    store.close()


def test_a_series_model_learns_from_a_table(series_store: Path, tmp_path: Path) -> None:
    """Gates must be opened for the length of a series, not of a whole tile, or nothing is learnt at all."""
    options = {"store": series_store, "model.name": "star", "model.layers": 2, "model.hidden": 16, "epochs": 25}
    config = resolve_config(None, {**options, "series_batch": 12, "optimiser.learning_rate": 0.01})
    _, result = train(config, TrainOptions(tmp_path, torch.device("cpu")))
    assert result["test"]["parcel"]["overall_accuracy"] >= 0.85


def test_an_image_model_is_refused(series_store: Path) -> None:
    store = Store.open(series_store)
    split = split_parcels(store, SplitConfig(), 0)
    config = resolve_config(None, {"store": series_store})
    with pytest.raises(UsageError, match="--model star"):
        open_parts(store, split, config, spatial=True)
    store.close()
