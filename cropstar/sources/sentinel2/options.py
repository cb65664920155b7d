"""What a user may choose when Sentinel-2 products are read, checked before any file is opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cropstar.errors import UsageError
from cropstar.geo.resampling import KERNELS
from cropstar.geo.sensors import CLEAR_SCENE_CLASSES, SCENE_CLASSIFICATION, SENTINEL2, band_name
from cropstar.registry import did_you_mean
from cropstar.sources.base import Bands

# In metres.
NATIVE_RESOLUTION = dict(zip(SENTINEL2, (60, 10, 10, 10, 20, 20, 20, 10, 20, 60, 60, 20, 20), strict=True))
NATIVE_WITH_CLASSES = {**NATIVE_RESOLUTION, SCENE_CLASSIFICATION: 20}
DEFAULT_BANDS: Bands = ("B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B11", "B12")
SCENE_CLASSES = range(1, 12)  # 0 is nodata
RESAMPLING = ("nearest", *KERNELS)


@dataclass(frozen=True)
class Sentinel2Options:
    """Bands (None: the ten of 10 and 20 m), resampling of the coarser ones, scene classes that count as clear."""

    bands: Bands | None = None
    resampling: str = "bilinear"
    clear: tuple[int, ...] = CLEAR_SCENE_CLASSES

    def __post_init__(self) -> None:
        if self.bands is not None:
            names = tuple(dict.fromkeys(band_name(band) for band in self.bands))
            known = [band for band in NATIVE_RESOLUTION if band != "B10"]  # cirrus is not in L2A
            for name in names:
                if name not in known:
                    raise UsageError(f"unknown Sentinel-2 L2A band '{name}'", remedy=did_you_mean(name, known))
            if not names:
                raise UsageError("no band is named", remedy=f"name some of {', '.join(known)}")
            object.__setattr__(self, "bands", names)
        if self.resampling not in RESAMPLING:
            raise UsageError(
                f"unknown resampling '{self.resampling}'", remedy=did_you_mean(self.resampling, RESAMPLING)
            )
        wrong = [number for number in self.clear if number not in SCENE_CLASSES]
        if wrong or not self.clear:
            why = f"got {', '.join(map(str, wrong)) or 'none'}"
            raise UsageError("scene classes are 1 to 11", why=why, remedy="the default is 2,4,5,6,7")
        object.__setattr__(self, "clear", tuple(sorted(set(self.clear))))

    def to_json(self) -> dict[str, Any]:
        return {"bands": self.bands, "resampling": self.resampling, "scene_classes": list(self.clear)}
