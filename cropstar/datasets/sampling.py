"""The order in which an epoch goes through the samples: each once, or rare classes more often."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cropstar.config import SamplingConfig


def epoch_order(
    count: int, seed: int, epoch: int, config: SamplingConfig, class_counts: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """The samples of an epoch, as many as there are; it follows from the seed and the epoch alone.

    Shuffled, each is there once. Balanced, a sample of weight w (of a total of 1) is there w * count times, rounded up
    or down by lot; `class_counts` (count, classes) are the labelled pixels, or series, of each class in each sample.
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
