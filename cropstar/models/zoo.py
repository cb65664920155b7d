"""The models by name.

A recurrent model is called after its cell, with `conv` before it for images and `bi` for both directions of time:
`star`, `convstar`, `biconvgru`. Several cells are joined by `+`, from the lowest layer up, the last of them for all
layers above: `lstm_forget+star` is one LSTM layer under STAR layers. `rf` is a random forest, the baseline: it has no
layers and no products to count, and so stands beside the list of known models.
"""

from __future__ import annotations

from dataclasses import dataclass

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.cells.cell import CELLS, Cell, CellOptions
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier
from cropstar.models.days import EXTRA_CHANNELS
from cropstar.models.heads import ImageHead, SeriesHead
from cropstar.models.networks import forest, inceptiontime, ltae, tcn, tempcnn, transformer  # noqa: F401  (registers them)
from cropstar.models.networks.options import refuse_others
from cropstar.models.registry import NETWORKS, Shape
from cropstar.models.stack import BidirectionalStack, RecurrentStack
from cropstar.registry import did_you_mean


@dataclass(frozen=True)
class Recurrent:
    """What the name of a recurrent model says."""

    cells: tuple[str, ...]
    spatial: bool
    bidirectional: bool


def build_model(config: ModelConfig, shape: Shape) -> Classifier:
    if config.name in NETWORKS:
        return NETWORKS[config.name](config, shape)
    if config.name == forest.NAME:
        return forest.build(config, shape)
    return _recurrent(parse(config.name), config, shape)


def known_models() -> list[str]:
    """The names that stand for one kind of cell or network; more can be composed."""
    return sorted([*NETWORKS, *(prefix + cell for cell in CELLS for prefix in ("", "conv"))])


def parse(name: str) -> Recurrent:
    """The cells of a composed name; an unknown one is answered with the nearest known."""
    rest = name
    bidirectional = rest.startswith("bi")
    rest = rest.removeprefix("bi")
    spatial = rest.startswith("conv")
    cells = tuple(rest.removeprefix("conv").split("+"))
    if any(cell not in CELLS for cell in cells):
        raise UsageError(f"unknown model '{name}'", remedy=did_you_mean(name, [*known_models(), forest.NAME]))
    return Recurrent(cells, spatial, bidirectional)


def _recurrent(kind: Recurrent, config: ModelConfig, shape: Shape) -> RecurrentClassifier:
    refuse_others(config, "memory", "pool", "normalise", "variant", "revisit")
    if config.normalise and kind.bidirectional:
        raise UsageError("batch normalisation is not for bidirectional models", remedy="leave model.normalise out")
    inputs = shape.bands + EXTRA_CHANNELS[config.day_encoding]
    stack: RecurrentStack | BidirectionalStack
    if kind.bidirectional:
        forwards, backwards = (_cells(kind, config, inputs, 2 * config.hidden) for _ in range(2))
        stack = BidirectionalStack(forwards, backwards, config.dropout)
    else:
        cells = _cells(kind, config, inputs, config.hidden)
        stack = RecurrentStack(cells, config.dropout, normalise=config.normalise)
    # Layers pass memories on, so each needs only its share of the season: with the whole season in every
    # layer, four layers of new gates hardly let anything through and learn several times slower.
    stack.initialise(config.memory or max(shape.length / config.layers, 1.0))
    head = (ImageHead if kind.spatial else SeriesHead)(stack.width, shape.classes)
    return RecurrentClassifier(stack, head, config.day_encoding, config.pool)


def _cells(kind: Recurrent, config: ModelConfig, inputs: int, between: int) -> list[Cell]:
    options = CellOptions(config.variant, config.revisit)
    cells = []
    for depth in range(config.layers):
        name = kind.cells[min(depth, len(kind.cells) - 1)]
        cell = CELLS[name](inputs if depth == 0 else between, config.hidden, spatial=kind.spatial, options=options)
        if options.variant not in cell.variants:
            why = f"known: {', '.join(cell.variants)}"
            raise UsageError(f"'{name}' has no variant '{options.variant}'", why=why, remedy="correct model.variant")
        if options.revisit is not None and not cell.dated:
            raise UsageError(f"'{name}' does not follow the time that passed", remedy="leave model.revisit out")
        cells.append(cell)
    return cells
