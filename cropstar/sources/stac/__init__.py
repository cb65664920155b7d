"""Sentinel-2 from any STAC API: a search over an area and a season, read from where the items point to."""

from cropstar.sources.stac.search import StacOptions, lonlat_extent
from cropstar.sources.stac.series import StacSeries, open_stac

__all__ = ["StacOptions", "StacSeries", "lonlat_extent", "open_stac"]
