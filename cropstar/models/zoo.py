"""The models by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cropstar.config import ModelConfig
from cropstar.models.cells import star  # noqa: F401  (registers the cell)
from cropstar.models.cells.cell import CELLS
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.days import EXTRA_CHANNELS
from cropstar.models.heads import ImageHead, SeriesHead
from cropstar.models.stack import RecurrentStack
from cropstar.registry import Registry


@dataclass(frozen=True)
class Shape:
    """What the data prescribe: bands in, classes out, dates of a season."""

    bands: int
    classes: int
    length: int


Builder = Callable[[ModelConfig, Shape], RecurrentClassifier]
ZOO: Registry[Builder] = Registry("model")


def build_model(config: ModelConfig, shape: Shape) -> RecurrentClassifier:
    return ZOO[config.name](config, shape)


def _recurrent(config: ModelConfig, shape: Shape, *, cell: str, spatial: bool) -> RecurrentClassifier:
    inputs = shape.bands + EXTRA_CHANNELS[config.day_encoding]
    widths = [inputs] + [config.hidden] * (config.layers - 1)
    cells = [CELLS[cell](width, config.hidden, spatial=spatial) for width in widths]
    stack = RecurrentStack(cells, config.dropout)
    # Layers pass memories on, so each needs only its share of the season: with the whole season in every
    # layer, four layers of new gates hardly let anything through and learn several times slower.
    stack.initialise(config.memory or max(shape.length / config.layers, 1.0))
    head = (ImageHead if spatial else SeriesHead)(config.hidden, shape.classes)
    return RecurrentClassifier(stack, head, config.day_encoding)


for _cell in CELLS:
    ZOO.register(_cell)(partial(_recurrent, cell=_cell, spatial=False))
    ZOO.register(f"conv{_cell}")(partial(_recurrent, cell=_cell, spatial=True))
