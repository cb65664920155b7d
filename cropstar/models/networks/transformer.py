"""`transformer`: the encoder of Vaswani et al. (2017) over dates, as Rußwurm & Körner (2020) use it for crops.

Bands are projected to `hidden` channels, the place in the year is added, `layers` layers of attention with `heads`
heads (8 by default) and of two dense layers (4 x hidden between them) follow, and the scores come from the largest
value of each channel over the season.

Masks: no date attends to a masked one and the maximum is over valid dates alone.

Differences from the publications: normalisation stands before each part instead of after it, which trains without a
long warm-up; keys have no bias, as it would cancel out in the softmax and never learn; places are days of the year.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.models.contract import NETWORKS, Classifier, Shape
from cropstar.models.encoding import SeasonEncoding, masked_max
from cropstar.models.heads import class_layer
from cropstar.models.networks.network import head_count, refuse_others

HEADS = 8
EXPANSION = 4  # of the dense layers


class Attention(nn.Module):
    """Self-attention over all dates."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden, bias=False)
        self.value = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, attended: Tensor) -> Tensor:  # x (B, N, H), attended (B, N)
        query, key, value = (
            part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )  # each (B, heads, N, H / heads)
        mixed = nn.functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attended[:, None, None, :].expand(-1, 1, x.shape[1], -1),
            dropout_p=self.dropout if self.training else 0.0,
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, dropout)
        self.dense_norm = nn.LayerNorm(hidden)
        self.widen = nn.Linear(hidden, EXPANSION * hidden)
        self.narrow = nn.Linear(EXPANSION * hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), attended))
        change = self.narrow(self.dropout(nn.functional.relu(self.widen(self.dense_norm(x)))))
        after: Tensor = x + self.dropout(change)
        return after


@NETWORKS.register("transformer")
class TransformerEncoder(Classifier):
    def __init__(self, config: ModelConfig, shape: Shape) -> None:
        refuse_others(config, "heads", "hierarchy")
        super().__init__()
        hidden, heads = config.hidden, head_count(config, HEADS, config.hidden)
        self.season = SeasonEncoding(config.day_encoding, shape.thermal)
        self.embed = nn.Linear(self.season.bands(shape), hidden)
        self.layers = nn.ModuleList(EncoderLayer(hidden, heads, config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(hidden)
        self.scores = class_layer(hidden, shape)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        features, present = self.season.embedded(x, valid, days, self.embed)
        # A softmax over nothing is not a number on some devices: a series without observations attends to its first
        # blank.
        first = torch.arange(features.shape[1], device=x.device) == 0
        attended = present | (first & ~present.any(dim=1, keepdim=True))
        for layer in self.layers:
            features = layer(features, attended)
        scores: Tensor = self.scores(masked_max(self.norm(features).transpose(1, 2), present.unsqueeze(1)))
        return scores
