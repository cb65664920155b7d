"""Tables that would be read wrongly without a word: one line that names the file, the reason and the remedy."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from cropstar.cli.ingest import ingest
from cropstar.errors import InputError
from tests.cli.invoking import InProcess

HEADER = "field_id,date,crop,B04,B08"
ROWS = [f"f{field},2021-0{month}-11,{crop},{field}00,1{month}00" for field, crop in ((1, "maize"), (2, "wheat"))
        for month in (4, 5, 6)]  # fmt: skip
QUOTED = [row.replace("maize", '"maize, green"') for row in ROWS]
TABLES = {
    "a band twice": ([f"{HEADER},B08", *(f"{row},7" for row in ROWS)], "a repeated column", "'B08' is there 2 times"),
    "a date twice": ([f"{HEADER},date", *(f"{row},7" for row in ROWS)], "a repeated column", "'date'"),
    "cut off": ([HEADER, *ROWS[:-1], "f2,2021-06-11,whe"], "a row is cut off", "line 7 has 3 fields and needs 5"),
    "a short row": ([HEADER, "f1,2021-03-11,maize,100", *ROWS], "a row is cut off", "line 2 has 4 fields"),
    "a short row among quotes": ([HEADER, *QUOTED, "f2,2021-07-11,wheat,1"], "a row is cut off", "line 8"),
    "no date of an image": ([HEADER, *ROWS, "f2,9999-12-31,wheat,1,1"], "not a date", "'9999-12-31' in row 7"),
}


@pytest.mark.parametrize(("lines", "what", "why"), TABLES.values(), ids=TABLES.keys())
def test_a_table_that_is_not_clear(lines: list[str], what: str, why: str, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines) + "\n")
    failure = InProcess(ingest).refusal("table", table, "-o", tmp_path / "store")
    assert isinstance(failure, InputError)
    assert (failure.what, failure.path) == (what, str(table))
    assert why in str(failure)
    assert failure.remedy
    assert not (tmp_path / "store").exists()


def test_a_row_that_lacks_what_nobody_reads(tmp_path: Path) -> None:
    """As spreadsheets write it where the last columns are empty."""
    (tmp_path / "table.csv").write_text("\n".join([f"{HEADER},note", f"{ROWS[0]},dry", *ROWS[1:]]))
    said = InProcess(ingest)("table", tmp_path / "table.csv", "-o", tmp_path / "store")
    assert said.exit_code == 0


def test_ids_that_are_not_text(tmp_path: Path) -> None:
    """Two of them became one: what is not UTF-8 was replaced."""
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame([row.split(",") for row in ROWS], columns=HEADER.split(","))
    frame["field_id"] = [b"\xff" if name == "f1" else b"\xfe" for name in frame["field_id"]]
    frame = frame.astype({"B04": int, "B08": int})
    frame.to_parquet(tmp_path / "table.parquet")
    failure = InProcess(ingest).refusal("table", tmp_path / "table.parquet", "-o", tmp_path / "store")
    assert "'field_id' holds text that is not UTF-8" in str(failure)


@pytest.mark.parametrize("options", [("--scale", "nan"), ("--scale", "inf"), ("--offset", "nan")])
def test_numbers_that_are_none(options: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("\n".join([HEADER, *ROWS]))
    failure = InProcess(ingest).refusal("table", tmp_path / "table.csv", "-o", tmp_path / "store", *options)
    assert failure.exit_code == 2
    assert options[0] in str(failure)
