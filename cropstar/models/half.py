"""Products in half precision, where that is faster; states, softmax and weights stay float32."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch import Tensor


def half_kind(device: torch.device) -> torch.dtype:
    """What a device computes fast: float16 on CUDA, elsewhere bfloat16, which needs no care for small numbers."""
    return torch.float16 if device.type == "cuda" else torch.bfloat16


def half_precision(device: torch.device, kind: torch.dtype) -> AbstractContextManager[Any]:
    """Around a forward pass."""
    _teach_lerp(device.type)
    return torch.autocast(device.type, dtype=kind)


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
