"""Which asset of an item is which band: catalogues call B04 also red, B04_10m or red-jp2."""

from __future__ import annotations

import re
from typing import Any

from cropstar.geo.sensors import sentinel2_band
from cropstar.sources.sentinel2.options import NATIVE_WITH_CLASSES as NATIVE

RESOLUTION = re.compile(r"_(\d{2})m(?:$|[-_])")
NO_DATA_ROLES = {"thumbnail", "overview", "visual", "metadata"}

Json = dict[str, Any]


def assets_by_band(assets: Json) -> dict[str, tuple[str, Json]]:
    """Key and asset of each band: the native resolution before others, then GeoTIFF before JPEG 2000.

    A GeoTIFF is the easier one to read piece by piece over a network.
    """
    ranked: dict[str, tuple[tuple[bool, float, bool, str], Json]] = {}
    for key, asset in sorted(assets.items()):
        if not isinstance(asset, dict) or not _has_pixels(asset) or (band := _band(key, asset)) is None:
            continue
        resolution = _resolution(key, asset) or float(NATIVE[band])
        rank = (resolution != NATIVE[band], resolution, _is_jpeg_2000(asset), key)
        if band not in ranked or rank < ranked[band][0]:
            ranked[band] = rank, asset
    return {band: (rank[3], asset) for band, (rank, asset) in sorted(ranked.items())}


def described_bands(asset: Json, field: str) -> list[Json]:
    """What an asset says of its bands in a field such as `eo:bands`."""
    bands = asset.get(field)
    return [band for band in bands if isinstance(band, dict)] if isinstance(bands, list) else []


def _band(key: str, asset: Json) -> str | None:
    """By the name of its one band, else by its key, else by the common name of the band."""
    described = [*described_bands(asset, "eo:bands"), *described_bands(asset, "bands")]
    if max(len(described_bands(asset, field)) for field in ("eo:bands", "bands", "raster:bands")) > 1:
        return None  # a picture of several bands
    names = [band.get("name") for band in described]
    common = [band.get(field) for field in ("common_name", "eo:common_name") for band in described]
    for name in (*names, key, *common):
        if isinstance(name, str) and (band := sentinel2_band(name, common_names=True)):
            return band
    return None


def _has_pixels(asset: Json) -> bool:
    roles = asset.get("roles")
    media = asset.get("type")
    if isinstance(roles, list) and NO_DATA_ROLES.intersection(map(str, roles)):
        return False
    return isinstance(asset.get("href"), str) and (not isinstance(media, str) or media.startswith("image/"))


def _is_jpeg_2000(asset: Json) -> bool:
    return "jp2" in str(asset.get("type", "")) or str(asset["href"]).partition("?")[0].lower().endswith(".jp2")


def _resolution(key: str, asset: Json) -> float | None:
    transform = asset.get("proj:transform")
    if isinstance(transform, list) and transform and isinstance(transform[0], int | float):
        return abs(float(transform[0]))
    if found := RESOLUTION.search(key):
        return float(found[1])
    listed = [band.get("spatial_resolution") for band in described_bands(asset, "raster:bands")]
    for value in (*listed, asset.get("raster:spatial_resolution"), asset.get("gsd")):
        if isinstance(value, int | float):
            return float(value)
    return None
