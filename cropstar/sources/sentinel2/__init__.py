"""Sentinel-2 L2A products as ESA delivers them: .SAFE folders and .zip archives, one series per tile."""

from cropstar.sources.sentinel2.products import Product, find_products, looks_like_sentinel2
from cropstar.sources.sentinel2.series import Sentinel2Options, Sentinel2Series, open_sentinel2

__all__ = [
    "Product",
    "Sentinel2Options",
    "Sentinel2Series",
    "find_products",
    "looks_like_sentinel2",
    "open_sentinel2",
]
