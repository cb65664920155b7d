"""The products that cells are built from: a matrix for series, a 3x3 convolution for images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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


def written_out(layer: nn.Linear | nn.Conv2d, x: Tensor) -> Tensor:
    """The product by its definition, for references: a matrix, or a convolution as a sum of shifted matrices."""
    if isinstance(layer, nn.Linear):
        total = x @ layer.weight.T
    else:
        size, half = layer.kernel_size[0], layer.kernel_size[0] // 2
        padded = nn.functional.pad(x, (half, half, half, half))
        height, width = x.shape[-2:]
        total = sum(
            (
                torch.einsum("oc,nchw->nohw", layer.weight[:, :, i, j], padded[:, :, i : i + height, j : j + width])
                for i in range(size)
                for j in range(size)
            ),
            start=x.new_zeros(()),
        )
    if layer.bias is not None:
        total = total + layer.bias.reshape(-1, *(1,) * (x.dim() - 2))
    return total
