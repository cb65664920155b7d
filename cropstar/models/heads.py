"""From a hidden state to class scores."""

from __future__ import annotations

from torch import Tensor, nn

from cropstar.models.products import KERNEL


class SeriesHead(nn.Module):
    """One linear layer."""

    radius = 0

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(hidden, classes)

    def forward(self, state: Tensor) -> Tensor:  # (B, H) -> (B, K)
        scores: Tensor = self.scores(state)
        return scores


class ImageHead(nn.Module):
    """Two 3x3 convolutions, as in the paper's TUM experiment: hidden -> 64 -> classes."""

    radius = 2 * (KERNEL // 2)
    width = 64

    def __init__(self, hidden: int, classes: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(hidden, self.width, KERNEL, padding=KERNEL // 2)
        self.scores = nn.Conv2d(self.width, classes, KERNEL, padding=KERNEL // 2)

    def forward(self, state: Tensor) -> Tensor:  # (B, H, h, w) -> (B, K, h, w)
        scores: Tensor = self.scores(nn.functional.relu(self.mix(state)))
        return scores


Head = SeriesHead | ImageHead
