"""Folds inside of what is not the test part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from cropstar.config import SplitConfig, TrainConfig
from cropstar.datasets.fields import Fields
from cropstar.datasets.splits import Split, split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.store.store import Store
from cropstar.training.setup import inner_folds, without_test
from tests.examples import a_patch_tile, store_of


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Twenty images of four parcels each; the parcels of an image are one field and one group."""
    tiles = {"a": a_patch_tile([3] * 10), "b": a_patch_tile([3] * 10, first=10)}
    return Store.open(store_of(tmp_path_factory.mktemp("folds"), tiles))


def config_of(store: Store, **split: object) -> TrainConfig:
    return TrainConfig(store=store.folder, split=SplitConfig(validation=0.2, test=0.3, **split))  # type: ignore[arg-type]


def folds_of(store: Store, config: TrainConfig, folds: int) -> tuple[Split, list[Split]]:
    split = split_parcels(store, config.split, config.seed)
    return split, inner_folds(store, split, config, "pixel", folds)


@pytest.mark.parametrize("by", ["parcel", "group"])
@pytest.mark.parametrize("folds", [2, 3, 5])
def test_each_parcel_is_validated_on_once_and_none_of_the_test(store: Store, by: str, folds: int) -> None:
    split, found = folds_of(store, config_of(store, by=by), folds)
    known = {parcel for parcel, part in split.part_of.items() if part != "test"}
    times = Counter(parcel for one in found for parcel, part in one.part_of.items() if part == "validation")
    assert len(known) < len(split.part_of)
    assert times == dict.fromkeys(known, 1)
    fields = Fields.of(store)
    for one in found:
        assert set(one.part_of) == set(one.label_of) == known
        assert set(one.part_of.values()) == {"train", "validation"}
        for pieces in fields.pieces.values():
            assert len({one.part_of[piece] for piece in pieces if piece in one.part_of}) <= 1
    sizes = [sum(part == "validation" for part in one.part_of.values()) for one in found]
    assert max(sizes) - min(sizes) <= 4 * (1 if by == "parcel" else 2)


def test_folds_within_the_only_unit_for_training(tmp_path: Path) -> None:
    """Trained on one scene and tested on another: the folds are fields of the first one."""
    tiles = {"a": a_patch_tile([3] * 9), "b": a_patch_tile([3] * 3, scene="other", first=9)}
    store = Store.open(store_of(tmp_path, tiles))
    config = TrainConfig(store=store.folder, split=SplitConfig(by="scene", test=("other",), validation=0.2))
    _, found = folds_of(store, config, 3)
    for one in found:
        assert {scene for scene, _ in one.part_of} == {"patches"}
        assert Counter(one.part_of.values()) == {"train": 24, "validation": 12}
    store.close()


def test_each_of_a_few_units_is_a_fold(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Three scenes, one of them for the test: validation takes whole scenes, and so do the folds."""
    tiles = {name: a_patch_tile([3] * 5, scene=name, first=5 * place) for place, name in enumerate("abc")}
    store = Store.open(store_of(tmp_path, tiles))
    config = TrainConfig(store=store.folder, split=SplitConfig(by="scene", test=("c",)))
    with caplog.at_level("INFO", logger="cropstar"):
        _, found = folds_of(store, config, 3)
    assert "only 2 folds: training and validation have no more by scene" in caplog.text
    held = [{scene for (scene, _), part in one.part_of.items() if part == "validation"} for one in found]
    assert sorted(map(sorted, held)) == [["a"], ["b"]]
    store.close()


def test_the_test_part_is_taken_out(store: Store) -> None:
    split = split_parcels(store, config_of(store).split, 0)
    rest = without_test(split)
    assert set(rest.part_of.values()) == {"train", "validation"}
    assert set(rest.label_of) == set(rest.part_of)
    assert rest.part_of.items() <= split.part_of.items()


def test_too_many_folds_and_folds_by_pixel(store: Store) -> None:
    with pytest.raises(InputError, match="no 1000 folds"):
        folds_of(store, config_of(store), 1000)
    config = config_of(store, by="pixel")
    with pytest.raises(UsageError, match="no folds by pixel"):
        folds_of(store, config, 2)


def test_units_of_the_real_split_stay_together(small_store: Path) -> None:
    store = Store.open(small_store)
    config = TrainConfig(store=small_store, split=SplitConfig(by="block", block=150.0, validation=0.2, test=0.3))
    from cropstar.datasets.fields import blocks_of

    _, found = folds_of(store, config, 2)
    fields = Fields.of(store)
    blocks = blocks_of(store, fields, 150.0)
    for one in found:
        parts: dict[str, set[str]] = {}
        for field, pieces in fields.pieces.items():
            for piece in pieces:
                if piece in one.part_of:
                    parts.setdefault(blocks[field], set()).add(one.part_of[piece])
        assert len(parts) > 2
        assert all(len(found_parts) == 1 for found_parts in parts.values())
    store.close()
