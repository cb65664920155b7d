"""Where the files of BreizhCrops lie on the network and how long they are: the package's knowledge, read as data."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import InputError, UsageError

REMEDY = "pip install 'cropstar[breizhcrops]'"
TABLES = ("INDEX_FILE_URLs", "H5_URLs", "RAW_CSV_URL", "FILESIZES", "CLASSMAPPINGURL", "CODESURL")


@dataclass(frozen=True)
class Origin:
    """Where one region of a year and level comes from: an h5 file and its index, or an archive of csv files."""

    index: str | None
    h5: str | None
    size: int | None  # of the h5 file, to the byte
    csv: str | None


@dataclass(frozen=True)
class UrlTables:
    mapping: str
    codes: str
    tables: Mapping[str, Mapping[int, Mapping[str, Mapping[str, Any]]]]

    def origin(self, region: str, year: int, level: str) -> Origin | None:
        """None where there is nothing to download."""
        index, h5, csv, size = (self.tables[name].get(year, {}).get(level, {}).get(region) for name in _ORIGINS)
        whole = None not in (index, h5, size)
        return Origin(index, h5, size, csv) if whole or csv else None

    def known(self) -> list[str]:
        """All that can be had, as 'frh01 2017 L1C'."""
        places = {
            (year, level, region)
            for table in self.tables.values()
            for year, levels in table.items()
            for level, regions in levels.items()
            for region in regions
        }
        return [
            f"{region} {year} {level}" for year, level, region in sorted(places) if self.origin(region, year, level)
        ]


_ORIGINS = ("INDEX_FILE_URLs", "H5_URLs", "RAW_CSV_URL", "FILESIZES")


def read_tables() -> UrlTables:
    """The tables of the installed package.

    Importing the package would import torch, and none of its code is wanted: its file of tables is found without
    being run and read as the literals that it consists of.
    """
    found = importlib.util.find_spec("breizhcrops")
    if found is None or not found.submodule_search_locations:
        raise UsageError("cannot download", why="the package breizhcrops knows the addresses", remedy=REMEDY)
    path = Path(next(iter(found.submodule_search_locations))) / "datasets" / "urls.py"
    try:
        values = _literals(path.read_text(encoding="utf-8"))
        tables = {name: values[name] for name in _ORIGINS}
        if not all(isinstance(table, dict) for table in tables.values()):
            raise ValueError("its tables are of another kind")
        return UrlTables(str(values["CLASSMAPPINGURL"]), str(values["CODESURL"]), tables)
    except (OSError, SyntaxError, ValueError, KeyError) as failure:
        why = f"another version of the package breizhcrops: {failure}"
        raise InputError("no table of addresses", path=path, why=why, remedy=f"{REMEDY} --upgrade") from None


def _literals(source: str) -> dict[str, Any]:
    return {
        target.id: ast.literal_eval(node.value)
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id in TABLES
    }
