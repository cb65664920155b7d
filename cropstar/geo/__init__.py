"""Space and time without learning: grids, windows, calendars, raster files. numpy and rasterio, never torch."""
