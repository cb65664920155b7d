"""Splits by block, scene and group, and cross-validation over any of them: no field in two parts, nothing lost."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import SplitConfig
from cropstar.datasets.fields import Fields, assign_units, blocks_of, hold_out_units
from cropstar.datasets.splits import PARTS, Split, split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.store.store import Manifest, Store
from tests.datasets.landscapes import a_landscape, field_tile, renamed
from tests.examples import store_of

WAYS = ("parcel", "block", "scene", "group")
seeds = st.integers(0, 2**32)
ways = st.sampled_from(WAYS)


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
    with pytest.raises(UsageError, match=r"no split by block .*'nowhere' have no coordinates; take split.by=parcel"):
        split_parcels(store, config("block"), 0)
    store.close()


def test_one_block_is_too_few(landscape: Store) -> None:
    with pytest.raises(InputError, match=r"no parcel is left for test .* lie in 1 block of 1e\+07 m; make split.block"):
        split_parcels(landscape, config("block", block=1e7), 0)
    with pytest.raises(InputError, match=r"no 9 folds .*7 by scene; take fewer folds"):
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
    assert "validation takes whole regions, as the test does: north" in caplog.text


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
