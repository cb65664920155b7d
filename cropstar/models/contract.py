"""The contract of a model.

    forward(x, valid, days)                 scores after the last date
    by_date(x, valid, days)                 scores after every date
    step(x_t, valid_t, days_t, state)       the state one date later, of models that stream
    advance(x, valid, days, state)          the state after all of these dates: repeated `step`
    classify(state)                         scores of a state

`classify` after repeated `step` gives what `forward` gives. Shapes: x (B,T,C) or (B,T,C,H,W), valid (B,T[,H,W]),
days (B,T); scores (B,K[,H,W]), by date (B,T,K[,H,W]).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn

from cropstar.config import ModelConfig
from cropstar.errors import UsageError
from cropstar.models.cells.cell import State
from cropstar.registry import Registry

ModelState = tuple[State, ...]


class Classifier(nn.Module, ABC):
    """A member of the zoo."""

    spatial = False  # whether it reads images; others read every pixel as a series of its own
    streaming = False  # whether it has `step` and `classify`
    trains_in_epochs = True  # by gradient steps; others have a `fit` that takes all samples at once
    makes_maps = True  # else its scores are of a whole clip, (B,K) and by date (B,T,K), and a pixel has none

    @abstractmethod
    def forward(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Scores after the last date."""

    def radius(self, length: int) -> int:
        """How many pixels around a pixel its scores depend on."""
        return 0

    def by_date(self, x: Tensor, valid: Tensor, days: Tensor) -> Tensor:
        """Scores after every date: what the model would have predicted then."""
        raise NotImplementedError

    def step(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None) -> ModelState:
        raise NotImplementedError

    def advance(self, x: Tensor, valid: Tensor, days: Tensor, state: ModelState | None = None) -> ModelState:
        for t in range(x.shape[1]):
            state = self.step(x[:, t].contiguous(), valid[:, t], days[:, t], state)  # the bits of one date alone
        assert state is not None
        return state

    def classify(self, state: ModelState) -> Tensor:
        raise NotImplementedError

    def may_round(self, state: ModelState) -> list[bool]:
        """For each part of a state, whether float16 is precise enough. Counts and days need every digit."""
        return [True for layer in state for _ in layer]


def count_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def require_maps(model: Classifier) -> None:
    """Refuse a model that knows whole clips alone, where pixels or parcels are to have a class."""
    if not model.makes_maps:
        why = "its head gives one class per clip, not per pixel"
        raise UsageError("this model makes no maps", why=why, remedy="set model.head to pixel")


# --- shapes, and where networks that are not recurrent register their builders


@dataclass(frozen=True)
class Shape:
    """The shape of a model that follows from the data: bands, classes, dates of a season."""

    bands: int
    classes: int
    length: int
    thermal: int | None = None  # which band holds growing degree-days, for model.day_encoding thermal
    lineages: tuple[tuple[int, ...], ...] | None = None  # of each class: its node on every level, for model.hierarchy
    season: tuple[int, int] | None = None  # first day of the year and length in days, for model.pool season
    # Of several sensors the bands of each. `bands` are then all channels: the sensors' bands, context, and a flag for
    # each sensor, one where a date is its own.
    sensors: tuple[int, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data; what the data do not have is left out, as in files from before it was known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """JSON knows lists alone."""
        lineages = data.get("lineages")
        tree = None if lineages is None else tuple(tuple(map(int, lineage)) for lineage in lineages)
        season = data.get("season")
        sensors = data.get("sensors")
        return cls(
            **{
                **data,
                "lineages": tree,
                "season": None if season is None else (int(season[0]), int(season[1])),
                "sensors": None if sensors is None else tuple(map(int, sensors)),
            }
        )


Builder = Callable[[ModelConfig, Shape], Classifier]
NETWORKS: Registry[Builder] = Registry("model")  # those that are not recurrent
