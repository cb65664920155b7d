"""Splits: no field in two parts, whole units, a data set's own splits, single pixels, and their description."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import RegularConfig, SplitConfig, TrainConfig, dump_config, resolve_config
from cropstar.datasets.fields import Fields, assign_units, blocks_of, hold_out_units
from cropstar.datasets.samples import PatchDataset, measure_patches
from cropstar.datasets.splits import (
    PARTS,
    PatchWindow,
    Split,
    describe_lines,
    describe_split,
    named_splits,
    split_parcels,
)
from cropstar.errors import InputError, UsageError
from cropstar.geo.windows import Window
from cropstar.sources.catalogue import SOURCES, IngestRequest
from cropstar.sources.ingest import ingest
from cropstar.store.store import Manifest, Store
from cropstar.store.tile import RasterTile
from tests.datasets.landscapes import a_landscape, field_tile, renamed
from tests.examples import a_patch_tile, a_raster_tile, a_series_tile, store_of

USUAL = SplitConfig()
STORE = {"store": Path("a/store")}
WAYS = ("parcel", "block", "scene", "group")
seeds = st.integers(0, 2**32)
ways = st.sampled_from(WAYS)
FOLDS = {
    "fold0": {"train": [str(image) for image in range(16)], "validation": [], "test": ["16", "17", "18", "19"]},
    "whole": {"train": ["0", "1"], "validation": ["2"], "test": ["3", "4"]},
    "nowhere": {"train": ["0"], "validation": ["1"], "test": ["moon"]},
}
BY_PIXEL = SplitConfig(by="pixel")


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


def with_keys(tile: RasterTile, keys: dict[int, str]) -> RasterTile:
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
        "left": with_keys(a_raster_tile((1, 1, 4, 25), parcels=strips(1, 25)), farms),
        "right": with_keys(a_raster_tile((1, 1, 4, 15), parcels=strips(26, 15)), farms),
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


def test_years_are_groups_whether_yaml_reads_them_as_numbers_or_text() -> None:
    split = resolve_config(None, STORE, ("split.by=group", "split.test=[2017, '2016', north]")).split
    assert split.test == ("2017", "2016", "north")
    assert split.named == {"test": ("2017", "2016", "north")}
    assert (split.validation, split.validation_share) == (None, 0.15)


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (("split.test=2",), "wrong value of 'split.test': value error, give a share between 0 and 1, or a list"),
        (("split.test=true",), "wrong value of 'split.test'"),
        (("split.by=group", "split.test=[]"), "wrong value of 'split.test'"),
        (("split.by=group", "split.test=[2017, '2017']"), "each once"),
        (("split.by=group", "split.test=[2017.5]"), "wrong value of 'split.test'"),
        (("split.by=group", "split.train=north", "split.test=[south]"), "wrong value of 'split.train'"),
        (("split.by=group", "split.test=[a]", "split.train=[a]"), "a group is named for two parts"),
        (("split.by=group", "split.train=[a]"), "need split.test"),
        (("split.by=group", "split.test=[a]", "split.folds=3"), "without split.folds"),
        (("split.test=[a]",), "split.by=group and split.by=scene"),
        (("split.by=farm",), "wrong value of 'split.by'"),
        (("split.name=fold0", "split.by=block"), "split.name selects a complete split"),
        (("split.name=fold0", "split.folds=5"), "split.name selects a complete split"),
        (("split.folds=3", "split.fold=4"), "split.fold is 4 of 3"),
        (("split.fold=2",), "split.fold is 2 of no split.folds"),
        (("split.folds=1",), "wrong value of 'split.folds'"),
        (("split.block=0",), "wrong value of 'split.block'"),
    ],
)
def test_what_does_not_go_together_is_refused(assignments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_config(None, STORE, assignments)
    assert message in str(caught.value)


names = st.lists(st.text(st.characters(exclude_categories=("Cs", "Cc"))), min_size=1, max_size=4, unique=True)


@given(names, st.sampled_from(["group", "scene"]))
def test_names_come_back_from_a_saved_configuration(
    tmp_path_factory: pytest.TempPathFactory, of: list[str], by: str
) -> None:
    config = TrainConfig(store=Path("s"), split=SplitConfig.model_validate({"by": by, "test": of}))
    file = tmp_path_factory.getbasetemp() / "names.yaml"
    file.write_text(dump_config(config), encoding="utf-8")
    assert resolve_config(file, {}) == config


def test_filling_needs_regular_dates() -> None:
    with pytest.raises(ValueError, match=r"regular\.fill needs regular\.every"):
        RegularConfig(fill="linear")


def config(by: str, **settings: object) -> SplitConfig:
    return SplitConfig.model_validate({"by": by, "block": 200.0, **settings})


@pytest.fixture(scope="module")
def landscape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.open(a_landscape(tmp_path_factory.mktemp("landscape")))
    yield store
    store.close()


def parts_of_fields(store: Store, split: Split) -> dict[tuple[str, str], set[str]]:
    return {
        field: {split.part_of[parcel] for parcel in pieces if parcel in split.part_of}
        for field, pieces in Fields.of(store).pieces.items()
    }


def parts_of(names: dict[tuple[str, int], str], split: Split) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for parcel, part in split.part_of.items():
        found[names[parcel]].add(part)
    return found


# --- what holds of every way to split


@given(ways, seeds)
def test_every_field_is_in_exactly_one_part(landscape: Store, by: str, seed: int) -> None:
    split = split_parcels(landscape, config(by), seed)
    assert set(split.part_of) == set(Fields.of(landscape).label_of)
    assert all(len(parts) == 1 for parts in parts_of_fields(landscape, split).values())
    assert set(split.part_of.values()) == set(PARTS)


@given(ways, seeds, st.integers(2, 5))
def test_the_folds_test_everything_once(landscape: Store, by: str, seed: int, folds: int) -> None:
    tested: Counter[tuple[str, int]] = Counter()
    for fold in range(1, folds + 1):
        split = split_parcels(landscape, config(by, folds=folds, fold=fold), seed)
        assert set(split.part_of) == set(Fields.of(landscape).label_of)
        assert all(len(parts) == 1 for parts in parts_of_fields(landscape, split).values())
        assert set(split.part_of.values()) == set(PARTS)
        tested.update(parcel for parcel, part in split.part_of.items() if part == "test")
    assert set(tested) == set(Fields.of(landscape).label_of)
    assert set(tested.values()) == {1}


@given(ways, seeds)
def test_it_follows_from_seed_and_names_alone(landscape: Store, by: str, seed: int) -> None:
    manifest = landscape.manifest
    turned = Store(landscape.folder, Manifest(manifest.fingerprint, manifest.tiles[::-1], manifest.scenes))
    assert split_parcels(turned, config(by), seed) == split_parcels(landscape, config(by), seed)
    turned.close()


@pytest.mark.parametrize("by", WAYS)
def test_another_seed_is_another_split(landscape: Store, by: str) -> None:
    found = [split_parcels(landscape, config(by), seed).part_of for seed in range(6)]
    assert any(other != found[0] for other in found[1:])


@given(seeds, st.integers(2, 7))
def test_folds_of_parcels_are_alike_in_every_class(landscape: Store, seed: int, folds: int) -> None:
    sizes = []
    for fold in range(1, folds + 1):
        counts = split_parcels(landscape, config("parcel", folds=folds, fold=fold), seed).counts(2)
        sizes.append(counts["test"])
        assert counts["validation"][0] == pytest.approx(0.15 * (counts["validation"][0] + counts["train"][0]), abs=2)
    assert all(max(column) - min(column) <= 3 for column in zip(*sizes, strict=True))  # shared fields weigh two


# --- blocks


@given(seeds, st.floats(60, 900))
def test_neighbours_in_one_block_are_in_one_part(landscape: Store, seed: int, size: float) -> None:
    fields = Fields.of(landscape)
    split = split_parcels(landscape, config("block", block=size), seed)
    found: dict[str, set[str]] = defaultdict(set)
    for field, block in blocks_of(landscape, fields, size).items():
        found[block] |= {split.part_of[parcel] for parcel in fields.pieces[field]}
    assert all(len(parts) == 1 for parts in found.values())


def test_a_field_lies_where_its_centre_lies(landscape: Store) -> None:
    """Of a field of 100 m that is cut by a seam, on the seam; of one in two places, between them."""
    blocks = blocks_of(landscape, Fields.of(landscape), 50.0)
    origin = "fields.gpkg"
    assert blocks[origin, "scene 0 1"] == f"{600_025 // 50} {5_399_975 // 50}"
    assert blocks[origin, "scene 0 5"] == f"{600_250 // 50} {5_399_975 // 50}"
    assert blocks[origin, "far"] == f"{600_600 // 50} {5_399_975 // 50}"
    assert len({block.split()[1] for block in blocks.values()}) == 8


def test_blocks_hold_their_share_of_every_class(landscape: Store) -> None:
    for seed in range(5):
        split = split_parcels(landscape, config("block", block=100.0), seed)
        counts = split.counts(2)
        for label in (0, 1):
            total = sum(counts[part][label] for part in PARTS)
            assert counts["test"][label] / total == pytest.approx(0.25, abs=0.05)
            assert counts["validation"][label] / total == pytest.approx(0.15, abs=0.05)


def test_blocks_across_two_zones_do_not_overlap(tmp_path: Path) -> None:
    """The same fields seen from two UTM zones: each lies in the block that it lies in from the first."""
    from rasterio.crs import CRS
    from rasterio.warp import transform

    zones = [CRS.from_epsg(32632), CRS.from_epsg(32633)]
    x, y = transform(zones[0], zones[1], [780_000.0], [5_400_000.0])
    here = field_tile("here", 1, 30, 30, (780_000.0, 5_400_000.0), crs=zones[0].to_wkt())
    there = field_tile("there", 1, 30, 30, (x[0], y[0]), crs=zones[1].to_wkt())
    store = Store.open(store_of(tmp_path, {"here": here, "there": there}))
    blocks = blocks_of(store, Fields.of(store), 500.0)
    corner = {scene: blocks["fields.gpkg", f"{scene} 1"] for scene in ("here", "there")}
    assert corner["here"] == corner["there"]
    sizes = Counter(blocks.values())
    assert 9 <= len(sizes) <= 40  # 1500 m turned by some degrees, in cells of 500 m
    assert max(sizes.values()) <= 2 * 11 * 11
    store.close()


def test_images_without_a_place_have_no_blocks(tmp_path: Path) -> None:
    store = Store.open(store_of(tmp_path, {"tile": field_tile("nowhere", 1, 4, 4, (0.0, 0.0), crs="")}))
    with pytest.raises(UsageError, match=r"no split by block .*'nowhere' have no coordinates; use split.by=parcel"):
        split_parcels(store, config("block"), 0)
    store.close()


def test_one_block_is_too_few(landscape: Store) -> None:
    with pytest.raises(InputError, match=r"no parcel is left for test .* lie in 1 block of 1e\+07 m; make split.block"):
        split_parcels(landscape, config("block", block=1e7), 0)
    with pytest.raises(InputError, match=r"no 9 folds .*7 by scene; use fewer folds"):
        split_parcels(landscape, config("scene", folds=9), 0)


# --- scenes and groups by name


def test_named_groups_go_where_they_are_told(landscape: Store) -> None:
    split = split_parcels(landscape, config("group", test=[2], validation=["scene 0"]), 0)
    found = parts_of(Fields.of(landscape).group_of, split)
    expected = {"2": {"test"}, "scene 0": {"validation"}}
    assert found == {group: expected.get(group, {"train"}) for group in ("0", "1", "2", "3", "4", "scene 0")}


def test_without_named_validation_a_share_of_the_training_fields_is_taken(landscape: Store) -> None:
    settings = {"train": ["scene 1", "scene 2"], "test": ["scene 3"], "validation": 0.25}
    split = split_parcels(landscape, config("scene", **settings), 0)
    scenes = {parcel: parcel[0] for parcel in split.part_of}
    both = {"train", "validation"}
    assert parts_of(scenes, split) == {"scene 1": both, "scene 2": both, "scene 3": {"test"}}
    assert sum(split.counts(2)["validation"]) == pytest.approx(32, abs=2)
    assert all(len(parts) <= 1 for parts in parts_of_fields(landscape, split).values())


# --- validation in whole groups, where the test has them


@given(seeds)
def test_validation_takes_a_whole_group_where_two_are_left(landscape: Store, seed: int) -> None:
    settings = {"train": ["scene 1", "scene 2"], "test": ["scene 3"]}
    split = split_parcels(landscape, config("scene", **settings), seed)
    found = parts_of({parcel: parcel[0] for parcel in split.part_of}, split)
    assert found.pop("scene 3") == {"test"}
    assert sorted(found.values(), key=min) == [{"train"}, {"validation"}]
    assert [len(split.about["units"][part]) for part in PARTS] == [1, 1, 1]


@given(seeds, st.integers(1, 3))
def test_validation_takes_the_groups_nearest_to_its_share(landscape: Store, seed: int, held: int) -> None:
    """Of six, five or four scenes of about one size, one is nearest to 15 %."""
    tested = [f"scene {place}" for place in range(1, held + 1)]
    split = split_parcels(landscape, config("scene", test=tested), seed)
    found = parts_of({parcel: parcel[0] for parcel in split.part_of}, split)
    assert Counter(map(tuple, found.values())) == {("test",): held, ("validation",): 1, ("train",): 6 - held}
    assert all(len(parts) == 1 for parts in parts_of_fields(landscape, split).values())


def test_the_seed_decides_which_of_like_groups_is_validation(landscape: Store) -> None:
    held = {
        tuple(split_parcels(landscape, config("scene", test=["scene 3"]), seed).about["units"]["validation"])
        for seed in range(12)
    }
    assert len(held) > 3


def test_of_two_groups_the_one_nearer_to_the_share_is_validation(caplog: pytest.LogCaptureFixture) -> None:
    tallies = {"north": Counter({0: 20, 1: 20}), "south": Counter({0: 30, 1: 30})}
    with caplog.at_level("INFO", logger="cropstar"):
        assert {tuple(hold_out_units(tallies, 0.15, seed, "region")[0]) for seed in range(20)} == {("north",)}
    assert "validation holds out whole regions, as the test does: north" in caplog.text


def test_no_group_is_left_out_that_takes_its_crops_along() -> None:
    tallies = {"north": Counter({0: 30}), "south": Counter({1: 30}), "both": Counter({0: 30, 1: 30})}
    for seed in range(20):
        units, why = hold_out_units(tallies, 0.15, seed, "region")
        assert units in ({"north"}, {"south"})
        assert why == ""
    del tallies["both"]
    assert hold_out_units(tallies, 0.15, 0, "region") == (set(), "every region that is left has crops of its own")
    small = {"north": Counter({0: 3000}), "south": Counter({0: 5})}
    assert hold_out_units(small, 0.15, 0, "region") == (set(), "the smaller regions that are left have too few fields")


@given(
    st.dictionaries(st.text(max_size=5), st.tuples(*[st.integers(0, 50)] * 3).filter(any), min_size=1, max_size=40),
    seeds,
)
def test_something_is_always_left_to_train_on(units: dict[str, tuple[int, ...]], seed: int) -> None:
    tallies = {name: Counter(dict(enumerate(counts))) for name, counts in units.items()}
    held, why = hold_out_units(tallies, 0.15, seed, "group")
    assert held < set(tallies)
    assert bool(held) != bool(why)
    assert hold_out_units(dict(reversed(tallies.items())), 0.15, seed, "group") == (held, why)


@pytest.mark.parametrize(
    "settings", [{"test": ["2017"]}, {"test": ["2017"], "validation": 0.2}, {}, {"folds": 2}], ids=str
)
def test_where_one_group_is_left_it_is_said(
    settings: dict[str, object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiles = {year: field_tile(year, 1, 8, 8, (6e5, 5.4e6)) for year in ("2016", "2017")}
    store = Store.open(store_of(tmp_path, tiles))
    split = split_parcels(store, config("group", **settings), 0)
    found = parts_of(Fields.of(store).group_of, split)
    assert sorted(found.values(), key=len) == [{"test"}, {"train", "validation"}]
    assert split.counts(2)["validation"][0] == split.counts(2)["validation"][1]
    assert [record.getMessage() for record in caplog.records] == [
        "validation is a stratified share of the training fields, for only one group is left to train on: its scores "
        "will look better than those on the held-out groups"
    ]
    store.close()


def test_a_share_that_was_given_is_that_of_every_training_group(
    landscape: Store, caplog: pytest.LogCaptureFixture
) -> None:
    split = split_parcels(landscape, config("scene", test=["scene 3"], validation=0.15), 0)
    found = parts_of({parcel: parcel[0] for parcel in split.part_of}, split)
    assert {tuple(sorted(parts)) for parts in found.values()} == {("test",), ("train", "validation")}
    assert caplog.text == ""


@pytest.mark.parametrize("by", ["parcel", "block", "scene", "group"])
def test_at_random_the_split_is_the_one_of_the_usual_share(landscape: Store, by: str) -> None:
    """Runs of older versions wrote the share down; theirs go on as they were."""
    for seed in range(3):
        old, new = (split_parcels(landscape, config(by, **given), seed) for given in ({"validation": 0.15}, {}))
        assert old == new


def test_unknown_groups_are_answered_with_the_known(landscape: Store) -> None:
    with pytest.raises(UsageError, match=r"unknown scene 'scene9' .*did you mean 'scene \d'\? known: scene 0, scene 1"):
        split_parcels(landscape, config("scene", test=["scene9"]), 0)


def test_fields_of_two_years_are_kept_in_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Trained on one year and tested on the next, and on other fields: a field would give itself away."""
    names = {number: f"field {number}" for number in range(1, 101)}
    years = ("2016", "2017")
    tiles = {year: renamed(field_tile(year, 1, 10, 10, (6e5, 5.4e6), group=year), names) for year in years}
    store = Store.open(store_of(tmp_path, tiles))
    split = split_parcels(store, config("group", test=[2017]), 0)
    assert all(len(parts) == 1 for parts in parts_of_fields(store, split).values())
    assert {part: {scene for (scene, _), own in split.part_of.items() if own == part} for part in PARTS} == {
        "train": {"2016"},
        "validation": {"2016"},
        "test": {"2017"},
    }
    counts = {part: sum(split.counts(2)[part]) for part in PARTS}
    assert sum(counts.values()) == 100
    assert 15 < counts["test"] < 50
    assert "100 fields lie in several parts of the split" in caplog.text
    store.close()


def test_two_groups_are_enough(tmp_path: Path) -> None:
    tiles = {year: field_tile(year, 1, 6, 6, (6e5, 5.4e6)) for year in ("2016", "2017")}
    store = Store.open(store_of(tmp_path, tiles))
    split = split_parcels(store, config("group"), 0)
    found = parts_of(Fields.of(store).group_of, split)
    assert sorted(found.values(), key=len) == [{"test"}, {"train", "validation"}]
    store.close()


# --- the greedy rule


@given(
    st.dictionaries(st.text(max_size=5), st.tuples(*[st.integers(0, 50)] * 3).filter(any), min_size=3, max_size=40),
    seeds,
)
def test_no_part_goes_without_a_unit(units: dict[str, tuple[int, ...]], seed: int) -> None:
    tallies = {name: Counter(dict(enumerate(counts))) for name, counts in units.items()}
    found = assign_units(tallies, {"train": 0.6, "validation": 0.15, "test": 0.25}, seed)
    assert set(found) == set(units)
    assert set(found.values()) == set(PARTS)


@given(seeds)
def test_a_rare_class_is_in_every_part(seed: int) -> None:
    """Three of forty units have it: dealt out without looking, they would all be for training most of the time."""
    tallies = {f"unit {place}": Counter({0: 10, 1: 10} | ({2: 10} if place < 3 else {})) for place in range(40)}
    found = assign_units(tallies, {"train": 0.6, "validation": 0.15, "test": 0.25}, seed)
    assert {found[f"unit {place}"] for place in range(3)} >= {"train", "test"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """20 images of four fields each, in two tiles."""
    tiles = {"a": a_patch_tile([3] * 10), "b": a_patch_tile([2] * 10, first=10)}
    return store_of(tmp_path / "store", tiles, FOLDS)


def parts_of_groups(folder: Path, split: Split) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    store = Store.open(folder)
    for _, reader in store.readers():
        for number, group in zip(reader.table.numbers, reader.table.groups or [], strict=True):
            found[group][split.part_of.get((reader.scene, int(number)), "none")] += 1
    store.close()
    return found


def split_of(folder: Path, config: SplitConfig, seed: int = 0) -> Split:
    store = Store.open(folder)
    try:
        return split_parcels(store, config, seed)
    finally:
        store.close()


def test_groups_go_where_the_split_says(folder: Path) -> None:
    found = parts_of_groups(folder, split_of(folder, SplitConfig(name="whole")))
    expected = {"0": "train", "1": "train", "2": "validation", "3": "test", "4": "test"}
    assert {group: dict(parts) for group, parts in found.items()} == {
        str(image): {expected.get(str(image), "none"): 4} for image in range(20)
    }


def test_a_share_of_training_becomes_validation_where_the_split_has_none(folder: Path) -> None:
    found = parts_of_groups(folder, split_of(folder, SplitConfig(name="fold0", validation=0.25)))
    assert {group for group, parts in found.items() if parts["test"]} == {"16", "17", "18", "19"}
    assert all(len(parts) == 1 for parts in found.values())  # an image's fields have one name and stay together
    assert sum(parts["validation"] for parts in found.values()) == 4 * 4
    other = parts_of_groups(folder, split_of(folder, SplitConfig(name="fold0", validation=0.25), seed=1))
    assert other != found
    assert {group for group, parts in other.items() if parts["test"]} == {"16", "17", "18", "19"}


def test_whole_groups_of_training_become_validation_unless_a_share_is_asked_for(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Sixteen groups of like size: two or three of them are nearest to 15 %."""
    with caplog.at_level("INFO", logger="cropstar"):
        found = parts_of_groups(folder, split_of(folder, SplitConfig(name="fold0")))
    assert all(len(parts) == 1 and parts.total() == 4 for parts in found.values())
    assert {group for group, parts in found.items() if parts["test"]} == {"16", "17", "18", "19"}
    assert sum(parts["validation"] > 0 for parts in found.values()) in (2, 3)
    assert "validation holds out whole groups, as the test does: " in caplog.text


def test_of_one_training_group_a_share_becomes_validation(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tile = a_patch_tile([3] * 20)
    halves = ["train" if int(key) < 14 else "test" for key in tile.table.keys]
    splits = {"published": {"train": ["train"], "validation": [], "test": ["test"]}}
    table = replace(tile.table, groups=halves)
    folder = store_of(tmp_path / "store", {"a": replace(tile, table=table)}, splits)
    with caplog.at_level("INFO", logger="cropstar"):
        found = parts_of_groups(folder, split_of(folder, SplitConfig(name="published")))
    assert found == {"train": {"train": 48, "validation": 8}, "test": {"test": 24}}
    assert caplog.messages == [
        "the split 'published' has no validation part: using a stratified share of its training fields, for only "
        "one group is left to train on"
    ]


def test_a_field_in_two_parts_is_in_none(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tile = a_patch_tile([3] * 5)
    torn = ["shared" if key in ("1", "3") else key for key in tile.table.keys]  # of training and of test
    folder = store_of(tmp_path / "store", {"a": replace(tile, table=replace(tile.table, keys=torn))}, FOLDS)
    with caplog.at_level(logging.WARNING):
        found = parts_of_groups(folder, split_of(folder, SplitConfig(name="whole")))
    assert found["1"] == found["3"] == {"none": 4}
    assert found["0"] == {"train": 4}
    assert "1 fields lie in two parts of the split 'whole'" in caplog.text


def test_by_lot_an_image_stays_together_and_groups_do_not_matter(folder: Path) -> None:
    found = parts_of_groups(folder, split_of(folder, SplitConfig()))
    assert all(len(parts) == 1 and parts.total() == 4 for parts in found.values())
    assert {part for parts in found.values() for part in parts} == {"train", "validation", "test"}


def test_an_unknown_split_is_answered_with_the_known(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown split 'fold' .*did you mean 'fold0'\? known: fold0, nowhere, whole"):
        split_of(folder, SplitConfig(name="fold"))
    plain = store_of(tmp_path / "plain", {"tile": a_raster_tile()})
    with pytest.raises(UsageError, match="none of its own"):
        split_of(plain, SplitConfig(name="fold0"))


def test_a_part_that_the_store_lacks_is_named(folder: Path) -> None:
    with pytest.raises(InputError, match=r"no parcel is left for test .*'nowhere'"):
        split_of(folder, SplitConfig(name="nowhere"))


def test_scenes_without_groups_of_their_own_are_a_group_each(tmp_path: Path) -> None:
    tiles = {
        name: replace(a_raster_tile(scene=name), provenance={"group": name.upper()})
        for name in ("north", "south", "east")
    }
    splits = {"space": {"train": ["NORTH"], "validation": ["EAST"], "test": ["SOUTH"]}}
    folder = store_of(tmp_path / "store", tiles, splits)
    store = Store.open(folder)
    assert named_splits(store)["space"]["north", "NORTH"] == "train"
    split = split_parcels(store, SplitConfig(name="space"), 0)
    assert {scene: split.part_of[scene, 1] for scene in tiles} == {
        "north": "train",
        "south": "test",
        "east": "validation",
    }
    store.close()


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    tiles = {"a": a_patch_tile([2] * 20, size=12), "b": a_patch_tile([3] * 20, size=12, first=20)}
    store = Store.open(store_of(tmp_path_factory.mktemp("images"), tiles))
    yield store
    store.close()


def test_the_warning_says_why_it_lies(images: Store, caplog: pytest.LogCaptureFixture) -> None:
    split_parcels(images, BY_PIXEL, 0)
    assert "training and test share fields" in caplog.text
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
    with pytest.raises(UsageError, match=r"no split by pixel .*use split.by=parcel"):
        split_parcels(store, BY_PIXEL, 0)
    with pytest.raises(UsageError, match=r"no split by block .*series without coordinates"):
        split_parcels(store, SplitConfig(by="block"), 0)
    store.close()


def described(store: Store, **settings: Any) -> dict[str, Any]:
    return describe_split(store, split_parcels(store, SplitConfig.model_validate(settings), 7))


@pytest.mark.parametrize(
    ("settings", "saved", "how"),
    [
        ({}, {"by": "parcel", "validation": 0.15, "test": 0.25}, "stratified random split of the parcels"),
        ({"by": "block", "block": 250}, {"by": "block", "block": 250.0}, "split by whole blocks of 250 m"),
        (
            {"by": "scene", "folds": 3, "fold": 2},
            {"folds": 3, "fold": 2},
            "split by whole scenes; fold 2 of 3 for the test",
        ),
        ({"by": "group", "test": [2]}, {"by": "group", "test": ["2"]}, "split by whole groups"),
        (
            {"by": "pixel"},
            {"by": "pixel"},
            "split by random pixels, where the parts share fields and scores are too good",
        ),
    ],
)
def test_it_says_how_and_counts_everything(
    landscape: Store, settings: dict[str, Any], saved: dict[str, Any], how: str
) -> None:
    description = described(landscape, **settings)
    assert {**description, **saved, "seed": 7, "how": how} == description
    assert sum(map(sum, description["pixels"].values())) == 7 * 64 * 25
    if description["by"] != "pixel":
        assert sum(map(sum, description["parcels"].values())) == 7 * 64 - 8  # eight lie in two tiles
    assert json.loads(json.dumps(description)) == description
    split = split_parcels(landscape, SplitConfig.model_validate(settings), 7)
    assert json.loads(json.dumps(split.to_json()))["by"] == description["by"]


def test_units_are_counted_and_saved_by_name(landscape: Store) -> None:
    split = split_parcels(landscape, SplitConfig(by="scene", test=("scene 3",), validation=("scene 4",)), 0)
    assert describe_split(landscape, split)["units"] == {"train": 5, "validation": 1, "test": 1}
    assert split.to_json()["units"]["test"] == ["scene 3"]
    assert split.to_json()["parcels"]["test"] == {"scene 3": list(range(1, 65))}


def test_the_table_can_be_read(landscape: Store) -> None:
    description = described(landscape, by="scene")
    lines = describe_lines(description, ["maize", "wheat"])
    assert lines[0] == "split by whole scenes (seed 7)"
    assert lines[1].startswith("scenes: ")
    assert lines[2].split() == list(PARTS)
    assert lines[3].split() == ["parcels", "pixels"] * 3
    rows = [[int(figure.replace(",", "")) for figure in line.split()[1:]] for line in lines[4:]]
    assert [line.split()[0] for line in lines[4:]] == ["maize", "wheat", "all"]
    assert [sum(column) for column in zip(*rows[:2], strict=True)] == rows[2]
    assert rows[0][::2] == [description["parcels"][part][0] for part in PARTS]
    assert len({len(line) for line in lines[2:]}) == 1


def test_series_have_no_pixels_to_count(tmp_path: Path) -> None:
    store = Store.open(store_of(tmp_path, {"table": a_series_tile([3] * 30)}))
    description = described(store)
    assert description["pixels"] is None
    assert describe_lines(description, ["maize", "wheat"])[2].split() == ["parcels"] * 3
    store.close()
