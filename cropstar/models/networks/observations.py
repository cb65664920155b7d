"""A masked series as the sequence of its valid observations.

A convolution in time has no place for a date without an observation: whatever stood there would be read. So the valid
dates move to the front, in order, and a network runs over what was really seen; the date travels along as input. What
is left behind the last observation is zero, as is what a convolution finds beyond its input.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Observations:
    """values (B, N, C), days (B, N), present (B, N): N is the most valid dates that a series of the batch has."""

    values: Tensor
    days: Tensor
    present: Tensor

    @property
    def counts(self) -> Tensor:  # (B,)
        return self.present.sum(dim=1)


def observe(x: Tensor, valid: Tensor, days: Tensor) -> Observations:
    """x (B, T, C), valid (B, T), days (B, T); one date stays, be it masked: nothing has length zero."""
    counts = valid.sum(dim=1, keepdim=True)
    present = torch.arange(valid.shape[1], device=valid.device) < counts
    present = present[:, : max(int(present.any(dim=0).sum()), 1)]
    order = torch.argsort(valid.logical_not().to(torch.uint8), dim=1, stable=True)[:, : present.shape[1]]
    values = x.gather(1, order.unsqueeze(2).expand(-1, -1, x.shape[2]))
    return Observations(
        # A choice, not a product: NaN times zero would stay NaN.
        torch.where(present.unsqueeze(2), values, x.new_zeros(())),
        torch.where(present, days.gather(1, order), days.new_zeros(())),
        present,
    )


def masked_mean(features: Tensor, mask: Tensor) -> Tensor:
    """features (B, H, N), mask (B, 1, N): the mean over observations (B, H), zero where there is none."""
    return (features * mask).sum(dim=2) / mask.sum(dim=2).clamp(min=1)


def masked_max(features: Tensor, mask: Tensor) -> Tensor:
    """features (B, H, N), mask (B, 1, N): the largest over observations (B, H), zero where there is none."""
    largest = features.masked_fill(~mask, -torch.inf).amax(dim=2)
    return torch.where(mask.any(dim=2), largest, largest.new_zeros(()))
