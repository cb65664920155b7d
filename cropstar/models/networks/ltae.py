"""`ltae`: the lightweight temporal attention encoder (Sainte Fare Garnot & Landrieu 2020).

Each of `heads` heads (16 by default) has one learnt query, asks all dates with keys of 8 channels, and takes the mean
of its own share of the channels. Dates are embedded in 2 x hidden channels. `layers` counts the dense layers
that follow, the last one giving the scores: 256 -> 128 -> 64 -> 32 -> classes, as published, with the default hidden
128 and layers 4.

Masks: a masked date has no weight in any head. A series without a valid date has the embedding zero.

Differences from the publication: bands pass one dense layer in place of its pixel-set encoder; an embedding is
normalised over its own channels instead of over all dates at once, so that any number of dates will do; keys have no
bias, as it would cancel out in the softmax; places are days of the year.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.encoding import SeasonEncoding
from cropstar.models.heads import class_layer
from cropstar.models.networks.network import DenseLayer, head_count, refuse_others

HEADS = 16
KEY = 8  # channels of a key
NARROWEST = 32  # dense layer


class MasterAttention(nn.Module):
    """Learnt queries, one per head; the channels themselves are the values."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.empty(heads, KEY))
        self.key = nn.Linear(width, heads * KEY, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.query, std=math.sqrt(2 / KEY))
        nn.init.normal_(self.key.weight, std=math.sqrt(2 / KEY))

    def weights(self, x: Tensor, present: Tensor) -> Tensor:
        """The attention of each head to each date (B, heads, N), for x (B, N, C) and present (B, N)."""
        keys = self.key(x).unflatten(2, self.query.shape)  # (B, N, heads, KEY)
        agreement = torch.einsum("hk,bnhk->bhn", self.query, keys) / math.sqrt(KEY)
        mask = present.unsqueeze(1)
        lowest = torch.finfo(agreement.dtype).min  # not -inf: a softmax over nothing else would not be a number
        return agreement.masked_fill(~mask, lowest).softmax(dim=2) * mask

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        """(B, C): each head's channels in their weighted mean."""
        shares = x.unflatten(2, (self.query.shape[0], -1))  # (B, N, heads, C / heads)
        return torch.einsum("bhn,bnhc->bhc", self.dropout(self.weights(x, present)), shares).flatten(1)


@NETWORKS.register("ltae")
class LightweightTemporalAttention(Classifier):
    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        refuse_others(config, "heads", "hierarchy")
        super().__init__()
        layers, hidden, dropout = config.layers, config.hidden, config.dropout
        width = 2 * hidden
        self.heads = head_count(config, HEADS, width)
        self.season = SeasonEncoding(config.day_encoding, shape.thermal)
        self.spectrum = nn.Linear(self.season.bands(shape), hidden)
        self.spectrum_norm = nn.LayerNorm(hidden)
        self.embed = nn.Linear(hidden, width)
        self.embed_norm = nn.LayerNorm(width)
        self.attention = MasterAttention(width, self.heads, dropout)
        widths = [width, *(max(hidden >> depth, min(hidden, NARROWEST)) for depth in range(layers - 1))]
        self.dense = nn.ModuleList(DenseLayer(before, after, dropout) for before, after in pairwise(widths))
        self.dense_norm = nn.LayerNorm(hidden) if layers > 1 else None  # after the first of them
        self.scores = class_layer(widths[-1], shape)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        dates, present = self.embed_dates(x, valid, days)
        features = self.attention(dates, present)
        any_date = present.any(dim=1, keepdim=True)
        for depth, dense in enumerate(self.dense):
            features = dense(features, any_date)
            if depth == 0 and self.dense_norm is not None:
                features = self.dense_norm(features)
        scores: Tensor = self.scores(features)
        return scores

    def embed_dates(self, x: Tensor, valid: Tensor, days: Tensor) -> tuple[Tensor, Tensor]:
        """The observations as the heads see them (B, N, C), and which of them are real (B, N)."""
        return self.season.embedded(x, valid, days, self._embed, copies=self.heads)

    def _embed(self, bands: Tensor) -> Tensor:  # (B, N, C) -> (B, N, 2H)
        spectrum = self.spectrum_norm(nn.functional.relu(self.spectrum(bands)))
        embedding: Tensor = self.embed_norm(self.embed(spectrum))
        return embedding
