"""What the user may choose, and the folds that results on BreizhCrops are reported for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cropstar.errors import UsageError

REGIONS = ("frh01", "frh02", "frh03", "frh04", "belle-ile", "kermaux")
LEVELS = ("L1C", "L2A")
MASKS = ("none", "clouds")


@dataclass(frozen=True)
class BreizhCropsOptions:
    """Whatever is left out means: all that is there."""

    year: int | None = None
    level: str | None = None
    regions: tuple[str, ...] | None = None
    mask: str = "none"  # clouds: an observation is valid where QA60 (L1C) or CLD (L2A) is at most `cloud_limit`
    cloud_limit: float = 0.0  # these columns are means over the parcel: 102.4 is a tenth of it under clouds
    samples_per_tile: int = 4096
    download: bool = False  # fetch what is missing of `regions`

    def __post_init__(self) -> None:
        if self.level is not None and self.level not in LEVELS:
            raise UsageError(f"unknown level '{self.level}'", remedy=f"choose one of: {', '.join(LEVELS)}")
        if self.mask not in MASKS:
            raise UsageError(f"unknown mask '{self.mask}'", remedy=f"choose one of: {', '.join(MASKS)}")
        if self.samples_per_tile < 1:
            raise UsageError("the samples of a tile must be above zero")
        if self.download and not self.regions:
            raise UsageError("which regions shall be downloaded?", remedy="name them, e.g. --regions frh01,frh02")

    def to_json(self) -> dict[str, Any]:
        """What of them changes a tile."""
        masked = {"cloud_limit": self.cloud_limit} if self.mask != "none" else {}
        return {"mask": self.mask, "samples_per_tile": self.samples_per_tile, **masked}


@dataclass(frozen=True)
class Fold:
    """Regions to train on and regions to test on."""

    train: tuple[str, ...]
    test: tuple[str, ...]

    def scenes(self, year: int = 2017, level: str = "L1C") -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the scenes in a store."""
        train, test = ([scene_name(region, year, level) for region in part] for part in (self.train, self.test))
        return tuple(train), tuple(test)


# `test-frh04` is the one of the published results; `validation` is for choosing settings without looking at frh04.
FOLDS: dict[str, Fold] = {
    "test-frh04": Fold(("frh01", "frh02", "frh03"), ("frh04",)),
    "test-frh03": Fold(("frh01", "frh02", "frh04"), ("frh03",)),
    "test-frh02": Fold(("frh01", "frh03", "frh04"), ("frh02",)),
    "test-frh01": Fold(("frh02", "frh03", "frh04"), ("frh01",)),
    "validation": Fold(("frh01", "frh02"), ("frh03",)),
}

# Of the lists of ids beside raw csv: their names are the groups of the parcels.
ID_LISTS = {"train": ("train",), "validation": ("valid", "validation"), "test": ("eval", "test")}


def fold_splits() -> dict[str, dict[str, list[str]]]:
    """The folds as a store names its splits; their groups are regions."""
    return {
        name: {"train": list(fold.train), "validation": [], "test": list(fold.test)} for name, fold in FOLDS.items()
    }


def id_splits(lists: Collection[str]) -> dict[str, dict[str, list[str]]]:
    return {"ids": {part: [name for name in names if name in lists] for part, names in ID_LISTS.items()}}


def scene_name(region: str, year: int, level: str) -> str:
    return f"{region}-{year}-{level}"
