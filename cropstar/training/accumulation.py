"""The gradient of a batch, worked on in micro-batches where it does not fit into memory at once.

The loss is a weighted mean over the labelled pixels of the whole batch. So the pieces' sums are differentiated, and
gradients divided by the whole batch's weight at the end: however a batch is cut, over micro-batches or processes, the
gradient is the same but for rounding. (With batch normalisation, statistics are those of a micro-batch.)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from cropstar.datasets.batches import Batch
from cropstar.errors import ResourceError
from cropstar.models.contract import Classifier
from cropstar.runtime import logger
from cropstar.training.objective import Measure
from cropstar.training.precision import Precision

OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # torch's words, of GPUs and of the processor


@dataclass(frozen=True)
class Tally:
    """What was summed over a batch: the loss's terms, their weights, and the labelled pixels (or series) there were."""

    loss: float = 0.0
    weight: float = 0.0
    count: int = 0
    is_mean: bool = False  # whether the gradient is that of the mean already


@dataclass(frozen=True)
class Engine:
    """What turns a batch into gradients."""

    model: Classifier
    measure: Measure
    precision: Precision
    device: torch.device

    def differentiate(self, batch: Batch, micro: int, *, mean: bool) -> Tally:
        """Add the gradient of the summed loss; with `mean`, of a batch in one piece, that of the mean itself."""
        pieces = list(cut(batch, micro))
        loss = weight = 0.0
        count = 0
        for piece in pieces:
            scores, labels = self._scores(piece)
            if not len(labels):
                continue
            if mean and len(pieces) == 1:
                value = self.measure(scores, labels)
                self.precision.backward(value)
                return Tally(float(value.detach()), 1.0, len(labels), is_mean=True)
            value = self.measure.sum(scores, labels)
            self.precision.backward(value)
            loss += float(value.detach())
            weight += float(self.measure.weight(labels))
            count += len(labels)
        return Tally(loss, weight, count)

    def _scores(self, piece: Batch) -> tuple[Tensor, Tensor]:
        with self.precision.computing():
            scores, labels = self.measure.answers(self.model, piece, self.device)
        return scores.float(), labels


def cut(batch: Batch, micro: int) -> Iterator[Batch]:
    """Pieces of so many samples; a batch that is no larger stays what it is."""
    if len(batch.x) <= micro:
        yield batch
        return
    for start in range(0, len(batch.x), micro):
        yield Batch(*(getattr(batch, field.name)[start : start + micro] for field in fields(batch)))


def fit_into_memory(attempt: Callable[[int], Tally], micro: int) -> tuple[Tally, int]:
    """Try with so many samples at once, and with half of them as long as memory runs out; what fitted, too."""
    wanted = micro
    while True:
        tally = _try(attempt, micro)
        if tally is not None:
            break
        # After the exception, not while it is handled: until then it holds on to what the attempt computed.
        _release()
        if micro == 1:
            raise ResourceError(
                "out of memory",
                why="a step with one sample at a time does not fit",
                remedy="take smaller patches or a smaller model; the last checkpoint is kept",
            )
        micro = (micro + 1) // 2
    if micro < wanted:
        logger.warning("out of memory with %d samples at once: going on with micro-batches of %d", wanted, micro)
    return tally, micro


def _try(attempt: Callable[[int], Tally], micro: int) -> Tally | None:
    try:
        return attempt(micro)
    except MemoryError:  # of the kernels, and of numpy
        return None
    except RuntimeError as failure:  # torch.OutOfMemoryError is one
        if isinstance(failure, torch.OutOfMemoryError) or any(text in str(failure).lower() for text in OUT_OF_MEMORY):
            return None
        raise


def _release() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()
