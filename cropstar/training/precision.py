"""How exactly a model computes in training: in float32, or in half precision where that is faster.

Weights, loss and softmax stay float32, and so do validation and maps: only the forward and backward pass of a training
step are computed in bfloat16 or float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from cropstar.errors import UsageError
from cropstar.models.contract import Classifier
from cropstar.models.half import half_precision
from cropstar.runtime import logger

KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """The kind of numbers, and for float16 the factor that keeps small gradients from becoming zero."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "float16" and device.type != "cuda":
            why = f"{device.type} computes float16 slowly or not at all"
            raise UsageError("float16 is for CUDA", why=why, remedy="take precision=bfloat16 or leave it out")
        self._kind = KINDS.get(name)
        self._device = device
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def computing(self) -> AbstractContextManager[Any]:
        """Around the forward pass."""
        return nullcontext() if self._kind is None else half_precision(self._device, self._kind)

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def unscale(self, optimiser: torch.optim.Optimizer) -> None:
        """Before gradients are looked at, bounded or divided."""
        if self.scaler is not None:
            self.scaler.unscale_(optimiser)

    def step(self, optimiser: torch.optim.Optimizer) -> None:
        """With float16, gradients that are not finite change nothing but the factor."""
        if self.scaler is None:
            optimiser.step()
        else:
            self.scaler.step(optimiser)
            self.scaler.update()

    def state(self) -> dict[str, float]:
        """What a checkpoint has to hold."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def restore(self, state: Mapping[str, float]) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(dict(state))


def compile_forward(model: Classifier, *, graphs: bool = False) -> None:
    """Let torch compile the forward pass of training steps; where it cannot, say so once and go on without.

    The function is put on the module rather than around it: weights keep their names. Without gradients the plain one
    runs: what is validated, judged and written is computed as a map will be. `graphs` records a step as a CUDA graph,
    since launching the many small operations of a recurrent network takes longer than computing them.
    """
    plain: Callable[..., Tensor] = model.forward
    compiled: Callable[..., Tensor] | None = torch.compile(plain, mode="reduce-overhead" if graphs else None)

    def forward(*args: Tensor) -> Tensor:
        nonlocal compiled
        if compiled is None or not torch.is_grad_enabled():
            return plain(*args)
        try:
            if graphs:
                torch.compiler.cudagraph_mark_step_begin()  # what the step before has returned may be overwritten
            return compiled(*args)
        except Exception as failure:
            if not _is_of_the_compiler(failure):
                raise
            reason = " ".join(str(failure).partition("\n")[0].split())
            logger.warning("the model cannot be compiled and runs as it is: %s", reason)
            compiled = None
        return plain(*args)

    model.__dict__["forward"] = forward


def _is_of_the_compiler(failure: Exception) -> bool:
    """Its errors have no common base: they are known by where they are defined."""
    return type(failure).__module__.startswith(("torch._dynamo", "torch._inductor"))
