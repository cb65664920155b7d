"""What is printed and saved of a split: how it was made, and counts that add up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cropstar.config import SplitConfig
from cropstar.datasets.splits import PARTS, describe_lines, describe_split, split_parcels
from cropstar.store.store import Store
from tests.datasets.landscapes import a_landscape
from tests.examples import a_series_tile, store_of


@pytest.fixture(scope="module")
def landscape(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    store = Store.open(a_landscape(tmp_path_factory.mktemp("landscape")))
    yield store
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
