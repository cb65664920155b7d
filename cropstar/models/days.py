"""The date as input: where in the year an observation stands."""

from __future__ import annotations

import math

import torch
from torch import Tensor

YEAR = 365.25
EXTRA_CHANNELS = {"none": 0, "sincos": 2}


def with_days(x: Tensor, days: Tensor, encoding: str) -> Tensor:
    """Append the day's channels: x (B, T, C, ...), days (B, T) since 1970-01-01."""
    if encoding == "none":
        return x
    angle = (2 * math.pi / YEAR) * torch.remainder(days.to(torch.float64), YEAR)
    channels = torch.stack([angle.sin(), angle.cos()], dim=2).to(x.dtype)  # (B, T, 2)
    channels = channels.reshape(*channels.shape, *(1,) * (x.dim() - 3)).expand(-1, -1, -1, *x.shape[3:])
    return torch.cat([x, channels], dim=2)
