"""Layers and settings that networks over series share."""

from __future__ import annotations

from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.normalisation import MaskedBatchNorm

# Settings that not every model has.
PARTICULAR = (
    "memory",
    "pool",
    "bins",
    "dense",
    "stem",
    "normalise",
    "variant",
    "revisit",
    "heads",
    "kernel",
    "head",
    "hierarchy",
    "trees",
    "leaf",
)


def refuse_others(config: ModelConfig, *used: str) -> None:
    """A setting that would silently do nothing is a mistake of the user's."""
    for name in PARTICULAR:
        field = ModelConfig.model_fields.get(name)
        if field is not None and name not in used and getattr(config, name) != field.default:
            raise UsageError(f"'{config.name}' does not use model.{name}", remedy="leave it out")


def head_count(config: ModelConfig, default: int, width: int) -> int:
    """The configured heads, else the most of at most `default` that share the width evenly."""
    heads: int | None = config.heads
    if heads is None:
        return next(number for number in range(min(default, width), 0, -1) if width % number == 0)
    if width % heads:
        why = f"{width} channels cannot be shared by {heads} heads"
        raise UsageError("wrong value of 'model.heads'", why=why, remedy="choose a divisor of model.hidden")
    return heads


class SameConvolution(nn.Conv1d):
    """Zeros on both sides, one more at the end where the number of taps is even."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, bias: bool = True) -> None:
        super().__init__(inputs, outputs, kernel, bias=bias)

    def forward(self, x: Tensor) -> Tensor:  # (B, C, N) -> (B, H, N)
        kernel = self.kernel_size[0]
        return super().forward(nn.functional.pad(x, ((kernel - 1) // 2, kernel // 2)))


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
