"""Data sets of the archives end to end: both formats, stored as they are, with the split that was published."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import SplitConfig
from cropstar.datasets.splits import split_parcels
from cropstar.geo.calendar import from_days
from cropstar.sources.catalogue import SOURCES, guess_source
from cropstar.sources.ingest import ingest
from cropstar.sources.request import Request
from cropstar.sources.ucr import UcrScene, open_ucr, scene
from cropstar.sources.ucr.scene import step_days
from cropstar.store.store import Store
from tests.sources.ucr.archives import a_pair, ts, tsv, write_pair, write_text

NAN = float("nan")


def one(path: Path) -> UcrScene:
    (found,) = open_ucr(path)
    return found


def samples(found: UcrScene) -> dict[str, tuple[str, list[list[float]], list[bool]]]:
    """Of each key the class, the values and the mask, from the tiles."""
    names, seen = found.fingerprint.classes.names, {}
    for piece in found.pieces():
        tile = found.build(piece)
        for place, key in enumerate(tile.table.keys):
            rows = slice(int(tile.starts[place]), int(tile.starts[place + 1]))
            label = names[tile.table.labels[place]]
            seen[key] = (label, tile.values[rows].tolist(), tile.valid[rows].tolist())
    return seen


def test_a_store_gives_back_the_series_and_the_published_split(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(scale=3, size=(14, 5))
    labels = ["10", "2", "1"] * 4
    write_pair(tmp_path / "data", tsv(labels, values[:12]), tsv(["2", "10"], values[12:]))
    ingest([one(tmp_path / "data")], tmp_path / "store")
    store = Store.open(tmp_path / "store")
    assert store.fingerprint.bands == ("value",)
    assert store.fingerprint.classes.names == ["1", "2", "10"]
    assert (store.fingerprint.scale, store.fingerprint.offset, store.fingerprint.resolution) == (1.0, 0.0, 0.0)
    (reader,) = [reader for _, reader in store.readers()]
    for place in range(14):
        stored, valid, days = reader.sample(place)
        assert stored.dtype == np.float32
        assert np.array_equal(stored[:, 0], values[place].astype(np.float32))
        assert valid.all()
        assert [day.isoformat() for day in from_days(days)][:2] == ["1970-01-01", "1970-04-02"]
        assert from_days(days)[-1].isoformat() == "1970-12-31"
    split = split_parcels(store, SplitConfig(name="published", validation=0.25), seed=3)
    assert split.counts(3) == {"train": [3, 3, 3], "validation": [1, 1, 1], "test": [0, 1, 1]}
    assert {number for (_, number), part in split.part_of.items() if part == "test"} == {13, 14}
    store.close()
    assert ingest([one(tmp_path / "data")], tmp_path / "store").written == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "c"]),
            st.lists(
                st.lists(st.floats(-1e6, 1e6, width=32) | st.just(NAN), min_size=2, max_size=2), min_size=1, max_size=6
            ),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_ts_of_any_length_with_gaps_anywhere(series: list[tuple[str, list[list[float]]]]) -> None:
    """A step is valid where both dimensions have a value; what is empty at the end is no part of a series."""
    labels, arrays = [label for label, _ in series], [np.array(values) for _, values in series]
    sure = np.ones((1, 2))  # no part may be empty
    with tempfile.TemporaryDirectory() as folder:
        train, test = ts([*labels, "a"], [*arrays, sure]), ts(["a"], [sure])
        found = samples(one(write_pair(Path(folder), train, test, ending=".ts")))
    for place, (label, array) in enumerate(zip(labels, arrays, strict=True), start=1):
        whole = ~np.isnan(array).any(axis=1)
        if not whole.any():
            assert f"train-{place}" not in found
            continue
        length = np.flatnonzero(~np.isnan(array).all(axis=1))[-1] + 1
        expected = np.where(whole[:, None], array, 0)[:length].tolist()
        assert found[f"train-{place}"] == (label, expected, whole[:length].tolist())


def test_dimensions_are_bands_and_shorter_series_begin_alike(tmp_path: Path) -> None:
    long, short = np.arange(12.0).reshape(4, 3), np.ones((2, 3))
    found = one(write_pair(tmp_path, ts(["x", "y"], [long, short]), ts(["y"], [short]), ending=".ts"))
    assert found.fingerprint.bands == ("value1", "value2", "value3")
    assert found.fingerprint.classes.names == ["x", "y"]
    tile = found.build(found.pieces()[0])
    assert tile.starts.tolist() == [0, 4, 6, 8]
    assert tile.days.tolist() == [0, 121, 242, 364, 0, 121, 0, 121]


def test_nan_at_the_end_of_a_tab_separated_line_is_filling(tmp_path: Path) -> None:
    values = np.array([[1.0, NAN, 3.0, NAN], [1.0, 2.0, 3.0, 4.0], [NAN, NAN, NAN, NAN]])
    found = one(write_pair(tmp_path, tsv(["1.0000000e+00", "-1", "7"], values), tsv(["1"], values[1:2])))
    seen = samples(found)
    assert seen["train-1"] == ("1", [[1.0], [0.0], [3.0]], [True, False, True])
    assert seen["train-2"][0] == "-1"
    assert "train-3" not in seen
    assert found.fingerprint.classes.names == ["-1", "1"]
    assert found.describe()["left_out"] == {"empty": 1}


@pytest.mark.parametrize("steps", [1, 2, 46, 365, 366, 3000])
def test_steps_have_days_of_their_own_in_their_order(steps: int) -> None:
    days = step_days(steps)
    assert len(days) == steps
    assert (np.diff(days) > 0).all()
    if 2 <= steps <= 365:
        assert (days[0], days[-1]) == (0, 364)
        assert np.abs(np.diff(days) - 364 / (steps - 1)).max() < 1


@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz", ".TSV", ".ts.gz"])
def test_either_file_or_the_folder_is_recognised(tmp_path: Path, ending: str) -> None:
    if ending == ".ts.gz":
        text = ts(["a", "b"], [np.ones((2, 1)), np.zeros((2, 1))])
        train = write_pair(tmp_path, text, text, ending=ending)
    else:
        train = a_pair(tmp_path, ending)
    test = train.with_name(train.name.replace("TRAIN", "TEST"))
    recipes = set()
    for path in (tmp_path, train, test):
        assert guess_source(path) == "ucr"
        (found,) = SOURCES["ucr"](Request(path))
        recipes.add(found.recipe)
    assert len(recipes) == 1
    assert found.name == "Small"


def test_a_table_of_the_user_is_still_a_table(tmp_path: Path) -> None:
    table = write_text(tmp_path / "fields_train.tsv", "id\tdate\tcrop\tB04\n1\t2020-01-01\tmaize\t100\n")
    assert guess_source(table) == "table"


def test_long_series_are_cut_into_more_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = a_pair(tmp_path)
    whole = samples(one(train))
    monkeypatch.setattr(scene, "TILE_BYTES", 4 * 12)  # two series of five steps
    found = one(train)
    assert [piece.window.height for piece in found.pieces()] == [2] * 9
    assert samples(found) == whole
    monkeypatch.setattr(scene, "TILE_BYTES", 4)
    assert [piece.window.height for piece in one(train).pieces()] == [1] * 18
