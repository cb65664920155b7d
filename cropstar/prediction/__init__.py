"""Maps from models: exact windows, the state of a season, raster writers."""
