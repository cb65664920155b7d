"""Several models that answer as one: the mean of their calibrated probabilities.

    score(class) = log mean over members of softmax(scores of the member / its temperature)(class)

Every member has a temperature of its own, fitted on validation: without it the mean would follow whichever member
shouts loudest. The softmax of the scores gives the mean probabilities back, so an ensemble is calibrated, mapped,
updated and exported like any other model. Its state is the states of the members side by side, and it looks as far as
the member that looks furthest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.contract import Classifier, ModelState
from cropstar.models.registry import Shape
from cropstar.models.zoo import build_model


class Ensemble(Classifier):
    """Members of any architecture that read the same bands and know the same classes."""

    temperatures: Tensor  # (members,), saved with the weights

    def __init__(self, members: Sequence[Classifier], bands: int) -> None:
        super().__init__()
        if not members:
            raise ValueError("an ensemble needs a member")
        if len({(each.spatial, each.makes_maps) for each in members}) > 1:
            why = "some of them read images and others series"
            raise UsageError(
                "an ensemble of models that differ", why=why, remedy="take models of images alone, or of series alone"
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
        """What the scores of each member are divided by."""
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

    def _together(self, scores: list[Tensor], axis: int) -> Tensor:
        said = [
            (own.float() / temperature).log_softmax(dim=axis)
            for own, temperature in zip(scores, self.temperatures, strict=True)
        ]
        return torch.stack(said).logsumexp(dim=0) - math.log(len(said))

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
    """What a model file says of a model, or of an ensemble of several: enough to build it again."""
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
