"""Heads: from a hidden state to class scores, flat or level by level.

Classes with a lineage have scores level by level that can never contradict each other. `lineages[k][level]` is the
number of class k's node on a level, coarse to fine; on the last level every class is a node of its own. Among the
children of one node a softmax gives the conditional probabilities, and a class's score is

    log p(class) = sum over levels of log p(node on the level | node on the level above)

so that the probabilities of the classes sum to one, and those of a node's classes to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import torch
from torch import Tensor, nn

from cropstar.errors import InputError
from cropstar.models.cells.cell import KERNEL_SIDE, product
from cropstar.models.contract import Shape

Lineages = Sequence[Sequence[int]]


def class_layer(width: int, shape: Shape, *, spatial: bool = False) -> nn.Linear | nn.Conv2d | HierarchicalScores:
    """The last layer of any model: one product, or one for each level of classes that have a lineage."""
    if shape.lineages is not None:
        return HierarchicalScores(width, shape.lineages, spatial=spatial)
    return product(width, shape.classes, spatial=spatial, bias=True)


class SeriesHead(nn.Module):
    """One linear layer, or two with a rectifier between them."""

    radius = 0
    makes_maps = True

    def __init__(self, hidden: int, shape: Shape, dense: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.mix = nn.Linear(hidden, dense) if dense else None
        self.dropout = dropout
        self.scores = class_layer(dense or hidden, shape)

    def forward(self, state: Tensor) -> Tensor:  # (B, H) -> (B, K)
        if self.mix is not None:
            state = nn.functional.dropout(nn.functional.relu(self.mix(state)), self.dropout, self.training)
        scores: Tensor = self.scores(state)
        return scores


class ImageHead(nn.Module):
    """Two 3x3 convolutions, as in the paper's TUM experiment: hidden -> 64 -> classes."""

    radius = 2 * (KERNEL_SIDE // 2)
    makes_maps = True
    width = 64

    def __init__(self, hidden: int, shape: Shape) -> None:
        super().__init__()
        self.mix = nn.Conv2d(hidden, self.width, KERNEL_SIDE, padding=KERNEL_SIDE // 2)
        self.scores = class_layer(self.width, shape, spatial=True)

    def forward(self, state: Tensor) -> Tensor:  # (B, H, h, w) -> (B, K, h, w)
        scores: Tensor = self.scores(nn.functional.relu(self.mix(state)))
        return scores


class VideoHead(nn.Module):
    """Four 3x3 convolutions, each but the last under a maximum of 2x2, their mean over the image, a linear layer.

    One class for a whole clip, as in the paper's Jester experiment.
    """

    radius = 0  # there are no pixels in what it says
    makes_maps = False
    width = 64
    layers = 4
    smallest = 2 ** (layers - 1)  # pixels per side: one is left for the last convolution

    def __init__(self, hidden: int, shape: Shape) -> None:
        super().__init__()
        widths = [hidden, *[self.width] * self.layers]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, KERNEL_SIDE, padding=KERNEL_SIDE // 2) for before, after in pairwise(widths)
        )
        self.scores = class_layer(self.width, shape)

    def forward(self, state: Tensor) -> Tensor:  # (B, H, h, w) -> (B, K)
        if min(state.shape[-2:]) < self.smallest:
            why = f"images of {state.shape[-1]} x {state.shape[-2]} pixels, and it halves them {self.layers - 1} times"
            remedy = f"give at least {self.smallest} x {self.smallest} pixels, or model.head pixel"
            raise InputError("the video head cannot read the clip", why=why, remedy=remedy)
        features = state
        for depth, convolution in enumerate(self.convolutions):
            features = nn.functional.max_pool2d(features, 2) if depth else features
            features = nn.functional.relu(convolution(features))
        scores: Tensor = self.scores(features.mean(dim=(-2, -1)))
        return scores


Head = SeriesHead | ImageHead | VideoHead


# --- classes with a lineage


def level_log_probabilities(scores: Tensor, lineages: Lineages, level: int) -> Tensor:
    """Scores (N, K) of classes, any logits, as logarithms of the probabilities of a level's nodes (N, K_level)."""
    own = scores.log_softmax(dim=1)
    nodes = [lineage[level] for lineage in lineages]
    members = sorted(range(len(nodes)), key=nodes.__getitem__)  # stable: the classes of a node stand together
    counts = [len(list(group)) for _, group in groupby(sorted(nodes))]
    ordered = own.index_select(1, torch.tensor(members, device=own.device))
    if len(counts) == len(members):
        return ordered
    return torch.stack([part.logsumexp(dim=1) for part in ordered.split(counts, dim=1)], dim=1)


def lineage_problem(lineages: Lineages, classes: int) -> str | None:
    """Why the lineages do not form a tree of these classes, or None."""
    depth = len(lineages[0]) if lineages else 0
    if len(lineages) != classes or not depth or any(len(lineage) != depth for lineage in lineages):
        return f"there is not one lineage of the same length for each of {classes} classes"
    for level in range(depth):
        nodes = {lineage[level] for lineage in lineages}
        if nodes != set(range(len(nodes))):
            return f"the nodes of level {level + 1} are not numbered from 0 without gaps"
        if level and len({(lineage[level - 1], lineage[level]) for lineage in lineages}) > len(nodes):
            return f"a node of level {level + 1} has two parents"
    if any(lineage[-1] != number for number, lineage in enumerate(lineages)):
        return "the last level does not hold the classes themselves"
    return None


class HierarchicalScores(nn.Module):
    """A head per level, side by side in one product, and the scores of the classes from all of them.

    An only child needs no head: given its parent it is certain.
    """

    def __init__(self, width: int, lineages: Lineages, *, spatial: bool) -> None:
        super().__init__()
        problem = lineage_problem(lineages, len(lineages))
        if problem is not None:
            raise ValueError(problem)
        self.axis = 1 if spatial else -1  # of channels
        self.siblings, self.places = _plan(lineages)
        self.product = product(width, sum(self.siblings), spatial=spatial, bias=True)

    def forward(self, features: Tensor) -> Tensor:
        """(N, C), (N, D, C) or (N, C, h, w) with the logarithms of probabilities in the place of C."""
        logits = self.product(features)
        certain = torch.zeros_like(logits.narrow(self.axis, 0, 1))
        groups = [group.log_softmax(dim=self.axis) for group in logits.split(self.siblings, dim=self.axis)]
        conditional = torch.cat([certain, *groups], dim=self.axis)
        scores = conditional.new_zeros(())
        for places in self.places:
            scores = scores + conditional.index_select(self.axis, torch.tensor(places, device=logits.device))
        return scores


def _plan(lineages: Lineages) -> tuple[list[int], list[list[int]]]:
    """The sizes of the groups of siblings, and where each class finds its node of each level; place 0 is certainty."""
    siblings: list[int] = []
    places: list[list[int]] = []
    for level in range(len(lineages[0])):
        children: dict[int, list[int]] = {}
        for parent, node in sorted({(each[level - 1] if level else 0, each[level]) for each in lineages}):
            children.setdefault(parent, []).append(node)
        place: dict[int, int] = {}
        for group in children.values():
            if len(group) > 1:
                start = 1 + sum(siblings)
                place |= {node: start + number for number, node in enumerate(group)}
                siblings.append(len(group))
        if place:
            places.append([place.get(lineage[level], 0) for lineage in lineages])
    return siblings, places
