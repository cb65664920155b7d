"""A dense layer as convolutional networks for series end in."""

from __future__ import annotations

from torch import Tensor, nn

from cropstar.models.normalisation import MaskedBatchNorm


class DenseLayer(nn.Module):
    """Linear, batch normalisation, ReLU, dropout; a series without observations changes no statistic."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = MaskedBatchNorm(outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, observed: Tensor) -> Tensor:  # x (B, C), observed (B, 1)
        activated: Tensor = self.dropout(nn.functional.relu(self.norm(self.linear(x), observed, 1)))
        return activated
