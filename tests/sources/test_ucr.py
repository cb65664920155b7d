"""Data sets of the UCR and UEA archives: both formats, stored as they are, with the published split; bad input."""

from __future__ import annotations

import gzip
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cropstar.config import SplitConfig
from cropstar.datasets.splits import split_parcels
from cropstar.errors import CropstarError, InputError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.sources import ucr
from cropstar.sources.catalogue import SOURCES, IngestRequest, guess_source
from cropstar.sources.ingest import ingest
from cropstar.sources.ucr import UcrScene, open_ucr, step_days
from cropstar.store.store import Store
from tests.sources.examples.ucr import HEADER, a_pair, ts, tsv, write_pair, write_text

NAN = float("nan")


def one(path: Path) -> UcrScene:
    (found,) = open_ucr(path)
    return found


def samples(found: UcrScene) -> dict[str, tuple[str, list[list[float]], list[bool]]]:
    """Of each key the class, the values and the mask, from the tiles."""
    names, seen = found.fingerprint.classes.names, {}
    for piece in found.tile_specs():
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
    """A step is valid where both dimensions have a value; what is empty at the end is not a part of a series."""
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
    tile = found.build(found.tile_specs()[0])
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
        (found,) = SOURCES["ucr"](IngestRequest(path))
        recipes.add(found.recipe)
    assert len(recipes) == 1
    assert found.name == "Small"


def test_a_table_of_the_user_is_still_a_table(tmp_path: Path) -> None:
    table = write_text(tmp_path / "fields_train.tsv", "id\tdate\tcrop\tB04\n1\t2020-01-01\tmaize\t100\n")
    assert guess_source(table) == "table"


def test_long_series_are_cut_into_more_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = a_pair(tmp_path)
    whole = samples(one(train))
    monkeypatch.setattr(ucr, "TILE_BYTES", 4 * 12)  # two series of five steps
    found = one(train)
    assert [piece.window.height for piece in found.tile_specs()] == [2] * 9
    assert samples(found) == whole
    monkeypatch.setattr(ucr, "TILE_BYTES", 4)
    assert [piece.window.height for piece in one(train).tile_specs()] == [1] * 18


# --- The real data set Crop


def test_crop_is_stored_value_by_value(real_data: Path) -> None:
    (scene,) = open_ucr(real_data / "ucr-crop")
    about = scene.describe()
    assert (about["samples"], about["observations"], len(about["dates"])) == (23_999, 23_999 * 46, 46)
    assert scene.fingerprint.classes.names == [str(number) for number in range(1, 25)]
    tiles = [scene.build(piece) for piece in scene.tile_specs()]
    groups = [group for tile in tiles for group in tile.table.groups or []]
    assert (groups.count("train"), groups.count("test")) == (7_200, 16_799)
    files = [real_data / "ucr-crop" / f"Crop_{part}.tsv.gz" for part in ("TRAIN", "TEST")]
    expected = np.concatenate([np.loadtxt(file, delimiter="\t") for file in files])  # it unpacks by itself
    assert np.array_equal(np.concatenate([tile.table.labels for tile in tiles]) + 1, expected[:, 0])
    values = np.concatenate([tile.values for tile in tiles]).reshape(-1, 46)
    assert np.array_equal(values, expected[:, 1:].astype(np.float32))
    assert all(tile.valid.all() for tile in tiles)


def test_a_small_one_through_the_command_line(run_cli: Cli, tmp_path: Path) -> None:
    a_pair(tmp_path / "Small", train=30, test=9)
    answer = run_cli("ingest", "Small", "-o", "store", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "30 series to train and 9 series to test, 5 steps, 3 classes" in answer.stderr
    assert "warning: Small has no dates: its 5 steps are taken as spread evenly over 1970" in answer.stderr
    assert "39 samples, 5 dates from 1970-01-01 to 1970-12-31, bands value, 100% of the observations" in answer.stderr


# --- Bad input: one line each, with the file and the reason

Cli = Callable[..., "subprocess.CompletedProcess[str]"]
GOOD = "1\t0.5\t1.5\n2\t0.1\t0.2\n"
GOOD_TS = ts(["a", "b"], [np.ones((2, 2)), np.zeros((2, 2))])
HEAD = HEADER.format(univariate="true", classes="a b")


def refusal(path: Path, kind: type[CropstarError] = InputError) -> str:
    with pytest.raises(CropstarError) as caught:
        open_ucr(path)
    assert isinstance(caught.value, kind)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no series in"),
        ("\n\n", "no series in"),
        ("1\t0.5\t1.5\n2\t0.1\n", "lines of different length"),
        ("1\t0.5\t1.5\n2\t0.1\t0.2\t3\n", "line 2 has 3 values, the first has 2"),
        ("1\t0.5\t1.5\n2\t0.1\tcloud\n", "not numbers in line 2"),
        ("label\tt1\tt2\n1\t0.5\t0.7\n", "not numbers in line 1"),
        ("1\n2\n", "not tab-separated"),
        ("1,0.5,0.7\n", "not tab-separated"),
        ("\t0.5\t0.7\n", "no label"),
        ("1\t1e300\t0\n", "a value is infinite"),
        ("1\tinf\t0\n", "a value is infinite"),
        ("1\tNaN\tNaN\n", "no series in"),
    ],
)
def test_tab_separated(tmp_path: Path, text: str, expected: str) -> None:
    train = write_pair(tmp_path, text, GOOD)
    assert expected in refusal(train)
    assert str(train) in refusal(train)
    write_pair(tmp_path, GOOD, text)
    assert "Small_TEST.tsv" in refusal(train)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "there is no @data"),
        (HEAD.replace("@data\n", ""), "there is no @data"),
        (HEAD, "no series in"),
        ("1,2:a\n", "line 1 comes before @data"),
        (HEAD + "1,2:c\n", "a label that the header does not name"),
        (HEAD + "1,x:a\n", "not numbers in line 8"),
        (HEAD + "1,2:a\n1,2:3,4:b\n", "dimensions that do not fit"),
        (HEAD + "1,2:3:a\n", "dimensions of different length"),
        (HEAD + "1,2\n", "a label that the header does not name"),
        (HEAD + "1,2:?\n", "no label"),
        (HEAD + "?,?:a\n", "no series in"),
        (HEAD.replace("true a b", "false") + "1,2:0.5\n", "series without classes"),
        (HEAD.replace("@timeStamps false", "@timeStamps True") + "(0,1),(1,2):a\n", "series with time stamps"),
    ],
)
def test_ts(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(write_pair(tmp_path, text, GOOD_TS, ending=".ts"))


def test_parts_of_different_dimensions(tmp_path: Path) -> None:
    train = write_pair(tmp_path, HEAD + "1,2:a\n", GOOD_TS, ending=".ts")
    assert "dimensions that do not fit" in refusal(train)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.95])
def test_truncated_gzip(tmp_path: Path, share: float) -> None:
    train = a_pair(tmp_path, ".tsv.gz", train=200)
    whole = train.read_bytes()
    train.write_bytes(whole[: int(len(whole) * share)])
    assert "not a text in UTF-8, or damaged" in refusal(train)
    broken = bytearray(whole)
    broken[len(whole) // 2] ^= 0xFF
    train.write_bytes(broken)
    assert str(train) in refusal(train)


def test_gzip_of_something_else_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    train = a_pair(tmp_path)
    train.write_bytes(gzip.compress(b"\xff\xfe\x00"))
    assert "not a text in UTF-8" in refusal(train)
    train.write_bytes(b"\x1f\x8bnot gzip at all")
    assert "not a text in UTF-8, or damaged" in refusal(train)


def test_too_many_classes(tmp_path: Path) -> None:
    text = "".join(f"{number}\t1\t2\n" for number in range(300))
    assert "too many classes" in refusal(write_pair(tmp_path, text, GOOD))


def test_which_files(tmp_path: Path) -> None:
    assert "there is no NAME_TRAIN" in refusal(tmp_path)
    train = write_pair(tmp_path, GOOD, GOOD)
    (tmp_path / "Small_TEST.tsv").unlink()
    for path in (tmp_path, train):
        assert "the test part is missing" in refusal(path)
        assert "there is no Small_TEST.tsv beside it" in refusal(path)
    write_pair(tmp_path, GOOD, GOOD, name="Other")
    assert "there is Other.tsv, Small.tsv" in refusal(tmp_path, UsageError)
    assert "does not say train or test" in refusal(write_text(tmp_path / "Small.tsv", GOOD))
    assert "no such file" in refusal(tmp_path / "absent_TRAIN.tsv")


def test_through_the_command_line(run_cli: Cli, tmp_path: Path) -> None:
    train = a_pair(tmp_path, ".tsv.gz")
    train.write_bytes(train.read_bytes()[:60])
    answer = run_cli("ingest", train.name, "-o", "store", cwd=tmp_path)
    assert answer.returncode == 3
    (line,) = answer.stderr.splitlines()
    assert line.startswith("error: not a text in UTF-8, or damaged in ")
    assert not (tmp_path / "store").exists()
    with pytest.raises(UsageError, match="--year does not apply to the source 'ucr'"):
        SOURCES["ucr"](IngestRequest(train, special={"year": 2017}))
