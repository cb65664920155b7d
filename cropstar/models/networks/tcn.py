"""`tcn`: dilated causal convolutions in residual blocks (Bai, Kolter & Koltun 2018).

A block is twice (convolution with weight normalisation, ReLU, dropout), added to its input; block i has dilation 2^i.
`layers` counts blocks, `hidden` is their width, `kernel` the taps. Where the kernel is not given, it is the
smallest of at least 3 whose receptive field covers the season.

Masks: the convolutions run over the valid observations alone. What comes later never reaches an observation, so the
scores after each date are those that the season up to then would have given.

Differences from the authors' code: initial weights have the scale for ReLU (theirs stay at the framework's default,
as the weight normalisation overwrites them), and dilations begin again after eight blocks, as further doubling
would only reach beyond the series. `pool` chooses the last state, as published, or the mean of all.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.encoding import EXTRA_CHANNELS, SeasonEncoding
from cropstar.models.heads import class_layer
from cropstar.models.networks.network import refuse_others

CYCLE = 8  # blocks after which dilations begin again
SMALLEST_KERNEL, LARGEST_KERNEL = 3, 64


class CausalConvolution(nn.Module):
    """Taps on an observation and on earlier ones; each filter is a direction of length one times a learnt length."""

    def __init__(self, inputs: int, outputs: int, kernel: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.direction = nn.Parameter(torch.empty(outputs, inputs, kernel))
        self.bias = nn.Parameter(torch.zeros(outputs))
        nn.init.kaiming_normal_(self.direction, nonlinearity="relu")
        self.length = nn.Parameter(torch.linalg.vector_norm(self.direction.detach(), dim=(1, 2), keepdim=True))

    def forward(self, x: Tensor) -> Tensor:  # (B, C, N) -> (B, H, N)
        weight = self.direction * (self.length / torch.linalg.vector_norm(self.direction, dim=(1, 2), keepdim=True))
        reach = (self.direction.shape[2] - 1) * self.dilation
        return nn.functional.conv1d(nn.functional.pad(x, (reach, 0)), weight, self.bias, dilation=self.dilation)


class Block(nn.Module):
    def __init__(self, inputs: int, hidden: int, kernel: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.first = CausalConvolution(inputs, hidden, kernel, dilation)
        self.second = CausalConvolution(hidden, hidden, kernel, dilation)
        self.shortcut = nn.Conv1d(inputs, hidden, 1) if inputs != hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        change = self.dropout(nn.functional.relu(self.first(x)))
        change = self.dropout(nn.functional.relu(self.second(change)))
        return nn.functional.relu(change + self.shortcut(x))


@NETWORKS.register("tcn")
class TemporalConvolutionalNetwork(Classifier):
    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        refuse_others(config, "kernel", "pool", "hierarchy")
        if config.pool == "season":
            raise UsageError("'tcn' does not use model.pool season", remedy="choose last or mean")
        super().__init__()
        hidden, layers = config.hidden, config.layers
        self.kernel = config.kernel or kernel_to_cover(shape.length, layers)
        self.season = SeasonEncoding(config.day_encoding, shape.thermal)
        self.pool = config.pool
        widths = [shape.bands + EXTRA_CHANNELS[config.day_encoding], *[hidden] * layers]
        dilations = dilations_of(layers)
        self.blocks = nn.Sequential(
            *(Block(widths[i], hidden, self.kernel, dilation, config.dropout) for i, dilation in enumerate(dilations))
        )
        self.scores = class_layer(hidden, shape)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        last = _states_after(self._states(x, valid, days), valid.sum(dim=1, keepdim=True))
        scores: Tensor = self.scores(last.squeeze(1))  # (B, H): what the last layer reads are a sample's features
        return scores

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        scores: Tensor = self.scores(_states_after(self._states(x, valid, days), valid.cumsum(dim=1)))
        return scores

    def _states(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """The states before the first observation (all zero) and after each: (B, 1 + N, H)."""
        channels, _ = self.season.as_channels(x, valid, days)
        states: Tensor = self.blocks(channels)
        if self.pool == "mean":
            states = states.cumsum(dim=2) / torch.arange(1, states.shape[2] + 1, device=x.device, dtype=x.dtype)
        return nn.functional.pad(states, (1, 0)).transpose(1, 2)


def _states_after(states: Tensor, seen: Tensor) -> Tensor:
    """The states after a given number of observations: seen (B, D) -> (B, D, H)."""
    return states.gather(1, seen.unsqueeze(2).expand(-1, -1, states.shape[2]))


def dilations_of(layers: int) -> list[int]:
    return [2 ** (depth % CYCLE) for depth in range(layers)]


def kernel_to_cover(length: int, layers: int) -> int:
    """The fewest taps whose receptive field holds a season of `length` dates."""
    wanted = 1 + math.ceil((length - 1) / (2 * sum(dilations_of(layers))))
    return min(max(wanted, SMALLEST_KERNEL), LARGEST_KERNEL)
