"""The learning rate by step: a function of what a checkpoint holds, so that a resumed run goes on alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from cropstar.config import OptimiserConfig

POWER = 0.9


def learning_rate(config: OptimiserConfig, step: int, total: int, history: Sequence[dict[str, Any]] = ()) -> float:
    """Linear warm-up, then by the schedule.

    constant; polynomial and cosine: a fall to zero at the last step; noam: with the square root of the steps (Vaswani
    et al., with the peak given instead of derived from the width); plateau: halved after each so many epochs without a
    better score.
    """
    rate = config.learning_rate
    if step < config.warmup:
        rate *= (step + 1) / config.warmup
    if config.schedule == "polynomial":
        rate *= (1 - step / total) ** POWER
    if config.schedule == "cosine":
        rate *= (1 + math.cos(math.pi * step / total)) / 2
    if config.schedule == "noam" and step >= config.warmup:
        rate *= math.sqrt(max(config.warmup, 1) / (step + 1))
    if config.schedule == "plateau":
        # The score that the best epoch is chosen by; of crops it is the macro-F1.
        scores = [row.get("score", row["validation"].get("macro_f1")) for row in history]
        rate *= 0.5 ** _plateaus(scores, config.plateau)
    return rate


def _plateaus(scores: Sequence[float], patience: int) -> int:
    """How often the best score was not bettered for `patience` epochs in a row."""
    best, waited, found = -math.inf, 0, 0
    for score in scores:
        if score > best:
            best, waited = score, 0
        else:
            waited += 1
            if waited == patience:
                found, waited = found + 1, 0
    return found
