"""What a network takes from the configuration, and a refusal of what it has no use for."""

from __future__ import annotations

from cropstar.config import ModelConfig
from cropstar.errors import UsageError

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
            raise UsageError(f"'{config.name}' has no use for model.{name}", remedy="leave it out")


def kernel_size(config: ModelConfig, default: int) -> int:
    return config.kernel or default


def head_count(config: ModelConfig, default: int, width: int) -> int:
    """The configured heads, else the most of at most `default` that share the width evenly."""
    heads: int | None = config.heads
    if heads is None:
        return next(number for number in range(min(default, width), 0, -1) if width % number == 0)
    if width % heads:
        why = f"{width} channels cannot be shared by {heads} heads"
        raise UsageError("wrong value of 'model.heads'", why=why, remedy="choose a divisor of model.hidden")
    return heads
