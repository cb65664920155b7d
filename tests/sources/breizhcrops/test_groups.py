"""The published folds by region, and the lists of ids beside raw csv: as splits that training can name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cropstar.config import SplitConfig
from cropstar.datasets.splits import split_parcels
from cropstar.errors import InputError
from cropstar.sources.breizhcrops import FOLDS, REGIONS, open_breizhcrops
from cropstar.sources.ingest import ingest
from cropstar.store.store import Store
from tests.sources.breizhcrops.test_h5 import opened, tile_of
from tests.sources.examples import regions
from tests.sources.examples.regions import a_series, write_region


@pytest.fixture(scope="module")
def brittany(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four regions with 24 parcels each."""
    root = tmp_path_factory.mktemp("brittany")
    for number, region in enumerate(REGIONS[:4]):
        keys = range(1000 * number, 1000 * number + 24)
        write_region(root, region, series={key: a_series(regions.L1C, 3, key) for key in keys})
    ingest(open_breizhcrops(root), root / "store")
    return root / "store"


@pytest.mark.parametrize("name", FOLDS)
def test_a_fold_keeps_its_regions_apart(brittany: Path, name: str) -> None:
    store = Store.open(brittany)
    assert {reader.provenance["group"] for _, reader in store.readers()} == set(REGIONS[:4])
    split = split_parcels(store, SplitConfig(name=name, validation=0.25), seed=1)
    store.close()
    of_part: dict[str, set[str]] = {}
    for (scene, _), part in split.part_of.items():
        of_part.setdefault(part, set()).add(scene)
    train, test = FOLDS[name].scenes()
    assert of_part["test"] == set(test)
    assert of_part["train"] == set(train)
    assert of_part["validation"] <= set(train)  # a share of the training fields


def test_the_lists_of_ids_beside_raw_csv(real_data: Path, tmp_path: Path) -> None:
    root = tmp_path / "raw"
    shutil.copytree(real_data / "breizhcrops" / "raw-csv-sample", root)
    listed = {path.stem[8:]: path.read_text().split() for path in (root / "ids").iterdir()}
    tile = tile_of(root)
    assert tile.table.groups is not None
    groups = dict(zip(tile.table.keys, tile.table.groups, strict=True))
    assert groups == {key: part for part, keys in listed.items() for key in keys}
    assert opened(root).describe()["splits"] == {"ids": {"train": ["train"], "validation": ["valid"], "test": ["eval"]}}
    ingest(open_breizhcrops(root), tmp_path / "store")
    store = Store.open(tmp_path / "store")
    split = split_parcels(store, SplitConfig(name="ids"), seed=1)
    ((_, reader),) = store.readers()
    keys = dict(zip(reader.table.numbers.tolist(), reader.table.keys, strict=True))
    parts = {keys[number]: part for (_, number), part in split.part_of.items()}
    store.close()
    names = {"train": "train", "valid": "validation", "eval": "test"}
    assert parts == {key: names[part] for part, own in listed.items() for key in own}


def test_a_changed_list_makes_another_scene(real_data: Path, tmp_path: Path) -> None:
    shutil.copytree(real_data / "breizhcrops" / "raw-csv-sample", tmp_path, dirs_exist_ok=True)
    before = opened(tmp_path).recipe
    training, testing = tmp_path / "ids" / "regiona_train.txt", tmp_path / "ids" / "regiona_eval.txt"
    first, *others = training.read_text().split()
    training.write_text("\n".join(others))
    tile = tile_of(tmp_path)
    assert tile.table.groups is not None
    assert tile.table.groups[tile.table.keys.index(first)] == ""  # in no list: in no part
    assert tile.recipe != before
    testing.write_text(f"{testing.read_text()}\n{others[0]}\n")
    with pytest.raises(
        InputError, match=rf"a parcel stands in two lists in .*'{others[0]}' is in those of eval and train"
    ):
        opened(tmp_path)
