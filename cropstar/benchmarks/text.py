"""Text, character by character: many streams side by side, cut into segments, with the state carried between them.

The text is laid out in rows of equal length, each read from its beginning to its end. Gradients go back to the
beginning of a segment (truncated back-propagation); states go on into the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.benchmarks.objectives import BITS, Metric, SequenceMeasure, SequenceObjective, batches_of
from cropstar.benchmarks.recurrence import follow_from, require_carrying
from cropstar.datasets.batch import Batch, Dataset
from cropstar.errors import InputError, UsageError
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier
from cropstar.models.stack import StackState

NEXT = SequenceMeasure("class", by_step=True)


class Streams:
    """A text of codes (N,) in `rows`; sample s * rows + r is segment s of row r: a batch is a segment of all rows.

    The place of a character in the text stands for its day: it tells the row, and where the row begins.
    """

    def __init__(self, part: str, codes: NDArray[np.uint8], rows: int, segment: int) -> None:
        self.part = part
        self.batch_size = rows
        self.stretch = math.ceil((len(codes) - 1) / rows)  # characters that a row foretells
        if len(codes) < 2 * rows:
            why = f"{len(codes)} characters for {rows} rows"
            raise InputError(f"too short a text for {part}", why=why, remedy="lower series_batch")
        self._codes = codes
        self._segment = segment

    def __len__(self) -> int:
        return self.batch_size * math.ceil(self.stretch / self._segment)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        raise NotImplementedError("only crops are balanced by class")

    def batch(self, indexes: list[int]) -> Batch:
        segments, rows = np.divmod(np.array(indexes), self.batch_size)
        begin = int(segments[0]) * self._segment
        steps = np.arange(begin, min(begin + self._segment, self.stretch))
        places = rows[:, None] * self.stretch + steps  # (B, T)
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

    def __init__(self, model: Classifier, alphabet: int, rows: int, stretch: int) -> None:
        super().__init__()
        self._stack = (require_carrying(model, "a text"),)  # in a tuple: its weights belong to the model
        assert isinstance(model, RecurrentClassifier)
        if model.pool.keeps_state or model.stem is not None:
            why = "the coming character is foretold from the last state"
            raise UsageError("wrong value of 'model.pool'", why=why, remedy="set it to last, without a stem")
        self.model = model
        self.spatial = model.spatial
        self._alphabet = alphabet
        self._stretch = stretch
        self._names = []
        for depth, cell in enumerate(self._stack[0].layers()):
            parts = cell.initial_state(torch.zeros(rows, cell.inputs))
            self._names.append([f"state_{depth}_{number}" for number in range(len(parts))])
            for name, part in zip(self._names[-1], parts, strict=True):
                self.register_buffer(name, part.clone())  # the parts of a new state may be one tensor

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        return self.by_date(x, valid, days)[:, -1]

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Scores of the coming characters (B, T, K), going on from where these rows were left."""
        rows, begins = days[:, 0] // self._stretch, days[:, 0] % self._stretch == 0
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
    """Bits for every character; a text is judged from its beginning to its end, with states of its own."""

    measure: SequenceMeasure = NEXT
    metric: Metric = BITS
    in_order: bool = True

    @torch.no_grad()
    def said(self, model: Classifier, dataset: Dataset, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(model, TextModel)
        model.eval()
        state: StackState | None = None
        for batch in batches_of(dataset):
            x, valid, days, targets = (part.to(device) for part in (batch.x, batch.valid, batch.days, batch.labels))
            scores, state = model.read(x, valid, days, state)
            yield scores[valid], targets[valid]
