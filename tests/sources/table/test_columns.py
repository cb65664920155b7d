"""Which column is what."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cropstar.errors import InputError, UsageError
from cropstar.geo.sensors import SENTINEL2
from cropstar.sources.table.columns import Columns, TableOptions, find_columns, reflectance_band

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
    with pytest.raises(InputError, match=r"a band stands twice in table.csv: B4 and B04 are both B04"):
        found([*PLAIN, "B04"])
    with pytest.raises(UsageError, match="the band 'B04' is named twice"):
        found(PLAIN, bands=("B4", "B04=B8"))


def test_many_columns_still_make_one_readable_line() -> None:
    with pytest.raises(InputError, match=r"c29 and 971 more; name it with --id-column") as caught:
        found([f"c{number}" for number in range(1001)])
    assert len(str(caught.value)) < 300
