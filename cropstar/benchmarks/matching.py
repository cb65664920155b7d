"""Models of equal size: the width at which a model has so many parameters."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier

WIDTHS = (16, 32, 48)  # multiples of 16 suit attention's heads
WIDEST = 4096

Build = Callable[[ModelConfig], Classifier]


def parameters_of(model: Classifier) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def match_parameters(config: ModelConfig, wanted: int, build: Build) -> ModelConfig:
    """The width whose number of parameters is nearest to the wanted one.

    Parameters grow with the square of the width: three small models tell the curve, and no large one has to be made.
    """
    counts = [parameters_of(build(config.model_copy(update={"hidden": width}))) for width in WIDTHS]
    square, linear, constant = (float(term) for term in np.polyfit(WIDTHS, counts, 2))
    below = linear**2 - 4 * square * (constant - wanted)
    width = (math.sqrt(max(below, 0)) - linear) / (2 * square) if square > 0 else 0.0
    nearest = min(
        (max(math.floor(width), 1), math.ceil(width), 1),
        key=lambda each: abs(square * each**2 + linear * each + constant - wanted),
    )
    if not 1 <= nearest <= WIDEST or wanted < constant:
        why = f"'{config.name}' of {config.layers} layers would be {width:.0f} wide"
        raise UsageError(f"no width has {wanted:,} parameters", why=why, remedy="ask for others, or change the layers")
    return config.model_copy(update={"hidden": nearest})
