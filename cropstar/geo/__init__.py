"""Grids, windows, calendars, raster files: numpy and rasterio, never torch."""
