"""The zoo: models by name, ensembles of them, and their weights as plain arrays.

A recurrent model is called after its cell, with `conv` before it for images and `bi` for both directions of time:
`star`, `convstar`, `biconvgru`. Several cells are joined by `+`, from the lowest layer up, the last of them for all
layers above: `lstm_forget+star` is one LSTM layer under STAR layers. `rf` and `hgb` are trees: they are fitted at once,
not trained in epochs, and so stand beside the list of known networks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cropstar.config import AUTO, ModelConfig
from cropstar.errors import ArtifactError, UsageError, one_line
from cropstar.models.cells.cell import CELLS, Cell, CellOptions
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import NETWORKS, Classifier, ModelState, Shape
from cropstar.models.encoding import EXTRA_CHANNELS, THERMAL_BANDS
from cropstar.models.heads import Head, ImageHead, SeriesHead, VideoHead, lineage_problem
from cropstar.models.networks import inceptiontime, ltae, tcn, tempcnn, transformer  # noqa: F401  (registers them)
from cropstar.models.networks.boosting import Boosting
from cropstar.models.networks.forest import Forest
from cropstar.models.networks.network import refuse_others
from cropstar.models.networks.trees import FittedClassifier
from cropstar.models.pooling import BINS, LastState, MeanState, SeasonState
from cropstar.models.stack import BidirectionalStack, RecurrentStack
from cropstar.models.stem import KERNEL, Stem
from cropstar.registry import did_you_mean

FITTED: dict[str, type[FittedClassifier]] = {kind.name: kind for kind in (Forest, Boosting)}


@dataclass(frozen=True)
class Recurrent:
    """A recurrent model, parsed from its name."""

    cells: tuple[str, ...]
    spatial: bool
    bidirectional: bool


def build_model(config: ModelConfig, shape: Shape) -> Classifier:
    shape = _as_configured(config, shape)
    if config.name == AUTO:
        why = "only 'cropstar train' can choose the best of several models"
        raise UsageError(f"'{AUTO}' is not a model", why=why, remedy="name one: 'cropstar models' lists them")
    if config.name in NETWORKS:
        return NETWORKS[config.name](config, shape)
    if config.name in FITTED:
        return FITTED[config.name](config, shape)
    return _recurrent(parse_name(config.name), config, shape)


def known_models() -> list[str]:
    """The names that stand for one kind of cell or network; more can be composed."""
    return sorted([*NETWORKS, *(prefix + cell for cell in CELLS for prefix in ("", "conv"))])


def listed_models() -> list[str]:
    """All names that `cropstar models` lists, those of trees among them."""
    return sorted([*known_models(), *FITTED])


def parse_name(name: str) -> Recurrent:
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
        why = f"there is no band of growing degree-days, called {' or '.join(THERMAL_BANDS)}"
    elif not 0 <= shape.thermal < shape.bands:
        why = f"there is no band {shape.thermal} of {shape.bands}"
    elif shape.bands < 2:
        why = "growing degree-days alone show no crop"
    if why is not None:
        raise UsageError("model.day_encoding cannot be thermal", why=why, remedy="add the band, or choose sincos")


def _require_levels(shape: Shape) -> None:
    if shape.lineages is None or max(map(len, shape.lineages), default=0) == 1:
        why: str | None = "the classes have no levels"
    elif shape.classes == 1:
        why = "there is only one class"
    else:
        why = lineage_problem(shape.lineages, shape.classes)
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
    start, length = shape.season or (1, 365)  # the whole year if the season is unknown
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
            raise UsageError(f"'{name}' does not model the time between dates", remedy="leave model.revisit out")
        cells.append(cell)
    return cells


# --- ensembles


class Ensemble(Classifier):
    """Several models that answer as one: the mean of their calibrated probabilities.

        score(class) = log mean over members of softmax(scores of the member / its temperature)(class)

    Members are of any architecture, read the same bands and know the same classes. Every member has a temperature of
    its own, fitted on validation: without it the mean would follow whichever member shouts loudest. The softmax of the
    scores gives the mean probabilities back, so an ensemble is calibrated, mapped, updated and exported like any other
    model. Its state is the states of the members side by side, and it looks as far as the member that looks furthest.
    """

    temperatures: Tensor  # (members,), saved with the weights

    def __init__(self, members: Sequence[Classifier], bands: int) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble needs a member")
        if len({(each.spatial, each.makes_maps) for each in members}) > 1:
            why = "some of them read images and others series"
            raise UsageError(
                "an ensemble of models that differ", why=why, remedy="use image models only, or series models only"
            )
        self.members = nn.ModuleList(members)
        self.register_buffer("temperatures", torch.ones(len(members)))
        self.spatial, self.makes_maps = members[0].spatial, members[0].makes_maps
        self.streaming = all(each.streaming for each in members)
        self._bands = bands
        self._borders: list[int] | None = None  # where the state of each member begins, and where the last one ends

    @property
    def classifiers(self) -> list[Classifier]:
        return [each for each in self.members if isinstance(each, Classifier)]

    def calibrate(self, temperatures: Sequence[float]) -> None:
        """Set the temperature of each member, by which its scores are divided."""
        self.temperatures.copy_(torch.tensor(temperatures))

    def radius(self, length: int) -> int:
        return max(each.radius(length) for each in self.classifiers)

    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        return self._together([each(x, valid, days) for each in self.classifiers], axis=1)

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        return self._together([each.by_date(x, valid, days) for each in self.classifiers], axis=2)

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None) -> ModelState:
        pairs = zip(self.classifiers, self._parted(state), strict=True)
        return tuple(layer for each, own in pairs for layer in each.step(x, valid, days, own))

    def advance(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None = None) -> ModelState:
        pairs = zip(self.classifiers, self._parted(state), strict=True)
        return tuple(layer for each, own in pairs for layer in each.advance(x, valid, days, own))

    def classify(self, state: ModelState) -> Tensor:
        pairs = zip(self.classifiers, self._parted(state), strict=True)
        return self._together([each.classify(own) for each, own in pairs if own is not None], axis=1)

    def may_round(self, state: ModelState) -> list[bool]:
        pairs = zip(self.classifiers, self._parted(state), strict=True)
        return [each for model, own in pairs if own is not None for each in model.may_round(own)]

    def _together(self, scores: list[Tensor], axis: int) -> Tensor:
        members = [
            (own.float() / temperature).log_softmax(dim=axis)
            for own, temperature in zip(scores, self.temperatures, strict=True)
        ]
        return torch.stack(members).logsumexp(dim=0) - math.log(len(members))

    def _parted(self, state: ModelState | None) -> list[ModelState | None]:
        """The state of each member."""
        if state is None:
            return [None] * len(self.members)
        if self._borders is None:
            self._borders = self._measure()
        return [state[start:end] for start, end in pairwise(self._borders)]

    @torch.no_grad()
    def _measure(self) -> list[int]:
        """How many entries the state of each member has, found by one step of a single pixel."""
        modes = [each.training for each in self.classifiers]
        place = (1, 1) if self.spatial else ()
        like = self.temperatures
        x, valid = like.new_zeros(1, self._bands, *place), torch.ones(1, *place, dtype=torch.bool, device=like.device)
        borders = [0]
        for each, training in zip(self.classifiers, modes, strict=True):
            each.eval()  # neither random numbers nor running means are touched
            state = each.step(x, valid, torch.zeros(1, dtype=torch.int32, device=like.device), None)
            each.train(training)
            borders.append(borders[-1] + len(state))
        return borders


def build_ensemble(configs: Sequence[ModelConfig], shape: Shape) -> Ensemble:
    """New members, side by side; `shape` has what any of them makes use of."""
    return Ensemble([build_model(config, shape) for config in configs], shape.bands)


def describe_model(configs: Sequence[ModelConfig]) -> dict[str, Any]:
    """The description of a model or an ensemble for the model file: enough to build it again."""
    first = configs[0]
    if len(configs) == 1:
        return first.model_dump(mode="json")
    return {
        "name": name_ensemble(configs),
        "layers": first.layers,
        "hidden": first.hidden,
        "members": [config.model_dump(mode="json") for config in configs],
    }


def name_ensemble(configs: Sequence[ModelConfig]) -> str:
    """`5 x star`, or `star & transformer`."""
    names = list(dict.fromkeys(config.name for config in configs))
    counts = [sum(config.name == name for config in configs) for name in names]
    return " & ".join(name if count == 1 else f"{count} x {name}" for name, count in zip(names, counts, strict=True))


# --- weights in and out


def weights_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}


def load_weights(model: nn.Module, arrays: dict[str, NDArray[Any]], path: Path) -> None:
    try:
        model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    except RuntimeError as failure:
        raise ArtifactError(
            "the weights do not fit the model", path=path, why=str(failure), remedy="train again"
        ) from None
    if not all(weights.isfinite().all() for weights in model.parameters()):
        why = "some of its weights are not finite numbers"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="train again")


def restore_model(
    config: dict[str, Any], shape: Mapping[str, Any], arrays: dict[str, NDArray[Any]], path: Path
) -> Classifier:
    """Build the model, or the ensemble, that a file describes and give it its weights."""
    try:
        kinds = [ModelConfig.model_validate(own) for own in config.get("members", [config])]
        given = Shape.from_json(shape)
        model = build_ensemble(kinds, given) if "members" in config else build_model(kinds[0], given)
    except (TypeError, ValueError) as failure:
        why = f"its description cannot be understood ({one_line(failure)})"
        raise ArtifactError("the model file cannot be used", path=path, why=why, remedy="update cropstar") from None
    load_weights(model, arrays, path)
    return model.eval()
