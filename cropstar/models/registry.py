"""Where networks that are not recurrent register their builders; the zoo reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cropstar.config import ModelConfig
from cropstar.models.contract import Classifier
from cropstar.registry import Registry


@dataclass(frozen=True)
class Shape:
    """What the data prescribe: bands in, classes out, dates of a season."""

    bands: int
    classes: int
    length: int


Builder = Callable[[ModelConfig, Shape], Classifier]
NETWORKS: Registry[Builder] = Registry("model")  # those that are not recurrent
