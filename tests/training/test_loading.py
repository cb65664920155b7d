"""Batches read ahead in a thread: the same ones in the same order, errors in their turn, nobody left reading."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from cropstar.config import AugmentationConfig
from cropstar.datasets.batches import Batch
from cropstar.datasets.transforms import Draw
from cropstar.errors import ArtifactError
from cropstar.training.distributed import ALONE, Processes
from cropstar.training.trainer import read_batch, read_epoch


class Samples:
    """Ten samples of one number; sample 7 cannot be read."""

    batch_size = 3

    def __init__(self) -> None:
        self.read: list[tuple[list[int], list[int], bool]] = []

    def __len__(self) -> int:
        return 10

    def augmented(self, indexes: list[int], config: AugmentationConfig, draw: Draw) -> Batch:
        aside = threading.current_thread() is not threading.main_thread()
        self.read.append((indexes, list(draw.places), aside))
        if 7 in indexes:
            raise ArtifactError("a tile cannot be read")
        values = torch.tensor(indexes)
        return Batch(values, values, values, values, values)


def a_task(samples: Samples, processes: Processes = ALONE) -> Any:
    return SimpleNamespace(
        training=samples,
        batches=4,
        processes=processes,
        config=SimpleNamespace(seed=5, augmentation=AugmentationConfig()),
    )


def test_the_order_is_kept_and_the_next_is_read_ahead() -> None:
    samples = Samples()
    order = [9, 8, 0, 1, 2, 3, 4, 5, 6, 7]
    batches = read_epoch(a_task(samples), order, epoch=0, first=1)
    found = [next(batches), next(batches)]
    assert [batch.x.tolist() for batch in found if batch is not None] == [[1, 2, 3], [4, 5, 6]]
    with pytest.raises(ArtifactError, match="cannot be read"):
        next(batches)
    assert samples.read == [([1, 2, 3], [3, 4, 5], True), ([4, 5, 6], [6, 7, 8], True), ([7], [9], True)]


def test_closing_waits_for_the_thread() -> None:
    batches = read_epoch(a_task(Samples()), list(range(10)), epoch=0, first=0)
    next(batches)
    batches.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "reader"]


def test_shares_draw_what_the_whole_batch_draws() -> None:
    """A sample's place in the epoch's order decides its random changes, whichever process reads it."""
    order = [9, 8, 6, 5, 4, 3, 2, 1, 0, 0]
    whole, shares = Samples(), Samples()
    read_batch(a_task(whole), order, 0, 0)
    for rank in range(2):
        read_batch(a_task(shares, Processes(rank, 2)), order, 0, 0)
    ((indexes, places, _),) = whole.read
    assert [index for part in shares.read for index in part[0]] == indexes
    assert [place for part in shares.read for place in part[1]] == places
    assert read_batch(a_task(shares, Processes(0, 2)), order, 0, 3) is None  # one sample left, for the second process
