"""Batches of samples, and the order of the samples in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cropstar.config import SamplingConfig
from cropstar.store.classes import UNLABELLED


@dataclass(frozen=True)
class Batch:
    """Images: x (B,T,C,H,W), valid (B,T,H,W), days (B,T), labels (B,H,W), parcels (B,H,W).

    Series: x (B,T,C), valid (B,T), days (B,T), labels (B,), parcels (B,). Where every date has a class of its own,
    labels are (B,T), UNLABELLED where a date has none and beyond a series' end.
    """

    x: Tensor
    valid: Tensor
    days: Tensor
    labels: Tensor
    parcels: Tensor  # running number of the parcel in the store, -1 where there is none
    # (B,T) where labels are by date: those that bear the class of the whole parcel. Elsewhere empty.
    shows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    # (B,K[,H,W]) in distillation: the teacher's probabilities, NaN where it says nothing. Elsewhere empty.
    taught: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def is_image(self) -> bool:
        return self.x.dim() == 5

    @property
    def is_dated(self) -> bool:
        """Whether every date has a label."""
        return not self.is_image and self.labels.dim() == 2

    def as_series(self) -> Batch:
        """Only the labelled pixels, each as a separate series."""
        if not self.is_image:
            return self
        chosen = self.labels != UNLABELLED  # (B,H,W)
        counts = chosen.flatten(1).sum(dim=1)
        return Batch(
            self.x.permute(0, 3, 4, 1, 2)[chosen],
            self.valid.permute(0, 2, 3, 1)[chosen],
            self.days.repeat_interleave(counts, dim=0),
            self.labels[chosen],
            self.parcels[chosen],
        )


class Dataset(Protocol):
    """The samples of one part of a split."""

    part: str
    batch_size: int

    def __len__(self) -> int: ...

    def batch(self, indexes: list[int]) -> Batch: ...


def collate(samples: list[dict[str, NDArray[Any]]], size: int | None) -> Batch:
    """Samples of different lengths (and patches of different sizes) as one batch; padding is marked invalid."""
    length = max(len(sample["days"]) for sample in samples)
    return Batch(
        *(
            torch.from_numpy(np.stack([_pad(name, sample[name], length, size) for sample in samples]))
            for name in ("x", "valid", "days", "labels", "parcels")
        )
    )


def _pad(name: str, array: NDArray[Any], length: int, size: int | None) -> NDArray[Any]:
    """Fill up to `length` dates and, for patches, `size` pixels per side; what is added is invalid and unlabelled."""
    if name == "days":  # the last one again, so that a date stays a date of the season
        return np.pad(array, (0, length - len(array)), mode="edge")
    dated = name in ("x", "valid")
    target = (length, *array.shape[1:]) if dated else array.shape
    if size is not None:
        target = (*target[:-2], size, size)
    padding = [(0, wanted - have) for wanted, have in zip(target, array.shape, strict=True)]
    return np.pad(array, padding, constant_values=0 if dated else UNLABELLED) if any(map(any, padding)) else array


# --- the order of an epoch: each sample once, or rare classes more often


def epoch_order(
    count: int, seed: int, epoch: int, config: SamplingConfig, class_counts: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The order of the samples in an epoch; it depends only on the seed and the epoch.

    Shuffled, each is there once. Balanced, a sample of weight w (of a total of 1) is there w * count times, rounded up
    or down at random; `class_counts` (count, classes) are the labelled pixels, or series, of each class in each sample.
    """
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(count)
    if config.order == "shuffled":
        return order
    if class_counts is None or len(class_counts) != count:
        raise ValueError("a balanced order needs the classes of every sample")
    # Evenly spaced marks on the weights laid end to end, class after class: a sample, and all of a class together, come
    # as often as they weigh, but for one. Separate draws would leave that to chance.
    order = order[np.argsort(class_counts[order].argmax(axis=1), kind="stable")]
    ends = np.cumsum(balanced_weights(class_counts, config.power)[order])
    marks = (np.arange(count) + random.random()) / count * ends[-1]
    chosen = np.searchsorted(ends, marks, side="right").clip(max=count - 1)
    return random.permutation(order[chosen])


def balanced_weights(class_counts: NDArray[np.int64], power: float) -> NDArray[np.float64]:
    """(samples,) with sum 1: the mean, over a sample's labelled pixels, of 1 / (share of their class) ** power."""
    totals = class_counts.sum(axis=0)
    rarity = (totals.sum() / np.maximum(totals, 1)) ** power
    pixels = class_counts.sum(axis=1)
    weights = class_counts @ rarity / np.maximum(pixels, 1)
    if not weights.any():
        return np.full(len(weights), 1 / max(len(weights), 1))
    normalised: NDArray[np.float64] = weights / weights.sum()
    return normalised
