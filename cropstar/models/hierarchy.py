"""Classes with a lineage: scores level by level that can never contradict each other.

`lineages[k][level]` is the number of class k's node on a level, coarse to fine; on the last level every class is a node
of its own. Among the children of one node a softmax gives the conditional probabilities, and a class's score is

    log p(class) = sum over levels of log p(node on the level | node on the level above)

so that the probabilities of the classes sum to one, and those of a node's classes to its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor, nn

from cropstar.models.products import product

Lineages = Sequence[Sequence[int]]


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


def problem_of(lineages: Lineages, classes: int) -> str | None:
    """Why the lineages are not those of a tree with so many classes, or None."""
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
    """A head a level, side by side in one product, and the scores of the classes from all of them.

    An only child needs no head: given its parent it is certain.
    """

    def __init__(self, width: int, lineages: Lineages, *, spatial: bool) -> None:
        super().__init__()
        problem = problem_of(lineages, len(lineages))
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
