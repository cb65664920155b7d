"""What the state of a season says of itself: its model, place, dates and layout."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from cropstar.geo.grid import Grid
from cropstar.prediction.season import Layout
from cropstar.store.fingerprint import Fingerprint

KIND = "season"


@dataclass(frozen=True)
class SeasonCard:
    """What a state says of itself."""

    model: str  # digest
    model_path: Path
    fingerprint: Fingerprint
    grid: Grid
    dates: tuple[date, ...]
    layout: Layout
    spatial: bool  # whether the model reads images
    map: Path  # made with it
    scale: float = 1.0  # of the last images; each image brings its own
    offset: float = 0.0
    given: dict[str, Any] = field(default_factory=dict)  # how the user wanted images to be read

    def dumps(self) -> str:
        said = {
            "kind": KIND,
            "model": self.model,
            "model_path": str(self.model_path),
            "fingerprint": self.fingerprint.to_json(),
            "grid": self.grid.to_json(),
            "dates": [day.isoformat() for day in self.dates],
            "layout": self.layout,
            "spatial": self.spatial,
            "map": str(self.map),
            "scale": self.scale,
            "offset": self.offset,
            "given": self.given,
        }
        return json.dumps(said, sort_keys=True, ensure_ascii=False)

    @classmethod
    def loads(cls, text: str, path: Path) -> SeasonCard:
        said = json.loads(text)
        if said["kind"] != KIND:
            raise ValueError("it is no state of a season")
        dates = tuple(date.fromisoformat(day) for day in said["dates"])
        if not dates or list(dates) != sorted(set(dates)):
            raise ValueError("its dates are not in order")
        return cls(
            str(said["model"]),
            Path(said["model_path"]),
            Fingerprint.from_json(said["fingerprint"], path),
            Grid.from_json(said["grid"]),
            dates,
            tuple(tuple(int(channels) for channels in layer) for layer in said["layout"]),
            bool(said["spatial"]),
            Path(said["map"]),
            float(said["scale"]),
            float(said["offset"]),
            {"clear": tuple(int(number) for number in said["given"]["clear"])} if "clear" in said["given"] else {},
        )


def state_bytes(layout: Layout) -> int:
    """Of a pixel."""
    return 4 * sum(channels for layer in layout for channels in layer)
