"""Polyphonic music: which of 88 notes sound in the next frame, JSB Chorales (`jsb`) and Piano-midi (`piano`)."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cropstar.benchmarks.music import KEYS, REMEDY, read_music
from cropstar.benchmarks.objectives import LIKELIHOOD, SequenceMeasure, SequenceObjective
from cropstar.benchmarks.sequences import PARTS, of_arrays
from cropstar.benchmarks.tasks.contract import TASKS, BenchTask, Figures, Material, Settings
from cropstar.config import TrainConfig
from cropstar.errors import InputError
from cropstar.models.registry import Shape


class MusicSettings(Settings):
    context: int = Field(32, ge=1, description="frames that new gates, or convolutions in time, are made for")
    window: int = Field(0, ge=0, description="frames of a training sample, for more updates an epoch; 0: whole pieces")


class Music(BenchTask):
    """The sum of the notes' binary cross-entropies, mean over the frames but the first of each piece."""

    metric = LIKELIHOOD
    folder = "music"
    needs = REMEDY
    settings = MusicSettings

    def __init__(self, name: str, about: str, paper: Figures) -> None:
        self.name, self.about, self.paper = name, about, paper

    def load(self, settings: MusicSettings, config: TrainConfig, folder: Path) -> Material:
        pieces = read_music(folder, self.name)
        digest = hashlib.blake2b(digest_size=8)
        parts = {}
        for part in PARTS:
            for piece in pieces[part]:
                digest.update(f"{part} {len(piece)} ".encode() + piece.tobytes())
            # A piece of one frame has nothing to foretell.
            long = [piece for piece in pieces[part] if len(piece) > 1]
            if not long:
                raise InputError(f"no music for {part}", path=folder, why="every piece is one frame", remedy=REMEDY)
            if part == "train":
                long = [window for piece in long for window in _windows(piece, settings.window)]
            parts[part] = of_arrays(
                part, config.series_batch, [piece[:-1] for piece in long], [piece[1:] for piece in long]
            )
        objective = SequenceObjective(SequenceMeasure("notes", by_step=True), self.metric)
        return Material(parts, Shape(KEYS, KEYS, settings.context), objective, {"rolls": digest.hexdigest()})


def _windows(piece: NDArray[np.bool_], frames: int) -> list[NDArray[np.bool_]]:
    """Every frame but the first is foretold once. The last frame of a window is only told at the start of the next."""
    if not frames:
        return [piece]
    return [piece[start : start + frames + 1] for start in range(0, len(piece) - 1, frames)]


for music in (
    Music("jsb", "Bach's chorales, the next of their frames of 88 notes", (("star", "8.09 to 8.13"),)),
    Music("piano", "piano music, the next of its frames of 88 notes", (("star", "7.40"),)),
):
    TASKS.register(music.name)(music)
