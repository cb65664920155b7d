"""Sensors and their bands: what a sensor is to a store, Sentinel-2's spellings and scene classes, radar in decibels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Sensor:
    """The bands that an acquisition of a sensor has: physical value = stored number * scale + offset."""

    name: str
    bands: tuple[str, ...]
    scale: float
    offset: float


def flat_bands(sensors: Sequence[Sensor], context: Sequence[str] = ()) -> tuple[str, ...]:
    """The bands of all sensors side by side, then the context; a name that two sensors have gets the sensor's before.

    Radar of two orbits has VV twice, Sentinel-2 and Landsat have B04.
    """
    counts = Counter([*context, *(band for sensor in sensors for band in sensor.bands)])
    named = [band if counts[band] == 1 else f"{sensor.name}:{band}" for sensor in sensors for band in sensor.bands]
    return (*named, *context)


# --- Sentinel-2

SCALE = 1e-4  # reflectance of one count: Sentinel-2's quantification, and that of all who do not say otherwise
SCENE_CLASSIFICATION = "SCL"
# Dark areas, vegetation, bare soil, water, unclassified. Not valid: nodata, saturated, cloud shadow,
# clouds, cirrus and snow.
CLEAR_SCENE_CLASSES = (2, 4, 5, 6, 7)


def clear_sky(scene_classes: NDArray[Any], clear: Collection[int] = CLEAR_SCENE_CLASSES) -> NDArray[np.bool_]:
    """True where the scene classification saw the ground."""
    return np.isin(scene_classes, list(clear))


def observed(values: NDArray[Any], nodata: float | None) -> NDArray[np.bool_]:
    """True where every band of a date has data; values is (T, C, H, W), the answer (T, H, W).

    Where a file does not say what nodata is, zero in all bands is: the black beyond the edge of a swath.
    """
    present: NDArray[np.bool_] = (values != 0).any(axis=1) if nodata is None else (values != nodata).all(axis=1)
    return present


# --- Bands

# In the order of ESA's band ids, 0 to 12.
SENTINEL2 = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B10", "B11", "B12")
# In metres, of the bands and of the scene classification.
NATIVE_RESOLUTION = dict(zip(SENTINEL2, (60, 10, 10, 10, 20, 20, 20, 10, 20, 60, 60, 20, 20), strict=True))
NATIVE_WITH_CLASSES = {**NATIVE_RESOLUTION, SCENE_CLASSIFICATION: 20}
# As catalogues call them. Elsewhere "red" may be of any sensor: only sources that know better ask for these.
COMMON_NAMES = {
    "coastal": "B01",
    "blue": "B02",
    "green": "B03",
    "red": "B04",
    "rededge1": "B05",
    "rededge071": "B05",
    "rededge2": "B06",
    "rededge075": "B06",
    "rededge3": "B07",
    "rededge078": "B07",
    "nir": "B08",
    "nir08": "B8A",
    "nir09": "B09",
    "cirrus": "B10",
    "swir16": "B11",
    "swir22": "B12",
}

WORD = rf"B0{{0,2}}(?:[1-9]|1[0-2]|8A)|{SCENE_CLASSIFICATION}"  # B2, B02, B002, B8A, B08A
SENSOR = r"(?:S(?:entinel)?[-_ ]?2[A-D]?[-_. ]{0,3}(?:L[12][A-C][-_. ]{0,3})?)?"  # S2-L2A-B02, Sentinel-2 B05, S2_B8A
ENDINGS = r"(?:[-_](?:[126]0m|mean|jp2|cog|tiff?))*"  # B02_10m, B2_mean, red-jp2
SPELLING = re.compile(rf"{SENSOR}(?P<word>{WORD}|{'|'.join(COMMON_NAMES)}){ENDINGS}", re.IGNORECASE | re.ASCII)


def sentinel2_band(text: str, *, common_names: bool = False) -> str | None:
    """The band or scene classification that a text names in any usual spelling: B01 to B12, B8A or SCL."""
    match = SPELLING.fullmatch(text.strip())
    if match is None:
        return None
    word = match["word"]
    if word.lower() in COMMON_NAMES:
        return COMMON_NAMES[word.lower()] if common_names else None
    name = word.upper()
    return name if name == SCENE_CLASSIFICATION else f"B{name[1:].lstrip('0').zfill(2)}"


def band_name(text: str) -> str:
    """The one name of a band: Sentinel-2's own, of anything else the text in capitals."""
    return sentinel2_band(text) or text.strip().upper()


def in_order(bands: Iterable[str]) -> list[str]:
    """Sentinel-2's bands in the order of its band ids, then the others as they come; each once."""
    places = {band: place for place, band in enumerate(SENTINEL2)}
    return sorted(dict.fromkeys(bands), key=lambda band: places.get(band, len(places)))
