"""The models by name.

A recurrent model is called after its cell, with `conv` before it for images and `bi` for both directions of time:
`star`, `convstar`, `biconvgru`. Several cells are joined by `+`, from the lowest layer up, the last of them for all
layers above: `lstm_forget+star` is one LSTM layer under STAR layers. `rf` and `hgb` are trees: they are fitted at once,
not trained in epochs, and so stand beside the list of known networks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cropstar.config import AUTO, ModelConfig
from cropstar.errors import UsageError
from cropstar.models.cells.cell import CELLS, Cell, CellOptions
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier
from cropstar.models.days import EXTRA_CHANNELS, THERMAL_BANDS
from cropstar.models.heads import Head, ImageHead, SeriesHead, VideoHead
from cropstar.models.hierarchy import problem_of
from cropstar.models.networks import inceptiontime, ltae, tcn, tempcnn, transformer  # noqa: F401  (registers them)
from cropstar.models.networks.boosting import Boosting
from cropstar.models.networks.forest import Forest
from cropstar.models.networks.options import refuse_others
from cropstar.models.networks.trees import FittedClassifier
from cropstar.models.pooling import BINS, LastState, MeanState, SeasonState
from cropstar.models.registry import NETWORKS, Shape
from cropstar.models.stack import BidirectionalStack, RecurrentStack
from cropstar.models.stem import KERNEL, Stem
from cropstar.registry import did_you_mean

FITTED: dict[str, type[FittedClassifier]] = {kind.name: kind for kind in (Forest, Boosting)}


@dataclass(frozen=True)
class Recurrent:
    """What the name of a recurrent model says."""

    cells: tuple[str, ...]
    spatial: bool
    bidirectional: bool


def build_model(config: ModelConfig, shape: Shape) -> Classifier:
    shape = _as_configured(config, shape)
    if config.name == AUTO:
        why = "only 'cropstar train' can choose the best of several models"
        raise UsageError(f"'{AUTO}' is no model", why=why, remedy="name one: 'cropstar models' lists them")
    if config.name in NETWORKS:
        return NETWORKS[config.name](config, shape)
    if config.name in FITTED:
        return FITTED[config.name](config, shape)
    return _recurrent(parse(config.name), config, shape)


def known_models() -> list[str]:
    """The names that stand for one kind of cell or network; more can be composed."""
    return sorted([*NETWORKS, *(prefix + cell for cell in CELLS for prefix in ("", "conv"))])


def listed_models() -> list[str]:
    """All names that `cropstar models` lists, those of trees among them."""
    return sorted([*known_models(), *FITTED])


def parse(name: str) -> Recurrent:
    """The cells of a composed name; an unknown one is answered with the nearest known."""
    rest = name
    bidirectional = rest.startswith("bi")
    rest = rest.removeprefix("bi")
    spatial = rest.startswith("conv")
    cells = tuple(rest.removeprefix("conv").split("+"))
    if any(cell not in CELLS for cell in cells):
        raise UsageError(f"unknown model '{name}'", remedy=did_you_mean(name, listed_models()))
    return Recurrent(cells, spatial, bidirectional)


def _as_configured(config: ModelConfig, shape: Shape) -> Shape:
    """The shape with what the model makes use of, and a refusal of what the data cannot give."""
    thermal, lineages = config.day_encoding == "thermal", config.hierarchy
    if thermal:
        _require_thermal(shape)
    if lineages:
        _require_levels(shape)
    return replace(
        shape,
        thermal=shape.thermal if thermal else None,
        lineages=shape.lineages if lineages else None,
        season=shape.season if config.pool == "season" else None,
    )


def _require_thermal(shape: Shape) -> None:
    why = None
    if shape.thermal is None:
        why = f"no band of growing degree-days is there, which is called {' or '.join(THERMAL_BANDS)}"
    elif not 0 <= shape.thermal < shape.bands:
        why = f"band {shape.thermal} of {shape.bands} is none"
    elif shape.bands < 2:
        why = "growing degree-days alone show no crop"
    if why is not None:
        raise UsageError("model.day_encoding cannot be thermal", why=why, remedy="add the band, or choose sincos")


def _require_levels(shape: Shape) -> None:
    if shape.lineages is None or max(map(len, shape.lineages), default=0) == 1:
        why: str | None = "the classes have no levels"
    elif shape.classes == 1:
        why = "one class alone leaves nothing to tell apart"
    else:
        why = problem_of(shape.lineages, shape.classes)
    if why is not None:
        raise UsageError("model.hierarchy cannot be used", why=why, remedy="leave it out, or give classes a lineage")


def _recurrent(kind: Recurrent, config: ModelConfig, shape: Shape) -> RecurrentClassifier:
    refuse_others(
        *(config, "memory", "pool", "stem", "normalise", "variant", "revisit", "hierarchy"),
        *(["head"] if kind.spatial else []),
        *(["bins", *(["dense"] if not kind.spatial else [])] if config.pool == "season" else []),
        *(["kernel"] if config.stem else []),
    )
    inputs = shape.bands + EXTRA_CHANNELS[config.day_encoding]
    stem = None
    if config.stem:
        kernel = config.kernel or KERNEL
        stem = Stem(inputs, config.hidden, config.stem, kernel, config.dropout, centred=kind.bidirectional)
        inputs = config.hidden
    stack: RecurrentStack | BidirectionalStack
    if kind.bidirectional:
        forwards, backwards = (_cells(kind, config, inputs, 2 * config.hidden) for _ in range(2))
        stack = BidirectionalStack(forwards, backwards, config.dropout, normalise=config.normalise)
    else:
        cells = _cells(kind, config, inputs, config.hidden)
        stack = RecurrentStack(cells, config.dropout, normalise=config.normalise)
    # Layers pass memories on, so each needs only its share of the season: with the whole season in every
    # layer, four layers of new gates hardly let anything through and learn several times slower.
    stack.initialise(config.memory or max(shape.length / config.layers, 1.0))
    pool = _pool(config, shape)
    head = _head(config, shape, pool.widened(stack.width), spatial=kind.spatial)
    return RecurrentClassifier(stack, head, config.day_encoding, pool, shape.thermal, stem)


def _head(config: ModelConfig, shape: Shape, width: int, *, spatial: bool) -> Head:
    if config.head == "video":
        return VideoHead(width, shape)
    return ImageHead(width, shape) if spatial else SeriesHead(width, shape, config.dense, config.dropout)


def _pool(config: ModelConfig, shape: Shape) -> LastState:
    if config.pool != "season":
        return MeanState() if config.pool == "mean" else LastState()
    start, length = shape.season or (1, 365)  # where nobody knows the season it is the whole year
    return SeasonState(start, length, config.bins or BINS)


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
