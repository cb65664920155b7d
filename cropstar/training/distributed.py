"""Several processes that train one model: `torchrun --nproc-per-node 2 -m cropstar train ...`.

Each takes its share of every batch, and gradients are added up over all of them, explicitly. torch's
DistributedDataParallel would average what the processes give: wrong where one has more labelled pixels than another,
or none at all, and it wants every process to run forward and backward equally often, which micro-batches need not.

Only the first process writes; the others read the same store and get its decisions.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as distributed
from torch import Tensor, nn

from cropstar.errors import ResourceError, UsageError
from cropstar.models.normalisation import normalises_by_batch
from cropstar.runtime import log_level

# The others wait while the first one validates, however long that takes. One that was killed closes its connections,
# which the rest see at once: the time is for machines that vanish from the network.
PATIENCE = timedelta(days=1)
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets

Item = TypeVar("Item")


@dataclass(frozen=True)
class Processes:
    """The processes of a training, seen from one of them; by default there is no other."""

    rank: int = 0
    size: int = 1

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> tuple[int, Sequence[Item]]:
        """This process's part of a batch, and where it begins; parts differ by one in length and may be empty."""
        start, end = (len(items) * number // self.size for number in (self.rank, self.rank + 1))
        return start, items[start:end]

    def add(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        if self.size > 1:
            _together(lambda: distributed.all_reduce(tensor))

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients over all processes; a parameter that none of them used keeps none."""
        if self.size == 1:
            return
        used = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=parameters[0].dtype)
        gradients = [each.new_zeros(each.shape) if each.grad is None else each.grad for each in parameters]
        # One message instead of one a parameter.
        flat = torch.cat([used.to(parameters[0].device), *(gradient.flatten() for gradient in gradients)])
        self.add(flat)
        pieces = flat.split([len(parameters), *(each.numel() for each in parameters)])
        for parameter, count, piece in zip(parameters, pieces[0].tolist(), pieces[1:], strict=True):
            parameter.grad = piece.view_as(parameter).clone() if count else None

    def broadcast(self, value: Any) -> Any:
        """Broadcast a value of the first process, as JSON; the values of the others are ignored."""
        if self.size == 1:
            return value
        text = json.dumps(value).encode() if self.is_first else b""
        length = torch.tensor([len(text)])
        _together(lambda: distributed.broadcast(length, 0))
        letters = torch.frombuffer(bytearray(text), dtype=torch.uint8) if self.is_first else torch.empty(0)
        letters = letters if self.is_first else torch.empty(int(length), dtype=torch.uint8)
        _together(lambda: distributed.broadcast(letters, 0))
        return json.loads(letters.numpy().tobytes())

    def copy_first(self, model: nn.Module) -> None:
        """Give all processes the first one's weights; they have the same by their seed, on machines that are alike."""
        for tensor in model.state_dict().values() if self.size > 1 else ():
            whole = tensor.contiguous()
            _together(lambda whole=whole: distributed.broadcast(whole, 0))  # type: ignore[misc]
            tensor.copy_(whole)

    def own_device(self, device: torch.device) -> torch.device:
        """The device of this process: each process of a machine has its own GPU."""
        if self.size == 1 or device.type != "cuda":
            return device
        number = int(os.environ["LOCAL_RANK"])
        if number >= torch.cuda.device_count():
            why = f"{torch.cuda.device_count()} for process {number + 1}"
            raise ResourceError("too few GPUs", why=why, remedy="start fewer processes per node")
        torch.cuda.set_device(number)
        return torch.device("cuda", number)


ALONE = Processes()


@contextmanager
def joined() -> Iterator[Processes]:
    """The processes that torchrun started this one with; without it, this process alone."""
    size = os.environ.get("WORLD_SIZE", "1")
    if not all(name in os.environ for name in VARIABLES) or size == "1":
        yield ALONE
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    _together(lambda: distributed.init_process_group(backend, timeout=PATIENCE))
    processes = Processes(distributed.get_rank(), distributed.get_world_size())
    try:
        with log_level(logging.NOTSET if processes.is_first else logging.ERROR):  # all have the same to say
            yield processes
    finally:
        distributed.destroy_process_group()


def require_shareable(model: nn.Module, processes: Processes) -> None:
    """Batch statistics of a share are not those of the batch: refused, rather than quietly another model."""
    if processes.size > 1 and normalises_by_batch(model):
        why = "its batch normalisation would see a share of each batch only"
        raise UsageError(
            "the model cannot be trained by several processes", why=why, remedy="train it without torchrun"
        )


def _together(act: Callable[[], Any]) -> None:
    try:
        act()
    except (RuntimeError, ValueError) as failure:  # torch's own errors are RuntimeErrors
        why = str(failure).partition("\n")[0].partition("] ")[2] or str(failure).partition("\n")[0]
        raise ResourceError(
            "the training lost one of its processes",
            why=why,
            remedy="check its output; run the same command again to resume",
        ) from None
