"""The data sets of the sequence tasks, as the training loop wants them: steps in place of dates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cropstar.config import AugmentationConfig, RegularConfig
from cropstar.datasets.batch import Batch
from cropstar.datasets.prepared import Countable, Prepared
from cropstar.datasets.transforms import Draw
from cropstar.geo.calendar import Season

Sample = tuple[NDArray[np.float32], NDArray[Any]]  # x (T, C) or (T, C, H, W), and the target
PARTS = ("train", "validation", "test")
NO_SEASON = Season(1, 365)


class Samples:
    """Samples by their number. Those of different lengths are filled up with steps that are not valid."""

    def __init__(self, part: str, count: int, batch_size: int, read: Callable[[int], Sample]) -> None:
        self.part = part
        self.batch_size = batch_size
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    def class_counts(self, classes: int) -> NDArray[np.int64]:
        raise NotImplementedError("only crops are balanced by class")

    def batch(self, indexes: list[int]) -> Batch:
        return as_batch([self._read(index) for index in indexes], indexes)


class Fresh(Prepared):
    """Generated samples: every epoch has new ones, that follow from the seed, the epoch and their number."""

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        numbers = [index + draw.epoch * len(self) for index in indexes]
        return self.samples.batch(numbers)


def prepared(samples: Countable) -> Prepared:
    return Prepared(samples, NO_SEASON, RegularConfig())


def fresh(samples: Countable) -> Prepared:
    return Fresh(samples, NO_SEASON, RegularConfig())


def of_arrays(part: str, batch_size: int, inputs: Sequence[NDArray[Any]], targets: Sequence[Any]) -> Prepared:
    """Inputs (T, C) that lie in memory; they become float32 when they are asked for."""

    def read(index: int) -> Sample:
        return inputs[index].astype(np.float32), np.asarray(targets[index])

    return prepared(Samples(part, len(inputs), batch_size, read))


def as_batch(samples: Sequence[Sample], numbers: Sequence[int]) -> Batch:
    """Targets are one a sample or one a step; where lengths differ they are filled up like the inputs."""
    lengths = [len(x) for x, _ in samples]
    longest = max(lengths)
    by_step = all(target.ndim > 0 and len(target) == len(x) for x, target in samples) and longest > 1
    first = samples[0][0]
    valid = np.arange(longest) < np.array(lengths)[:, None]  # (B, T)
    if first.ndim == 4:  # every pixel of a frame
        valid = np.broadcast_to(valid[:, :, None, None], (*valid.shape, *first.shape[2:]))
    return Batch(
        torch.from_numpy(np.stack([_filled(x, longest) for x, _ in samples])),
        torch.from_numpy(np.ascontiguousarray(valid)),
        torch.zeros(len(samples), longest, dtype=torch.int32),
        torch.from_numpy(np.stack([_filled(target, longest) if by_step else target for _, target in samples])),
        torch.tensor(numbers, dtype=torch.int64),
    )


def _filled(array: NDArray[Any], length: int) -> NDArray[Any]:
    if len(array) == length:
        return array
    return np.pad(array, [(0, length - len(array)), *[(0, 0)] * (array.ndim - 1)])
