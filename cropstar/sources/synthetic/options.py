"""What a user may choose about the embedded scene."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

import numpy as np

from cropstar.errors import UsageError

GENERATOR = "cropstar synthetic"
GENERATOR_VERSION = "1"  # raise it with every change that changes a pixel or a parcel: old files are then made anew

SMALLEST, LARGEST = 32, 4096  # below, no room for parcels; above, one date no longer fits in modest memory
FEWEST, MOST = 3, 48  # beyond that a season is too short for five-day revisits


@dataclass(frozen=True)
class SceneOptions:
    """Equal options give equal scenes, byte for byte."""

    seed: int = 1
    size: int = 400  # pixels a side
    dates: int = 24  # acquisitions in the season
    start: date = date(2023, 3, 1)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError("unfit seed for the synthetic scene", why=f"{self.seed} is negative")
        if not SMALLEST <= self.size <= LARGEST:
            why = f"{self.size} pixels is not within {SMALLEST} to {LARGEST}"
            raise UsageError("unfit size for the synthetic scene", why=why)
        if not FEWEST <= self.dates <= MOST:
            why = f"{self.dates} dates is not within {FEWEST} to {MOST}"
            raise UsageError("unfit number of dates for the synthetic scene", why=why)

    def random(self, *stream: int) -> np.random.Generator:
        """An independent stream of numbers a purpose, so that one part can change without stirring the others."""
        return np.random.default_rng([self.seed, *stream])

    def tags(self) -> dict[str, str]:
        """What both files carry, so that a rerun can tell whether it would write the same again."""
        return {
            "GENERATOR": GENERATOR,
            "GENERATOR_VERSION": GENERATOR_VERSION,
            "SEED": str(self.seed),
            "SIZE": str(self.size),
            "DATES": str(self.dates),
            "START": self.start.isoformat(),
        }
