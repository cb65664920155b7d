"""Implementations of the recurrent layers (backends), and half precision.

    naive    the plain loop over dates, with PyTorch's own gradients: the reference
    torch    PyTorch with the products of all dates hoisted and a backward pass written by hand; on any device
    native   the compiled kernels of cropstar/native on the processor, STAR as in the paper; float32 or bfloat16
    triton   PyTorch with the recurrence of STAR in one launch, by Triton's kernels: float32 on NVIDIA GPUs
    onnx     onnxruntime on the exported step: maps and evaluation on the processor

`auto` takes `native` on a processor and `triton` on a GPU for the layers that they can compute, and `torch` for all
others: of what can be had on a processor the kernels measured best (docs/performance.md). Networks that are not
recurrent are PyTorch's alone.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from cropstar.errors import ResourceError, UsageError
from cropstar.models.cells.cell import Cell
from cropstar.models.cells.star import StarCell
from cropstar.models.cells.star_layer import why_not_fused
from cropstar.models.contract import Classifier
from cropstar.models.export import OnnxSteps
from cropstar.models.normalisation import MaskedBatchNorm
from cropstar.models.pooling import SeasonState
from cropstar.native import available, why_not
from cropstar.native.library import library, using, why_refused
from cropstar.runtime import logger

BACKENDS = ("auto", "naive", "torch", "native", "triton", "onnx")
TRAINING_BACKENDS = BACKENDS[:-1]
LEAVE_OUT = "leave --backend out"


def use_backend(
    model: Classifier, wanted: str, device: torch.device, *, bands: int | None = None, training: bool = False
) -> tuple[Classifier, str]:
    """Set the backend of the model's layers; returns the model and the name of the backend.

    With `onnx` it is another model around this one. What was forced and cannot be had is refused.
    """
    known = TRAINING_BACKENDS if training else BACKENDS
    if wanted not in known:
        raise UsageError(f"no backend '{wanted}'", remedy=f"choose from {', '.join(known)}")
    cells = _cells(model)
    for cell in cells:
        cell.backend = "torch" if wanted == "onnx" else wanted
    for part in model.modules():
        if isinstance(part, (MaskedBatchNorm, SeasonState)):
            part.by_kernel = wanted in ("auto", "native")
    if wanted == "onnx":
        return _with_onnx(model, device, bands), wanted
    if wanted == "native":
        _require_kernels(cells, device)
    if wanted == "triton":
        _require_triton(cells, device)
    used = _resolve(cells, device) if wanted == "auto" else wanted
    detail = f" ({library().instruction_set})" if used == "native" else ""
    reason = "" if wanted != "auto" or used in ("native", "triton") else f": {_why_no_kernel(cells, device)}"
    if wanted == "auto" and why_refused() and device.type == "cpu" and any(_has_kernel(cell) for cell in cells):
        logger.warning("computing with PyTorch, which is slower: %s", why_refused())
    logger.debug("backend %s%s, %d threads%s", used, detail, torch.get_num_threads(), reason)
    return model, used


def _resolve(cells: list[Cell], device: torch.device) -> str:
    if not any(_has_kernel(cell) for cell in cells):
        return "torch"
    if device.type == "cpu":
        return "native" if available() else "torch"
    return "triton" if device.type == "cuda" and not why_not_fused(device) else "torch"


def _has_kernel(cell: Cell) -> bool:
    return isinstance(cell, StarCell) and cell.has_fast_path


def _why_no_kernel(cells: list[Cell], device: torch.device) -> str:
    if device.type != "cpu":
        return f"the kernels compute on the processor, and the device is {device.type}"
    if not available():
        return why_not()
    if not cells:
        return "the model has no recurrent layers"
    return "the kernels support the cell star in the variant paper, without revisit"


def _require_kernels(cells: list[Cell], device: torch.device) -> None:
    if device.type == "cpu" and not available():
        raise ResourceError("no backend native here", why=why_not(), remedy=LEAVE_OUT)
    if device.type != "cpu" or not cells or not all(_has_kernel(cell) for cell in cells):
        why = _why_no_kernel(cells, device)
        remedy = "use --device cpu, or --backend torch" if device.type != "cpu" else LEAVE_OUT
        raise UsageError("--backend native cannot compute this", why=why, remedy=remedy)


def _require_triton(cells: list[Cell], device: torch.device) -> None:
    why = why_not_fused(device)
    if why:
        raise ResourceError("no backend triton here", why=why, remedy=LEAVE_OUT)
    if not cells or not all(_has_kernel(cell) for cell in cells):
        why = "the kernels support the cell star in the variant paper, without revisit"
        raise UsageError("--backend triton cannot compute this", why=why, remedy=LEAVE_OUT)


def _with_onnx(model: Classifier, device: torch.device, bands: int | None) -> Classifier:
    if device.type != "cpu":
        why = f"onnxruntime runs on the CPU here, and the device is {device.type}"
        raise UsageError("--backend onnx cannot compute this", why=why, remedy="use --device cpu, or --backend torch")
    if not model.streaming or bands is None:
        why = "it takes models that step through the dates"
        raise UsageError("--backend onnx cannot compute this", why=why, remedy=LEAVE_OUT)
    logger.debug("backend onnx, %d threads", torch.get_num_threads())
    return OnnxSteps(model, bands)


# --- half precision, where that is faster; states, softmax and weights stay float32


def half_type(device: torch.device) -> torch.dtype:
    """The fast half-precision type of a device: float16 on CUDA, elsewhere bfloat16, which needs no loss scaling."""
    return torch.float16 if device.type == "cuda" else torch.bfloat16


def has_bfloat16(device: torch.device) -> bool:
    """Whether a device has instructions for bfloat16; without them it is slower than float32."""
    if device.type == "cpu":
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def choose_half(precision: str, fast: bool, device: torch.device) -> torch.dtype | None:
    """The type of products in half precision; None: float32. `fast` lets `auto` take what the device is fastest at."""
    if precision == "bfloat16" and not has_bfloat16(device):
        why = f"this {'processor' if device.type == 'cpu' else 'device'} has no instructions for it"
        raise ResourceError("--precision bfloat16", why=why, remedy="leave it out")
    if precision == "bfloat16":
        return torch.bfloat16
    if precision == "float32" or not fast:
        return None
    if device.type != "cuda" and not has_bfloat16(device):
        logger.warning("computing in float32: this %s would be slower in half precision", device.type)
        return None
    return half_type(device)


def half_precision(model: nn.Module, device: torch.device, kind: torch.dtype) -> AbstractContextManager[Any]:
    """Around a forward pass: by the kernels of bfloat16, where the model has layers for them, or by autocast."""
    if _has_half_kernels(model, device, kind):
        return using(library().half)
    _teach_lerp(device.type)
    return torch.autocast(device.type, dtype=kind)


def has_bfloat16_kernels() -> bool:
    return available() and bool(library().half)


def _has_half_kernels(model: nn.Module, device: torch.device, kind: torch.dtype) -> bool:
    if device.type != "cpu" or kind != torch.bfloat16 or not has_bfloat16_kernels():
        return False
    if hasattr(model, "_orig_mod"):  # compiled by torch, which looks through layers and not into kernels
        return False
    return any(_has_kernel(cell) and cell.backend in ("auto", "native") for cell in _cells(model))


def _cells(model: nn.Module) -> list[Cell]:
    return [module for module in model.modules() if isinstance(module, Cell)]


@cache
def _teach_lerp(device: str) -> torch.library.Library:
    """Under autocast, interpolate in the widest kind of the three, as torch adds and multiplies; on its own it refuses.

    Gates come out of products in half precision, the state that they mix stays float32.
    """

    def lerp(start: Tensor, end: Tensor, weight: Tensor) -> Tensor:
        kind = torch.promote_types(torch.promote_types(start.dtype, end.dtype), weight.dtype)
        with torch.autocast(device, enabled=False):
            return torch.lerp(start.to(kind), end.to(kind), weight.to(kind))

    library = torch.library.Library("aten", "IMPL")
    library.impl("lerp.Tensor", lerp, f"Autocast{device.upper()}")
    return library  # kept by the cache: what it taught is forgotten with it
