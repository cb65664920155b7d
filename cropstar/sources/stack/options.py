"""What a user may choose when GeoTIFF stacks are read, checked before any file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cropstar.errors import UsageError
from cropstar.geo.bands import band_name
from cropstar.geo.radiometry import CLEAR_SCENE_CLASSES
from cropstar.sources.sentinel2.options import Sentinel2Options
from cropstar.sources.series import Bands
from cropstar.sources.stack.patterns import Pattern

USUAL_KERNEL = "bilinear"


@dataclass(frozen=True)
class StackOptions:
    """How the files of a folder are told apart, and what is read of them.

    `pattern` names the files, as "S2_{band}_{date}.tif"; without it names are guessed. `masks` names the masks of
    each date in the same way: files of one band in which 0 is clear and anything else is not. `bands` are those to
    read, in that order; of files whose bands have no names it gives the names. `clear` are the classes to keep of
    the scene classification, `resampling` is for bands of coarser pixels,
    bilinear where it is not given.
    """

    pattern: str | None = None
    masks: str | None = None
    bands: Bands | None = None
    clear: tuple[int, ...] = CLEAR_SCENE_CLASSES
    resampling: str | None = None

    def __post_init__(self) -> None:
        checked = Sentinel2Options(resampling=self.kernel, clear=tuple(self.clear))
        object.__setattr__(self, "clear", checked.clear)
        if self.bands is not None:
            names = tuple(band_name(band) for band in self.bands)
            if not names or not all(names) or len(set(names)) < len(names):
                why = f"got '{','.join(self.bands)}'"
                raise UsageError("--bands wants names, each once", why=why, remedy="such as --bands B02,B03,B04,B08")
            object.__setattr__(self, "bands", names)
        _ = self.file_pattern, self.mask_pattern

    @property
    def kernel(self) -> str:
        """The resampling that is used."""
        return self.resampling or USUAL_KERNEL

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
        return {name: value for name, value in chosen.items() if value is not None}
