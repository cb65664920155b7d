"""What a user may choose when GeoTIFF stacks are read, checked before any file is opened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from cropstar.errors import UsageError
from cropstar.geo.sensors import CLEAR_SCENE_CLASSES
from cropstar.sources.base import Bands
from cropstar.sources.sentinel2.options import Sentinel2Options
from cropstar.sources.stack.hand_dates import Dates, parse_dates
from cropstar.sources.stack.patterns import Pattern
from cropstar.sources.stack.renaming import spelt

USUAL_KERNEL = "bilinear"


@dataclass(frozen=True)
class StackOptions:
    """How the files of a folder are told apart, and what is read of them.

    `pattern` names the files, as "S2_{band}_{date}.tif"; without it names are guessed. `masks` names the masks of
    each date in the same way: files of one band in which 0 is clear and anything else is not. `bands` are those to
    read, in that order, B02=blue for one that the file calls otherwise; of files whose bands have no names it gives
    the names. `dates` are those of one file whose bands do not say theirs, `by_band` that it has all dates of a band
    before the next band. `clear` are the classes to keep of the scene classification, `resampling` is for bands of
    coarser pixels, bilinear where it is not given.
    """

    pattern: str | None = None
    masks: str | None = None
    bands: Bands | None = None
    clear: tuple[int, ...] = CLEAR_SCENE_CLASSES
    resampling: str | None = None
    dates: str | Path | Sequence[date] | None = None
    by_band: bool = False

    def __post_init__(self) -> None:
        checked = Sentinel2Options(resampling=self.kernel, clear=tuple(self.clear))
        object.__setattr__(self, "clear", checked.clear)
        if self.bands is not None:
            object.__setattr__(self, "bands", spelt(self.bands))
        if self.dates is not None:
            object.__setattr__(self, "dates", parse_dates(self.dates))
        if self.by_band and (self.dates is None or self.bands is None):
            why = "it tells in which order a file has the bands of several dates"
            raise UsageError("--by-band needs --dates and --bands", why=why, remedy="give all three")
        _ = self.file_pattern, self.mask_pattern

    @property
    def kernel(self) -> str:
        """The resampling that is used."""
        return self.resampling or USUAL_KERNEL

    @property
    def days(self) -> Dates | None:
        """The dates that are given by hand."""
        return None if self.dates is None else parse_dates(self.dates)

    @property
    def file_pattern(self) -> Pattern | None:
        return None if self.pattern is None else Pattern.parse(self.pattern, "--pattern")

    @property
    def mask_pattern(self) -> Pattern | None:
        pattern = None if self.masks is None else Pattern.parse(self.masks, "--masks")
        if pattern is not None and "band" in pattern.fields:
            raise UsageError("--masks has no {band}", why=f"got '{self.masks}'", remedy="a mask holds for a whole date")
        return pattern

    def to_json(self) -> dict[str, Any]:
        """What the values depend on. The recipe of a scene is made of it: what is as always is left out."""
        chosen: dict[str, Any] = {"pattern": self.pattern, "masks": self.masks, "bands": self.bands}
        if self.clear != CLEAR_SCENE_CLASSES:
            chosen["scene_classes"] = list(self.clear)
        if self.kernel != USUAL_KERNEL:
            chosen["resampling"] = self.kernel
        if self.days is not None:
            chosen["dates"] = [day.isoformat() for day in self.days]
            chosen["order"] = "band" if self.by_band else "date"
        return {name: value for name, value in chosen.items() if value is not None}
