"""Sentinel-2, Landsat and HLS from any STAC API: the items of an area and a season, read where they lie."""

from cropstar.sources.stac.search import StacOptions, lonlat_extent
from cropstar.sources.stac.series import StacSeries, open_stac

__all__ = ["StacOptions", "StacSeries", "lonlat_extent", "open_stac"]
