"""`tempcnn`: convolutions in time and a dense layer (Pelletier, Webb & Petitjean 2019).

`layers` convolutions of `kernel` taps (5 by default), each with batch normalisation, ReLU and dropout, then a dense
layer of 4 x hidden over all dates, then the classes. Published: layers 3, hidden 64, dropout 0.5.

Masks: the convolutions run over the valid observations alone, with zeros beyond the last one at every layer; the
statistics of the batch normalisation are theirs alone.

Difference from the publication: its dense layer has a weight for every date, so every series must have the same dates.
Here the sequence of observations is first stretched to as many segments as the season has dates (64 at most), each the
mean of the observations that fall into it. A season without a masked date passes unchanged, as published.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.encoding import EXTRA_CHANNELS, SeasonEncoding
from cropstar.models.heads import class_layer
from cropstar.models.networks.network import DenseLayer, SameConvolution, refuse_others
from cropstar.models.normalisation import MaskedBatchNorm

KERNEL = 5
SEGMENTS = 64  # at most: the dense layer grows with them
EXPANSION = 4  # of the dense layer


class Convolution(nn.Module):
    def __init__(self, inputs: int, hidden: int, kernel: int, dropout: float) -> None:
        super().__init__()
        self.product = SameConvolution(inputs, hidden, kernel)
        self.norm = MaskedBatchNorm(hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:  # x (B, C, N), mask (B, 1, N)
        activated: Tensor = self.dropout(nn.functional.relu(self.norm(self.product(x), mask, 1)))
        return activated * mask


@NETWORKS.register("tempcnn")
class TemporalCNN(Classifier):
    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        refuse_others(config, "kernel", "hierarchy")
        super().__init__()
        hidden, kernel, dropout = config.hidden, config.kernel or KERNEL, config.dropout
        self.season = SeasonEncoding(config.day_encoding, shape.thermal)
        self.segments = min(max(shape.length, 1), SEGMENTS)
        widths = [shape.bands + EXTRA_CHANNELS[config.day_encoding], *[hidden] * config.layers]
        self.convolutions = nn.ModuleList(Convolution(width, hidden, kernel, dropout) for width in widths[:-1])
        self.dense = DenseLayer(hidden * self.segments, EXPANSION * hidden, dropout)
        self.scores = class_layer(EXPANSION * hidden, shape)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        features, observed = self.season.as_channels(x, valid, days)
        mask = observed.present.unsqueeze(1)
        for convolution in self.convolutions:
            features = convolution(features, mask)
        stretched = stretch(features, observed.counts, self.segments)
        scores: Tensor = self.scores(self.dense(stretched.flatten(1), mask.any(dim=2)))
        return scores


def stretch(features: Tensor, counts: Tensor, segments: int) -> Tensor:
    """The first `counts` of features (B, H, N) as means over equal segments (B, H, segments).

    An observation that lies across a border counts in both segments, by its share. No observations give zeros.
    """
    start = torch.arange(features.shape[2], device=features.device, dtype=features.dtype).reshape(1, -1, 1)
    length = counts.to(features.dtype).reshape(-1, 1, 1) / segments
    left = length * torch.arange(segments, device=features.device, dtype=features.dtype)  # (B, 1, segments)
    shared = torch.minimum(start + 1, left + length) - torch.maximum(start, left)
    weight = shared.clamp(min=0) / length.clamp(min=1 / segments)  # (B, N, segments)
    return features @ weight
