"""The products that cells are built from: a matrix for series, a 3x3 convolution for images."""

from __future__ import annotations

from torch import nn

KERNEL = 3


def product(inputs: int, outputs: int, *, spatial: bool, bias: bool) -> nn.Linear | nn.Conv2d:
    """A learnt product over channels, the same call for (N, C) and (N, C, H, W)."""
    if spatial:
        return nn.Conv2d(inputs, outputs, KERNEL, padding=KERNEL // 2, bias=bias)
    return nn.Linear(inputs, outputs, bias=bias)


def orthogonal_(layer: nn.Linear | nn.Conv2d) -> None:
    """Orthogonal weights, zero bias.

    Each product is initialised on its own: an orthogonal concatenation of several would leave every
    block with singular values below one, and deep stacks with vanishing gradients.
    """
    nn.init.orthogonal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
