"""The data sets' own splits: every group in its part, no field in two, and a validation part where none is given."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from cropstar.config import SplitConfig
from cropstar.datasets.splits import Split, named_splits, split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.store.store import Store
from tests.examples import a_patch_tile, a_raster_tile, store_of

FOLDS = {
    "fold0": {"train": [str(image) for image in range(16)], "validation": [], "test": ["16", "17", "18", "19"]},
    "whole": {"train": ["0", "1"], "validation": ["2"], "test": ["3", "4"]},
    "nowhere": {"train": ["0"], "validation": ["1"], "test": ["moon"]},
}


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
    assert "validation takes whole groups, as the test does: " in caplog.text


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
        "the split 'published' has no validation part: a stratified share of its training fields is taken, for only "
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
