"""Columns of a table: what they are taken for, their values and scale."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from cropstar.errors import InputError, UsageError
from cropstar.geo.sensors import SENTINEL2
from cropstar.sources.table import (
    Columns,
    TableOptions,
    find_columns,
    guess_scale,
    reflectance_band,
    usable_observations,
)
from tests.sources.examples.tables import Written, a_frame, as_csv, as_parquet, scene_of, tile_of

PATH = Path("table.csv")
PLAIN = ["id", "date", "crop", "B4", "B8"]


def found(present: list[str], **options: object) -> Columns:
    return find_columns(present, TableOptions(**options), PATH)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "band"),
    [
        ("B1", "B01"),
        ("B01", "B01"),
        ("b2", "B02"),
        ("B12", "B12"),
        ("B8A", "B8A"),
        ("b8a", "B8A"),
        ("B08A", "B8A"),
        ("S2-L2A-B08", "B08"),
        ("S2-L1C-B8A", "B8A"),
        ("s2_b11", "B11"),
        ("Sentinel-2 B05", "B05"),
        ("S2A_B3", "B03"),
        ("B02_10m", "B02"),
        ("B2_mean", "B02"),
        (" B9 ", "B09"),
    ],
)
def test_a_band_is_known_in_its_usual_spellings(column: str, band: str) -> None:
    assert reflectance_band(column) == band


@pytest.mark.parametrize(
    "column",
    ["B0", "B00", "B13", "B1A", "B", "8A", "band_1", "NDVI", "B2_std", "S1-VV", "SB04", "B02.1", "lon", "QA60", "SCL"],
)
def test_what_is_no_band(column: str) -> None:
    assert reflectance_band(column) is None


def test_plain_names_are_guessed_and_bands_take_their_own_order() -> None:
    columns = found(["B12", "Sample-ID", "id", "year", "B8", "Timestamp", "B8A", "ewoc_code", "geometry", "B9", "b1"])
    assert (columns.id, columns.date, columns.label) == ("Sample-ID", "Timestamp", "ewoc_code")
    assert (columns.group, columns.mask) == ("year", None)
    assert list(columns.bands.items()) == [("B01", "b1"), ("B08", "B8"), ("B8A", "B8A"), ("B09", "B9"), ("B12", "B12")]
    assert set(columns.bands) < set(SENTINEL2)


@pytest.mark.parametrize(
    ("present", "wanted"),
    [
        (["id", "parcel_id"], "parcel_id"),  # the bare id then numbers the rows
        (["poly_id", "fid"], "poly_id"),
        (["ID"], "ID"),
    ],
)
def test_the_more_telling_id_is_taken(present: list[str], wanted: str) -> None:
    assert found([*present, "date", "crop", "B4"]).id == wanted


def test_options_go_before_guesses() -> None:
    present = [*PLAIN, "year", "region", "cloud", "NDVI", "number", "when", "what"]
    options = {"id_column": "number", "date_column": "when", "label_column": "what", "group_column": "region"}
    columns = found(present, **options, mask_column="cloud", bands=("NDVI", "B08", "red=B4"))
    assert columns == Columns("number", "when", "what", "region", "cloud", {"NDVI": "NDVI", "B08": "B8", "RED": "B4"})
    assert columns.texts == ["number", "when", "what", "region"]
    assert columns.numbers == ["NDVI", "B8", "B4", "cloud"]


def test_a_column_that_was_named_is_not_guessed_as_something_else() -> None:
    assert found([*PLAIN, "year"], label_column="year").group is None
    assert found([*PLAIN, "year"], group_column="none").group is None
    assert found([*PLAIN, "year"]).group == "year"


def test_bands_by_option_are_found_in_any_spelling() -> None:
    columns = found(["id", "date", "crop", "S2-L2A-B02", "S2-L2A-B08"], bands=("B8",))
    assert columns.bands == {"B08": "S2-L2A-B08"}


def test_names_given_to_columns_are_those_of_all_sources() -> None:
    present = ["id", "date", "crop", "red", "nir", "ndvi"]
    assert found(present, bands=("b4=red", "B08A=nir", "ndvi")).bands == {"B04": "red", "B8A": "nir", "NDVI": "ndvi"}
    with pytest.raises(UsageError, match="the band 'B04' is named twice"):
        found(present, bands=("B4=red", "b04=nir"))


def test_an_unknown_band_by_option_is_no_other_column() -> None:
    with pytest.raises(UsageError, match="no column 'colour' in"):
        found(PLAIN, bands=("B04", "colour"))


@pytest.mark.parametrize("missing", ["id", "date", "label"])
def test_a_missing_column_is_named_with_those_that_are_there(missing: str) -> None:
    present = [column for column in PLAIN if column != {"label": "crop"}.get(missing, missing)]
    with pytest.raises(InputError, match=f"no {missing} column in table.csv: the columns are ") as caught:
        found(present)
    assert ", ".join(present) in str(caught.value)
    assert str(caught.value).endswith(f"name it with --{missing}-column")


@pytest.mark.parametrize("role", ["id", "date", "label", "group", "field", "mask"])
def test_a_column_by_option_must_be_there(role: str) -> None:
    with pytest.raises(UsageError, match=r"no column 'colour' in table.csv: the columns are id, date, crop, B4, B8"):
        found(PLAIN, **{f"{role}_column": "colour"})
    with pytest.raises(UsageError, match=rf"; did you mean 'date'\? correct --{role}-column"):
        found(PLAIN, **{f"{role}_column": "dates"})


def test_the_field_is_never_guessed_and_no_id_once_it_is_named() -> None:
    present = ["parcel_id", "field_id", *PLAIN[1:]]
    assert (found(present).id, found(present).field) == ("parcel_id", None)
    assert found(PLAIN, field_column="id") == replace(found(PLAIN), field="id")  # of a table by field and year
    columns = found(present, field_column="parcel_id")
    assert (columns.id, columns.field) == ("field_id", "parcel_id")
    assert columns.texts == ["field_id", "date", "crop", "parcel_id"]


def test_no_bands() -> None:
    with pytest.raises(InputError, match=r"no band columns in table.csv: the columns are id, date, crop, NDVI; name"):
        found(["id", "date", "crop", "NDVI"])
    with pytest.raises(UsageError, match="no column 'B02'"):
        found(PLAIN, bands=("B02",))
    with pytest.raises(InputError, match=r"a band appears twice in table.csv: B4 and B04 are both B04"):
        found([*PLAIN, "B04"])
    with pytest.raises(UsageError, match="the band 'B04' is named twice"):
        found(PLAIN, bands=("B4", "B04=B8"))


def test_many_columns_still_make_one_readable_line() -> None:
    with pytest.raises(InputError, match=r"c29 and 971 more; name it with --id-column") as caught:
        found([f"c{number}" for number in range(1001)])
    assert len(str(caught.value)) < 300


# --- Values


def one_field(**bands: Any) -> pd.DataFrame:
    """A field with a date for each value, in order."""
    count = len(next(iter(bands.values())))
    dates = [f"2021-05-{day + 1:02d}" for day in range(count)]
    return pd.DataFrame({"id": ["a"] * count, "date": dates, "crop": ["rye"] * count, **bands})


# --- validity


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_a_missing_band_makes_an_observation_invalid_and_zero(tmp_path: Path, write: Written) -> None:
    bad = [np.nan, 65535, -1, -9999, np.inf, 0, 12]
    tile = tile_of(one_field(B4=bad, B8=[500] * 7), tmp_path, write)
    assert tile.valid.tolist() == [False, False, False, False, False, True, True]  # zero in one band is dark
    assert tile.values.tolist() == [[0, 0]] * 5 + [[0, 500], [12, 500]]
    assert tile.values.dtype == np.uint16


def test_zero_in_all_bands_is_nodata(tmp_path: Path) -> None:
    assert tile_of(one_field(B4=[0, 0], B8=[0, 1]), tmp_path).valid.tolist() == [False, True]
    assert tile_of(one_field(B4=[0, 5]), tmp_path).valid.tolist() == [True, True]


def test_nodata_by_option(tmp_path: Path) -> None:
    tile = tile_of(one_field(B4=[65535, 3, 255]), tmp_path, nodata=(255.0,), scale=1e-4)
    assert tile.valid.tolist() == [True, True, False]
    assert tile.values.tolist() == [[65535], [3], [0]]


def test_other_columns_may_be_negative(tmp_path: Path) -> None:
    tile = tile_of(one_field(VV=[-12.5, -9999.0, -20.25], VH=[-18, -19, -20]), tmp_path, bands=("VV", "VH"), scale=1.0)
    assert tile.fingerprint.bands == ("VV", "VH")
    assert tile.valid.tolist() == [True, False, True]
    decibels = tile.values[tile.valid] * tile.fingerprint.scale + tile.fingerprint.offset
    assert decibels == pytest.approx(np.array([[-12.5, -18], [-20.25, -20]]))


def test_without_any_valid_observation_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no valid observation in .*: all bands hold nodata in every row"):
        tile_of(one_field(B4=[np.nan, -1]), tmp_path)


@pytest.mark.parametrize("write", [as_csv, as_parquet])
@pytest.mark.parametrize(
    ("name", "values", "good"),
    [
        ("cloud", [0, 1, 100], [True, False, False]),
        ("cloudy", [False, True, False], [True, False, True]),
        ("is_valid", [0, 1, 1], [False, True, True]),
        ("clear", [True, False, True], [True, False, True]),
        ("SCL", [4, 9, 5], [True, False, True]),
        ("S2-L2A-SCL", [0, 2, 11], [False, True, False]),
        ("cloud", [0, None, 0], [True, False, True]),
        ("valid", [1, None, 0], [True, False, False]),
        ("SCL", [4, None, 3], [True, False, False]),
    ],
)
def test_a_mask_column_by_option(
    tmp_path: Path, write: Written, name: str, values: list[Any], good: list[bool]
) -> None:
    frame = one_field(B4=[1, 2, 3], **{name: values})
    assert tile_of(frame, tmp_path, write, mask_column=name).valid.tolist() == good
    assert tile_of(frame, tmp_path, write).valid.all()  # never guessed


def test_a_mask_of_truths_with_gaps() -> None:
    assert usable_observations(pd.Series([True, None, False], dtype=object, name="cloud"), PATH).tolist() == [
        False,
        False,
        True,
    ]


# --- what is stored


@pytest.mark.parametrize("write", [as_csv, as_parquet])
@pytest.mark.parametrize(
    ("values", "dtype", "scale"),
    [
        ([0.02, 0.3, 1.4], np.float32, 1.0),
        ([214.5, 3000.25, 12000.0], np.float32, 1e-4),
        ([214.0, 3000.0, 12000.0], np.uint16, 1e-4),  # whole numbers beside a missing one are fractions in pandas
        ([1, 2, 3], np.uint16, 1e-4),
    ],
)
def test_the_kind_of_number_and_the_scale(
    tmp_path: Path, write: Written, values: list[float], dtype: type, scale: float
) -> None:
    scene = scene_of(one_field(B4=values), tmp_path, write)
    tile = scene.build(scene.tile_specs()[0])
    assert tile.values.dtype == dtype
    assert tile.values[:, 0].tolist() == np.array(values, dtype=dtype).tolist()
    assert (scene.fingerprint.scale, scene.fingerprint.offset) == (scale, 0.0)


def test_the_scale_by_option(tmp_path: Path) -> None:
    scene = scene_of(one_field(B4=[1, 2, 3]), tmp_path, scale=0.01, offset=-0.1)
    assert (scene.fingerprint.scale, scene.fingerprint.offset) == (0.01, -0.1)
    with pytest.raises(UsageError, match="must be above zero"):
        scene_of(one_field(B4=[1]), tmp_path, scale=0.0)


@pytest.mark.parametrize("values", [[3.5, 40.25, 99.5], [30_000, 40_000, 50_000], [25_000.5]])
def test_a_scale_that_cannot_be_told_is_asked_for(tmp_path: Path, values: list[float]) -> None:
    with pytest.raises(UsageError, match=r"the scale is not clear in .*give it with --scale"):
        scene_of(one_field(B4=values), tmp_path)
    assert scene_of(one_field(B4=values), tmp_path, scale=0.01)


def test_a_few_bright_clouds_do_not_change_the_scale() -> None:
    values = np.linspace(0.01, 0.6, 1000, dtype=np.float32)[:, None]
    values[::50] = 2.4
    assert guess_scale(values, False, PATH) == 1.0


# --- text


@pytest.mark.parametrize("write", [as_csv, as_parquet])
def test_text_among_the_numbers(tmp_path: Path, write: Written) -> None:
    frame = a_frame(B8=["1", "2", "n/a?", "4", "5", "6"])
    with pytest.raises(InputError, match=r"text among the numbers in .*: 'n/a\?' in row 3 of column 'B8'") as caught:
        tile_of(frame, tmp_path, write)
    assert caught.value.exit_code == 3


def test_numbers_written_as_text_are_numbers(tmp_path: Path) -> None:
    frame = a_frame(B8=["1", "2", None, "4", "5", "6"])
    assert tile_of(frame, tmp_path, as_parquet).valid.sum() == 5


def test_lists_are_no_numbers(tmp_path: Path) -> None:
    for strange in ([1, 2], {"a": 1}, date(2021, 5, 1), datetime(2021, 5, 1)):
        with pytest.raises(InputError, match=r"text among the numbers in .* in row 1 of column 'B8'"):
            tile_of(a_frame(B8=[strange] * 6), tmp_path, as_parquet)
    with pytest.raises(InputError, match="the column 'crop' holds neither text nor numbers"):
        tile_of(a_frame(crop=[[1, 2]] * 6), tmp_path, as_parquet)
