"""Tasks whose samples are generated from the seed, the part and their number: adding and copy."""

from __future__ import annotations

import math
from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from cropstar.benchmarks.tasks.base import (
    CROSS_ENTROPY,
    SQUARED_ERROR,
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
from cropstar.datasets.splits import PARTS
from cropstar.models.contract import Shape

HELD_OUT_SEED = 1_000_003  # validation and test are the same for every seed of a run: their figures can be compared


class GeneratedSettings(Settings):
    length: int = Field(200, ge=2, le=100_000, description="steps between the input and the answer")
    samples: int = Field(10_000, ge=1, description="new training samples per epoch")
    held_out: int = Field(1_000, ge=1, description="samples for validation, and the same number for the test")


class GeneratedTask(BenchTask):
    settings = GeneratedSettings
    objective: SequenceObjective

    @abstractmethod
    def sample(self, random: np.random.Generator, length: int) -> Sample: ...

    @abstractmethod
    def shape(self, length: int) -> Shape: ...

    @abstractmethod
    def baseline(self, length: int) -> float:
        """The loss of the best answer that needs no memory."""

    def load(self, settings: Any, config: TrainConfig, folder: Path) -> TaskData:
        del folder

        def part(number: int) -> SequenceDataset:
            name, is_training = PARTS[number], number == 0
            seed = config.seed if is_training else HELD_OUT_SEED

            def read(index: int) -> Sample:
                return self.sample(np.random.default_rng([seed, number, index]), settings.length)

            count = settings.samples if is_training else settings.held_out
            return SequenceDataset(name, count, config.series_batch, read)

        parts = {name: prepare(part(number), fresh=number == 0) for number, name in enumerate(PARTS)}
        identity = {"generated": self.name, "baseline": self.baseline(settings.length)}
        return TaskData(parts, self.shape(settings.length), self.objective, identity)


# --- adding


@register
class Adding(GeneratedTask):
    name = "adding"
    about = "the sum of two marked numbers among T; generated"
    metric = SQUARED_ERROR
    objective = SequenceObjective(SequenceLoss("value", by_step=False), SQUARED_ERROR)
    paper = (("star", "solved at T = 200 and 1000"), ("rnn", "not solved"))

    def sample(self, random: np.random.Generator, length: int) -> Sample:
        x = np.zeros((length, 2), dtype=np.float32)
        x[:, 0] = random.random(length, dtype=np.float32)
        half = length // 2
        x[[random.integers(half), random.integers(half, length)], 1] = 1
        return x, np.array([x[:, 0] @ x[:, 1]], dtype=np.float32)

    def shape(self, length: int) -> Shape:
        return Shape(bands=2, classes=1, length=length)

    def baseline(self, length: int) -> float:
        return 1 / 6


# --- copy

WORD, SYMBOLS, SIGN = 10, 8, 9


@register
class Copying(GeneratedTask):
    name = "copy"
    about = "ten symbols after T steps; generated"
    metric = CROSS_ENTROPY
    objective = SequenceObjective(SequenceLoss("class", by_step=True), CROSS_ENTROPY)
    paper = (("star", "solved at T = 200 and 1000"), ("lstm", "not solved at T = 1000"))

    def sample(self, random: np.random.Generator, length: int) -> Sample:
        word = random.integers(1, SYMBOLS + 1, WORD)
        symbols = np.zeros(length + 2 * WORD, dtype=np.int64)
        symbols[:WORD] = word
        symbols[length + WORD - 1] = SIGN
        wanted = np.zeros_like(symbols)
        wanted[-WORD:] = word
        return np.eye(SIGN + 1, dtype=np.float32)[symbols], wanted

    def shape(self, length: int) -> Shape:
        return Shape(bands=SIGN + 1, classes=SYMBOLS + 1, length=length + 2 * WORD)

    def baseline(self, length: int) -> float:
        return WORD * math.log(SYMBOLS) / (length + 2 * WORD)
