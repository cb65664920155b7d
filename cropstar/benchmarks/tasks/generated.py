"""Tasks whose samples are generated: each follows from the seed, the part and its number."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from cropstar.benchmarks.sequences import PARTS, Sample, Samples, fresh, prepared
from cropstar.benchmarks.tasks.contract import BenchTask, Material, Settings
from cropstar.config import TrainConfig
from cropstar.models.registry import Shape
from cropstar.training.objective import Objective

HELD_OUT_SEED = 1_000_003  # validation and test are the same for every seed of a run: their figures can be compared


class GeneratedSettings(Settings):
    length: int = Field(200, ge=2, le=100_000, description="steps between what is told and what is asked")
    samples: int = Field(10_000, ge=1, description="new training samples an epoch")
    held_out: int = Field(1_000, ge=1, description="samples for validation, and as many for the test")


class GeneratedTask(BenchTask):
    settings = GeneratedSettings

    @abstractmethod
    def sample(self, random: np.random.Generator, length: int) -> Sample: ...

    @abstractmethod
    def shape(self, length: int) -> Shape: ...

    @abstractmethod
    def objective(self) -> Objective: ...

    @abstractmethod
    def baseline(self, length: int) -> float:
        """The loss of the best answer that needs no memory."""

    def load(self, settings: Any, config: TrainConfig, folder: Path) -> Material:
        del folder

        def part(number: int) -> Samples:
            name, is_training = PARTS[number], number == 0
            seed = config.seed if is_training else HELD_OUT_SEED

            def read(index: int) -> Sample:
                return self.sample(np.random.default_rng([seed, number, index]), settings.length)

            count = settings.samples if is_training else settings.held_out
            return Samples(name, count, config.series_batch, read)

        parts = {name: (prepared if number else fresh)(part(number)) for number, name in enumerate(PARTS)}
        identity = {"generated": self.name, "baseline": self.baseline(settings.length)}
        return Material(parts, self.shape(settings.length), self.objective(), identity)
