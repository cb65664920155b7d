"""`cropstar doctor --selftest`: every way to compute STAR and ConvSTAR on a device, compared with the equations, timed.

The reference is the plain loop over dates in double precision on the processor. What is compared are scores and the
gradients of all parameters, of a season with clouds; errors are relative to the largest number of the reference.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cropstar.config import ModelConfig
from cropstar.errors import ResourceError
from cropstar.models.backends import half_precision, half_type, has_bfloat16, use_backend
from cropstar.models.cells.star_layer import why_not_fused
from cropstar.models.contract import Classifier, Shape
from cropstar.models.zoo import build_model
from cropstar.native import why_not

BANDS, CLASSES, ROUNDS = 10, 8, 5
Batch = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A model and the season that it reads: for the comparison a small one, for the speed a large one."""

    title: str
    settings: dict[str, Any]
    dates: int
    small: tuple[int, ...]  # samples, and pixels of an image
    large: tuple[int, ...]


CASES = (
    Case("STAR 2 x 64, recipe", {"name": "star", "layers": 2, "hidden": 64, "normalise": True}, 24, (37,), (1024,)),
    Case("STAR 4 x 128", {"name": "star", "layers": 4, "hidden": 128}, 24, (19,), (512,)),
    Case("ConvSTAR 2 x 32", {"name": "convstar", "layers": 2, "hidden": 32}, 6, (2, 15, 18), (4, 48, 48)),
)


@dataclass(frozen=True)
class Trial:
    """One way to compute one model; without figures where it cannot be had."""

    model: str
    way: str
    why_not: str = ""
    scores: float = 0.0  # largest errors
    gradients: float = 0.0
    limit: float = 0.0  # of both
    inference: float = 0.0  # samples (or pixels) a second
    training: float = 0.0

    @property
    def passed(self) -> bool:
        return bool(self.why_not) or max(self.scores, self.gradients) <= self.limit  # NaN is above every limit

    def __str__(self) -> str:
        if self.why_not:
            return f"- {self.model:<20} {self.way:<18} not here: {self.why_not}"
        mark = "  " if self.passed else "! "
        figures = f"errors {self.scores:.1e}, {self.gradients:.1e} (at most {self.limit:.0e})"
        return f"{mark}{self.model:<20} {self.way:<18} {figures}  {self.inference:>11,.0f}/s {self.training:>11,.0f}/s"


def run_selftest(device: torch.device) -> Iterator[Trial]:
    """Run the trials one by one and yield each result; takes about a minute."""
    for case in CASES:
        torch.manual_seed(0)
        model = build_model(ModelConfig.model_validate(case.settings), Shape(BANDS, CLASSES, case.dates))
        batch, many = (_season(case.dates, size) for size in (case.small, case.large))
        exact, _ = use_backend(copy.deepcopy(model).double(), "naive", torch.device("cpu"), training=True)
        expected = _results(exact, (batch[0].double(), *batch[1:]), nullcontext)
        for way, backend, half, why, limit in _ways(device):
            if why:
                yield Trial(case.title, way, why)
                continue
            yield _try(case, way, copy.deepcopy(model).to(device), backend, half, limit, batch, many, expected)


def require_passed(trials: list[Trial]) -> None:
    failed = [f"{trial.model} by {trial.way}" for trial in trials if not trial.passed]
    if failed:
        remedy = "compute with --backend torch, and report it with these figures"
        raise ResourceError("the self-test failed", why=", ".join(failed), remedy=remedy)


def _ways(device: torch.device) -> Iterator[tuple[str, str, torch.dtype | None, str, float]]:
    """Name, backend, half precision, why it cannot be had, and the largest error that is no cause for doubt."""
    exact = 1e-4 if device.type == "cpu" else 1e-2  # GPUs may round the factors of convolutions to ten digits
    yield "naive", "naive", None, "", exact
    yield "torch", "torch", None, "", exact
    lacks = "" if has_bfloat16(device) else "no instructions for it"
    if device.type == "cpu":
        yield "native float32", "native", None, why_not(), exact
        yield "native bfloat16", "native", torch.bfloat16, lacks or why_not(), 0.05
        return
    yield "triton", "triton", None, why_not_fused(device), exact
    half = half_type(device)
    yield f"torch {str(half).removeprefix('torch.')}", "torch", half, "", 0.05


def _try(
    case: Case,
    way: str,
    model: Classifier,
    backend: str,
    half: torch.dtype | None,
    limit: float,
    batch: Batch,
    many: Batch,
    expected: list[Tensor],
) -> Trial:
    device = next(iter(model.parameters())).device
    model, _ = use_backend(model, backend, device, training=True)

    def computing() -> Any:
        return half_precision(model, device, half) if half else nullcontext()

    results = _results(model, _on(batch, device), computing)
    scores, gradients = _errors(results[:1], expected[:1]), _errors(results[1:], expected[1:])
    large, observations = _on(many, device), many[1][:, 0].numel()
    step = _seconds(lambda: _results(model, large, computing), device)

    @torch.inference_mode()
    def infer() -> None:
        with computing():
            model.classify(model.advance(*large))

    model.eval()
    alone = _seconds(infer, device)
    return Trial(
        *(case.title, way, "", scores, gradients, limit), inference=observations / alone, training=observations / step
    )


def _season(dates: int, size: tuple[int, ...]) -> Batch:
    samples, *space = size
    x = torch.randn(samples, dates, BANDS, *space)
    valid = torch.rand(samples, dates, *space) > 0.2
    return x, valid, (19_800 + 10 * torch.arange(dates)).repeat(samples, 1)


def _on(batch: Batch, device: torch.device) -> Batch:
    x, valid, days = (part.to(device) for part in batch)
    return x, valid, days


def _results(model: Classifier, batch: Batch, computing: Callable[[], Any]) -> list[Tensor]:
    """Scores, and the gradients of the parameters."""
    model.train()
    model.zero_grad()
    with computing():
        scores = model(*batch)
    scores.square().mean().backward()
    gradients = [part.grad for part in model.parameters() if part.grad is not None]
    return [scores.detach(), *gradients]


def _errors(found: list[Tensor], exact: list[Tensor]) -> float:
    """The largest; NaN where there is any."""
    pairs = zip(found, exact, strict=True)
    apart = torch.stack([(one.detach().cpu().double() - other).abs().max() for one, other in pairs]).max()
    return float(apart / max(part.abs().max() for part in exact))


def _seconds(task: Callable[[], object], device: torch.device) -> float:
    """The median of some rounds after one that warms up."""
    taken = []
    for _ in range(ROUNDS + 1):
        _wait(device)
        start = time.perf_counter()
        task()
        _wait(device)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def _wait(device: torch.device) -> None:
    """Wait until the GPU is done."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()
