"""Dealing out parcels: no field in two parts, the same deal for the same seed, fair to every class."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import SplitConfig
from cropstar.datasets.splits import PARTS, Split, split_parcels
from cropstar.errors import InputError
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.sources.ingest import ingest
from cropstar.store.store import Manifest, Store
from cropstar.store.tile import RasterTile
from tests.examples import a_raster_tile, store_of

USUAL = SplitConfig()


def strips(first: int, count: int) -> np.typing.NDArray[np.int32]:
    """A raster of parcels side by side, each one column wide."""
    return np.tile(np.arange(first, first + count, dtype=np.int32), (4, 1))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """80 parcels of two classes; parcels 31 to 50 lie in two tiles."""
    tiles = {
        "left": a_raster_tile((1, 1, 4, 50), parcels=strips(1, 50)),
        "right": a_raster_tile((1, 1, 4, 50), parcels=strips(31, 50)),
    }
    store = Store.open(store_of(tmp_path_factory.mktemp("many"), tiles))
    yield store
    store.close()


def renamed(tile: RasterTile, keys: dict[int, str]) -> RasterTile:
    """The tile with other names for some of its parcels."""
    names = [keys.get(int(number), f"field {number}") for number in tile.table.numbers]
    return replace(tile, table=replace(tile.table, keys=names))


@given(st.integers(0, 2**63))
def test_no_parcel_is_in_two_parts(many: Store, seed: int) -> None:
    split = split_parcels(many, USUAL, seed)
    assert set(split.part_of) == {("scene", number) for number in range(1, 81)}
    for _, reader in many.readers():
        numbers = reader.parcels()
        masks = {part: split.mask(reader.scene, numbers, part) for part in PARTS}
        assert np.array_equal(sum(mask.astype(int) for mask in masks.values()), (numbers > 0).astype(int))
        for number in np.unique(numbers):
            assert sum(bool(mask[numbers == number].any()) for mask in masks.values()) == 1


@given(st.integers(0, 2**32), st.floats(0.05, 0.45), st.floats(0.05, 0.45))
def test_every_class_has_its_share_in_every_part(many: Store, seed: int, validation: float, test: float) -> None:
    split = split_parcels(many, SplitConfig(validation=validation, test=test), seed)
    counts = split.counts(2)
    for label in (0, 1):
        assert abs(counts["test"][label] - 40 * test) <= 0.5
        assert abs(counts["validation"][label] - 40 * validation) <= 0.5
        assert sum(counts[part][label] for part in PARTS) == 40
    assert sum(map(sum, counts.values())) == len(split.part_of) == 80


@given(st.integers(0, 2**32))
def test_the_same_seed_is_the_same_split(many: Store, seed: int) -> None:
    split = split_parcels(many, USUAL, seed)
    assert split == split_parcels(many, USUAL, seed)
    assert split.part_of != split_parcels(many, USUAL, seed + 1).part_of


@given(st.integers(0, 2**32))
def test_the_order_of_tiles_does_not_matter(many: Store, seed: int) -> None:
    manifest = many.manifest
    turned = Store(many.folder, Manifest(manifest.fingerprint, manifest.tiles[::-1], manifest.scenes))
    assert split_parcels(turned, USUAL, seed) == split_parcels(many, USUAL, seed)
    turned.close()


def test_the_cut_into_tiles_does_not_matter(many: Store, tmp_path: Path) -> None:
    one = Store.open(store_of(tmp_path, {"all": a_raster_tile((1, 1, 4, 80), parcels=strips(1, 80))}))
    assert split_parcels(one, USUAL, 3).part_of == split_parcels(many, USUAL, 3).part_of
    one.close()


def test_a_field_in_several_pieces_stays_together(tmp_path: Path) -> None:
    """Ten farms of four pieces each: a piece in training would give its neighbours in the test away."""
    farms = {number: f"farm {number % 10}" for number in range(1, 41)}
    tiles = {
        "left": renamed(a_raster_tile((1, 1, 4, 25), parcels=strips(1, 25)), farms),
        "right": renamed(a_raster_tile((1, 1, 4, 15), parcels=strips(26, 15)), farms),
    }
    store = Store.open(store_of(tmp_path, tiles))
    for seed in range(5):
        split = split_parcels(store, USUAL, seed)
        parts: dict[str, set[str]] = {}
        for (_, number), part in split.part_of.items():
            parts.setdefault(farms[number], set()).add(part)
        assert all(len(found) == 1 for found in parts.values())
        assert set(Counter(part for found in parts.values() for part in found)) == set(PARTS)
    store.close()


def test_scenes_do_not_mix_up_their_parcels(tmp_path: Path) -> None:
    tiles = {name: a_raster_tile((1, 1, 4, 40), parcels=strips(1, 40), scene=name) for name in ("north", "south")}
    store = Store.open(store_of(tmp_path, tiles))
    split = split_parcels(store, USUAL, 0)
    assert len(split.part_of) == 80
    parts = {scene: [split.part_of[scene, number] for number in range(1, 41)] for scene in ("north", "south")}
    assert parts["north"] != parts["south"]
    store.close()


@pytest.mark.parametrize("parcels", [1, 2, 3])
def test_too_few_parcels_are_said(tmp_path: Path, parcels: int) -> None:
    store = Store.open(store_of(tmp_path, {"few": a_raster_tile((1, 1, 4, parcels), parcels=strips(1, parcels))}))
    with pytest.raises(InputError, match="no parcel is left for validation") as caught:
        split_parcels(store, USUAL, 0)
    assert "split.validation" in str(caught.value)
    store.close()


def test_the_small_store_can_be_split(small_store: Path) -> None:
    store = Store.open(small_store)
    classes = len(store.fingerprint.classes)
    counts = split_parcels(store, USUAL, 0).counts(classes)
    assert all(counts["train"][label] > 0 for label in range(classes))
    assert sum(counts["test"]) >= sum(counts["validation"]) > 0
    store.close()


def test_parcels_go_where_they_always_went(small_store: Path) -> None:
    """Figures of earlier runs can be compared with those of later ones."""
    store = Store.open(small_store)
    expected = {
        0: ([8, 16, 20, 23, 25, 26, 28, 32, 33], [3, 13, 21, 24, 27, 29, 31, 35, 36]),
        1: ([7, 8, 18, 19, 20, 29, 30, 31, 35], [1, 2, 4, 10, 12, 16, 23, 24, 32]),
    }
    for seed, (validation, test) in expected.items():
        parts = split_parcels(store, USUAL, seed).to_json()["parcels"]
        assert (parts["validation"], parts["test"]) == ({"tile": validation}, {"tile": test})
        assert parts["train"] == {"tile": sorted(set(range(1, 37)) - set(validation) - set(test))}
    store.close()


def test_a_split_as_plain_data() -> None:
    labels = {("a", 1): 0, ("a", 2): 0, ("b", 1): 0}
    split = Split({("a", 2): "train", ("a", 1): "train", ("b", 1): "test"}, labels, {"by": "parcel", "seed": 3})
    assert split.to_json() == {
        "by": "parcel",
        "seed": 3,
        "parcels": {"train": {"a": [1, 2]}, "validation": {}, "test": {"b": [1]}},
    }


def test_pixels_without_parcel_belong_to_no_part() -> None:
    split = Split({("a", 1): "train"}, {("a", 1): 0})
    raster = np.array([[0, 1], [7, 1]], dtype=np.int32)
    assert split.mask("a", raster, "train").tolist() == [[False, True], [False, True]]
    assert not split.mask("b", raster, "train").any()
    assert not split.mask("a", raster, "test").any()


def test_a_field_of_two_scenes_is_in_one_part(tmp_path: Path) -> None:
    """One parcel file labels two scenes, or one table has two years: the field is the same, so is its part."""
    rows = [
        (f"f{field}", f"{year}-0{month}-01", ("wheat", "maize")[field % 2], year, 1000 + field, 3000)
        for year in (2022, 2023)
        for field in range(40)
        for month in (4, 6, 8)
    ]
    frame = pandas.DataFrame(rows, columns=["field_id", "date", "crop", "year", "B04", "B08"])
    frame.to_csv(tmp_path / "fields.csv", index=False)
    scenes = SOURCES["table"](IngestRequest(tmp_path / "fields.csv"))
    assert len(scenes) == 2
    ingest(scenes, tmp_path / "store")
    store = Store.open(tmp_path / "store")
    split = split_parcels(store, SplitConfig(), 0)
    parts: dict[str, set[str]] = defaultdict(set)
    for _, reader in store.readers():
        for number, key in zip(reader.table.numbers, reader.table.keys, strict=True):
            parts[key].add(split.part_of[reader.scene, int(number)])
    assert len(parts) == 40
    assert all(len(found) == 1 for found in parts.values())
    store.close()


def test_samples_without_a_label_are_in_no_part(tmp_path: Path) -> None:
    rows = [
        (f"f{field}", f"2023-0{month}-01", None if field > 29 else ("wheat", "maize")[field % 2], 1000 + field, 3000)
        for field in range(36)
        for month in (4, 6, 8)
    ]
    frame = pandas.DataFrame(rows, columns=["field_id", "date", "crop", "B04", "B08"])
    frame.to_csv(tmp_path / "fields.csv", index=False)
    ingest(
        SOURCES["table"](IngestRequest(tmp_path / "fields.csv", special={"keep_unlabelled": True})), tmp_path / "store"
    )
    store = Store.open(tmp_path / "store")
    split = split_parcels(store, SplitConfig(), 0)
    assert len(split.part_of) == 30
    assert sum(map(sum, split.counts(2).values())) == 30
    store.close()
