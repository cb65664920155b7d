"""The map of errors: every parcel on its place with its own outcome, and small whatever the scene."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from cropstar.config import SplitConfig
from cropstar.datasets.splits import Split, split_parcels
from cropstar.geo.grid import Grid
from cropstar.reports.figures import LONGEST_CANVAS, NOTHING, OTHER, RIGHT, UNSEEN, WRONG, unpack_codes
from cropstar.store.store import Store
from cropstar.store.tile import RasterTile
from cropstar.training.evaluation import MOST_SCENES, Evaluation, error_map_facts
from cropstar.training.metrics import count_parcels
from tests.examples import UTM, a_patch_tile, a_raster_tile, a_series_tile, store_of


def at(tile: RasterTile, top: int, left: int) -> RasterTile:
    """The same tile, its corner so many pixels down and to the right."""
    transform = (10.0, 0.0, 612_000.0 + 10 * left, 0.0, -10.0, 5_412_000.0 - 10 * top)
    return replace(tile, grid=Grid(UTM, transform, *tile.grid.shape))


def judged(split: Split, outcome: dict[tuple[str, int], bool]) -> Evaluation:
    """An evaluation in which these parcels were right, or wrong."""
    running = split.running_numbers()
    numbers = np.array([running[parcel] for parcel in outcome], dtype=np.int64)
    truth = np.array([split.label_of[parcel] for parcel in outcome], dtype=np.int64)
    said = np.where(list(outcome.values()), truth, 1 - truth)
    counts = count_parcels(numbers, truth, said, 2)
    return Evaluation(counts, counts)


def by_hand(
    parcels: NDArray[np.int32], split: Split, outcome: dict[tuple[str, int], bool], step: int
) -> list[list[int]]:
    """The naive map, pixel by pixel."""

    def code(number: int) -> int:
        parcel = ("scene", number)
        if parcel not in split.label_of:
            return NOTHING
        if split.part_of[parcel] != "test":
            return OTHER
        return UNSEEN if parcel not in outcome else RIGHT if outcome[parcel] else WRONG

    rows, columns = (range(step // 2, side, step) for side in parcels.shape)
    return [[code(int(parcels[row, column])) for column in columns] for row in rows]


@pytest.mark.parametrize("scale", [1, 40])
def test_two_tiles_side_by_side(scale: int, tmp_path: Path) -> None:
    numbers = np.arange(36, dtype=np.int32).reshape(3, 12)  # 0 is no parcel
    parcels = np.kron(numbers, np.ones((scale, scale), dtype=np.int32)).astype(np.int32)
    middle = 7 * scale
    tiles = {
        "right": at(a_raster_tile((1, 1, 3 * scale, 5 * scale), parcels=parcels[:, middle:]), 0, middle),
        "left": at(a_raster_tile((1, 1, 3 * scale, middle), parcels=parcels[:, :middle]), 0, 0),
    }
    store = Store.open(store_of(tmp_path / "store", tiles))
    split = split_parcels(store, SplitConfig(test=0.4, validation=0.2), 0)
    test = sorted(parcel for parcel, part in split.part_of.items() if part == "test")
    outcome = {parcel: place % 3 == 0 for place, parcel in enumerate(test[1:])}  # the first was never seen
    facts = error_map_facts(store, split, judged(split, outcome))
    assert facts["why"] is None
    (scene,) = facts["scenes"]
    step = -(-12 * scale // LONGEST_CANVAS)
    assert scene["step"] == step
    codes = unpack_codes(scene["codes"], Grid.from_json(scene["grid"]).shape)
    assert codes.tolist() == by_hand(parcels, split, outcome, step)
    assert set(np.unique(codes)) == {NOTHING, OTHER, UNSEEN, RIGHT, WRONG}
    right = sum(outcome.values())
    assert (scene["right"], scene["wrong"], scene["unseen"]) == (right, len(outcome) - right, 1)
    assert Grid.from_json(scene["grid"]).resolution == 10 * step
    store.close()


def test_a_large_scene_stays_small(tmp_path: Path) -> None:
    parcels = np.random.default_rng(0).integers(0, 400, (900, 1300)).astype(np.int32)  # nothing could be packed worse
    store = Store.open(store_of(tmp_path / "store", {"tile": a_raster_tile((1, 1, 900, 1300), parcels=parcels)}))
    split = split_parcels(store, SplitConfig(), 0)
    test = {parcel: parcel[1] % 2 == 0 for parcel, part in split.part_of.items() if part == "test"}
    facts = error_map_facts(store, split, judged(split, test))
    assert max(facts["scenes"][0]["grid"]["shape"]) <= LONGEST_CANVAS
    assert len(json.dumps(facts)) < 60_000
    store.close()


def test_the_scenes_with_the_most_parcels(tmp_path: Path) -> None:
    tiles = {
        f"tile{place}": a_raster_tile(
            (1, 1, 1, 20 + place), parcels=np.arange(1, 21 + place, dtype=np.int32)[None], scene=f"scene {place}"
        )
        for place in range(MOST_SCENES + 2)
    }
    store = Store.open(store_of(tmp_path / "store", tiles))
    parts = {("scene 1", 3): "test", ("scene 1", 4): "test", ("scene 2", 1): "test"}
    labels = {(f"scene {place}", number): number % 2 for place in range(8) for number in range(1, 21)}
    few = Split({**dict.fromkeys(labels, "train"), **parts}, labels)
    assert [each["scene"] for each in error_map_facts(store, few, judged(few, {}))["scenes"]] == ["scene 1", "scene 2"]
    every = Split(dict.fromkeys(labels, "test"), labels)
    facts = error_map_facts(store, every, judged(every, {}))
    assert (len(facts["scenes"]), facts["left_out"]) == (MOST_SCENES, 2)
    store.close()


def test_a_split_by_pixel_shows_parcels_with_test_pixels(small_store: Path) -> None:
    store = Store.open(small_store)
    split = split_parcels(store, SplitConfig(by="pixel"), 0)
    counts = count_parcels(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 10)
    facts = error_map_facts(store, split, Evaluation(counts, counts))
    assert facts["scenes"][0]["unseen"] == sum(split.counts(10)["test"])
    store.close()


def test_stores_without_places_say_so(tmp_path: Path) -> None:
    for name, tile, words in (
        ("series", a_series_tile([3] * 9), "series"),
        ("patches", a_patch_tile([3] * 9), "small images"),
    ):
        store = Store.open(store_of(tmp_path / name, {"tile": tile}))
        split = Split({}, {})
        counts = count_parcels(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), 2)
        facts = error_map_facts(store, split, Evaluation(counts, counts))
        assert facts["scenes"] == []
        assert words in facts["why"]
        store.close()
