"""What a user may choose when a STAC API is searched, checked before anything is sent."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import date
from typing import Any

from rasterio.crs import CRS
from rasterio.errors import CRSError

from cropstar.errors import UsageError
from cropstar.geo.sensors import CLEAR_SCENE_CLASSES
from cropstar.sources.base import Bands
from cropstar.sources.sentinel2.options import Sentinel2Options

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class StacOptions:
    """Area (west, south, east, north in degrees) and season, both ends included; the rest as for SAFE products.

    Without a resolution the grid is that of the finest band, without a CRS that of most items.
    """

    collection: str
    bbox: Box
    start: date
    end: date
    bands: Bands | None = None
    clear: tuple[int, ...] = CLEAR_SCENE_CLASSES
    max_cloud: float = 100.0
    resolution: float | None = None
    crs: str | None = None
    resampling: str = "bilinear"

    def __post_init__(self) -> None:
        if not self.collection.strip():
            raise UsageError("which collection?", remedy="name it with --collection, such as sentinel-2-l2a")
        common = Sentinel2Options(self.bands, self.resampling, self.clear)
        object.__setattr__(self, "bands", common.bands)
        object.__setattr__(self, "clear", common.clear)
        object.__setattr__(self, "bbox", _box(self.bbox))
        if self.end < self.start:
            raise UsageError(f"the season ends on {self.end} before it starts on {self.start}", remedy="swap them")
        if not 0 <= self.max_cloud <= 100:
            raise UsageError("the cloud cover is a percentage", why=f"got {self.max_cloud:g}", remedy="give 0 to 100")
        if self.resolution is not None and not 1 <= self.resolution <= 10_000:
            why = f"got {self.resolution:g}"
            raise UsageError("the resolution is the side of a pixel in metres", why=why, remedy="give 10 or 20")
        if self.crs is not None:
            object.__setattr__(self, "crs", _metric_crs(self.crs))

    def to_json(self) -> dict[str, Any]:
        return {
            "collection": self.collection,
            "bbox": list(self.bbox),
            "season": [self.start.isoformat(), self.end.isoformat()],
            "bands": self.bands,
            "scene_classes": list(self.clear),
            "max_cloud": self.max_cloud,
            "resolution": self.resolution,
            "crs": self.crs,
            "resampling": self.resampling,
        }


def _box(numbers: Box) -> Box:
    remedy = "give west,south,east,north in degrees, such as 3.2,43.6,3.4,43.7"
    if len(numbers) != 4 or not all(math.isfinite(number) for number in numbers):
        raise UsageError("the area is no box of four numbers", remedy=remedy)
    west, south, east, north = map(float, numbers)
    if not (-180 <= west < east <= 180 and -90 <= south < north <= 90):
        why = f"got {west:g},{south:g},{east:g},{north:g}"
        raise UsageError("the area is no box in degrees", why=why, remedy=remedy)
    return west, south, east, north


def _metric_crs(text: str) -> str:
    try:
        crs = CRS.from_user_input(text)
        if crs.is_projected and crs.linear_units_factor[1] == 1:
            return text
        why = "its unit is not the metre"
    except CRSError as failure:
        why = str(failure)
    raise UsageError(f"no usable coordinate system '{text}'", why=why, remedy="give one such as EPSG:32631")
