"""The Penn Treebank, character by character, with the state carried from segment to segment (`ptb`).

The text is Mikolov's preparation: lower case, numbers as `N`, rare words as `<unk>`. A line's words are joined by one
space and every line ends in a newline; the spaces at both ends of a line, which the files have, are left out. `<unk>`
stays the five characters that it is written in. So there are 50 characters, 5,017 thousand of them in training, 393 in
validation and 442 in test. (Where 5,059, 396 and 446 thousand are counted, one more space was left in every line: it is
certain, and makes about a hundredth of a bit per character.) `ptb.char.*.txt`, the same text spelt out with spaces
between characters and `_` between words, gives the same.

It is laid out in rows of equal length, each read from its beginning to its end, in segments. Gradients go back to the
beginning of a segment (truncated back-propagation); states go on into the next one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from cropstar.benchmarks.recurrence import follow_from, require_carrying
from cropstar.benchmarks.tasks.base import (
    BITS,
    BenchTask,
    Metric,
    SequenceLoss,
    SequenceObjective,
    Settings,
    TaskData,
    batches_of,
    prepare,
    register,
)
from cropstar.config import TrainConfig
from cropstar.datasets.batches import Batch, Dataset
from cropstar.datasets.splits import PARTS
from cropstar.errors import InputError, UsageError
from cropstar.inputs import require_file
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier, Shape
from cropstar.models.stack import StackState
from cropstar.models.zoo import build_model
from cropstar.sources.texts import read_lines

REMEDY = (
    "put ptb.train.txt, ptb.valid.txt and ptb.test.txt there (or ptb.char.*; .gz will do), "
    "from the folder data of Mikolov's simple-examples.tgz"
)


class PennSettings(Settings):
    bptt: int = Field(150, ge=1, le=10_000, description="characters of truncated back-propagation")
    limit: int | None = Field(None, ge=2, description="characters of the training part, for a trial; null: all")
    held_out_limit: int | None = Field(None, ge=2, description="characters of validation and test each; null: all")


@register
class Penn(BenchTask):
    name = "ptb"
    about = "the Penn Treebank: predict the next character"
    metric = BITS
    paper = (("star", "1.30"),)
    folder = "ptb"
    needs = REMEDY
    settings = PennSettings

    def load(self, settings: PennSettings, config: TrainConfig, folder: Path) -> TaskData:
        if settings.checkpoint is not None:
            why = "its segments are short already: task.bptt"
            raise UsageError("task.checkpoint does not apply to 'ptb'", why=why, remedy="leave it out")
        codes, alphabet = read_penn(folder)
        digest = hashlib.blake2b(digest_size=8)
        parts = {}
        for part in PARTS:
            digest.update(f"{part} {len(codes[part])} ".encode() + codes[part].tobytes())
            limit = settings.limit if part == "train" else settings.held_out_limit
            parts[part] = prepare(Streams(part, codes[part][:limit], config.series_batch, settings.bptt))
        shape = Shape(len(alphabet), len(alphabet), settings.bptt)
        return TaskData(parts, shape, TextObjective(), {"text": digest.hexdigest()})

    def build(self, config: TrainConfig, material: TaskData) -> Classifier:
        streams = material.parts["train"].samples
        assert isinstance(streams, Streams)
        model = build_model(config.model, material.shape)
        return TextModel(model, material.shape.bands, streams.batch_size, streams.row_length)


# --- rows of text, and the model that carries its state along them

NEXT_CHARACTER = SequenceLoss("class", by_step=True)


class Streams:
    """A text of codes (N,) in `rows`; sample s * rows + r is segment s of row r: a batch is a segment of all rows.

    The place of a character in the text stands for its day: it tells the row, and where the row begins.
    """

    def __init__(self, part: str, codes: NDArray[np.uint8], rows: int, segment: int) -> None:
        self.part = part
        self.batch_size = rows
        self.row_length = math.ceil((len(codes) - 1) / rows)  # characters that a row predicts
        if len(codes) < 2 * rows:
            why = f"{len(codes)} characters for {rows} rows"
            raise InputError(f"a text that is too short for {part}", why=why, remedy="lower series_batch")
        self._codes = codes
        self._segment = segment

    def __len__(self) -> int:
        return self.batch_size * math.ceil(self.row_length / self._segment)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        raise NotImplementedError("only crops are balanced by class")

    def batch(self, indexes: list[int]) -> Batch:
        segments, rows = np.divmod(np.array(indexes), self.batch_size)
        begin = int(segments[0]) * self._segment
        steps = np.arange(begin, min(begin + self._segment, self.row_length))
        places = rows[:, None] * self.row_length + steps  # (B, T)
        last = len(self._codes) - 1
        valid = places < last  # the last row may be shorter
        known = self._codes[places.clip(max=last)]
        coming = self._codes[(places + 1).clip(max=last)]
        return Batch(
            torch.from_numpy(known[:, :, None]),
            torch.from_numpy(valid),
            torch.from_numpy(places),
            torch.from_numpy(coming.astype(np.int64)),
            torch.from_numpy(rows.astype(np.int64)),
        )


class TextModel(Classifier):
    """A recurrent model that remembers, in training, where each row was left: its states are part of a checkpoint."""

    def __init__(self, model: Classifier, alphabet: int, rows: int, row_length: int) -> None:
        super().__init__()
        self._stack = (require_carrying(model, "a text"),)  # in a tuple: its weights belong to the model
        assert isinstance(model, RecurrentClassifier)
        if model.pool.keeps_state or model.stem is not None:
            why = "the next character is predicted from the last state"
            raise UsageError("wrong value of 'model.pool'", why=why, remedy="set it to last, without a stem")
        self.model = model
        self.spatial = model.spatial
        self._alphabet = alphabet
        self._row_length = row_length
        self._names = []
        for depth, cell in enumerate(self._stack[0].layers()):
            parts = cell.initial_state(torch.zeros(rows, cell.inputs))
            self._names.append([f"state_{depth}_{number}" for number in range(len(parts))])
            for name, part in zip(self._names[-1], parts, strict=True):
                self.register_buffer(name, part.clone())  # the parts of a new state may be one tensor

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        return self.by_date(x, valid, days)[:, -1]

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Scores of the next characters (B, T, K), going on from where these rows were left."""
        rows, begins = days[:, 0] // self._row_length, days[:, 0] % self._row_length == 0
        kept: list[list[Any]] = [[getattr(self, name) for name in names] for names in self._names]
        before = tuple(
            tuple(torch.where(begins[:, None], part.new_zeros(()), part[rows]) for part in parts) for parts in kept
        )
        scores, after = self.read(x, valid, days, before)
        with torch.no_grad():
            for parts, states in zip(kept, after, strict=True):
                for part, state in zip(parts, states, strict=True):
                    part[rows] = state.to(part.dtype)
        return scores

    def read(self, x: Tensor, valid: Tensor, days: Tensor, state: StackState | None) -> tuple[Tensor, StackState]:
        """Scores (B, T, K) and the state after them; codes x (B, T, 1)."""
        weight = next(self.model.parameters())
        spelt = nn.functional.one_hot(x[:, :, 0].long(), self._alphabet).to(weight.dtype)
        outputs, after = follow_from(self._stack[0], spelt, valid, days, state)  # (T, B, H)
        scores: Tensor = self.model.head(outputs.flatten(0, 1)).unflatten(0, outputs.shape[:2])
        return scores.transpose(0, 1), after


@dataclass(frozen=True)
class TextObjective(SequenceObjective):
    """Bits per character; a text is evaluated from beginning to end, starting from its own initial state."""

    loss: SequenceLoss = NEXT_CHARACTER
    metric: Metric = BITS
    in_order: bool = True

    @torch.no_grad()
    def predictions(self, model: Classifier, dataset: Dataset, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(model, TextModel)
        model.eval()
        state: StackState | None = None
        for batch in batches_of(dataset):
            x, valid, days, targets = (part.to(device) for part in (batch.x, batch.valid, batch.days, batch.labels))
            scores, state = model.read(x, valid, days, state)
            yield scores[valid], targets[valid]


# --- files

PART_WORDS = {"train": "train", "validation": "valid", "test": "test"}
STYLES = ("ptb", "ptb.char")  # words before characters where both are there
MAXIMUM_ALPHABET = 256  # a code is a byte


def read_penn(folder: Path) -> tuple[dict[str, NDArray[np.uint8]], tuple[str, ...]]:
    """The codes of "train", "validation" and "test", and the alphabet that they point into: the training part's
    characters, sorted. A character that training has not is refused: there is no code for it."""
    files, spelt = _files(folder)
    texts = {part: _characters(file, spelt) for part, file in files.items()}
    alphabet = np.unique(texts["train"])
    if len(alphabet) > MAXIMUM_ALPHABET:
        why = f"{len(alphabet)} different characters, at most {MAXIMUM_ALPHABET} are supported"
        raise InputError("not the Penn Treebank", path=files["train"], why=why, remedy=REMEDY)
    codes = {}
    for part, text in texts.items():
        places = np.searchsorted(alphabet, text).clip(max=len(alphabet) - 1)
        strange = text[alphabet[places] != text]
        if len(strange):
            why = f"{chr(strange[0])!r} does not occur in {files['train'].name}"
            raise InputError("an unknown character", path=files[part], why=why, remedy="use all parts from one source")
        codes[part] = places.astype(np.uint8)
    return codes, tuple(map(chr, alphabet))


def _files(folder: Path) -> tuple[dict[str, Path], bool]:
    """The file of each part, all of one style, and whether they are spelt out."""
    if folder.exists() and not folder.is_dir():
        raise InputError("no folder", path=folder, why="the Penn Treebank is three files", remedy=REMEDY)
    missing = ""
    for style in STYLES:
        found: dict[str, Path] = {}
        for part, word in PART_WORDS.items():
            candidates = (folder / f"{style}.{word}.txt{ending}" for ending in ("", ".gz"))
            file = next((candidate for candidate in candidates if candidate.exists()), None)
            if file is not None:
                require_file(file)
                found[part] = file
            elif found and not missing:
                missing = f"{style}.{word}.txt is missing"
        if len(found) == len(PART_WORDS):
            return found, style != STYLES[0]
    raise InputError("not the Penn Treebank", path=folder, why=missing or None, remedy=REMEDY)


def _characters(file: Path, spelt: bool) -> NDArray[np.uint32]:
    lines = []
    for number, line in read_lines(file):
        words = line.split()
        if not words:
            continue
        if spelt and max(map(len, words)) > 1:
            why = f"'{max(words, key=len)[:20]}' in line {number} is more than one character"
            raise InputError("not one character per word", path=file, why=why, remedy="name the file ptb.*.txt")
        lines.append(("".join(words).replace("_", " ") if spelt else " ".join(words)) + "\n")
    if not lines:
        raise InputError("an empty text", path=file, remedy=REMEDY)
    return np.frombuffer("".join(lines).encode("utf-32-le"), dtype="<u4")
