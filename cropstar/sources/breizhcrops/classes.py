"""The class mapping: from the codes of the French parcel register to classes, numbered as the package does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_CLASSES
from cropstar.sources.base import short_list
from cropstar.sources.texts import read_text_table
from cropstar.store.classes import ClassTable, CropClass, choose_colours

MAPPING, CODES = "classmapping.csv", "codes.csv"
CODE_COLUMNS = ("code", "nutzcode")
MOST_CODES = 5  # in a message


@dataclass(frozen=True)
class ClassMapping:
    path: Path
    classes: ClassTable
    numbers: dict[str, int]  # of each code


def read_classes(root: Path) -> ClassMapping:
    """The mapping beside the data."""
    path = root / MAPPING
    if not path.is_file():
        remedy = "put it there, or let --download get it"
        raise InputError("no class mapping", path=root, why=f"{MAPPING} is missing", remedy=remedy)
    return read_mapping(path)


def read_mapping(path: Path) -> ClassMapping:
    """Its ids are the classes' numbers, closed up where some are not used."""
    frame = read_text_table(path)
    code = next((name for name in CODE_COLUMNS if name in frame), None)
    if code is None or not {"id", "classname"} <= set(frame):
        why = f"the columns are {short_list(frame)}"
        raise InputError("not a class mapping", path=path, why=why, remedy="it has the columns id, classname and code")
    ids = pd.to_numeric(frame["id"], errors="coerce")
    if frame.empty or ids.isna().any():
        raise InputError("not a class mapping", path=path, why="a row has no numeric id", remedy="correct it")
    rows = frame.assign(id=ids.astype(int), code=frame[code].str.strip(), classname=frame["classname"].str.strip())
    names = rows.groupby("id")["classname"].first()  # the first name of each id, as the package takes it
    for what, column in (("code", rows["code"]), ("class name", names)):
        twice = column[column.duplicated()]
        if len(twice):
            raise InputError(f"the {what} '{twice.iloc[0]}' stands twice", path=path, remedy="correct it")
    if len(names) > MAXIMUM_CLASSES:
        raise InputError("too many classes", path=path, why=f"{len(names)} ids, at most {MAXIMUM_CLASSES}")
    places = {int(number): place for place, number in enumerate(names.index)}
    colours = choose_colours(list(names))
    classes = ClassTable(
        CropClass(place, name, colour) for place, (name, colour) in enumerate(zip(names, colours, strict=True))
    )
    numbers = {str(key): places[number] for key, number in zip(rows["code"], rows["id"], strict=True)}
    return ClassMapping(path, classes, numbers)


def explain_codes(counts: Counter[str], root: Path) -> str:
    """The most frequent codes and what the register calls them, where codes.csv is there to tell."""
    meanings: dict[str, str] = {}
    if (root / CODES).is_file():
        frame = read_text_table(root / CODES, separator=";")
        if frame.shape[1] > 1:
            meanings = dict(zip(frame.iloc[:, 0], frame.iloc[:, 1], strict=True))
    told = [
        f"{code or 'no code'}{f' ({meanings[code]})' if code in meanings else ''} {count}"
        for code, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MOST_CODES]
    ]
    return ", ".join(told) + (" and others" if len(counts) > MOST_CODES else "")
