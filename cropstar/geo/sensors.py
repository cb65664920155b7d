"""Sensors and their bands: Sentinel-2's names and scene classes, Landsat's and HLS', radar in decibels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST_SCALE = 1e9  # beyond it products of numbers are endless, or zero
MOST_VALUE = 1e30  # of an observation: its square is a number, too


def is_number(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where there is a value: neither NaN nor the largest float, which many files use as undeclared nodata."""
    usable: NDArray[np.bool_] = np.abs(values) <= MOST_VALUE
    return usable


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

OPTICAL = "S2"  # its name among several sensors
SCALE = 1e-4  # reflectance of one count: Sentinel-2's quantification, and that of all who do not say otherwise
SCENE_CLASSIFICATION = "SCL"
# Dark areas, vegetation, bare soil, water, unclassified. Not valid: nodata, saturated, cloud shadow,
# clouds, cirrus and snow.
CLEAR_SCENE_CLASSES = (2, 4, 5, 6, 7)


def clear_sky(scene_classes: NDArray[Any], clear: Collection[int] = CLEAR_SCENE_CLASSES) -> NDArray[np.bool_]:
    """True where the scene classification saw the ground."""
    return np.isin(scene_classes, list(clear))


# Quality bands of bits: those of which one hides the ground, and values without data.
LANDSAT_QA, HLS_FMASK = "QA_PIXEL", "FMASK"
HIDING_BITS = {
    LANDSAT_QA: 0b111111,  # fill, dilated cloud, cirrus, cloud, cloud shadow, snow
    HLS_FMASK: 0b011110,  # cloud, next to cloud or shadow, cloud shadow, snow
}
EMPTY_QUALITY = {LANDSAT_QA: 0, HLS_FMASK: 255}


def clear_bits(quality: NDArray[Any], kind: str) -> NDArray[np.bool_]:
    """True where Landsat's QA_PIXEL or the Fmask of HLS saw the ground."""
    numbers = quality.astype(np.int64)
    clear: NDArray[np.bool_] = ((numbers & HIDING_BITS[kind]) == 0) & (numbers != EMPTY_QUALITY[kind])
    return clear


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
# S2-L2A-B02, Sentinel-2 B05, S2_B8A, OPTICAL-B02
SENSOR = r"(?:OPTICAL[-_]|S(?:entinel)?[-_ ]?2[A-D]?[-_. ]{0,3}(?:L[12][A-C][-_. ]{0,3})?)?"
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


# --- Sentinel-1: backscatter, which is kept in decibels

# As stored: -45 to 20.5 dB in steps of a thousandth, with zero for nothing; what Sentinel-1 can tell apart is 0.1 dB.
DECIBEL_SCALE, DECIBEL_OFFSET = 0.001, -45.0
RADAR_BANDS = ("VV", "VH", "HH", "HV")
ORBITS = {"a": "ASC", "d": "DESC"}
ORBIT = r"asc(?:ending)?|desc(?:ending)?|dsc"
RADAR = re.compile(
    rf"(?:(?:s(?:entinel)?[-_ ]?1[a-d]?|sar|radar)[-_. ]+)?(?:(?:grd|rtc|iw|sigma0|gamma0|beta0|sigma|gamma)[-_. ]+)*"
    rf"(?:(?P<before>{ORBIT})[-_. ]+)?(?P<band>vv|vh|hh|hv)(?:[-_. ]+(?:db|linear|lin|mean|[12]0m))*"
    rf"(?:[-_. ]+(?P<after>{ORBIT}))?(?:[-_. ]+(?:db|mean|[12]0m))*",
    re.IGNORECASE | re.ASCII,
)
ORBIT_WORD = re.compile(rf"(?<![a-z])(?:{ORBIT})(?![a-z])", re.IGNORECASE | re.ASCII)


BACKSCATTER_KINDS = {"dB": "decibels", "linear": "linear power", "DN": "digital numbers (dB = 20 log10(DN) - 83)"}


def radar_band(text: str) -> tuple[str, str] | None:
    """The polarisation in a text, and the sensor: S1, or S1-ASC or S1-DESC if the text names the orbit."""
    match = RADAR.fullmatch(text.strip())
    if match is None:
        return None
    return match["band"].upper(), radar_name(match["before"] or match["after"] or "")


def radar_name(text: str) -> str:
    """The name of the sensor by the orbit that a text speaks of: the two directions differ by up to 3 dB."""
    match = ORBIT_WORD.search(text)
    return f"S1-{ORBITS[match[0][0].lower()]}" if match else "S1"


def is_radar(bands: Collection[str]) -> bool:
    """Whether all bands are backscatter."""
    return bool(bands) and all(radar_band(band) is not None for band in bands)


def backscatter_kind(values: NDArray[Any]) -> str:
    """The unit of backscatter values: "dB", "linear" power, or "DN" (dB = 20 log10(DN) - 83).

    Values are without nodata, as physical as their file says. A ValueError says why they are neither.
    """
    negative = float((values < 0).mean())
    low, middle, high = np.percentile(values, (1, 50, 99))
    if negative >= 0.9 and low > -70 and high < 30:
        return "dB"
    if negative <= 0.01 and 0 < middle <= 10:
        return "linear"
    if negative == 0 and middle >= 100 and high <= 65_535 and np.array_equal(values, np.round(values)):
        return "DN"
    if 0.01 < negative < 0.9 and low > -70:
        raise ValueError(f"{negative:.0%} of the values are below zero: decibels and linear power are mixed")
    raise ValueError(f"half of the values are below {middle:g}: neither decibels (-35 to 5) nor linear power (0 to 1)")


def is_of_kind(values: NDArray[Any], kind: str) -> bool:
    """Whether the values of one date can be of a kind: most decibels are below zero, and no other unit is."""
    return not values.size or bool((values < 0).mean() >= 0.5) == (kind == "dB")


def to_decibels(values: NDArray[Any], kind: str) -> NDArray[np.float32]:
    """Backscatter of a kind in dB; of no power at all, minus infinity."""
    wide = np.asarray(values, dtype=np.float32)
    if kind == "dB":
        return wide
    with np.errstate(divide="ignore", invalid="ignore"):
        power: NDArray[np.float32] = np.log10(wide)
    return 20 * power - 83 if kind == "DN" else 10 * power


def decibel_counts(decibels: NDArray[Any]) -> NDArray[np.uint16]:
    """Decibels as stored counts (see DECIBEL_SCALE); NaN becomes zero."""
    with np.errstate(invalid="ignore"):
        counts = np.floor((np.asarray(decibels, dtype=np.float64) - DECIBEL_OFFSET) / DECIBEL_SCALE + 0.5)
    kept: NDArray[np.uint16] = np.nan_to_num(np.clip(counts, 1, 65_535), nan=0).astype(np.uint16)
    return kept


def in_order(bands: Iterable[str]) -> list[str]:
    """Sentinel-2's bands in the order of its band ids, then the others as they come; each once."""
    places = {band: place for place, band in enumerate(SENTINEL2)}
    return sorted(dict.fromkeys(bands), key=lambda band: places.get(band, len(places)))


# --- Landsat and HLS: bands by the names of the Sentinel-2 bands of the same wavelengths

OLI = {"B1": "B01", "B2": "B02", "B3": "B03", "B4": "B04", "B5": "B8A", "B6": "B11", "B7": "B12"}  # Landsat 8 and 9
TM = {"B1": "B02", "B2": "B03", "B3": "B04", "B4": "B8A", "B5": "B11", "B7": "B12"}  # Landsat 4 to 7
HLS_L30 = {f"B{own[1:].zfill(2)}": band for own, band in OLI.items()}
HLS_S30 = {band: band for band in SENTINEL2 if band not in ("B09", "B10")}
LANDSAT_RADIOMETRY = (2.75e-5, -0.2)  # of surface reflectance in Collection 2; its files do not say so
INDICES = frozenset(  # computed from bands: no reflectance
    (
        *("NDVI", "EVI", "EVI2", "SAVI", "OSAVI", "MSAVI", "NDWI", "MNDWI"),
        *("NDMI", "NBR", "NDRE", "GNDVI", "NDSI", "LAI", "FAPAR"),
    )
)
