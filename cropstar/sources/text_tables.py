"""Small tables that come beside the data: class mappings, indexes, lists of codes."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from cropstar.errors import InputError


def read_texts(path: Path, separator: str = ",") -> pd.DataFrame:
    """A small csv with every field as text; CRLF and a byte order mark do no harm."""
    try:
        frame: pd.DataFrame = pd.read_csv(
            path, sep=separator, dtype=str, keep_default_na=False, encoding="utf-8-sig", compression=None
        )
    except UnicodeDecodeError:
        raise InputError("not a text in UTF-8", path=path, remedy="save it as UTF-8") from None
    except (pd.errors.ParserError, pd.errors.EmptyDataError, ValueError) as failure:
        raise InputError("not a table", path=path, why=str(failure), remedy="get the file again") from None
    return frame
