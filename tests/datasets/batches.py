"""Batches of noise for tests of what is done to them."""

from __future__ import annotations

import numpy as np
import torch

from cropstar.datasets.batches import Batch, collate
from cropstar.store.classes import UNLABELLED


def a_batch(lengths: list[int], size: int | None = None, *, first: int = 0, first_day: int = 19_100) -> Batch:
    """One sample for each length, as series or as images; sample `first + i` is the same in any batch."""
    samples = []
    for place, length in enumerate(lengths):
        random = np.random.default_rng(first + place)
        shape = () if size is None else (size, size)
        samples.append(
            {
                "x": random.normal(size=(length, 3, *shape)).astype(np.float32),
                "valid": random.random((length, *shape)) < 0.7,
                "days": first_day + np.sort(random.choice(100, length, replace=False)).astype(np.int32),
                "labels": random.integers(UNLABELLED, 4, shape),
                "parcels": random.integers(-1, 9, shape),
            }
        )
    return collate(samples, size)


def same(first: Batch, second: Batch) -> bool:
    return all(torch.equal(getattr(first, name), getattr(second, name)) for name in vars(first))


def sample_of(batch: Batch, place: int, length: int) -> Batch:
    """One sample of a batch without its padding."""
    chosen = slice(place, place + 1)
    return Batch(
        batch.x[chosen, :length],
        batch.valid[chosen, :length],
        batch.days[chosen, :length],
        batch.labels[chosen],
        batch.parcels[chosen],
    )
