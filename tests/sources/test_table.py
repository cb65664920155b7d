"""Tables of series end to end: samples, ragged series, groups, fields, files; bad tables."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import geopandas
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.config import SplitConfig
from cropstar.datasets.fields import Fields
from cropstar.datasets.splits import split_parcels
from cropstar.errors import InputError, UsageError
from cropstar.geo.calendar import from_days
from cropstar.reports.contents import summarise
from cropstar.sources import table, table_files
from cropstar.sources.ingest import IngestResult, ingest
from cropstar.sources.table import TableOptions, TableScene, encode_days, encode_texts, open_table
from cropstar.sources.table_files import CsvTable, open_file
from cropstar.sources.texts import natural_ranks
from cropstar.store.classes import UNLABELLED
from cropstar.store.reader import TileReader
from cropstar.store.store import MANIFEST, TILES, Store
from cropstar.store.tile import write_tile
from tests.sources.examples.tables import Written, a_frame, as_csv, as_parquet, scene_of, tile_of

BANDS = ["B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12"]


def stored(path: Path, folder: Path, **options: Any) -> IngestResult:
    return ingest(open_table(path, TableOptions(**options)), folder)


def require_equal(folder: Path, frame: pd.DataFrame, key: str, bands: list[str]) -> int:
    """Every sample of a store against the rows that pandas read; answers how many there were."""
    store, rows = Store.open(folder), dict(list(frame.groupby(key)))
    names = store.fingerprint.classes.names
    count = 0
    for _, reader in store.readers():
        for index, name in enumerate(reader.table.keys):
            expected = rows[name].sort_values("date")
            values, valid, days = reader.sample(index)
            assert np.array_equal(values, expected[bands].to_numpy())
            assert [day.isoformat() for day in from_days(days)] == expected["date"].tolist()
            assert {names[reader.table.labels[index]]} == set(expected["crop"])
            assert valid.all()
            count += 1
    store.close()
    assert count == len(rows)
    return count


# --- real files


def test_bavaria(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "bavaria" / "fields_2016_2017.parquet"
    result = stored(path, tmp_path / "store")
    assert (result.written, result.kept) == (2, 0)
    frame = pd.read_parquet(path)
    assert require_equal(tmp_path / "store", frame, "field_id", BANDS) == 1199
    store = Store.open(tmp_path / "store")
    assert store.fingerprint.bands[:2] + store.fingerprint.bands[7:10] == ("B01", "B02", "B08", "B8A", "B09")
    assert (len(store.fingerprint.bands), store.fingerprint.scale, store.fingerprint.resolution) == (13, 1e-4, 0.0)
    assert store.fingerprint.classes.names == sorted(set(frame["crop"]))
    assert (store.fingerprint.season.start, store.fingerprint.season.length) == (46, 197)  # not two years
    counts = {reader.scene: len(reader.table.keys) for _, reader in store.readers()}
    assert counts == {"fields_2016_2017-2016": 599, "fields_2016_2017-2017": 600}
    for _, reader in store.readers():
        assert set(np.diff(reader.starts).tolist()) == {14}
        assert reader.sample(0)[0].dtype == np.float32
    assert [len(scene["dates"]) for scene in store.manifest.scenes.values()] == [14, 14]
    store.close()


def test_bavaria_as_csv_has_the_same_values(real_data: Path, tmp_path: Path) -> None:
    (head,) = open_table(real_data / "bavaria" / "fields_head.csv")
    tile = head.build(head.tile_specs()[0])
    whole, _ = open_table(real_data / "bavaria" / "fields_2016_2017.parquet")
    start = whole.build(whole.tile_specs()[0])
    assert (head.name, len(tile.table.keys)) == ("fields_head-2016", 40)
    assert tile.table.keys == start.table.keys[:40]
    assert np.array_equal(tile.values, start.values[:560])
    assert np.array_equal(tile.days, start.days[:560])


def test_french_parcels_stay_irregular(real_data: Path, tmp_path: Path) -> None:
    path = real_data / "fra-lpis" / "parcels_2023_dekads.parquet"
    assert stored(path, tmp_path / "store").written == 1
    frame = pd.read_parquet(path)
    bands = [column for column in frame.columns if column.startswith("B")]
    assert require_equal(tmp_path / "store", frame, "sample_id", bands) == 499
    store = Store.open(tmp_path / "store")
    ((_, reader),) = store.readers()
    lengths = np.diff(reader.starts)
    assert (lengths.min(), lengths.max(), lengths.sum()) == (13, 42, 13_341)
    assert reader.sample(0)[0].dtype == np.uint16
    assert (store.fingerprint.scale, len(store.fingerprint.classes)) == (1e-4, 26)
    assert len(store.manifest.scenes["parcels_2023_dekads"]["dates"]) == 50
    store.close()


# --- pieces and recipes


def test_a_scene_is_cut_into_tiles_of_whole_samples(tmp_path: Path) -> None:
    whole = tile_of(a_frame(), tmp_path)
    scene = scene_of(a_frame(), tmp_path, samples_per_tile=2)
    pieces = scene.tile_specs()
    assert [(piece.window.top, piece.window.height) for piece in pieces] == [(0, 2), (2, 1)]
    assert [piece.name for piece in pieces] == [f"table-{scene.recipe[:8]}-n000000{start}" for start in (0, 2)]
    second, first = (scene.build(piece) for piece in reversed(pieces))  # in any order
    assert np.array_equal(np.concatenate([first.values, second.values]), whole.values)
    assert np.array_equal(np.concatenate([first.days, second.days]), whole.days)
    assert (first.starts.tolist(), second.starts.tolist()) == ([0, 1, 3], [0, 3])
    assert [*first.table.keys, *second.table.keys] == whole.table.keys
    assert [*first.table.numbers, *second.table.numbers] == [1, 2, 3]
    assert scene.layout == first.layout == "series"
    with pytest.raises(UsageError, match="must be above zero"):
        scene_of(a_frame(), tmp_path, samples_per_tile=0)


def test_what_is_guessed_and_what_is_given_have_one_recipe(tmp_path: Path) -> None:
    guessed = scene_of(a_frame(), tmp_path).recipe
    given_options: dict[str, Any] = {
        "id_column": "field_id",
        "label_column": "crop",
        "bands": ("B04", "B8"),
        "scale": 1e-4,
    }
    assert scene_of(a_frame(), tmp_path, **given_options).recipe == guessed
    others: list[dict[str, Any]] = [
        {"scale": 1.0},
        {"bands": ("B8", "B4")},
        {"bands": ("B4",)},
        {"nodata": ()},
        {"samples_per_tile": 1},
        {"keep_unlabelled": True},
        {"mask_column": "B4"},
        {"offset": -0.1},
    ]
    frame = a_frame(B4=[0, 0, 0, 0, 0, 1])  # so that it also makes a mask
    recipes = [scene_of(frame, tmp_path, **options).recipe for options in [{}, *others]]
    assert len({guessed, *recipes}) == len(others) + 2


def test_the_manifest_describes_the_scene(tmp_path: Path) -> None:
    stored(as_csv(a_frame(region=["north"] * 6), tmp_path / "table"), tmp_path / "store")
    scene = json.loads((tmp_path / "store" / MANIFEST).read_text())["scenes"]["table-north"]
    assert scene["dates"] == sorted(a_frame()["date"])
    assert (scene["samples"], scene["observations"], scene["group"]) == (3, 6, "north")
    assert (scene["source"], scene["file"]) == ("table", "table.csv")
    assert scene["columns"]["bands"] == {"B04": "B4", "B08": "B8"}


# --- several series of one field


def test_the_field_of_every_series_is_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = a_frame(farm=["a", "b", "b", "a", "a", "b"])
    with caplog.at_level("INFO", logger="cropstar"):
        stored(as_csv(frame, tmp_path / "table"), tmp_path / "store", field_column="farm")
    assert "group none, field farm, mask none" in caplog.text
    store = Store.open(tmp_path / "store")
    ((_, reader),) = store.readers()
    assert (reader.table.keys, reader.table.fields) == (["f1", "f2", "f10"], ["a", "a", "b"])
    assert [len(pieces) for pieces in Fields.of(store).pieces.values()] == [2, 1]
    store.close()


@pytest.mark.parametrize(
    ("spans", "start", "length"),
    [
        ([("2016-03-01", "2016-09-01"), ("2018-02-20", "2018-08-20"), ("2017-04-01", "2017-09-11")], 51, 203),
        ([("2016-11-10", "2017-07-01"), ("2017-12-01", "2018-08-01")], 315, 263),  # over the turn of the year
        ([("2016-03-01", "2018-03-01"), ("2017-03-01", "2019-03-01")], 60, 731),  # longer than a year, two years apart
        ([("2016-03-01", "2016-09-01"), ("2016-10-01", "2016-12-01")], 61, 275),  # of one year: all of it
    ],
)
def test_samples_of_several_years_have_one_season(
    spans: list[tuple[str, str]], start: int, length: int, tmp_path: Path
) -> None:
    rows = [(f"f{row}", day, "ab"[row % 2], 0.1) for row, span in enumerate(spans) for day in span]
    frame = pd.DataFrame(rows, columns=["id", "date", "crop", "B1"])
    stored(as_csv(frame, tmp_path / "table"), tmp_path / "store")
    store = Store.open(tmp_path / "store")
    season = store.fingerprint.season
    store.close()
    assert (season.start, season.length) == (start, length)


def test_without_fields_recipe_and_tile_are_those_of_older_versions(tmp_path: Path) -> None:
    scene = scene_of(a_frame(), tmp_path)
    assert "field" not in scene.provenance["columns"]
    assert scene.build(scene.tile_specs()[0]).table.fields is None
    assert scene_of(a_frame(), tmp_path, field_column="field_id").recipe != scene.recipe


def test_a_series_is_of_one_field_and_every_one_has_its_field(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"fields differ within one id .*table.csv: 'f10' has 'b' and 'c'; .*--id"):
        scene_of(a_frame(farm=["a", "b", "c", "a", "a", "b"]), tmp_path, field_column="farm")
    with pytest.raises(InputError, match=r"no field .*table.csv: row 2 has none; fill the column 'farm' or leave out"):
        scene_of(a_frame(farm=["a", None, "b", "a", "a", "b"]), tmp_path, field_column="farm")


@settings(max_examples=25)
@given(st.lists(st.integers(0, 19), min_size=60, max_size=60), st.integers(0, 2**32))
def test_no_split_tears_the_series_of_a_field_apart(fields: list[int], seed: int) -> None:
    """Sixty series over five years, of up to twenty fields."""
    series = range(len(fields))
    frame = pd.DataFrame(
        {
            "sample_id": [f"s{number}" for number in series],
            "farm": fields,
            "year": [2016 + number % 5 for number in series],
            "date": [f"{2016 + number % 5}-05-01" for number in series],
            "crop": "wheat",
            "B4": [100 + number for number in series],
        }
    )
    with TemporaryDirectory() as folder:
        stored(as_csv(frame, Path(folder) / "table"), Path(folder) / "store", field_column="farm")
        store = Store.open(Path(folder) / "store")
        own = {
            (reader.scene, int(number)): farm
            for _, reader in store.readers()
            for number, farm in zip(reader.table.numbers, reader.table.fields or [], strict=True)
        }
        assert len(own) == len(fields)
        for options in ({}, {"folds": 3, "fold": 2}, {"by": "group"}, {"by": "scene", "test": ["table-2020"]}):
            try:
                split = split_parcels(store, SplitConfig.model_validate(options), seed)
            except InputError:  # too few fields for three parts
                continue
            parts: dict[str, set[str]] = {}
            for parcel, part in split.part_of.items():
                parts.setdefault(own[parcel], set()).add(part)
            assert all(len(found) == 1 for found in parts.values())
            if "by" not in options:  # nothing is lost
                assert set(split.part_of) == set(own)
        store.close()


# --- a store


def test_a_rerun_keeps_everything_and_other_options_are_refused(tmp_path: Path) -> None:
    path, store = as_csv(a_frame(year=[2020, 2021] * 3), tmp_path / "table"), tmp_path / "store"
    assert (stored(path, store).written, stored(path, store).kept) == (2, 2)
    before = {file.name: file.read_bytes() for file in store.rglob("*.h5")}
    with pytest.raises(UsageError, match="of other content or options is in the store"):
        stored(path, store, samples_per_tile=1)
    assert {file.name: file.read_bytes() for file in store.rglob("*.h5")} == before


def test_csv_and_parquet_give_the_same_store(tmp_path: Path) -> None:
    frame = a_frame(year=[2021, 2021, 2022, 2021, 2022, 2022], B8=[0.25, None, 0.1, 0.33333334, 1.1, 0.7])
    frame["B4"] = frame["B4"] / 1000
    contents: list[Any] = []
    for write, name in ((as_csv, "one"), (as_parquet, "two")):
        store = tmp_path / name
        path = write(frame, tmp_path / "table")
        stored(path, store)
        recipe = open_table(path)[0].recipe
        tiles = {tile.name.replace(recipe[:8], ""): tile for tile in (store / TILES).iterdir()}
        contents.append({name: _arrays(tile) for name, tile in tiles.items()})
        manifest = json.loads((store / MANIFEST).read_text())
        contents.append((manifest["fingerprint"], {name: scene["dates"] for name, scene in manifest["scenes"].items()}))
    assert contents[:2] == contents[2:]
    assert len(contents[0]) == 2


def _arrays(path: Path) -> tuple[Any, ...]:
    """All that a tile holds apart from its recipe and provenance."""
    reader = TileReader(path)
    samples = [reader.sample(index) for index in range(len(reader.table.keys))]
    held = [array.tobytes() + str(array.dtype).encode() for sample in samples for array in sample]
    table = (reader.table.keys, reader.table.labels.tolist(), reader.table.numbers.tolist())
    fingerprint, scene = reader.fingerprint, reader.scene
    reader.close()
    return scene, fingerprint, table, held


def test_what_is_said_of_a_store_of_series(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = a_frame(B4=[100, None, 300, 400, 500, 600], crop=["maize", "wheat", "wheat", "maize", None, "wheat"])
    with caplog.at_level("INFO", logger="cropstar"):
        stored(as_csv(frame.assign(lon=1.5), tmp_path / "table"), tmp_path / "store", keep_unlabelled=True)
        summarise(tmp_path / "store")
    text = caplog.text
    assert (
        "id field_id, date date, label crop, group none, mask none, bands B04 B08; reflectance = value x 0.0001" in text
    )
    assert "not used: lon" in text
    assert [line.split()[-3:] for line in text.splitlines() if line.endswith(" sample")] == [
        ["maize", "1", "sample"],
        ["wheat", "1", "sample"],
    ]
    assert (
        "1 tile, 3 samples, 6 dates from 2021-04-01 to 2021-06-30, bands B04 B08, 83% of the observations valid" in text
    )
    assert " ha\n" not in text
    fields = {key: value for record in caplog.records for key, value in getattr(record, "fields", {}).items()}
    assert (fields["tiles"], fields["dates"], fields["samples"]) == (1, 6, 3)


# --- Samples

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
    coded = encode_texts(pd.Series(values), PATH)
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
    monkeypatch.setattr(table, "MAXIMUM_GROUPS", 2)
    with pytest.raises(InputError, match=r"too many groups in .*: 3 different values in column 'field_id'"):
        tile_of(a_frame(), tmp_path, id_column="field_id", group_column="field_id")
    with pytest.raises(InputError, match=r"a name that is too long in .*: 201 letters in column 'field_id'"):
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


# --- Series of different length

PANDAS_MISSING = {"na", "n/a", "nan", "-nan", "null", "none", "<na>", "#na", "#n/a"}  # what a CSV cannot call a field
LETTERS: st.SearchStrategy[str] = st.characters(codec="utf-8", exclude_categories=["C", "Z"])


def can_be_a_key(text: str) -> bool:
    return text.lower() not in PANDAS_MISSING and not text.endswith(".0")


KEYS = st.text(LETTERS, min_size=1, max_size=6).filter(can_be_a_key)
DATES = st.sets(st.integers(0, 800).map(lambda days: date(2020, 1, 1) + timedelta(days)), min_size=1, max_size=6)
WHOLE = st.integers(0, 65534)
FRACTION = st.floats(0.0, 20_000.0, width=32)


@st.composite
def ragged(draw: st.DrawFn) -> tuple[pd.DataFrame, dict[str, tuple[str, dict[date, list[float | None]]]]]:
    """A shuffled table, and what must come back: for each key its label and the values of its dates."""
    kind, bands = draw(st.sampled_from([WHOLE, FRACTION])), draw(st.integers(1, 3))
    series: dict[str, tuple[str, dict[date, list[float | None]]]] = {}
    for key in draw(st.sets(KEYS, min_size=1, max_size=5)):
        label = draw(st.sampled_from(["maize", "rye", "winter wheat"]))
        row = st.lists(st.one_of(kind, st.none()) if draw(st.booleans()) else kind, min_size=bands, max_size=bands)
        series[key] = (label, {day: draw(row) for day in sorted(draw(DATES))})
    rows = [(key, label, day, *values) for key, (label, days) in series.items() for day, values in days.items()]
    names = [f"B{band}" for band in range(2, 2 + bands)]
    frame = pd.DataFrame(draw(st.permutations(rows)), columns=["id", "crop", "date", *names])
    frame[names] = frame[names].astype(np.float64)
    return frame, series


def is_seen(values: list[float | None]) -> bool:
    return None not in values and (len(values) == 1 or any(values))


@given(ragged())
def test_any_ragged_table_comes_back(
    table: tuple[pd.DataFrame, dict[str, tuple[str, dict[date, list[float | None]]]]],
) -> None:
    frame, series = table
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = [as_csv(frame, folder / "table"), as_parquet(frame, folder / "table")]
        if not any(is_seen(values) for _, days in series.values() for values in days.values()):
            return
        for path in paths:
            (scene,) = open_table(path, TableOptions(scale=1e-4, samples_per_tile=2))
            samples = _samples(scene, folder)
            assert sorted(samples) == sorted(series)
            for key, (label, values, valid, days) in samples.items():
                expected_label, expected = series[key]
                assert label == expected_label
                assert from_days(days) == tuple(sorted(expected))
                for day, row, good in zip(from_days(days), values, valid, strict=True):
                    assert good == is_seen(expected[day])
                    assert row.tolist() == (expected[day] if good else [0] * len(row))


def _samples(scene: TableScene, folder: Path) -> dict[str, tuple[str, Any, Any, Any]]:
    """All samples of a scene, written to tiles and read again."""
    found: dict[str, tuple[str, Any, Any, Any]] = {}
    for piece in scene.tile_specs():
        path = folder / f"{piece.name}.h5"
        write_tile(path, scene.build(piece))
        reader = TileReader(path)
        for index, key in enumerate(reader.table.keys):
            found[key] = (scene.fingerprint.classes.names[reader.table.labels[index]], *reader.sample(index))
        reader.close()
    return found


# --- Files

# --- what is read


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_separators_and_byte_order_marks(tmp_path: Path, separator: str, start: str) -> None:
    plain = tile_of(a_frame(), tmp_path)
    path = tmp_path / "table.csv"
    path.write_text(start + a_frame().to_csv(index=False, sep=separator), encoding="utf-8")
    (scene,) = open_table(path)
    tile = scene.build(scene.tile_specs()[0])
    assert np.array_equal(tile.values, plain.values)
    assert tile.table.keys == plain.table.keys


def test_ids_of_a_csv_stay_texts(tmp_path: Path) -> None:
    frame = a_frame(field_id=["007", "1e3", "1e3", "007", "7", "1e3"])
    assert tile_of(frame, tmp_path).table.keys == ["1e3", "007", "7"]


def test_only_what_is_needed_is_read(tmp_path: Path) -> None:
    frame = a_frame(geometry=[b"\x01\x02"] * 6, lists=[[1, 2]] * 6)
    file = open_file(as_parquet(frame, tmp_path / "table"))
    assert file.columns == list(frame.columns)
    read = file.read(["field_id"], ["B4"])
    assert list(read.columns) == ["field_id", "B4"]
    assert read["B4"].tolist() == frame["B4"].tolist()


def test_geoparquet_is_read_like_parquet(tmp_path: Path) -> None:
    shapes = geopandas.points_from_xy(range(6), range(6))
    geopandas.GeoDataFrame(a_frame(), geometry=shapes, crs="EPSG:4326").to_parquet(tmp_path / "table.geoparquet")
    (scene,) = open_table(tmp_path / "table.geoparquet")
    assert np.array_equal(scene.build(scene.tile_specs()[0]).values, tile_of(a_frame(), tmp_path).values)


def test_an_index_that_pandas_wrote_is_a_column_like_others(tmp_path: Path) -> None:
    indexed = a_frame().set_index(["field_id", "date"])
    indexed.to_parquet(tmp_path / "indexed.parquet")
    indexed.to_csv(tmp_path / "indexed.csv")
    a_frame().to_csv(tmp_path / "numbered.csv")  # with a column without a name
    plain = tile_of(a_frame(), tmp_path)
    for name in ("indexed.parquet", "indexed.csv", "numbered.csv"):
        (scene,) = open_table(tmp_path / name)
        assert np.array_equal(scene.build(scene.tile_specs()[0]).values, plain.values)


def test_the_content_counts_not_the_ending(tmp_path: Path) -> None:
    path = as_parquet(a_frame(), tmp_path / "table").rename(tmp_path / "table.csv")
    assert open_table(path)[0].describe()["samples"] == 3


# --- what is refused


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b"<!DOCTYPE html>\n<p>Not found, sorry</p>", "not a table"),
        (b'{"id": 1, "date": 2}', "not a table"),
        (b"\x89HDF\r\n\x1a\n\0\0\0,\0", "not a table"),
        (b"just some words\nand more of them\n", "not a table"),
        (b"id,date,crop,B4\n1,2021-05-01,m\xfcsli,3\n", "not a text in UTF-8"),
        (b"id,date,crop,B4\n", "an empty table"),
        (b"id,date,crop,B4\n1,2021-05-01,rye,3,4,5,6\n", "not a table"),
        (b'id,date,crop,B4\n1,2021-05-01,"rye,3\n', "not a table"),
    ],
)
def test_what_is_no_table(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        open_table(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.csv", tmp_path):
        with pytest.raises(InputError, match="no such file"):
            open_table(path)


def test_a_csv_called_parquet(tmp_path: Path) -> None:
    path = as_csv(a_frame(), tmp_path / "table").rename(tmp_path / "table.parquet")
    with pytest.raises(InputError, match="not a Parquet file"):
        open_table(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_parquet_file_cut_off(tmp_path: Path, share: float) -> None:
    path = as_parquet(a_frame(), tmp_path / "table")
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(InputError, match=r"damaged Parquet file in .*; get the file again") as caught:
        open_table(path)
    assert "\n" not in str(caught.value)


def test_a_parquet_file_damaged_inside(tmp_path: Path) -> None:
    frame = pd.concat([a_frame()] * 500, ignore_index=True)
    path = as_parquet(frame, tmp_path / "table")
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged Parquet file"):
        open_table(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = as_parquet(a_frame(), tmp_path / "table")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError, match=r"Parquet files need pyarrow.*pip install 'cropstar\[parquet\]'") as caught:
        open_table(path)
    assert caught.value.exit_code == 2
    assert open_table(as_csv(a_frame(), tmp_path / "table"))


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_too_large_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    path = (as_csv if write is as_csv else as_parquet)(a_frame(), tmp_path / "table")
    monkeypatch.setattr(table_files, "MAXIMUM_ROWS", 5)
    with pytest.raises(InputError, match="a table that is too large"):
        open_table(path)
    monkeypatch.setattr(table_files, "MAXIMUM_ROWS", 6)
    monkeypatch.setattr(table_files, "MAXIMUM_COLUMNS", 3)
    with pytest.raises(InputError, match="a table that is too wide"):
        open_table(path)
    monkeypatch.setattr(table_files, "MAXIMUM_COLUMNS", len(a_frame().columns))
    assert open_table(path)


def test_numbers_of_a_csv_are_read_to_the_last_digit(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    texts = ["0.1", "2139.3716", "5e-324", "1.7976931348623157e308", "0.30000000000000004"]
    path.write_text("a,b\n" + "".join(f"x,{text}\n" for text in texts))
    assert CsvTable(path).read(["a"], ["b"])["b"].tolist() == [float(text) for text in texts]


def test_a_band_that_is_nodata_throughout_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    full = tile_of(a_frame(), tmp_path)
    with caplog.at_level("WARNING"):
        tile = tile_of(a_frame(B8A=65535, B11=[None] * 6), tmp_path)
    assert tile.fingerprint.bands == ("B04", "B08")
    assert np.array_equal(tile.values, full.values)
    assert tile.valid.all()
    (warning,) = [record.getMessage() for record in caplog.records if "nodata" in record.getMessage()]
    assert warning == "table.csv: left out, nodata in every row: B8A, B11"


def test_bands_without_any_value_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no valid observation .* all bands hold nodata in every row: B4 \(B04\), B8"):
        tile_of(a_frame(B4=65535, B8=-9999), tmp_path)
    with pytest.raises(InputError, match=r"a band without any value .* leave it out of --bands"):
        tile_of(a_frame(B8A=65535), tmp_path, bands=("B04", "B8A"))


def test_worldcereal_ingests_without_an_option(real_data: Path, tmp_path: Path) -> None:
    (scene,) = open_table(real_data / "worldcereal" / "france_2022_months.geoparquet")
    (spec,) = scene.tile_specs()
    tile = scene.build(spec)
    frame = pd.read_parquet(real_data / "worldcereal" / "france_2022_months.geoparquet")
    optical, radar = tile.fingerprint.sensors
    columns = [f"S2-L2A-{band}" for band in optical.bands]
    assert "B8A" not in optical.bands
    assert tile.valid.sum() == (frame[columns] != 65535).all(axis=1).sum() > 8000
    seen = (frame[[f"S1-SIGMA0-{band}" for band in radar.bands]] != 65535).all(axis=1)
    assert tile.others[0].valid.sum() == seen.sum() > 8000


def test_a_wide_table_reads_as_a_long_one(tmp_path: Path) -> None:
    wide = pd.DataFrame({"sample_id": ["a", "b"], "ewoc_code": [11, 12]})
    wide = wide.assign(start_date=["2016-12-01", "2017-01-01"], end_date=["2017-02-01", "2017-03-01"])
    for step in range(3):
        wide[f"OPTICAL-B02-ts{step}-10m"] = [100 + step, 65535 if step == 1 else 200 + step]
        wide[f"OPTICAL-B11-ts{step}-20m"] = [300 + step, 400 + step]
    tile = tile_of(wide, tmp_path)
    assert tile.fingerprint.bands == ("B02", "B11")
    assert [str(day) for day in from_days(tile.days)] == [
        *("2016-12-01", "2017-01-01", "2017-02-01"),
        *("2017-01-01", "2017-02-01", "2017-03-01"),
    ]
    assert tile.values.tolist() == [[100, 300], [101, 301], [102, 302], [200, 400], [0, 0], [202, 402]]
    assert tile.valid.tolist() == [True, True, True, True, False, True]
    assert tile.table.keys == ["a", "b"]
    dekads = tile_of(wide.assign(start_date="2017-01-11", end_date="2017-02-01"), tmp_path)
    assert [str(day) for day in from_days(dekads.days[:3])] == ["2017-01-11", "2017-01-21", "2017-02-01"]
    with pytest.raises(InputError, match=r"3 steps from 2017-01-11 to 2017-09-01 are neither months nor ten days"):
        tile_of(wide.assign(start_date="2017-01-11", end_date="2017-09-01"), tmp_path)
    with pytest.raises(InputError, match=r"not a date .* 'soon' in row 1 of column 'start_date'"):
        tile_of(wide.assign(start_date="soon"), tmp_path)
    radar = tile_of(wide.assign(**{f"SAR-VV-ts{step}-20m": [2000 + step, 3000 + step] for step in range(3)}), tmp_path)
    optical, backscatter = radar.fingerprint.sensors
    assert (optical.bands, backscatter.bands) == (("B02", "B11"), ("VV",))
    decibels = radar.others[0].values[:, 0] * backscatter.scale + backscatter.offset
    assert decibels == pytest.approx(20 * np.log10([2000, 2001, 2002, 3000, 3001, 3002]) - 83, abs=0.01)


def test_worldcereal_wide(real_data: Path) -> None:
    path = real_data / "worldcereal" / "public_extractions.parquet"
    (scene,) = open_table(path)
    (spec,) = scene.tile_specs()
    tile = scene.build(spec)
    frame = pd.read_parquet(path).set_index("sample_id")
    for place in (0, 77, 499):
        row, rows = frame.loc[tile.table.keys[place]], slice(*tile.starts[place : place + 2])
        days = tile.days[rows].astype("datetime64[D]").astype("datetime64[M]")
        steps = (days - np.datetime64(row["start_date"], "M")).astype(int)
        for number, band in enumerate(tile.fingerprint.sensors[0].bands):
            (column,) = {re.sub(r"ts\d+", "ts{}", name) for name in map(str, frame) if f"-{band}-ts" in name}
            numbers = np.array([row[column.format(step)] for step in steps])
            assert np.array_equal(tile.values[rows][:, number], np.where(tile.valid[rows], numbers, 0))
