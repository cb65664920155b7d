"""Batches of an epoch, the next one read while the model works on this one."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor

from cropstar.datasets.batches import Batch
from cropstar.datasets.transforms import Draw
from cropstar.training.task import Task


def read_batch(task: Task, order: Sequence[int], epoch: int, number: int) -> Batch | None:
    """This process's share of a batch, augmented; None where the batch is too small for it to have one."""
    size = task.training.batch_size
    offset, chosen = task.processes.share(order[number * size :][:size])
    if not chosen:
        return None
    start = number * size + offset
    draw = Draw(task.config.seed, epoch, range(start, start + len(chosen)))
    return task.training.augmented(list(chosen), task.config.augmentation, draw)


def read_epoch(task: Task, order: Sequence[int], epoch: int, first: int) -> Generator[Batch | None]:
    """The batches from `first` on. One thread, one batch ahead: what is read, and in which order, stays the same.

    Its errors are raised here, in their turn. Closing the iterator waits for the thread: nobody reads on from a store
    that is closed, and validation never meets it.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="reading") as thread:
        coming = thread.submit(read_batch, task, order, epoch, first) if first < task.batches else None
        for number in range(first, task.batches):
            assert coming is not None
            batch = coming.result()
            coming = None
            if number + 1 < task.batches:
                coming = thread.submit(read_batch, task, order, epoch, number + 1)
            yield batch
