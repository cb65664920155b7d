"""The copy problem (Hochreiter & Schmidhuber 1997, as Arjovsky et al. 2016 have it): ten symbols, after a long wait.

Of ten symbols: 1 to 8 are to be remembered, 0 is blank, 9 says that it is time. A sequence of T + 20 steps is ten
symbols, T - 1 blanks, the sign, ten blanks; wanted are blanks, and the ten symbols in the last ten steps. Who answers
blanks and then by chance has a cross-entropy of 10 ln 8 / (T + 20).
"""

from __future__ import annotations

import math

import numpy as np

from cropstar.benchmarks.objectives import CROSS_ENTROPY, SequenceMeasure, SequenceObjective
from cropstar.benchmarks.sequences import Sample
from cropstar.benchmarks.tasks.contract import TASKS
from cropstar.benchmarks.tasks.generated import GeneratedTask
from cropstar.models.registry import Shape
from cropstar.training.objective import Objective

WORD, SYMBOLS, SIGN = 10, 8, 9


class Copying(GeneratedTask):
    name = "copy"
    about = "ten symbols after T steps; generated"
    metric = CROSS_ENTROPY
    paper = (("star", "solved at T = 200 and 1000"), ("lstm", "not solved at T = 1000"))

    def sample(self, random: np.random.Generator, length: int) -> Sample:
        word = random.integers(1, SYMBOLS + 1, WORD)
        told = np.zeros(length + 2 * WORD, dtype=np.int64)
        told[:WORD] = word
        told[length + WORD - 1] = SIGN
        wanted = np.zeros_like(told)
        wanted[-WORD:] = word
        return np.eye(SIGN + 1, dtype=np.float32)[told], wanted

    def shape(self, length: int) -> Shape:
        return Shape(bands=SIGN + 1, classes=SYMBOLS + 1, length=length + 2 * WORD)

    def objective(self) -> Objective:
        return SequenceObjective(SequenceMeasure("class", by_step=True), self.metric)

    def baseline(self, length: int) -> float:
        return WORD * math.log(SYMBOLS) / (length + 2 * WORD)


TASKS.register(Copying.name)(Copying())
