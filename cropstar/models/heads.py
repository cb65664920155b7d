"""From a hidden state to class scores."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from cropstar.errors import InputError
from cropstar.models.hierarchy import HierarchicalScores
from cropstar.models.products import KERNEL, product
from cropstar.models.registry import Shape


def class_layer(width: int, shape: Shape, *, spatial: bool = False) -> nn.Linear | nn.Conv2d | HierarchicalScores:
    """The last layer of any model: one product, or one for each level of classes that have a lineage."""
    if shape.lineages is not None:
        return HierarchicalScores(width, shape.lineages, spatial=spatial)
    return product(width, shape.classes, spatial=spatial, bias=True)


class SeriesHead(nn.Module):
    """One linear layer, or two with a rectifier between them."""

    radius = 0
    makes_maps = True

    def __init__(self, hidden: int, shape: Shape, dense: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.mix = nn.Linear(hidden, dense) if dense else None
        self.dropout = dropout
        self.scores = class_layer(dense or hidden, shape)

    def forward(self, state: Tensor) -> Tensor:  # (B, H) -> (B, K)
        if self.mix is not None:
            state = nn.functional.dropout(nn.functional.relu(self.mix(state)), self.dropout, self.training)
        scores: Tensor = self.scores(state)
        return scores


class ImageHead(nn.Module):
    """Two 3x3 convolutions, as in the paper's TUM experiment: hidden -> 64 -> classes."""

    radius = 2 * (KERNEL // 2)
    makes_maps = True
    width = 64

    def __init__(self, hidden: int, shape: Shape) -> None:
        super().__init__()
        self.mix = nn.Conv2d(hidden, self.width, KERNEL, padding=KERNEL // 2)
        self.scores = class_layer(self.width, shape, spatial=True)

    def forward(self, state: Tensor) -> Tensor:  # (B, H, h, w) -> (B, K, h, w)
        scores: Tensor = self.scores(nn.functional.relu(self.mix(state)))
        return scores


class VideoHead(nn.Module):
    """Four 3x3 convolutions, each but the last under a maximum of 2x2, their mean over the image, a linear layer.

    One class for a whole clip, as in the paper's Jester experiment.
    """

    radius = 0  # there are no pixels in what it says
    makes_maps = False
    width = 64
    layers = 4
    smallest = 2 ** (layers - 1)  # pixels a side: one is left for the last convolution

    def __init__(self, hidden: int, shape: Shape) -> None:
        super().__init__()
        widths = [hidden, *[self.width] * self.layers]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, KERNEL, padding=KERNEL // 2) for before, after in pairwise(widths)
        )
        self.scores = class_layer(self.width, shape)

    def forward(self, state: Tensor) -> Tensor:  # (B, H, h, w) -> (B, K)
        if min(state.shape[-2:]) < self.smallest:
            why = f"images of {state.shape[-1]} x {state.shape[-2]} pixels, and it halves them {self.layers - 1} times"
            remedy = f"give at least {self.smallest} x {self.smallest} pixels, or model.head pixel"
            raise InputError("the video head cannot read the clip", why=why, remedy=remedy)
        features = state
        for depth, convolution in enumerate(self.convolutions):
            features = nn.functional.max_pool2d(features, 2) if depth else features
            features = nn.functional.relu(convolution(features))
        scores: Tensor = self.scores(features.mean(dim=(-2, -1)))
        return scores


Head = SeriesHead | ImageHead | VideoHead
