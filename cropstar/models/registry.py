"""Where networks that are not recurrent register their builders; the zoo reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cropstar.config import ModelConfig
from cropstar.models.contract import Classifier
from cropstar.registry import Registry


@dataclass(frozen=True)
class Shape:
    """What the data prescribe: bands in, classes out, dates of a season."""

    bands: int
    classes: int
    length: int
    thermal: int | None = None  # which band holds growing degree-days, for model.day_encoding thermal
    lineages: tuple[tuple[int, ...], ...] | None = None  # of each class: its node on every level, for model.hierarchy
    season: tuple[int, int] | None = None  # first day of the year and length in days, for model.pool season

    def to_json(self) -> dict[str, Any]:
        """Plain data; what the data do not have is left out, as in files from before it was known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shape:
        """JSON knows lists alone."""
        lineages = data.get("lineages")
        tree = None if lineages is None else tuple(tuple(map(int, lineage)) for lineage in lineages)
        season = data.get("season")
        return cls(**{**data, "lineages": tree, "season": None if season is None else (int(season[0]), int(season[1]))})


Builder = Callable[[ModelConfig, Shape], Classifier]
NETWORKS: Registry[Builder] = Registry("model")  # those that are not recurrent
