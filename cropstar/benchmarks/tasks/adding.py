"""The adding problem (Hochreiter & Schmidhuber 1997): the sum of the two numbers that are marked among T.

Numbers are uniform in [0, 1]; one of the first half and one of the second are marked. To always answer 1 has a mean
squared error of 1/6.
"""

from __future__ import annotations

import numpy as np

from cropstar.benchmarks.objectives import SQUARED_ERROR, SequenceMeasure, SequenceObjective
from cropstar.benchmarks.sequences import Sample
from cropstar.benchmarks.tasks.contract import TASKS
from cropstar.benchmarks.tasks.generated import GeneratedTask
from cropstar.models.registry import Shape
from cropstar.training.objective import Objective


class Adding(GeneratedTask):
    name = "adding"
    about = "the sum of two marked numbers among T; generated"
    metric = SQUARED_ERROR
    paper = (("star", "solved at T = 200 and 1000"), ("rnn", "not solved"))

    def sample(self, random: np.random.Generator, length: int) -> Sample:
        x = np.zeros((length, 2), dtype=np.float32)
        x[:, 0] = random.random(length, dtype=np.float32)
        half = length // 2
        x[[random.integers(half), random.integers(half, length)], 1] = 1
        return x, np.array([x[:, 0] @ x[:, 1]], dtype=np.float32)

    def shape(self, length: int) -> Shape:
        return Shape(bands=2, classes=1, length=length)

    def objective(self) -> Objective:
        return SequenceObjective(SequenceMeasure("value", by_step=False), self.metric)

    def baseline(self, length: int) -> float:
        return 1 / 6


TASKS.register(Adding.name)(Adding())
