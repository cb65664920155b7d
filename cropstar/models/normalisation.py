"""Batch normalisation over valid observations only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.native import available
from cropstar.native.summaries import RunningStatistics, normalise
from cropstar.native.tensors import fits


class MaskedBatchNorm(nn.Module):
    """Normalises channels over the valid observations of a batch: padding and clouds change no statistic."""

    running_mean: Tensor
    running_variance: Tensor
    by_kernel = True  # where there is one; see models/backends.py

    def __init__(self, channels: int, momentum: float = 0.1, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))
        self.shift = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_variance", torch.ones(channels))
        self.momentum = momentum
        self.epsilon = epsilon

    def forward(self, x: Tensor, mask: Tensor, axis: int) -> Tensor:
        """x of any shape with its channels on `axis`; the mask has one channel there."""
        shape = [1] * x.dim()
        shape[axis] = -1
        x = x.to(self.scale.dtype)  # statistics in half precision would have two or three digits
        if not self.training:
            gain, shift = self.folded()
            return x * gain.reshape(shape) + shift.reshape(shape)
        if self.by_kernel and available() and fits(x, self.scale) and mask.numel() * x.shape[axis] == x.numel():
            return self._by_kernel(x, mask, axis)
        mean, variance = self._measure(x, mask, axis)
        gain = self.scale * torch.rsqrt(variance + self.epsilon)
        return (x - mean.reshape(shape)) * gain.reshape(shape) + self.shift.reshape(shape)

    def folded(self) -> tuple[Tensor, Tensor]:
        """Gain and shift (C,) of the learnt statistics: what it does to a channel at inference."""
        gain = self.scale * torch.rsqrt(self.running_variance + self.epsilon)
        return gain, self.shift - self.running_mean * gain

    def _by_kernel(self, x: Tensor, mask: Tensor, axis: int) -> Tensor:
        """The same with statistics and gradients by the compiled kernel, which reads x twice."""
        rows = x.movedim(axis, -1)
        running = RunningStatistics(self.running_mean, self.running_variance, self.momentum)
        flat = rows.reshape(-1, rows.shape[-1]), mask.reshape(-1)
        return normalise(*flat, self.scale, self.shift, running, self.epsilon).view(rows.shape).movedim(-1, axis)

    def _measure(self, x: Tensor, mask: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        others = [place for place in range(x.dim()) if place != axis]
        weight = mask.to(x.dtype)
        count = weight.sum().clamp(min=1)
        mean = (x * weight).sum(dim=others) / count
        shape = [1] * x.dim()
        shape[axis] = -1
        variance = ((x - mean.reshape(shape)).square() * weight).sum(dim=others) / count
        with torch.no_grad():  # a batch without a valid observation teaches nothing
            momentum = self.momentum * weight.any().to(x.dtype)
            self.running_mean.lerp_(mean.detach(), momentum)
            self.running_variance.lerp_((variance * count / (count - 1).clamp(min=1)).detach(), momentum)
        return mean, variance


def normalises_by_batch(model: nn.Module) -> bool:
    """Whether a sample's gradient depends on the others of its batch, so that a batch cut up is another batch."""
    return any(isinstance(part, MaskedBatchNorm) for part in model.modules())
