"""Jester: the gesture that a clip shows, with a convolutional recurrent network over its frames.

Clips are folders of numbered JPEG frames, in the layout of 20bn-jester-v1:

    <folder>/20bn-jester-v1/<id>/00001.jpg ...   (or the numbered folders in <folder> itself)
    <folder>/jester-v1-train.csv                 lines `id;label`; likewise jester-v1-validation.csv
    <folder>/jester-v1-test.csv                  as published, lines `id` alone
    <folder>/jester-v1-labels.csv                one class in a line

The publishers keep the labels of their test clips. Without them "test" is what they call validation, and "validation"
is a tenth of their training clips, chosen by a hash of the clips' ids: the same tenth on every machine, and never the
test part. With a labelled jester-v1-test.csv all three parts are the publishers'.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cropstar.benchmarks.tasks.base import (
    ACCURACY,
    BenchTask,
    Sample,
    SequenceDataset,
    SequenceLoss,
    SequenceObjective,
    Settings,
    TaskData,
    prepare,
    register,
)
from cropstar.config import TrainConfig
from cropstar.datasets.samples import Prepared
from cropstar.datasets.splits import PARTS
from cropstar.errors import InputError, UsageError
from cropstar.inputs import MAXIMUM_CLASSES, reading, require_file
from cropstar.models.contract import Classifier, Shape
from cropstar.sources.texts import read_lines

REMEDY = (
    "get 20BN-Jester from Qualcomm's developer pages and put 20bn-jester-v1/ and "
    "jester-v1-{train,validation,labels}.csv there"
)


class GestureSettings(Settings):
    frames: int = Field(32, ge=1, le=512, description="frames of a clip, evenly spaced")
    size: int = Field(112, ge=8, le=512, description="pixels per side")


@register
class Gestures(BenchTask):
    name = "jester"
    about = "gestures in video clips of 32 frames, with a ConvRNN"
    metric = ACCURACY
    paper = (("convstar", "92.3 to 92.7 %"),)
    folder = "jester"
    needs = REMEDY
    settings = GestureSettings
    images = True

    def load(self, settings: GestureSettings, config: TrainConfig, folder: Path) -> TaskData:
        digest = hashlib.blake2b(digest_size=8)
        parts: dict[str, Prepared] = {}
        classes = 0
        for part in PARTS:
            clips = read_clips(folder, part)
            if part != "train":  # what is missing there shows in the first epoch, but here when all has been trained
                clips.require_frames()
            digest.update("\n".join((*clips.identifiers, *clips.names)).encode() + clips.labels.tobytes())
            parts[part] = prepare(_samples(part, clips, settings, config.batch))
            classes = len(clips.names)
        objective = SequenceObjective(SequenceLoss("class", by_step=False), self.metric)
        return TaskData(parts, Shape(3, classes, settings.frames), objective, {"clips": digest.hexdigest()})

    def build(self, config: TrainConfig, material: TaskData) -> Classifier:
        model = super().build(config, material)
        if not model.spatial or model.makes_maps:
            why = "a clip has one class, and the model makes maps or reads series"
            remedy = "use a model such as convstar, with model.head=video"
            raise UsageError(f"'{config.model.name}' cannot classify clips", why=why, remedy=remedy)
        return model


def _samples(part: str, clips: Clips, settings: GestureSettings, batch: int) -> SequenceDataset:
    def read(index: int) -> Sample:
        frames = clips.frames(index, settings.frames, settings.size).astype(np.float32)
        return frames / np.float32(127.5) - 1, np.asarray(clips.labels[index])

    return SequenceDataset(part, len(clips), batch, read)


# --- clips

CLIPS = "20bn-jester-v1"


@dataclass(frozen=True)
class Clips:
    """The clips of a part: read when asked for, so that a worker's copy is a list of names."""

    root: Path
    identifiers: tuple[str, ...]
    labels: NDArray[np.int64]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.identifiers)

    def require_frames(self) -> None:
        """Look at every folder: some seconds for ten thousand clips."""
        for identifier in self.identifiers:
            _frame_files(self.root / identifier)

    def frames(self, index: int, count: int = 32, size: int = 112) -> NDArray[np.uint8]:
        """(count, 3, size, size): frames at even distances, the middle square of each.

        The clip is cut into `count` equal stretches and each gives the frame in its middle; a clip of fewer frames
        shows some of them again.
        """
        files = _frame_files(self.root / self.identifiers[index])
        chosen = [(2 * step + 1) * len(files) // (2 * count) for step in range(count)]
        pictures = {place: _picture(files[place], size) for place in sorted(set(chosen))}
        return np.stack([pictures[place] for place in chosen])


def read_clips(folder: Path, part: str) -> Clips:
    """The clips of "train", "validation" or "test"; the frames stay where they are."""
    if part not in PARTS:
        raise UsageError(f"unknown part '{part}'", remedy=f"known: {', '.join(PARTS)}")
    names = _class_names(folder)
    published = {name: _rows(_table(folder, name), names) for name in PARTS[:2]}
    test_file = folder / "jester-v1-test.csv"
    if test_file.exists() and any(";" in line.rstrip("; ") for _, line in read_lines(test_file)):
        published["test"] = _rows(test_file, names)
    _require_disjoint(published, folder)
    rows = _parts(published)[part]
    if not rows:
        raise InputError("too few clips", path=folder, why=f"none are left for '{part}'", remedy=REMEDY)
    root = folder / CLIPS if (folder / CLIPS).is_dir() else folder
    _require_folders(root, rows)
    return Clips(root, tuple(rows), np.array(list(rows.values()), dtype=np.int64), names)


def _table(folder: Path, name: str) -> Path:
    file = folder / f"jester-v1-{name}.csv"
    if not file.is_file():
        raise InputError("no list of clips", path=folder, why=f"{file.name} is missing", remedy=REMEDY)
    return file


def _class_names(folder: Path) -> tuple[str, ...]:
    file = _table(folder, "labels")
    names = tuple(name for _, name in read_lines(file))
    if not 0 < len(set(names)) == len(names) <= MAXIMUM_CLASSES:
        why = f"{len(names)} lines, of which {len(set(names))} differ"
        raise InputError("not a list of classes", path=file, why=why, remedy=REMEDY)
    return names


def _rows(file: Path, names: tuple[str, ...]) -> dict[str, int]:
    """The class of each clip, by the clip's id, in the order of the list."""
    rows: dict[str, int] = {}
    for line_number, line in read_lines(file):
        identifier, _, label = (word.strip() for word in line.partition(";"))
        # An id is a folder's name: nothing but digits keeps it from pointing elsewhere.
        if not (identifier.isascii() and identifier.isdigit()) or identifier in rows or label not in names:
            why = f"line {line_number} is not a new id and a known label: '{line[:80]}'"
            raise InputError("not a list of clips", path=file, why=why, remedy="compare it with jester-v1-labels.csv")
        rows[identifier] = names.index(label)
    if not rows:
        raise InputError("an empty list of clips", path=file, remedy=REMEDY)
    return rows


def _require_disjoint(published: dict[str, dict[str, int]], folder: Path) -> None:
    """No clip in two lists, or a model would be tested on what it has learned."""
    seen: dict[str, str] = {}
    for name, rows in published.items():
        if both := sorted(rows.keys() & seen.keys(), key=int):
            why = f"clip {both[0]} is in the lists of {seen[both[0]]} and {name}"
            raise InputError("a clip in two parts", path=folder, why=why, remedy="get the csv files again")
        seen |= dict.fromkeys(rows, name)


def _parts(published: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    if "test" in published:
        return published
    training = published["train"]
    lots = sorted(training, key=lambda clip: hashlib.blake2b(clip.encode(), digest_size=8).digest())
    held_out = set(lots[: max(1, len(lots) // 10)])
    return {
        "train": {clip: label for clip, label in training.items() if clip not in held_out},
        "validation": {clip: label for clip, label in training.items() if clip in held_out},
        "test": published["validation"],
    }


def _require_folders(root: Path, rows: dict[str, int]) -> None:
    """One listing instead of a look at each of a hundred thousand folders."""
    with os.scandir(root) as entries:
        folders = {entry.name for entry in entries}
    missing = [clip for clip in rows if clip not in folders]
    if missing:
        why = f"{len(missing):,} of {len(rows):,} are missing, the first is {missing[0]}"
        raise InputError("clips without folders", path=root, why=why, remedy=REMEDY)


def _frame_files(clip: Path) -> list[Path]:
    """A clip's frames in the order of their numbers, which may have gaps."""
    frames = [file for ending in ("jpg", "jpeg", "JPG", "JPEG") for file in clip.glob(f"*.{ending}")]
    files = {int(file.stem): file for file in frames if file.stem.isascii() and file.stem.isdigit()}
    if not files:
        remedy = "unpack it again, or remove its line from the csv file and start a new run"
        raise InputError("a clip without frames", path=clip, why="no 00001.jpg and so on", remedy=remedy)
    return [files[number] for number in sorted(files)]


def _picture(file: Path, size: int) -> NDArray[np.uint8]:
    """(3, size, size): the middle square of a frame, scaled as the whole frame would be to a shorter side of `size`."""
    from PIL import Image

    require_file(file)
    with reading("a broken frame", file, "unpack the clip again"), Image.open(file, formats=["JPEG"]) as image:
        width, height = image.size
        side = min(width, height)
        left, top = (width - side) / 2, (height - side) / 2
        box = (left, top, left + side, top + side)
        square = image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR, box=box)
    return np.asarray(square).transpose(2, 0, 1)
