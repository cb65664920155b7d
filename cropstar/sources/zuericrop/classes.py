"""The label table: from the codes of the Swiss farm census to classes on three levels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_CLASSES, MAXIMUM_CONFIG_BYTES
from cropstar.sources.base import short_list
from cropstar.sources.texts import read_text_table
from cropstar.store.classes import UNLABELLED, ClassTable

KIND = "1st_tier"
TIERS = ("2nd_tier", "3rd_tier", "4th_tier")  # the three levels, the coarsest first
CODE = "GT"
USED = "Vegetation"
LARGEST_CODE = 10_000
REMEDY = "take the labels.csv that is published with the data"


@dataclass(frozen=True)
class LabelTable:
    path: Path
    classes: ClassTable
    numbers: NDArray[np.int16]  # the class of each code, UNLABELLED where it has none; code 0 is unknown ground
    known: NDArray[np.bool_]  # whether the table has a row for a code

    @property
    def codes(self) -> int:
        """How many codes have a class."""
        return int((self.numbers != UNLABELLED).sum())


def read_labels(path: Path, level: int) -> LabelTable:
    """Codes of vegetation that have a class on the finest level, whatever level is asked for: as published results."""
    if not path.is_file():
        raise InputError("no label table", path=path, why="there is no such file", remedy=f"{REMEDY}, or name it")
    if path.stat().st_size > MAXIMUM_CONFIG_BYTES:
        raise InputError("not a label table", path=path, why=f"{path.stat().st_size} bytes", remedy=REMEDY)
    frame = read_text_table(path)
    present = [str(name) for name in frame]
    columns = [KIND, *(next((name for name in present if name.startswith(tier)), tier) for tier in TIERS)]
    missing = [name for name in columns if name not in present]
    if missing:
        why = f"no column {short_list(missing)} among {short_list(present)}"
        raise InputError("not a label table", path=path, why=why, remedy=REMEDY)
    codes = _codes(frame, path)
    rows = frame[columns].apply(lambda column: column.str.strip()).set_axis((KIND, *TIERS), axis=1)
    used = ((rows[KIND] == USED) & (rows[TIERS[-1]] != "")).to_numpy()
    paths = [tuple(row) for row in rows.loc[used, list(TIERS[:level])].itertuples(index=False)]
    if not paths:
        why = f"no row has {USED} in {KIND} and a class in {TIERS[-1]}"
        raise InputError("no class", path=path, why=why, remedy=REMEDY)
    parents = _parents(paths, path)
    if len(parents) > MAXIMUM_CLASSES:
        raise InputError("too many classes", path=path, why=f"{len(parents)}, at most {MAXIMUM_CLASSES}")
    classes = ClassTable.from_names(parents).with_lineages(parents)
    places = {name: place for place, name in enumerate(classes.names)}
    numbers = np.full(int(codes.max()) + 1, UNLABELLED, dtype=np.int16)
    numbers[codes[used]] = [places[names[-1]] for names in paths]
    known = np.zeros(len(numbers), dtype=bool)
    known[[0, *codes]] = True
    return LabelTable(path, classes, numbers, known)


def _codes(frame: pd.DataFrame, path: Path) -> NDArray[np.int64]:
    """The codes of the rows: their number in the file, which the first column of the published table repeats."""
    if CODE not in frame:
        return np.arange(1, len(frame) + 1)
    texts = frame[CODE].str.strip()
    codes = pd.to_numeric(texts, errors="coerce").to_numpy(dtype=np.float64)
    good = (codes == np.floor(codes)) & (codes >= 1) & (codes <= LARGEST_CODE)
    if not len(codes) or not good.all():
        bad = f"'{texts.iloc[int(np.argmin(good))]}' in the column {CODE} is no code" if len(codes) else "it has no row"
        raise InputError("not a label table", path=path, why=bad, remedy=REMEDY)
    values, counts = np.unique(codes.astype(np.int64), return_counts=True)
    if (counts > 1).any():
        why = f"the code {values[counts > 1][0]} stands twice"
        raise InputError("not a label table", path=path, why=why, remedy=REMEDY)
    return codes.astype(np.int64)


def _parents(paths: list[tuple[str, ...]], path: Path) -> dict[str, tuple[str, ...]]:
    """The coarser classes of each class; a class on any level has one place in the hierarchy."""
    for depth in range(1, len(paths[0]) + 1):
        found: dict[str, tuple[str, ...]] = {}
        for names in paths:
            *above, name = names[:depth]
            if not name:
                why = f"'{names[-1]}' has no class in {TIERS[depth - 1]}"
                raise InputError("a gap in the hierarchy", path=path, why=why, remedy="fill it in")
            if found.setdefault(name, tuple(above)) != tuple(above):
                why = f"'{name}' stands under '{found[name][-1]}' and '{above[-1]}'"
                raise InputError("not a hierarchy", path=path, why=why, remedy="give the two different names")
    return found
