"""Files of tables: CSV with the usual separators, Parquet and GeoParquet through pyarrow.

A table is read whole (of Parquet only the columns that are needed): the rows of one sample may stand anywhere in it.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from cropstar.errors import InputError, UsageError
from cropstar.inputs import require_file

PARQUET = b"PAR1"
PARQUET_ENDINGS = (".parquet", ".geoparquet", ".pq")
CSV_ENDINGS = (".csv", ".tsv")
SEPARATORS = (",", ";", "\t")
FIRST_LINE = 1_000_000
# 400,000 fields of 50 dates. A row of 13 bands takes about 400 bytes while it is read: 8 GB at most.
MAXIMUM_ROWS = 20_000_000
NOT_A_TABLE = "give a CSV or Parquet file with one row per observation"


class TableFile(Protocol):
    """An open table: its columns' names, and some of the columns."""

    columns: list[str]

    def read(self, texts: list[str], numbers: list[str]) -> pd.DataFrame: ...


def open_file(path: Path) -> TableFile:
    """Open a table as what its first bytes say that it is."""
    require_file(path)
    with path.open("rb") as handle:
        start = handle.read(4096)
    if not start:
        raise InputError("an empty file", path=path, remedy=NOT_A_TABLE)
    if start.startswith(PARQUET):
        return _ParquetTable(path)
    if path.suffix.lower() in PARQUET_ENDINGS:
        raise InputError("not a Parquet file", path=path, why="it does not start like one", remedy=NOT_A_TABLE)
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if b"\0" in start or text[:1] in (b"<", b"{", b"["):
        raise InputError("not a table", path=path, why="neither CSV nor Parquet", remedy=NOT_A_TABLE)
    return CsvTable(path)


class CsvTable:
    """A text file with a header; comma, semicolon or tab between the fields."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as handle:
            header = handle.readline(FIRST_LINE).decode("utf-8", errors="replace")
        self._separator = max(SEPARATORS, key=header.count)
        if self._separator not in header:
            why = "the first line has neither comma, semicolon nor tab"
            raise InputError("not a table", path=path, why=why, remedy=NOT_A_TABLE)
        self.columns = [str(name) for name in self._parse(nrows=0).columns]

    def read(self, texts: list[str], numbers: list[str]) -> pd.DataFrame:
        # Texts are never parsed: a field called 007 is not field 7. All columns are read, though few are kept:
        # when told to leave some out, pandas no longer notices rows that are longer than the header.
        frame = self._parse(dtype=dict.fromkeys(texts, str), low_memory=False, nrows=MAXIMUM_ROWS + 1)
        return frame[list(dict.fromkeys([*texts, *numbers]))]

    def _parse(self, **options: Any) -> pd.DataFrame:
        try:
            with warnings.catch_warnings(), self._path.open("rb") as handle:
                warnings.simplefilter("error", pd.errors.ParserWarning)  # a first row longer than the header
                frame: pd.DataFrame = pd.read_csv(
                    handle, sep=self._separator, encoding="utf-8-sig", compression=None, index_col=False, **options
                )
        except UnicodeDecodeError:
            raise InputError("not a text in UTF-8", path=self._path, remedy="save the table as UTF-8") from None
        except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError, ValueError) as failure:
            raise InputError("not a table", path=self._path, why=str(failure), remedy=NOT_A_TABLE) from None
        _require_size(len(frame), self._path)
        return frame


class _ParquetTable:
    """A Parquet file; geometries and other columns that nobody asks for are not read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrow, self._parquet = require_pyarrow(path)
        try:
            with self._parquet.ParquetFile(path) as file:
                self.columns = list(file.schema_arrow.names)
                rows = int(file.metadata.num_rows)
        except (self._arrow.ArrowException, OSError, ValueError) as failure:
            raise self._damaged(failure) from None
        _require_size(rows, path)

    def read(self, texts: list[str], numbers: list[str]) -> pd.DataFrame:
        wanted = list(dict.fromkeys([*texts, *numbers]))
        try:
            with self._parquet.ParquetFile(self._path) as file:
                table = file.read(columns=wanted, use_threads=False)
            # pandas' own notes in the file would turn some columns into an index.
            frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        except (self._arrow.ArrowException, OSError, ValueError) as failure:
            raise self._damaged(failure) from None
        return frame

    def is_whole(self, column: str) -> bool:
        with self._parquet.ParquetFile(self._path) as file:
            return bool(self._arrow.types.is_integer(file.schema_arrow.field(column).type))

    def _damaged(self, failure: Exception) -> InputError:
        return InputError("damaged Parquet file", path=self._path, why=str(failure), remedy="get the file again")


def require_pyarrow(path: Path) -> tuple[Any, Any]:
    """pyarrow and its part for Parquet files."""
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise UsageError(
            "Parquet files need pyarrow", path=path, remedy="install it with: pip install 'cropstar[parquet]'"
        ) from None


def column_is_whole(path: Path, column: str) -> bool:
    """Whether a column of a Parquet file is of whole numbers; texts of CSV files are never parsed."""
    file = open_file(path)
    return isinstance(file, _ParquetTable) and file.is_whole(column)


def _require_size(rows: int, path: Path) -> None:
    if rows > MAXIMUM_ROWS:
        why = f"more than {MAXIMUM_ROWS:,} rows"
        raise InputError(
            "a table that is too large", path=path, why=why, remedy="split it, for example by year or region"
        )
