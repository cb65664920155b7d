"""Bounds that keep a bad file from taking the machine down, each with the reason for its size."""

from __future__ import annotations

# A Sentinel-2 tile is 10,980 pixels a side; ten times that is no scene but a broken header.
MAXIMUM_RASTER_SIDE = 120_000
# 100 dates of 13 bands and a mask band, several times over.
MAXIMUM_RASTER_BANDS = 10_000
# The map is one byte a pixel and 255 means nodata.
MAXIMUM_CLASSES = 255
# A configuration is a page of text.
MAXIMUM_CONFIG_BYTES = 1_000_000
# The JSON in a model file: class tables and provenance, not data.
MAXIMUM_HEADER_BYTES = 16_000_000
# A tile is made, compressed and checked in memory, by every worker; 240 pixels of 70 dates and 13 bands are a tenth.
MAXIMUM_TILE_BYTES = 2**30
