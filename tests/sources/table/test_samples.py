"""Rows become samples: order, dates, labels, groups, and what is said of rows that are left out."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cropstar.errors import InputError
from cropstar.geo.calendar import from_days
from cropstar.sources.table import TableOptions, open_table
from cropstar.sources.table import samples as samples_module
from cropstar.sources.table.texts import encode, encode_days
from cropstar.sources.texts import natural_ranks
from cropstar.store.classes import UNLABELLED
from tests.sources.examples.tables import Written, a_frame, as_csv, as_parquet, scene_of, tile_of

PATH = Path("table.csv")
BOTH = pytest.mark.parametrize("write", [as_csv, as_parquet])


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("WARNING", logger="cropstar")
    return caplog


# --- order and dates


@BOTH
def test_samples_come_in_natural_order_and_rows_by_date(tmp_path: Path, write: Written) -> None:
    tile = tile_of(a_frame(), tmp_path, write)
    assert tile.table.keys == ["f1", "f2", "f10"]
    assert tile.table.numbers.tolist() == [1, 2, 3]
    assert tile.starts.tolist() == [0, 1, 3, 6]
    assert [day.isoformat() for day in from_days(tile.days)] == [
        *("2021-04-02", "2021-04-03", "2021-05-11"),
        *("2021-04-01", "2021-05-05", "2021-06-30"),
    ]
    assert tile.values.tolist() == [[500, 1500], [400, 1400], [100, 1100], [200, 1200], [600, 1600], [300, 1300]]
    assert tile.fingerprint.classes.names == ["maize", "wheat"]
    assert tile.table.labels.tolist() == [1, 0, 1]


def test_the_order_of_rows_does_not_matter(tmp_path: Path) -> None:
    tile, other = tile_of(a_frame(), tmp_path), tile_of(a_frame().iloc[::-1], tmp_path)
    assert tile.table.keys == other.table.keys
    assert np.array_equal(tile.values, other.values)
    assert np.array_equal(tile.days, other.days)


def test_natural_order() -> None:
    texts = ["f10", "f2", "f02", "F1", "10", "9", "", "f", f"f{'9' * 5000}"]
    ordered = ["", "9", "10", "F1", "f", "f02", "f2", "f10", f"f{'9' * 5000}"]
    assert [ordered[rank] for rank in natural_ranks(texts)] == texts


@pytest.mark.parametrize(
    "values",
    [
        ["2021-05-01", "2022-12-31"],
        ["2021/05/01", "2022/12/31"],
        ["20210501", "20221231"],
        [20210501, 20221231],
        ["2021-05-01T23:30:00+02:00", "2022-12-31 00:10:00"],
        [date(2021, 5, 1), date(2022, 12, 31)],
        [datetime(2021, 5, 1, 23, 59), datetime(2022, 12, 31)],
        [datetime(2021, 5, 1, 23, 59, tzinfo=UTC), datetime(2022, 12, 31, tzinfo=UTC)],
        pd.to_datetime(["2021-05-01", "2022-12-31"]),
        pd.to_datetime(["2021-05-01 23:00", "2022-12-31 01:00"]).tz_localize("Asia/Tokyo"),
        pd.Categorical(["2021-05-01", "2022-12-31"]),
    ],
)
@BOTH
def test_dates_as_people_write_them(tmp_path: Path, write: Written, values: Any) -> None:
    frame = pd.DataFrame({"id": ["a", "b"], "date": values, "crop": ["rye", "rye"], "B4": [1, 2]})
    assert from_days(tile_of(frame, tmp_path, write).days) == (date(2021, 5, 1), date(2022, 12, 31))
    assert from_days(encode_days(frame["date"], PATH)) == (date(2021, 5, 1), date(2022, 12, 31))


@BOTH
@pytest.mark.parametrize(
    "text", ["01/05/2021", "2021", "2021-02-30", "May", "1619827200000", "2021-05-1", "2021-05/01"]
)
def test_what_is_no_date(tmp_path: Path, write: Written, text: str) -> None:
    dates = ["2021-05-11", "2021-04-01", "2021-06-30", text, "2021-04-02", text]
    with pytest.raises(InputError, match=f"not a date in .*: '{text}' in row 4 of column 'date'; write dates as"):
        tile_of(a_frame(date=dates), tmp_path, write)


@BOTH
@pytest.mark.parametrize(("column", "what"), [("date", "date"), ("field_id", "id"), ("year", "group")])
def test_what_may_not_be_missing(tmp_path: Path, write: Written, column: str, what: str) -> None:
    frame = a_frame(year=[2021] * 6)
    frame[column] = frame[column].astype(object).where(frame.index != 2, None)
    with pytest.raises(InputError, match=f"no {what} in .*: row 3 has none"):
        tile_of(frame, tmp_path, write)


# --- texts


@pytest.mark.parametrize(
    ("values", "texts", "codes"),
    [
        ([" a", "a ", "b", "", None], ["a", "b"], [0, 0, 1, -1, -1]),
        ([2016.0, np.nan, 2017.0], ["2016", "2017"], [0, -1, 1]),
        ([1101010001, 7], ["1101010001", "7"], [0, 1]),
        (["1.0", "2.0"], ["1", "2"], [0, 1]),
        (["1.0", "1"], ["1.0", "1"], [0, 1]),
        ([1.5, 2.0], ["1.5", "2.0"], [0, 1]),
        ([b"a", b"b"], ["a", "b"], [0, 1]),
        ([None, None], [], [-1, -1]),
    ],
)
def test_texts_as_numbers(values: list[Any], texts: list[str], codes: list[int]) -> None:
    coded = encode(pd.Series(values), PATH)
    assert coded.texts == texts
    assert coded.codes.tolist() == codes


# --- labels


@BOTH
def test_labels_that_differ_within_one_id(tmp_path: Path, write: Written) -> None:
    frame = a_frame(crop=["maize", "wheat", "rye", "maize", "wheat", "wheat"])
    words = r"labels differ within one id in .*: 'f10' has 'wheat' and 'rye'; correct them, or tell seasons apart"
    with pytest.raises(InputError, match=words):
        tile_of(frame, tmp_path, write)


@BOTH
def test_rows_without_a_label_follow_those_that_have_one(
    tmp_path: Path, write: Written, said: pytest.LogCaptureFixture
) -> None:
    tile = tile_of(a_frame(crop=[None, None, "wheat", "maize", "wheat", None]), tmp_path, write)
    assert tile.table.labels.tolist() == [1, 0, 1]
    assert tile.starts.tolist() == [0, 1, 3, 6]
    assert said.text == ""


@BOTH
def test_samples_without_a_label_are_left_out_and_counted(
    tmp_path: Path, write: Written, said: pytest.LogCaptureFixture
) -> None:
    frame = a_frame(crop=[None, "wheat", "wheat", None, "wheat", "wheat"])
    tile = tile_of(frame, tmp_path, write)
    assert (tile.table.keys, tile.fingerprint.classes.names) == (["f1", "f10"], ["wheat"])
    assert tile.starts.tolist() == [0, 1, 4]
    assert "1 samples of table" in said.text
    assert "have no label and are left out" in said.text
    kept = tile_of(frame, tmp_path, write, keep_unlabelled=True)
    assert kept.table.labels.tolist() == [0, UNLABELLED, 0]
    assert kept.starts.tolist() == [0, 1, 3, 6]


def test_no_label_at_all(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no labelled sample in .*: the column 'crop' is empty"):
        tile_of(a_frame(crop=[None] * 6), tmp_path)


def test_too_many_classes_groups_or_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = pd.DataFrame({"id": range(300), "date": ["2021-05-01"] * 300, "crop": range(300), "B4": [1] * 300})
    with pytest.raises(InputError, match=r"too many classes in .*: 300 different values in column 'crop'"):
        tile_of(many, tmp_path)
    monkeypatch.setattr(samples_module, "MAXIMUM_GROUPS", 2)
    with pytest.raises(InputError, match=r"too many groups in .*: 3 different values in column 'field_id'"):
        tile_of(a_frame(), tmp_path, id_column="field_id", group_column="field_id")
    with pytest.raises(InputError, match=r"too long a name in .*: 201 letters in column 'field_id'"):
        tile_of(a_frame(field_id=["x" * 201] * 6, crop=["rye"] * 6), tmp_path)


# --- rows that repeat, samples that nobody saw


@BOTH
def test_of_repeated_rows_the_first_is_kept(tmp_path: Path, write: Written, said: pytest.LogCaptureFixture) -> None:
    frame = a_frame()
    again = frame.iloc[[1, 1, 0]].assign(B4=9999)
    tile = tile_of(pd.concat([frame, again], ignore_index=True), tmp_path, write)
    assert np.array_equal(tile.values, tile_of(frame, tmp_path, write).values)
    assert "3 rows of table" in said.text
    assert "repeat an id and date; the first of each is kept" in said.text


def test_samples_without_a_valid_observation_stay_and_are_counted(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    tile = tile_of(a_frame(B4=[100, 200, 300, 400, None, 600]), tmp_path)
    assert tile.table.keys == ["f1", "f2", "f10"]
    assert tile.valid.tolist() == [False, True, True, True, True, True]
    assert "1 samples of table.csv have no valid observation" in said.text


# --- groups


@BOTH
def test_each_group_is_a_scene_and_all_share_their_classes(
    tmp_path: Path, write: Written, said: pytest.LogCaptureFixture
) -> None:
    frame = a_frame(year=[2021, 2021, 2022, 2021, 2022, 2022], crop=["maize", "wheat", "rye", "maize", "rye", "rye"])
    first, second = open_table(write(frame, tmp_path / "my table"))
    assert (first.name, second.name) == ("my_table-2021", "my_table-2022")
    one, two = (scene.build(scene.tile_specs()[0]) for scene in (first, second))
    assert (one.table.keys, two.table.keys) == (["f2", "f10"], ["f1", "f10"])
    assert (one.table.numbers.tolist(), two.table.numbers.tolist()) == ([1, 2], [1, 2])
    assert one.values.tolist() == [[400, 1400], [100, 1100], [200, 1200]]
    assert two.values.tolist() == [[500, 1500], [600, 1600], [300, 1300]]
    assert first.fingerprint.classes == second.fingerprint.classes
    assert first.fingerprint.classes.names == ["maize", "rye", "wheat"]
    assert (one.table.labels.tolist(), two.table.labels.tolist()) == ([0, 2], [1, 1])
    assert (one.provenance["group"], two.provenance["group"]) == ("2021", "2022")
    assert "1 ids of my table" in said.text
    assert "more than one year and are a sample in each; --group-column none keeps them together" in said.text


def test_groups_by_option_are_not_questioned(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    frame = a_frame(fold=["b", "b", "a", "b", "a", "a"])
    path = as_csv(frame, tmp_path / "table")
    assert [scene.name for scene in open_table(path, TableOptions(group_column="fold"))] == ["table-a", "table-b"]
    assert said.text == ""
    assert scene_of(a_frame(year=range(6)), tmp_path, group_column="none").name == "table"


def test_groups_that_would_have_one_file_name(tmp_path: Path) -> None:
    path = as_csv(a_frame(region=["a b", "a/b"] * 3), tmp_path / "table")
    with pytest.raises(
        InputError, match=r"groups of one name in .*: two values of column 'region' both give 'table-a_b'"
    ):
        open_table(path)
