"""How an item's numbers become reflectance, from what the item says of itself and never from its date.

In this order:

1. A property `...:boa_offset_applied` that is true: the offset is already in the numbers, whatever else is listed.
2. `offset` of the asset's band (`raster:bands`, `bands` or the asset itself).
3. The processing baseline: -1000 since 04.00, none before.
4. None of these: no offset, and the series says aloud that this is assumed.

The scale is that of the asset's band, else 1e-4.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from cropstar.errors import InputError
from cropstar.geo.sensors import SCALE
from cropstar.sources.stac.bands import Json, described_bands

APPLIED = ("earthsearch:boa_offset_applied", "sentinel:boa_offset_applied", "s2:boa_offset_applied")
BASELINES = ("s2:processing_baseline", "sentinel2:processing_baseline", "sentinel:processing_baseline")
VERSION = "processing:version"
PRODUCTS = ("s2:product_uri", "sentinel:product_id", "sentinel2:product_uri")
BASELINE_IN_NAME = re.compile(r"_N(\d{2})(\d{2})_")
OFFSET_BASELINE, BASELINE_OFFSET = (4, 0), -1000.0
REMEDY = "report it to those who keep the catalogue"


@dataclass(frozen=True)
class Reflectance:
    """value = (number + offset) * gain, in the scale of the series."""

    offset: float
    gain: float
    assumed: bool  # the item says nothing of an offset


def baseline_of(identifier: str, properties: Json) -> tuple[int, int] | None:
    """The processing baseline, of properties or of the product's name."""
    for name in (*BASELINES, VERSION):
        if found := re.fullmatch(r"(\d{1,2})\.(\d{1,2})", str(properties.get(name, ""))):
            return int(found[1]), int(found[2])
    for text in (*(str(properties.get(name, "")) for name in PRODUCTS), identifier):
        if found := BASELINE_IN_NAME.search(text):
            return int(found[1]), int(found[2])
    return None


def reflectance_of(identifier: str, properties: Json, key: str, asset: Json) -> Reflectance:
    scale = _listed(asset, "scale", f"{identifier}, asset {key}")
    offset = _listed(asset, "offset", f"{identifier}, asset {key}")
    scale = SCALE if scale is None else scale
    if scale <= 0 or scale > 1:
        raise _unclear(f"{identifier}, asset {key}", f"its scale is {scale:g}")
    baseline = baseline_of(identifier, properties)
    assumed = False
    if any(properties.get(name) is True for name in APPLIED):
        numbers = 0.0
    elif offset is not None:
        numbers = _whole(offset / scale)
    elif baseline is not None:
        numbers = BASELINE_OFFSET * SCALE / scale if baseline >= OFFSET_BASELINE else 0.0
    else:
        numbers, assumed = 0.0, True
    return Reflectance(_whole(numbers), _whole(scale / SCALE), assumed)


def check_nodata(identifier: str, key: str, asset: Json) -> None:
    """Zero is nodata in Sentinel-2; a catalogue that changed it would be read wrongly."""
    nodata = _find(asset, "nodata")
    if nodata not in (None, 0, "0"):
        raise _unclear(f"{identifier}, asset {key}", f"its nodata is {str(nodata)[:20]} instead of 0")


def _listed(asset: Json, name: str, where: str) -> float | None:
    value = _find(asset, name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or abs(value) > 1e6:
        raise _unclear(where, f"its {name} is {str(value)[:20]}")
    return float(value)


def _find(asset: Json, name: str) -> Any:
    places = [*described_bands(asset, "raster:bands"), *described_bands(asset, "bands"), asset]
    return next((place[word] for place in places for word in (name, f"raster:{name}") if word in place), None)


def _whole(number: float) -> float:
    """Without the rounding of decimals: -0.1 / 0.0001 is meant to be -1000."""
    return float(round(number)) if abs(number - round(number)) < 1e-6 else number


def _unclear(where: str, why: str) -> InputError:
    return InputError("unclear reflectance", path=f"the item {where}", why=why, remedy=REMEDY)
