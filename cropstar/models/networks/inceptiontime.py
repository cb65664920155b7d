"""`inceptiontime`: modules of convolutions of several lengths (Ismail Fawaz et al. 2020).

A module narrows its input to a bottleneck, convolves it with `kernel`, `kernel` / 2 and `kernel` / 4 taps, convolves
the input's running maximum of three with one tap, and joins the four branches. Every third module adds the input of
its group. The mean over time gives the scores. `layers` counts modules, `hidden` is a module's width: a quarter for
each branch, rounded up. Published: layers 6, hidden 128, kernel 40.

Differences from the publication: it is one network, not five that vote; where the kernel is not given, it is no
longer than the season.

Masks: all runs over the valid observations alone, with zeros beyond the last one at every layer; maxima, statistics and
the mean leave out what was not observed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.encoding import EXTRA_CHANNELS, SeasonEncoding, masked_mean
from cropstar.models.heads import class_layer
from cropstar.models.networks.network import SameConvolution, refuse_others
from cropstar.models.normalisation import MaskedBatchNorm

KERNEL = 40
BRANCHES = 4
GROUP = 3  # modules under one shortcut
WINDOW = 3  # of the running maximum


class InceptionModule(nn.Module):
    def __init__(self, inputs: int, filters: int, kernel: int) -> None:
        super().__init__()
        narrow = filters if inputs > 1 else 1
        self.bottleneck = nn.Conv1d(inputs, filters, 1, bias=False) if inputs > 1 else nn.Identity()
        self.convolutions = nn.ModuleList(
            SameConvolution(narrow, filters, max(kernel // shorter, 1), bias=False) for shorter in (1, 2, 4)
        )
        self.maximum = nn.Conv1d(inputs, filters, 1, bias=False)
        self.norm = MaskedBatchNorm(BRANCHES * filters)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # x (B, C, N), mask (B, 1, N)
        narrow = self.bottleneck(x)
        branches = [convolution(narrow) for convolution in self.convolutions]
        branches.append(self.maximum(running_maximum(x, mask)))
        return nn.functional.relu(self.norm(torch.cat(branches, dim=1), mask, 1)) * mask


class Shortcut(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.product = nn.Conv1d(inputs, outputs, 1, bias=False)
        self.norm = MaskedBatchNorm(outputs)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        fitted: Tensor = self.norm(self.product(x), mask, 1)
        return fitted


@NETWORKS.register("inceptiontime")
class InceptionTime(Classifier):
    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        refuse_others(config, "kernel", "hierarchy")
        super().__init__()
        self.season = SeasonEncoding(config.day_encoding, shape.thermal)
        kernel = config.kernel or max(min(KERNEL, shape.length), BRANCHES)
        filters = -(-config.hidden // BRANCHES)
        width = BRANCHES * filters
        inputs = shape.bands + EXTRA_CHANNELS[config.day_encoding]
        widths = [inputs, *[width] * config.layers]
        self.inceptions = nn.ModuleList(InceptionModule(before, filters, kernel) for before in widths[:-1])
        self.shortcuts = nn.ModuleList(
            Shortcut(widths[group * GROUP], width) for group in range(config.layers // GROUP)
        )
        self.dropout = nn.Dropout(config.dropout)
        self.scores = class_layer(width, shape)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        features, observed = self.season.as_channels(x, valid, days)
        mask = observed.present.unsqueeze(1)
        before = features  # what the next shortcut adds
        for depth, inception in enumerate(self.inceptions):
            features = inception(features, mask)
            if depth % GROUP == GROUP - 1:
                features = nn.functional.relu(features + self.shortcuts[depth // GROUP](before, mask)) * mask
                before = features
        scores: Tensor = self.scores(self.dropout(masked_mean(features, mask)))
        return scores


def running_maximum(x: Tensor, mask: Tensor) -> Tensor:
    """Over each observation and its neighbours: beyond the last one there is nothing, not a zero."""
    largest = nn.functional.max_pool1d(x.masked_fill(~mask, -torch.inf), WINDOW, stride=1, padding=WINDOW // 2)
    return torch.where(mask, largest, largest.new_zeros(()))
