"""Convolutions in time that keep the length of a sequence."""

from __future__ import annotations

from torch import Tensor, nn


class SameConvolution(nn.Conv1d):
    """Zeros on both sides, one more at the end where the number of taps is even."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, kernel, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, N) -> (B, H, N)
        kernel = self.kernel_size[0]
        return super().forward(nn.functional.pad(x, ((kernel - 1) // 2, kernel // 2)))
