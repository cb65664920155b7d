"""All that the training loop works on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from cropstar.config import TrainConfig
from cropstar.datasets.batches import Dataset
from cropstar.datasets.samples import Prepared
from cropstar.models.contract import Classifier
from cropstar.training.diagnosis import Diagnosis
from cropstar.training.losses import Lineages
from cropstar.training.objective import Objective
from cropstar.training.processes import ALONE, Processes
from cropstar.training.runs import Run
from cropstar.training.state import Progress
from cropstar.training.tensorboard import EventFiles

SaveModel = Callable[[Classifier, Progress], None]  # called when the model is the best so far


@dataclass(frozen=True)
class Budget:
    """Seconds that a training may take, over all its restarts; they may end it between two batches."""

    seconds: float
    ended: SaveModel  # called then, unless an epoch is just over, with the weights that would be judged


@dataclass(frozen=True)
class Task:
    config: TrainConfig
    run: Run
    model: Classifier
    training: Prepared
    validation: Dataset
    classes: int
    device: torch.device
    checkpoint_seconds: float
    diagnosis: Diagnosis | None = None
    processes: Processes = ALONE
    events: EventFiles | None = None
    lineages: Lineages = ()  # of a class table with levels
    after_epoch: Callable[[Progress], None] | None = None  # told before it is saved: a run cut off is told again
    objective: Objective | None = None  # None: crops
    budget: Budget | None = None
    quiet: bool = False  # one of several trainings of a run, whose epochs are only told with --verbose
    refit_of: Progress | None = None  # the training whose schedule this one follows to its best epoch, unjudged

    @property
    def epochs(self) -> int:
        """Where training ends at the latest."""
        return self.config.epochs if self.refit_of is None else self.refit_of.best_epoch

    @property
    def batches(self) -> int:
        return math.ceil(len(self.training) / self.training.batch_size)
