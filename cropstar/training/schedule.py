"""The learning rate as a function of the step alone: a resumed run needs no memory of it."""

from __future__ import annotations

from cropstar.config import OptimiserConfig

POWER = 0.9


def learning_rate(config: OptimiserConfig, step: int, total: int) -> float:
    """Linear warm-up, then constant or a polynomial fall to zero at the last step."""
    rate = config.learning_rate
    if step < config.warmup:
        rate *= (step + 1) / config.warmup
    if config.schedule == "polynomial":
        rate *= (1 - step / total) ** POWER
    return rate
