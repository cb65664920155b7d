"""Files that are no table, or only half of one: one line and the right exit code each."""

from __future__ import annotations

import sys
from pathlib import Path

import geopandas
import numpy as np
import pandas as pd
import pytest

from cropstar.errors import InputError, UsageError
from cropstar.sources.table import files, open_table
from cropstar.sources.table.files import CsvTable, open_file
from tests.sources.examples.tables import a_frame, as_csv, as_parquet, tile_of

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
    monkeypatch.setattr(files, "MAXIMUM_ROWS", 5)
    with pytest.raises(InputError, match="too large a table"):
        open_table(path)
    monkeypatch.setattr(files, "MAXIMUM_ROWS", 6)
    assert open_table(path)


def test_numbers_of_a_csv_are_read_to_the_last_digit(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    texts = ["0.1", "2139.3716", "5e-324", "1.7976931348623157e308", "0.30000000000000004"]
    path.write_text("a,b\n" + "".join(f"x,{text}\n" for text in texts))
    assert CsvTable(path).read(["a"], ["b"])["b"].tolist() == [float(text) for text in texts]
