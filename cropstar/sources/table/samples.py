"""From rows to samples: sorted, each date once, one label each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from cropstar.errors import InputError
from cropstar.limits import MAXIMUM_CLASSES
from cropstar.logs import logger
from cropstar.sources.table.columns import Columns, TableOptions
from cropstar.sources.table.texts import MISSING, Coded, encode, encode_days, one_for_all
from cropstar.sources.table.values import read_values
from cropstar.sources.texts import natural_ranks
from cropstar.store.classes import UNLABELLED, ClassTable

MAXIMUM_GROUPS = 1000  # each is a scene with a file of its own
LONGEST_TEXT = 200  # tiles keep texts of one length


@dataclass(frozen=True)
class Samples:
    """All samples of a table, sorted by group, then key, each in the natural order (2 before 10)."""

    keys: list[str]
    groups: list[str]  # one a sample; "" where the table has no groups
    fields: list[str] | None  # one a sample; None where every id is a field of its own
    labels: NDArray[np.int16]  # (N,)
    starts: NDArray[np.int64]  # (N+1,): sample i has the rows starts[i]:starts[i+1], in the order of their dates
    days: NDArray[np.int32]  # (rows,)
    values: NDArray[Any]  # (rows, C)
    valid: NDArray[np.bool_]  # (rows,)
    scale: float
    classes: ClassTable


def gather(frame: pd.DataFrame, columns: Columns, options: TableOptions, path: Path) -> Samples:
    """Sort the rows into samples. An id that stands in two groups is two samples."""
    if frame.empty:
        raise InputError("an empty table", path=path, why="it has a header but no rows")
    ids = encode(frame[columns.id], path)
    ids.require_complete("id", path, f"fill the column '{columns.id}' or choose another with --id-column")
    groups = encode(frame[columns.group], path) if columns.group else one_for_all(len(frame))
    groups.require_complete("group", path, f"fill the column '{columns.group}' or give --group-column none")
    labels = encode(frame[columns.label], path)
    fields = encode(frame[columns.field], path) if columns.field else None
    if fields is not None:
        fields.require_complete("field", path, f"fill the column '{columns.field}' or leave out --field-column")
    _require_moderate(ids, groups, labels, fields, columns, path)
    days = encode_days(frame[columns.date], path)
    read = read_values(frame, columns, options, path)

    id_ranks, group_ranks = natural_ranks(ids.texts), natural_ranks(groups.texts)
    sample = group_ranks[groups.codes] * len(ids.texts) + id_ranks[ids.codes]  # (rows,)
    order = np.lexsort((days, sample))  # stable: rows of one sample and date stay in the file's order
    sample = sample[order]
    own_label = _one_label_each(sample, labels.codes[order], order, ids, labels, columns, path)
    if fields is not None:
        _require_one_field_each(sample, fields.codes[order], order, ids, fields, path)
    keep = ~_repeated(sample, days[order], path)
    keep &= _labelled(sample, own_label, options.keep_unlabelled, columns, path)
    order, sample, own_label = order[keep], sample[keep], own_label[keep]

    firsts = np.flatnonzero(np.diff(sample, prepend=MISSING))
    valid = read.valid[order]
    _warn_unseen(int((~np.logical_or.reduceat(valid, firsts)).sum()), path)
    rows = order[firsts]  # one row of each sample
    names = {int(code): labels.texts[code] for code in np.unique(own_label) if code != MISSING}
    classes = ClassTable.from_names(names.values())
    numbers = {code: classes.number_of(name) for code, name in names.items()} | {MISSING: UNLABELLED}
    return Samples(
        keys=[ids.texts[code] for code in ids.codes[rows]],
        groups=[groups.texts[code] for code in groups.codes[rows]],
        fields=None if fields is None else [fields.texts[code] for code in fields.codes[rows]],
        labels=np.array([numbers[int(code)] for code in own_label[firsts]], dtype=np.int16),
        starts=np.append(firsts, len(order)).astype(np.int64),
        days=days[order],
        values=read.values[order],
        valid=valid,
        scale=read.scale,
        classes=classes,
    )


def _require_moderate(
    ids: Coded, groups: Coded, labels: Coded, fields: Coded | None, columns: Columns, path: Path
) -> None:
    """A wrong column is noticed before it becomes a thousand files or classes."""
    if len(groups.texts) > MAXIMUM_GROUPS:
        why = f"{len(groups.texts)} different values in column '{columns.group}'"
        remedy = "choose another column with --group-column, or none"
        raise InputError("too many groups", path=path, why=why, remedy=remedy)
    if len(labels.texts) > MAXIMUM_CLASSES:
        why = f"{len(labels.texts)} different values in column '{columns.label}'"
        raise InputError("too many classes", path=path, why=why, remedy="choose another column with --label-column")
    named = ((ids, columns.id), (groups, columns.group), (labels, columns.label), (fields, columns.field))
    for coded, column in named:
        longest = max(coded.texts if coded else [], key=len, default="")
        if len(longest) > LONGEST_TEXT:
            why = f"{len(longest)} letters in column '{column}'"
            raise InputError("too long a name", path=path, why=why, remedy="choose another column")


def _one_label_each(
    sample: NDArray[np.int64],
    codes: NDArray[np.int64],
    order: NDArray[np.int64],
    ids: Coded,
    labels: Coded,
    columns: Columns,
    path: Path,
) -> NDArray[np.int64]:
    """The label of each row's sample; rows without a label follow those that have one."""
    firsts = np.flatnonzero(np.diff(sample, prepend=MISSING))
    highest = np.maximum.reduceat(codes, firsts)
    lowest = np.minimum.reduceat(np.where(codes == MISSING, len(labels.texts), codes), firsts)
    torn = np.flatnonzero((highest != lowest) & (highest != MISSING))
    if torn.size:
        place = torn[0]
        key = ids.texts[ids.codes[order[firsts[place]]]]
        names = f"'{labels.texts[lowest[place]]}' and '{labels.texts[highest[place]]}'"
        remedy = "correct them, or tell seasons apart with --group-column" if columns.group is None else "correct them"
        raise InputError("labels differ within one id", path=path, why=f"'{key}' has {names}", remedy=remedy)
    return np.repeat(highest, np.diff(np.append(firsts, len(sample))))


def _require_one_field_each(
    sample: NDArray[np.int64],
    codes: NDArray[np.int64],
    order: NDArray[np.int64],
    ids: Coded,
    fields: Coded,
    path: Path,
) -> None:
    torn = np.flatnonzero((sample[1:] == sample[:-1]) & (codes[1:] != codes[:-1]))
    if torn.size:
        place = torn[0]
        names = f"'{fields.texts[codes[place]]}' and '{fields.texts[codes[place + 1]]}'"
        why = f"'{ids.texts[ids.codes[order[place]]]}' has {names}"
        remedy = "correct --field-column, or choose an --id-column that is unique over all fields"
        raise InputError("fields differ within one id", path=path, why=why, remedy=remedy)


def _repeated(sample: NDArray[np.int64], days: NDArray[np.int32], path: Path) -> NDArray[np.bool_]:
    """True where the row before has the same sample and date."""
    repeated = np.zeros(len(sample), dtype=bool)
    repeated[1:] = (sample[1:] == sample[:-1]) & (days[1:] == days[:-1])
    count = int(repeated.sum())
    if count:
        logger.warning("%d rows of %s repeat an id and date; the first of each is kept", count, path.name)
    return repeated


def _labelled(
    sample: NDArray[np.int64], label: NDArray[np.int64], keep_all: bool, columns: Columns, path: Path
) -> NDArray[np.bool_]:
    """Which rows are of samples that have a label; the others are left out, and said to be."""
    labelled = label != MISSING
    if not labelled.any():
        why = f"the column '{columns.label}' is empty"
        raise InputError("no labelled sample", path=path, why=why, remedy="choose another column with --label-column")
    count = len(np.unique(sample[~labelled]))
    if count:
        fate = "kept without one" if keep_all else "left out"
        logger.warning("%d samples of %s have no label and are %s", count, path.name, fate)
    return np.ones_like(labelled) if keep_all else labelled


def _warn_unseen(count: int, path: Path) -> None:
    if count:
        logger.warning("%d samples of %s have no valid observation", count, path.name)
