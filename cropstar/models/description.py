"""The cost and the receptive field of a model, measured on the model itself.

Counted are multiply-accumulates (MACs) of products: matrices, convolutions and attention, not what is done number by
number. They are counted in a real pass over one pixel, so that any network is counted by what it does; a 3x3
convolution has 9 x in x out of them at each pixel, at the raster's edge too. A head that reads a whole clip is counted
over the smallest clip, and spread over its pixels. Trees ask questions instead: they have none.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cropstar.config import ModelConfig
from cropstar.errors import ResourceError, UsageError
from cropstar.models.cells.cell import CELLS, Cell
from cropstar.models.classifier import RecurrentClassifier
from cropstar.models.contract import Classifier, Shape, count_parameters
from cropstar.models.heads import VideoHead
from cropstar.models.stack import BidirectionalStack, RecurrentStack
from cropstar.models.zoo import build_model

LARGEST = 500_000_000  # parameters of a model that is looked at
# Settings that some models have, each with a value that is not its default: who refuses it does not use it.
TRIALS = {
    "pool": "mean",
    "stem": 1,
    "normalise": True,
    "revisit": 5.0,
    "memory": 2.0,
    "heads": 1,
    "kernel": 3,
    "head": "video",
    "hierarchy": True,
    "trees": 7,
    "leaf": 7,
}
ON_TRIAL = Shape(bands=1, classes=2, length=2, lineages=((0, 0), (0, 1)))
CONTAINERS = (nn.ModuleList, nn.Sequential, RecurrentStack, BidirectionalStack)


@dataclass(frozen=True)
class PartFacts:
    """A layer, a head, or what lies between: `macs` are of a pixel and a whole season."""

    name: str
    kind: str
    inputs: int | None  # channels
    outputs: int | None
    parameters: int
    macs: int
    once: bool  # computed once a season, however many dates it has


@dataclass(frozen=True)
class OptionFacts:
    """A setting that the model has, beyond layers and width."""

    key: str
    value: Any
    meaning: str


@dataclass(frozen=True)
class ModelFacts:
    name: str
    description: str
    reads: str  # series or images
    streams: bool
    config: dict[str, Any]
    shape: Shape
    parameters: int | None  # none of what is not made of numbers that a gradient changes
    macs_per_date: float | None  # of a pixel; what grows faster than the season is spread over its dates
    macs_once: int | None  # of a pixel
    macs_per_season: int | None
    radius: int | None  # pixels around a pixel that its scores depend on; none where scores are of a whole clip
    state_bytes: int | None  # of a pixel, in float32
    parts: tuple[PartFacts, ...]
    options: tuple[OptionFacts, ...]
    documentation: tuple[str, ...]  # of its cells, from the lowest layer up, or of the network

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "shape": self.shape.to_json()}


def describe(config: ModelConfig, shape: Shape) -> ModelFacts:
    """The facts of a member of the zoo, composed ones too; an unknown name is answered with the nearest known."""
    model = _build(config, shape)
    grown = not model.trains_in_epochs
    parts = () if grown else measure(model, shape)
    season = sum(part.macs for part in parts)
    once = sum(part.macs for part in parts if part.once)
    texts = _documentation(model)
    return ModelFacts(
        config.name,
        _first_lines(texts, model),
        "images" if model.spatial else "series",
        model.streaming,
        config.model_dump(mode="json"),
        shape,
        None if grown else count_parameters(model),
        None if grown else (season - once) / shape.length,
        None if grown else once,
        None if grown else season,
        model.radius(shape.length) if model.makes_maps else None,
        _state_bytes(model, shape.bands) if model.streaming else None,
        parts,
        _options(config, model),
        texts,
    )


def measure(model: Classifier, shape: Shape) -> tuple[PartFacts, ...]:
    """Parameters and products, part by part.

    Two passes that differ by one date tell apart what is done for each date and what is done once, and which axis of
    a part's input is time.
    """
    recurrent = isinstance(model, RecurrentClassifier)
    length = 1 if recurrent else shape.length  # every date costs a recurrent model the same
    dates = shape.length if recurrent else 1
    first, second = (_count_pass(model, shape.bands, length + more) for more in (0, 1))
    facts = []
    for path, part in parts_of(model).items():
        macs, once = _within(first.macs, path), _within(first.macs, path) == _within(second.macs, path)
        inputs, outputs = _channels(part, path, first, second, spatial=model.spatial)
        total = macs if once else macs * dates
        facts.append(
            PartFacts(name_of(path), kind_of(part), inputs, outputs, count_parameters(part), total, once and macs > 0)
        )
    between = dates * (first.macs[""] - sum(_within(first.macs, path) for path in parts_of(model)))
    unowned = count_parameters(model) - sum(part.parameters for part in facts)
    if between or unowned:
        facts.append(PartFacts("between", "products", None, None, unowned, between, once=False))
    return tuple(facts)


@dataclass(frozen=True)
class _Pass:
    macs: dict[str, int]  # by the path of the module that was called; "" is all
    inputs: dict[str, torch.Size]
    outputs: dict[str, torch.Size]


def _count_pass(model: Classifier, bands: int, length: int) -> _Pass:
    seen: tuple[dict[str, torch.Size], dict[str, torch.Size]] = ({}, {})

    def watch(path: str, part: nn.Module) -> Any:
        def note(_: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            seen[0][path], seen[1][path] = given[0].shape, output.shape

        return part.register_forward_hook(note)

    hooks = [watch(path, part) for path, part in parts_of(model).items()]
    counter = FlopCounterMode(display=False)
    try:
        # The kernel for attention that is written out in products: fused ones are not counted on every device.
        with torch.no_grad(), sdpa_kernel([SDPBackend.MATH]), counter:
            model(*_smallest(model, bands, length))
    finally:
        for hook in hooks:
            hook.remove()
    named = {name.partition(".")[2]: kinds for name, kinds in counter.get_flop_counts().items() if name != "Global"}
    each = 2 * _side(model) ** 2  # a product and a sum, at every pixel
    macs = {path: sum(kinds.values()) // each for path, kinds in named.items()}
    return _Pass({**macs, "": counter.get_total_flops() // each}, *seen)


def _side(model: Classifier) -> int:
    """The side of the smallest image that a model reads."""
    return 1 if model.makes_maps else VideoHead.smallest


def _smallest(model: Classifier, bands: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    """A season of one pixel, or of the smallest clip."""
    space = (_side(model), _side(model)) if model.spatial else ()
    days = 19_000 + 5 * torch.arange(length).unsqueeze(0)
    return torch.zeros(1, length, bands, *space), torch.ones(1, length, *space, dtype=torch.bool), days


def _within(macs: dict[str, int], path: str) -> int:
    """The sum over all modules below a path; a cell itself is never called, only its products are."""
    if path in macs:
        return macs[path]
    below = [name for name in macs if name.startswith(f"{path}.")]
    return sum(macs[name] for name in below if not any(name.startswith(f"{other}.") for other in below))


def _channels(
    part: nn.Module, path: str, first: _Pass, second: _Pass, *, spatial: bool
) -> tuple[int | None, int | None]:
    """Of a part's input and output: all axes but the batch, the one that grew with the season, and those of space."""
    if isinstance(part, Cell):
        return part.inputs, part.hidden

    def channels(before: torch.Size, after: torch.Size) -> int:
        end = -2 if spatial and len(before) > 3 else None
        return math.prod(size for size, later in zip(before[1:end], after[1:end], strict=True) if size == later)

    found = [
        channels(before[path], after[path]) if path in before else None
        for before, after in ((first.inputs, second.inputs), (first.outputs, second.outputs))
    ]
    return found[0], found[1]


def _build(config: ModelConfig, shape: Shape) -> Classifier:
    """The model with weights that are all zero and take no memory: drawing them would be most of the work."""
    with torch.device("meta"):
        model = build_model(config, shape)
    if count_parameters(model) > LARGEST:
        why = f"it would have {count_parameters(model):,} parameters, more than {LARGEST:,}"
        raise ResourceError(f"'{config.name}' of this size is too large", why=why, remedy="choose a smaller width")
    if not model.trains_in_epochs:  # there are no weights before it is fitted
        return model
    zeros = {name: torch.zeros((), dtype=each.dtype).expand(each.shape) for name, each in model.state_dict().items()}
    model.load_state_dict(zeros, assign=True)
    return model.eval()


def _state_bytes(model: Classifier, bands: int) -> int:
    x, valid, days = _smallest(model, bands, 1)
    with torch.no_grad():
        state = model.step(x[:, 0], valid[:, 0], days[:, 0], None)
    return sum(part.numel() * part.element_size() for layer in state for part in layer) // _side(model) ** 2


def _options(config: ModelConfig, model: Classifier) -> tuple[OptionFacts, ...]:
    """The settings that the model does not refuse, found by trying them."""
    facts = []
    if isinstance(model, RecurrentClassifier):
        variants = [cell.variants for cell in model.stack.layers()]
        shared = [name for name in variants[0] if all(name in others for others in variants)]
        if len(shared) > 1:
            facts.append(OptionFacts("variant", config.variant, f"one of {', '.join(shared)}"))
    small = ModelConfig(name=config.name, layers=min(config.layers, 1 + config.name.count("+")), hidden=1)
    for key, value in TRIALS.items():
        try:
            with torch.random.fork_rng(devices=[]):  # looking at a model must not change what is drawn next
                build_model(small.model_copy(update={key: value}), ON_TRIAL)
        except UsageError:
            continue
        facts.append(OptionFacts(key, getattr(config, key), ModelConfig.model_fields[key].description or ""))
    return tuple(facts)


def _documentation(model: Classifier) -> tuple[str, ...]:
    """The docstrings of the modules that define the model."""
    owners = model.stack.layers() if isinstance(model, RecurrentClassifier) else [model]
    modules = dict.fromkeys(type(owner).__module__ for owner in owners)
    return tuple(inspect.getdoc(sys.modules[module]) or "" for module in modules)


def _first_lines(texts: tuple[str, ...], model: Classifier) -> str:
    """What a model is, in one line: a network's text begins with its name, which is known already."""
    lines = []
    for text in texts:
        line = text.partition("\n")[0].rstrip(".")
        name, colon, rest = line.partition(": ")
        lines.append(rest if colon and name.startswith("`") else line)
    stack = model.stack if isinstance(model, RecurrentClassifier) else None
    both = "; in both directions of time" if isinstance(stack, BidirectionalStack) else ""
    return "; above it: ".join(lines) + both


def parts_of(model: Classifier) -> dict[str, nn.Module]:
    """The cells, blocks, norms and heads that have weights, by the path of their attributes."""
    return dict(_walk_parts(model, ""))


def layers_of(model: Classifier) -> dict[str, nn.Module]:
    """The parts with a matrix of weights below the one that gives the scores, by the names that people read."""
    matrices = {
        path: part for path, part in parts_of(model).items() if any(each.dim() > 1 for each in part.parameters())
    }
    return {name_of(path): part for path, part in list(matrices.items())[:-1]}


def name_of(path: str) -> str:
    """`stack.cells.0` as 'layer 1', `stack.backwards.0` as 'layer 1 backwards', `blocks.2` as 'block 3'."""
    what, _, place = path.removeprefix("stack.").partition(".")
    if not place:
        return what.replace("_", " ")
    number = ".".join(str(int(part) + 1) if part.isdecimal() else part for part in place.split("."))
    if what in ("forwards", "backwards"):
        return f"layer {number} {what}"
    return f"{'layer' if what == 'cells' else what.removesuffix('s')} {number}"


def kind_of(part: nn.Module) -> str:
    """A cell by its name in the zoo, anything else by its class, in words."""
    for name in CELLS:
        if type(part) is CELLS[name]:
            return name
    return re.sub("(?<=[a-z])(?=[A-Z])", " ", type(part).__name__).lower()


def _walk_parts(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if isinstance(child, CONTAINERS):
            yield from _walk_parts(child, f"{path}{name}.")
        elif any(True for _ in child.parameters()):
            yield f"{path}{name}", child
