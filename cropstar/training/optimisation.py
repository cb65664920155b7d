"""Parts of a training step: gradients in micro-batches, half precision, averaged weights, the learning rate.

Where the loss is a weighted mean over the labelled pixels of the whole batch, the sums of micro-batches are
differentiated, and gradients divided by the weight of the whole batch at the end; any other loss takes two passes.
However a batch is cut, over micro-batches or processes, the gradient is the same but for rounding. (With batch
normalisation, statistics are those of a micro-batch.)
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from cropstar.config import OptimiserConfig
from cropstar.datasets.batches import Batch
from cropstar.errors import ResourceError, UsageError
from cropstar.models.backends import half_precision
from cropstar.models.contract import Classifier
from cropstar.runtime import logger
from cropstar.store.model_file import Tensors
from cropstar.training.losses import Loss, MeanLoss

# --- gradients in micro-batches


OUT_OF_MEMORY = ("out of memory", "can't allocate memory")  # torch's words, of GPUs and of the processor


@dataclass(frozen=True)
class Tally:
    """Sums over a batch: the loss's terms, their weights, and the labelled pixels (or series) there were."""

    loss: float = 0.0
    weight: float = 0.0
    count: int = 0
    is_whole: bool = False  # whether the gradient is that of the loss already, and not yet to be divided by the weight


Forward = Callable[[Classifier, Batch, torch.device], tuple[Tensor, Tensor]]  # scores and targets (N, ...)


@dataclass(frozen=True)
class Engine:
    """Turns a batch into gradients."""

    model: Classifier
    forward: Forward
    loss: Loss
    precision: Precision
    device: torch.device

    def differentiate(self, batch: Batch, micro: int, *, alone: bool) -> Tally:
        """Add the gradient of the batch; of a share of it, unless `alone`, that of the summed loss."""
        pieces = list(cut(batch, micro))
        if alone and len(pieces) == 1:
            scores, targets = self._scores(batch)
            if not len(targets):
                return Tally()
            value = self.loss(scores, targets)
            self.precision.backward(value)
            return Tally(float(value.detach()), 1.0, len(targets), is_whole=True)
        if not isinstance(self.loss, MeanLoss):
            return self._in_two_passes(self.loss, pieces)
        total = weight = 0.0
        count = 0
        for piece in pieces:
            scores, targets = self._scores(piece)
            if len(targets):
                value = self.loss.sum(scores, targets)
                self.precision.backward(value)
                total += float(value.detach())
                weight += float(self.loss.weight(targets))
                count += len(targets)
        return Tally(total, weight, count)

    def _in_two_passes(self, loss: Loss, pieces: Sequence[Batch]) -> Tally:
        """The sums over all micro-batches, then each one's part of the gradient there, with the same dropout."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        total, count = None, 0
        with torch.no_grad(), torch.random.fork_rng([self.device] if self.device.type == "cuda" else []):
            for piece in pieces:
                scores, targets = self._scores(piece)
                if len(targets):
                    sums = loss.sums(scores, targets)
                    total = sums if total is None else total + sums
                    count += len(targets)
            for buffer, before in buffers:
                buffer.copy_(before)
        if total is None:
            return Tally()
        total.requires_grad_()
        value = loss.combine(total)
        (slope,) = torch.autograd.grad(value, total)
        for piece in pieces:
            scores, targets = self._scores(piece)
            if len(targets):
                self.precision.backward((slope * loss.sums(scores, targets)).sum())
        return Tally(float(value.detach()), 1.0, count, is_whole=True)

    def _scores(self, piece: Batch) -> tuple[Tensor, Tensor]:
        with self.precision.computing(self.model):
            scores, targets = self.forward(self.model, piece, self.device)
        return scores.float(), targets


def cut(batch: Batch, micro: int) -> Iterator[Batch]:
    """Split a batch into pieces of at most `size` samples."""
    if len(batch.x) <= micro:
        yield batch
        return
    for start in range(0, len(batch.x), micro):
        yield Batch(*(getattr(batch, field.name)[start : start + micro] for field in fields(batch)))


def fit_into_memory(attempt: Callable[[int], Tally], micro: int) -> tuple[Tally, int]:
    """Compute in micro-batches, halved as long as memory runs out; also returns the size that fitted."""
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
                remedy="use smaller patches or a smaller model; the last checkpoint is kept",
            )
        micro = (micro + 1) // 2
    if micro < wanted:
        logger.warning("out of memory with %d samples at once: continuing with micro-batches of %d", wanted, micro)
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


# --- precision
#
# Weights, loss and softmax stay float32, and so do validation and maps: only the forward and backward pass of a
# training step are computed in bfloat16 or float16.


KINDS = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class Precision:
    """The number format, and for float16 the loss scale."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name == "float16" and device.type != "cuda":
            why = f"{device.type} computes float16 slowly or not at all"
            raise UsageError("float16 needs CUDA", why=why, remedy="use precision=bfloat16 or leave it out")
        self._kind = KINDS.get(name)
        self._device = device
        self.scaler = torch.amp.GradScaler(device.type) if name == "float16" else None

    def computing(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Around the forward pass."""
        return nullcontext() if self._kind is None else half_precision(model, self._device, self._kind)

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
        """The state for a checkpoint."""
        return {} if self.scaler is None else dict(self.scaler.state_dict())

    def restore(self, state: Mapping[str, float]) -> None:
        if self.scaler is not None and state:
            self.scaler.load_state_dict(dict(state))


def compile_forward(model: Classifier, *, graphs: bool = False) -> None:
    """Compile the forward pass of training steps with torch; if that fails, warn once and continue without.

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
            logger.warning("the model cannot be compiled and runs uncompiled: %s", reason)
            compiled = None
        return plain(*args)

    model.__dict__["forward"] = forward


def _is_of_the_compiler(failure: Exception) -> bool:
    """Whether the compiler raised an error. Its errors have no common base class, so the module decides."""
    return type(failure).__module__.startswith(("torch._dynamo", "torch._inductor"))


# --- averaged weights


class WeightAverage:
    """Every step the mean keeps a share of itself and takes the rest from the weights, statistics of batches too."""

    def __init__(self, model: nn.Module, keep: float) -> None:
        self._keep = keep
        self._trained = {name: tensor.detach() for name, tensor in model.state_dict().items()}  # share the memory
        self._mean = {name: tensor.clone() for name, tensor in self._trained.items()}
        averaged = [name for name, tensor in self._mean.items() if tensor.is_floating_point()]
        self._pairs = [self._mean[name] for name in averaged], [self._trained[name] for name in averaged]
        self._counters = [(self._mean[name], self._trained[name]) for name in self._mean if name not in averaged]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After `step` steps. At first it keeps less: the mean of a short past is better than much of the beginning."""
        keep = min(self._keep, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self._pairs, 1 - keep)
        for counter, trained in self._counters:
            counter.copy_(trained)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the mean as the model's weights within this context."""
        before = {name: tensor.clone() for name, tensor in self._trained.items()}
        _copy(self._mean, self._trained)
        try:
            yield
        finally:
            _copy(before, self._trained)

    def tensors(self) -> Tensors:
        return {name: tensor.cpu().numpy() for name, tensor in self._mean.items()}

    def restore(self, tensors: Tensors) -> None:
        for name, tensor in self._mean.items():
            tensor.copy_(torch.from_numpy(tensors[name]))


@torch.no_grad()
def _copy(tensors: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    for name, tensor in into.items():
        tensor.copy_(tensors[name])


# --- the learning rate: a function of what a checkpoint holds, so that a resumed run continues alike


POWER = 0.9


def learning_rate(config: OptimiserConfig, step: int, total: int, history: Sequence[dict[str, Any]] = ()) -> float:
    """Linear warm-up, then by the schedule.

    constant; polynomial and cosine: a fall to zero at the last step; noam: with the square root of the steps (Vaswani
    et al., with the peak given instead of derived from the width); plateau: halved after each so many epochs without a
    better score.
    """
    rate = config.learning_rate
    if step < config.warmup:
        rate *= (step + 1) / config.warmup
    if config.schedule == "polynomial":
        rate *= (1 - step / total) ** POWER
    if config.schedule == "cosine":
        rate *= (1 + math.cos(math.pi * step / total)) / 2
    if config.schedule == "noam" and step >= config.warmup:
        rate *= math.sqrt(max(config.warmup, 1) / (step + 1))
    if config.schedule == "plateau":
        # The score that the best epoch is chosen by; of crops it is the macro-F1.
        scores = [row.get("score", row["validation"].get("macro_f1")) for row in history]
        rate *= 0.5 ** _plateaus(scores, config.plateau)
    return rate


def _plateaus(scores: Sequence[float], patience: int) -> int:
    """How often the best score was not bettered for `patience` epochs in a row."""
    best, waited, plateaus = -math.inf, 0, 0
    for score in scores:
        if score > best:
            best, waited = score, 0
        else:
            waited += 1
            if waited == patience:
                plateaus, waited = plateaus + 1, 0
    return plateaus
