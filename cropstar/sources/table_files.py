"""Files of tables: CSV with the usual separators, Parquet and GeoParquet through pyarrow.

A table is read whole (of Parquet only the columns that are needed): the rows of one sample may stand anywhere in it.
"""

from __future__ import annotations

import csv
import importlib
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError, UsageError
from cropstar.inputs import require_file

PARQUET = b"PAR1"
PARQUET_ENDINGS = (".parquet", ".geoparquet", ".pq")
CSV_ENDINGS = (".csv", ".tsv")
SEPARATORS = (",", ";", "\t")
FIRST_LINE = 1_000_000
# 400,000 fields of 50 dates. A row of 13 bands takes about 400 bytes while it is read: 8 GB at most.
MAXIMUM_ROWS = 20_000_000
MAXIMUM_COLUMNS = 20_000  # a year of days with 50 bands; pandas takes minutes for some 100,000
READ_AT_ONCE = 2**22  # bytes
MOST_FIELD = 2**26  # letters: outlines can be long
NOT_A_TABLE = "give a CSV or Parquet file with one row per observation"


class TableFile(Protocol):
    """An open table: its columns' names, and some of the columns."""

    columns: list[str]

    def read(self, texts: list[str], numbers: list[str]) -> pd.DataFrame: ...


def open_file(path: Path) -> TableFile:
    """Open a table by its first bytes, CSV or Parquet; wide tables are read as long ones."""
    file = _open_as_written(path)
    return WideTable(file, path) if WideTable.is_wide(file.columns) else file


def _open_as_written(path: Path) -> TableFile:
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
        _require_width(1 + header.count(self._separator), path)
        self.columns = [str(name) for name in self._parse(nrows=0).columns]
        written = self._parse(header=None, nrows=1, dtype=str, keep_default_na=False)  # pandas renames repeated ones
        self._written = [str(name) for name in written.iloc[0]] if len(written) else []

    def read(self, texts: list[str], numbers: list[str]) -> pd.DataFrame:
        _require_each_once(self._written, [*texts, *numbers], self._path)
        self._require_fields(1 + max(map(self.columns.index, [*texts, *numbers]), default=0))
        # Texts are never parsed: a field called 007 is not field 7. All columns are read, though few are kept:
        # when told to leave some out, pandas no longer notices rows that are longer than the header.
        frame = self._parse(dtype=dict.fromkeys(texts, str), low_memory=False, nrows=MAXIMUM_ROWS + 1)
        return frame[list(dict.fromkeys([*texts, *numbers]))]

    def _require_fields(self, count: int) -> None:
        """Refuse a row with fewer fields, such as the last one of a file that was cut off.

        pandas takes what is missing for no value.
        """
        with self._path.open("rb") as handle:
            quoted = any(b'"' in part for part in iter(partial(handle.read, READ_AT_ONCE), b""))
        fields = self._fields_of_quoted_rows() if quoted else self._fields_of_rows()
        for row, found in fields:
            if found < count:
                why = f"line {row} has {found} fields and needs {count}"
                remedy = "get the file again, or write a separator for every missing value"
                raise InputError("a row is cut off", path=self._path, why=why, remedy=remedy)

    def _fields_of_rows(self) -> Iterator[tuple[int, int]]:
        """The lines with the fewest fields, one of each block of the file; lines are counted from 1."""
        line = 1
        with self._path.open("rb") as handle:
            while lines := handle.readlines(READ_AT_ONCE):
                counts = [one.count(self._separator.encode()) + 1 if one.strip() else FIRST_LINE for one in lines]
                fewest = min(counts)
                yield line + counts.index(fewest), fewest
                line += len(lines)

    def _fields_of_quoted_rows(self) -> Iterator[tuple[int, int]]:
        """The same of a file in which separators and line breaks may stand within quotes."""
        csv.field_size_limit(MOST_FIELD)
        with self._path.open(encoding="utf-8", errors="replace", newline="") as handle:
            reader = csv.reader(handle, delimiter=self._separator)
            try:
                for row in reader:
                    if row:
                        yield reader.line_num, len(row)
            except csv.Error as failure:
                why = f"{failure} in line {reader.line_num}"
                raise InputError("not a table", path=self._path, why=why, remedy=NOT_A_TABLE) from None

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
        _require_width(len(self.columns), path)

    def read(self, texts: list[str], numbers: list[str]) -> pd.DataFrame:
        wanted = list(dict.fromkeys([*texts, *numbers]))
        _require_each_once(self.columns, wanted, self._path)
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


class WideTable:
    """A table with one row per field and one column per band and step (`OPTICAL-B02-ts0-10m`, WorldCereal), as rows.

    Step 0 is of `start_date`; the next are months later, or ten days (the 1st, 11th and 21st), whichever makes the last
    step that of `end_date`. Without `end_date` they are months.
    """

    STEP = re.compile(r"(?P<band>.+?)[-_]ts(?P<step>\d{1,3})(?P<rest>[-_]\d+m)?", re.ASCII)
    START, END, DATE = "start_date", "end_date", "timestamp"

    def __init__(self, file: TableFile, path: Path) -> None:
        self._file, self._path = file, path
        self._steps: dict[str, dict[int, str]] = {}
        others = []
        for column in file.columns:
            if match := self.STEP.fullmatch(column):
                steps = self._steps.setdefault(match["band"] + (match["rest"] or ""), {})
                if (number := int(match["step"])) in steps:
                    why = f"'{steps[number]}' and '{column}' are one band and step"
                    raise InputError("a repeated column", path=path, why=why, remedy="remove one of them")
                steps[number] = column
            else:
                others.append(column)
        self._count = 1 + max(step for steps in self._steps.values() for step in steps)
        self.columns = [*(column for column in others if column != self.DATE), self.DATE, *self._steps]

    @classmethod
    def is_wide(cls, columns: list[str]) -> bool:
        """Whether columns are numbered by step and a column says when the first one was."""
        steps = {match["step"] for column in columns if (match := cls.STEP.fullmatch(column))}
        return len(steps) > 1 and cls.START in columns

    def read(self, texts: list[str], numbers: list[str]) -> pd.DataFrame:
        bands = [name for name in dict.fromkeys([*texts, *numbers]) if name in self._steps]
        plain = [name for name in texts if name not in self._steps and name != self.DATE]
        others = [name for name in numbers if name not in self._steps]
        ends = [self.END] if self.END in self._file.columns else []
        values = [column for band in bands for column in self._steps[band].values()]
        wide = self._file.read([*plain, self.START, *ends], [*others, *values])
        rows = np.repeat(np.arange(len(wide)), self._count)
        found = {name: wide[name].to_numpy()[rows] for name in (*plain, *others)}
        found[self.DATE] = self._dates(wide).ravel()
        for band in bands:
            nothing = np.full(len(wide), np.nan)
            steps = self._steps[band]
            columns = [wide[steps[step]].to_numpy() if step in steps else nothing for step in range(self._count)]
            found[band] = np.stack(columns, axis=1).ravel()
        _require_size(len(rows), self._path)
        return pd.DataFrame(found)

    def _dates(self, wide: pd.DataFrame) -> NDArray[np.object_]:
        """The ISO date of each step (rows, steps)."""
        starts = self._days(wide[self.START])
        months = starts.astype("datetime64[M]")
        monthly = months[:, None] + np.arange(self._count).astype("timedelta64[M]")
        monthly = monthly.astype("datetime64[D]") + (starts - months.astype("datetime64[D]"))[:, None]
        if self.END not in wide:
            return _as_texts(monthly)
        ends = self._days(wide[self.END]).astype("datetime64[M]")
        if (monthly[:, -1].astype("datetime64[M]") == ends).all():
            return _as_texts(monthly)
        dekad = np.minimum((starts - months.astype("datetime64[D]")).astype(np.int64) // 10, 2)[:, None]
        numbers = months.astype(np.int64)[:, None] * 3 + dekad + np.arange(self._count)
        dekads = (numbers // 3).astype("datetime64[M]").astype("datetime64[D]") + 10 * (numbers % 3)
        if (dekads[:, -1].astype("datetime64[M]") == ends).all():
            return _as_texts(dekads)
        why = f"{self._count} steps from {starts[0]} to {self._days(wide[self.END])[0]} are neither months nor ten days"
        raise InputError(
            "the dates of the steps are not clear", path=self._path, why=why, remedy="write one row per date"
        )

    def _days(self, column: pd.Series[Any]) -> NDArray[np.datetime64]:
        days = pd.to_datetime(column, errors="coerce", format="ISO8601").to_numpy().astype("datetime64[D]")
        if np.isnat(days).any():
            row = int(np.argmax(np.isnat(days)))
            why = f"'{str(column.iloc[row])[:40]}' in row {row + 1} of column '{column.name}'"
            raise InputError("not a date", path=self._path, why=why, remedy="write dates as YYYY-MM-DD")
        return days


def _as_texts(days: NDArray[np.datetime64]) -> NDArray[np.object_]:
    texts: NDArray[np.object_] = days.astype(str).astype(object)
    return texts


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
    file = _open_as_written(path)
    return isinstance(file, _ParquetTable) and file.is_whole(column)


def _require_each_once(columns: Sequence[str], wanted: Iterable[str], path: Path) -> None:
    """Refuse a table in which a column that is read is there twice: nobody could tell which one is meant."""
    counts = Counter(columns)
    for name in wanted:
        if counts[name] > 1:
            why = f"'{name}' is there {counts[name]} times"
            raise InputError("a repeated column", path=path, why=why, remedy="rename or remove the others")


def _require_width(columns: int, path: Path) -> None:
    if columns > MAXIMUM_COLUMNS:
        why = f"{columns:,} columns, at most {MAXIMUM_COLUMNS:,}"
        raise InputError("a table that is too wide", path=path, why=why, remedy=NOT_A_TABLE)


def _require_size(rows: int, path: Path) -> None:
    if rows > MAXIMUM_ROWS:
        why = f"more than {MAXIMUM_ROWS:,} rows"
        raise InputError(
            "a table that is too large", path=path, why=why, remedy="split it, for example by year or region"
        )
