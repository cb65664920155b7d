"""What the user may choose of ZueriCrop, and the folds that results on it are reported for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cropstar.errors import UsageError
from cropstar.geo.sensors import band_name, in_order
from cropstar.registry import did_you_mean

FILE_BANDS = ("B08", "B03", "B02", "B04", "B05", "B06", "B07", "B11", "B12")  # the file's order: NIR first
BANDS = tuple(in_order(FILE_BANDS))  # as all sources have them
LEVELS = (1, 2, 3)
FOLDS = 5


@dataclass(frozen=True)
class ZueriCropOptions:
    labels: Path | None = None  # labels.csv beside the data where it is not given
    dates: Path | None = None  # a text file with one date a line; the data themselves have none
    year: int = 2019  # over which the dates are spread where none are given
    level: int = 3  # 1: the 5 coarse classes, 2: the 16 in between, 3: all 48, which know their coarser ones
    cloud_limit: float = 0.1  # an observation is valid up to this cloud cover, a share; published code masks from 0.1
    bands: tuple[str, ...] | None = None  # all nine where they are not given
    images_per_tile: int = 32

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise UsageError(f"unknown level {self.level}", remedy="choose 1, 2 or 3: 5, 16 or 48 classes")
        if not self.cloud_limit >= 0:
            raise UsageError(f"a cloud limit of {self.cloud_limit:g}", remedy="give a share from 0 to 1")
        if not 2015 <= self.year <= 2100:
            raise UsageError(f"no year of Sentinel-2: {self.year}", remedy="give one from 2015 on")
        if self.images_per_tile < 1:
            raise UsageError("the images of a tile must be above zero")
        if self.bands is not None:
            object.__setattr__(self, "bands", tuple(band_name(band) for band in self.bands))
        for band in self.bands or ():
            if band not in BANDS:
                raise UsageError(f"unknown band '{band}'", remedy=did_you_mean(band, BANDS))
        if self.bands is not None and len(set(self.bands)) < max(len(self.bands), 1):
            raise UsageError("every band once, and one at least", remedy=f"choose of {', '.join(BANDS)}")

    @property
    def chosen_bands(self) -> tuple[str, ...]:
        """In the order that all sources have."""
        return tuple(band for band in BANDS if self.bands is None or band in self.bands)

    def to_json(self) -> dict[str, Any]:
        """What of them changes a tile, apart from the dates."""
        return {
            "bands": list(self.chosen_bands),
            "cloud_limit": self.cloud_limit,
            "images_per_tile": self.images_per_tile,
            "level": self.level,
        }


def fold_of(index: int, images: int) -> str:
    """The contiguous fifth of the file that an image lies in."""
    return next(f"fold{fold}" for fold in range(1, FOLDS + 1) if index < images * fold // FOLDS)


def fold_splits() -> dict[str, dict[str, list[str]]]:
    """Each fold is tested by a model that was trained on the other four."""
    names = [f"fold{fold}" for fold in range(1, FOLDS + 1)]
    return {
        name: {"train": [other for other in names if other != name], "validation": [], "test": [name]} for name in names
    }
