"""The parts of a model that people call its layers, whatever its kind."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import nn

from cropstar.models.cells.cell import CELLS
from cropstar.models.contract import Classifier
from cropstar.models.stack import BidirectionalStack, RecurrentStack

CONTAINERS = (nn.ModuleList, nn.Sequential, RecurrentStack, BidirectionalStack)


def parts_of(model: Classifier) -> dict[str, nn.Module]:
    """The cells, blocks, norms and heads that have weights, by the path of their attributes."""
    return dict(_walk(model, ""))


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


def _walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    for name, child in module.named_children():
        if isinstance(child, CONTAINERS):
            yield from _walk(child, f"{path}{name}.")
        elif any(True for _ in child.parameters()):
            yield f"{path}{name}", child
