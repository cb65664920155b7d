"""A data set as the model gets it: augmented in training, then regular where that is asked for."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cropstar.config import AugmentationConfig, RegularConfig
from cropstar.datasets.batch import Batch, Dataset
from cropstar.datasets.regular import regularise
from cropstar.datasets.transforms import Draw, augment
from cropstar.geo.calendar import Season


class Countable(Dataset, Protocol):
    """A data set that knows the classes of its samples."""

    def class_counts(self, classes: int) -> NDArray[np.int64]: ...


class Prepared:
    """The samples of another data set on regular dates; as they are where `regular.every` is null."""

    def __init__(self, samples: Countable, season: Season, regular: RegularConfig) -> None:
        self.samples = samples
        self.part = samples.part
        self.batch_size = samples.batch_size
        self.season = season
        self.regular = regular

    def __len__(self) -> int:
        return len(self.samples)

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        return self.samples.class_counts(classes)

    def batch(self, indexes: list[int]) -> Batch:
        return self.on_regular_dates(self.samples.batch(indexes))

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        """For training. Dates are hidden before they are averaged and filled, as clouds would hide them."""
        return self.on_regular_dates(augment(self.samples.batch(indexes), config, draw))

    def on_regular_dates(self, batch: Batch) -> Batch:
        if self.regular.every is None:
            return batch
        dated = regularise(batch.x, batch.valid, batch.days, self.season, self.regular)
        return Batch(*dated, batch.labels, batch.parcels, taught=batch.taught)
